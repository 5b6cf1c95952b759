#define BITSTRATA_PLAIN_LANES  // also where the compiler may use vectors everywhere
#include "float_step_loops.h"

namespace bitstrata::portable {

void float_step(const FloatStep& step, const float* external, const Epilogue& epilogue, Range pixels,
                Range blocks) noexcept {
    run_float_step(step, external, epilogue, pixels, blocks);
}

}  // namespace bitstrata::portable

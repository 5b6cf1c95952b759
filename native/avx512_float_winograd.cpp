#include "float_winograd_loops.h"

namespace bitstrata::avx512 {

void float_winograd(const FloatWinogradView& layer, const Call& call, Range sets, Range groups) noexcept {
    run_sets(layer, call, sets, groups);
}

}  // namespace bitstrata::avx512

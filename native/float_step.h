// Steps without weights: they make tiles of floats from floats, and the epilogue does the rest.
#pragma once

#include <cstddef>

#include "buffer.h"
#include "epilogue.h"
#include "layer.h"

namespace bitstrata {

enum class FloatKind {
    input,  // from the caller's memory, NCHW
    copy,   // the value as it is: for an affine map or an activation alone
    add,
    multiply,
    concatenate,
    max_pool,
    average_pool,
    adaptive_max_pool,
    adaptive_average_pool,
    pad,
    slice,
    reshape,
};

enum class PadMode { constant, reflect, replicate, circular };

// The window of a pooling.
struct Window {
    std::size_t kernel_height, kernel_width, stride_height, stride_width, dilation_height, dilation_width;
    Border padding;
    bool count_padding;
};

struct FloatStep {
    FloatKind kind;
    const Buffer* sources;  // dense, in the arena
    std::size_t source_count;
    Image result;
    Window window;          // of max_pool and average_pool
    std::size_t rows_before = 0;  // of the source, counted over all its images: so many are not there
    PadMode mode;           // of pad: places before the first channel, row and column
    std::size_t before, top, left;
    float value;
    std::size_t axis, start, step;  // of slice; axes as in NCHW
};

// Strips of pixels that an input is made of at once: it is copied faster than single strips are handed out.
constexpr std::size_t kInputStrips = 16;

// Makes at most kStrip pixels, of an input kInputStrips times as many, of some blocks of kLanes channels. `external` is
// the caller's memory, for an input.
using FloatStepLoops = void (*)(const FloatStep&, const float* external, const Epilogue&, Range pixels,
                                Range blocks) noexcept;

namespace portable {
void float_step(const FloatStep& step, const float* external, const Epilogue& epilogue, Range pixels,
                Range blocks) noexcept;
}
#if defined(BITSTRATA_AVX2)
namespace avx2 {
void float_step(const FloatStep& step, const float* external, const Epilogue& epilogue, Range pixels,
                Range blocks) noexcept;
}
#endif
#if defined(BITSTRATA_AVX512)
namespace avx512 {
void float_step(const FloatStep& step, const float* external, const Epilogue& epilogue, Range pixels,
                Range blocks) noexcept;
}
#endif
#if defined(BITSTRATA_NEON)
namespace neon {
void float_step(const FloatStep& step, const float* external, const Epilogue& epilogue, Range pixels,
                Range blocks) noexcept;
}
#endif

}  // namespace bitstrata

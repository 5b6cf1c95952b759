// Float layers with AVX2 and FMA. Their sums are rounded once per product, so they may differ from others' in the last
// bits; the epilogue after them is exact as everywhere.
#include <immintrin.h>

#include "finish_loops.h"
#include "kernels.h"

namespace bitstrata::avx2 {
namespace {

constexpr std::size_t kTile = 6;  // by 16 channels: twelve sums, two vectors of weights and one of inputs

template <int P>
inline void sum_tile(const PackedView<float>& layer, const Block& block, std::size_t row, const float* const* windows,
                     float (*to)[kLanes]) {
    __m256 sums[P][2];
    for (int p = 0; p < P; ++p) sums[p][0] = sums[p][1] = _mm256_setzero_ps();
    const float* weights = layer.weights + block.weights;
    const Run* last = layer.runs + block.last_run;
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        const float* input[P];
        for (int p = 0; p < P; ++p) input[p] = windows[p] + run->row * row + run->column;
        for (std::size_t step = 0, end = run->steps; step != end; ++step, weights += kLanes) {
            const __m256 first = _mm256_loadu_ps(weights), second = _mm256_loadu_ps(weights + 8);
#pragma GCC unroll 6
            for (int p = 0; p < P; ++p) {
                const __m256 value = _mm256_broadcast_ss(input[p] + step);
                sums[p][0] = _mm256_fmadd_ps(value, first, sums[p][0]);
                sums[p][1] = _mm256_fmadd_ps(value, second, sums[p][1]);
            }
        }
    }
    for (int p = 0; p < P; ++p) {
        _mm256_storeu_ps(to[p], sums[p][0]);
        _mm256_storeu_ps(to[p] + 8, sums[p][1]);
    }
}

}  // namespace

void floats(const PackedView<float>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const std::size_t count = pixels.end - pixels.begin;
    Position positions[kStrip];
    const float* windows[kStrip];
    locate(call.height, call.width, pixels.begin, pixels.end, positions);
    for (std::size_t p = 0; p < count; ++p) {
        const Position& at = positions[p];
        windows[p] = static_cast<const float*>(call.input) + at.sample * call.image +
                     at.y * layer.stride_height * call.row + at.x * layer.stride_width * layer.inputs;
    }
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        for (std::size_t first = 0; first < count;) {
            const std::size_t some = count - first < kTile ? 1 : kTile;
            float sums[kTile][kLanes];
            if (some == kTile) {
                sum_tile<static_cast<int>(kTile)>(layer, block, call.row, windows + first, sums);
            } else {
                sum_tile<1>(layer, block, call.row, windows + first, sums);
            }
            finish(call.epilogue, sums, positions + first, pixels.begin + first, some, block.channel, block.channels);
            first += some;
        }
    }
}

}  // namespace bitstrata::avx2

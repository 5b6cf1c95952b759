// Convolution on codes with AVX2: four codes are broadcast, multiplied with those of eight channels at once, and summed
// in 16 bits.
#include <immintrin.h>

#include "finish_loops.h"
#include "kernels.h"

namespace bitstrata::avx2 {
namespace {

constexpr std::size_t kTile = 4;  // pixels; with two vectors of channels the sums stay in registers

inline __m256i broadcast4(const std::uint8_t* from) {
    std::int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm256_set1_epi32(four);
}

inline __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// Sums of P pixels and V vectors of eight channels.
template <int P, int V>
inline void sum_tile(const PackedView<std::int8_t>& layer, const Block& block, std::size_t row,
                     const std::uint8_t* const* windows, std::int32_t (*sums)[kLanes]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const std::int8_t* weights = layer.weights + block.weights;
    __m256i short_sums[P][V];
    for (int p = 0; p < P; ++p) {
        for (int v = 0; v < V; ++v) short_sums[p][v] = _mm256_setzero_si256();
        std::memset(sums[p], 0, sizeof sums[p]);
    }
    const Run* last = layer.runs + block.last_run;
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        const std::uint8_t* input[P];
        for (int p = 0; p < P; ++p) input[p] = windows[p] + run->row * row + run->column;
        for (std::size_t offset = 0, end = run->steps * 4; offset != end; offset += 4, weights += kLanes * 4) {
            __m256i vectors[V];
            for (int v = 0; v < V; ++v) vectors[v] = load(weights + v * 32);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                const __m256i codes = broadcast4(input[p] + offset);
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) {
                    short_sums[p][v] = _mm256_add_epi16(short_sums[p][v], _mm256_maddubs_epi16(codes, vectors[v]));
                }
            }
        }
        if (!run->flush) continue;
        for (int p = 0; p < P; ++p) {
            for (int v = 0; v < V; ++v) {
                auto* sum = reinterpret_cast<__m256i*>(sums[p] + v * 8);
                const __m256i widened = _mm256_madd_epi16(short_sums[p][v], ones);
                _mm256_storeu_si256(sum, _mm256_add_epi32(_mm256_loadu_si256(sum), widened));
                short_sums[p][v] = _mm256_setzero_si256();
            }
        }
    }
}

template <int V>
inline void sum_tile(const PackedView<std::int8_t>& layer, const Block& block, std::size_t row,
                     const std::uint8_t* const* windows, std::size_t pixels, std::int32_t (*sums)[kLanes]) {
    switch (pixels) {
        case 1:
            return sum_tile<1, V>(layer, block, row, windows, sums);
        case 2:
            return sum_tile<2, V>(layer, block, row, windows, sums);
        case 3:
            return sum_tile<3, V>(layer, block, row, windows, sums);
        default:
            return sum_tile<4, V>(layer, block, row, windows, sums);
    }
}

// The sum of all codes of a window, in one group.
inline std::int32_t window_sum(const PackedView<std::int8_t>& layer, const std::uint8_t* window, std::size_t row) {
    alignas(32) static constexpr std::uint8_t kMasks[64] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    const __m256i zero = _mm256_setzero_si256();
    __m256i sum = zero;
    for (std::size_t index = 0; index < layer.segment_count; ++index) {
        const Segment& segment = layer.segments[index];
        const std::uint8_t* from = window + segment.row * row + segment.column;
        std::size_t left = segment.length;
        for (; left >= 32; left -= 32, from += 32) sum = _mm256_add_epi64(sum, _mm256_sad_epu8(load(from), zero));
        if (left > 0) {
            const __m256i inside = _mm256_and_si256(load(from), load(kMasks + 32 - left));
            sum = _mm256_add_epi64(sum, _mm256_sad_epu8(inside, zero));
        }
    }
    alignas(32) std::int64_t quarters[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(quarters), sum);
    return static_cast<std::int32_t>(quarters[0] + quarters[1] + quarters[2] + quarters[3]);
}

}  // namespace

void direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const std::size_t count = pixels.end - pixels.begin;
    Position positions[kStrip];
    const std::uint8_t* windows[kStrip];
    std::int32_t window_sums[kStrip];
    locate(call.height, call.width, pixels.begin, pixels.end, positions);
    for (std::size_t p = 0; p < count; ++p) {
        const Position& at = positions[p];
        windows[p] = static_cast<const std::uint8_t*>(call.input) + at.sample * call.image +
                     at.y * layer.stride_height * call.row + at.x * layer.stride_width * layer.inputs;
    }
    std::size_t summed_group = static_cast<std::size_t>(-1);
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        if (layer.compensation != 0 && block.group != summed_group) {
            for (std::size_t p = 0; p < count; ++p) {
                window_sums[p] = layer.compensation *
                                 window_sum(layer, windows[p] + block.group * layer.group_inputs, call.row);
            }
            summed_group = block.group;
        }
        for (std::size_t first = 0; first < count; first += kTile) {
            const std::size_t some = count - first < kTile ? count - first : kTile;
            std::int32_t sums[kTile][kLanes];
            if (block.channels > 8) {
                sum_tile<2>(layer, block, call.row, windows + first, some, sums);
            } else {
                sum_tile<1>(layer, block, call.row, windows + first, some, sums);
            }
            const std::int32_t* offsets = layer.offsets + block.channel;
            for (std::size_t p = 0; p < some; ++p) {
                const std::int32_t added = layer.compensation != 0 ? window_sums[first + p] : 0;
                for (std::size_t lane = 0; lane < kLanes; ++lane) {
                    // Unsigned: parts of a sum that fits may wrap.
                    const std::uint32_t shifted = static_cast<std::uint32_t>(sums[p][lane]) << layer.shift;
                    sums[p][lane] = static_cast<std::int32_t>(shifted + static_cast<std::uint32_t>(added) +
                                                              static_cast<std::uint32_t>(offsets[lane]));
                }
            }
            finish(call.epilogue, sums, positions + first, pixels.begin + first, some, block.channel, block.channels);
        }
    }
}

}  // namespace bitstrata::avx2

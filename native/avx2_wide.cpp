// Quantised layers with AVX2 in 16-bit integers: depthwise ones, and those whose 8-bit products could saturate.
#include <immintrin.h>

#include "finish_loops.h"
#include "kernels.h"

namespace bitstrata::avx2 {
namespace {

constexpr std::size_t kTile = 4;

inline __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

inline __m256i broadcast4(const std::uint8_t* from) {
    std::int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm256_set1_epi32(four);
}

inline const std::uint8_t* window(const PackedView<std::int16_t>& layer, const Call& call, const Position& at) {
    return static_cast<const std::uint8_t*>(call.input) + at.sample * call.image +
           at.y * layer.stride_height * call.row + at.x * layer.stride_width * layer.inputs;
}

template <int P>
inline void store(const __m256i (&sums)[P][2], std::int32_t (*to)[kLanes]) {
    for (int p = 0; p < P; ++p) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[p]), sums[p][0]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[p] + 8), sums[p][1]);
    }
}

// Of every four codes, the even and the odd ones are multiplied in turn: masks and shifts widen a broadcast that loads
// can make. The weights are packed in that order.
template <int P>
inline void sum_wide(const PackedView<std::int16_t>& layer, const Block& block, std::size_t row,
                     const std::uint8_t* const* windows, std::int32_t (*to)[kLanes]) {
    __m256i sums[P][2];
    for (int p = 0; p < P; ++p) {
        sums[p][0] = load(layer.offsets + block.channel);
        sums[p][1] = load(layer.offsets + block.channel + 8);
    }
    const std::int16_t* weights = layer.weights + block.weights;
    const __m256i low_bytes = _mm256_set1_epi16(0xff);
    const Run* last = layer.runs + block.last_run;
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        const std::uint8_t* input[P];
        for (int p = 0; p < P; ++p) input[p] = windows[p] + run->row * row + run->column;
        for (std::size_t offset = 0, end = run->steps * 4; offset != end; offset += 4, weights += kLanes * 4) {
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                const __m256i codes = broadcast4(input[p] + offset);
                const __m256i even = _mm256_and_si256(codes, low_bytes), odd = _mm256_srli_epi16(codes, 8);
                sums[p][0] = _mm256_add_epi32(sums[p][0], _mm256_madd_epi16(even, load(weights)));
                sums[p][1] = _mm256_add_epi32(sums[p][1], _mm256_madd_epi16(even, load(weights + 16)));
                sums[p][0] = _mm256_add_epi32(sums[p][0], _mm256_madd_epi16(odd, load(weights + 32)));
                sums[p][1] = _mm256_add_epi32(sums[p][1], _mm256_madd_epi16(odd, load(weights + 48)));
            }
        }
    }
    store<P>(sums, to);
}

template <int P>
inline void sum_depthwise(const PackedView<std::int16_t>& layer, const Block& block, std::size_t row,
                          const std::uint8_t* const* windows, std::int32_t (*to)[kLanes]) {
    __m256i sums[P][2];
    for (int p = 0; p < P; ++p) {
        sums[p][0] = load(layer.offsets + block.channel);
        sums[p][1] = load(layer.offsets + block.channel + 8);
    }
    const std::int16_t* weights = layer.weights + block.weights;
    for (std::size_t tap = 0; tap < layer.segment_count; tap += 2, weights += kLanes * 2) {
        const Segment& one = layer.segments[tap];
        // The last tap of an odd number is paired with itself, and a weight of zero.
        const Segment& other = layer.segments[tap + 1 < layer.segment_count ? tap + 1 : tap];
        const std::size_t one_at = one.row * row + one.column + block.channel;
        const std::size_t other_at = other.row * row + other.column + block.channel;
        const __m256i first = load(weights), second = load(weights + 16);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(windows[p] + one_at));
            const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(windows[p] + other_at));
            const __m256i low = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
            const __m256i high = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
            sums[p][0] = _mm256_add_epi32(sums[p][0], _mm256_madd_epi16(low, first));
            sums[p][1] = _mm256_add_epi32(sums[p][1], _mm256_madd_epi16(high, second));
        }
    }
    store<P>(sums, to);
}

using Sum = void (*)(const PackedView<std::int16_t>&, const Block&, std::size_t, const std::uint8_t* const*,
                     std::int32_t (*)[kLanes]);

template <Sum One, Sum Four>
inline void by_tile(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) {
    const std::size_t count = pixels.end - pixels.begin;
    Position positions[kStrip];
    const std::uint8_t* windows[kStrip];
    locate(call.height, call.width, pixels.begin, pixels.end, positions);
    for (std::size_t p = 0; p < count; ++p) windows[p] = window(layer, call, positions[p]);
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        for (std::size_t first = 0; first < count;) {
            const std::size_t some = count - first < kTile ? 1 : kTile;
            std::int32_t sums[kTile][kLanes];
            (some == kTile ? Four : One)(layer, block, call.row, windows + first, sums);
            finish(call.epilogue, sums, positions + first, pixels.begin + first, some, block.channel, block.channels);
            first += some;
        }
    }
}

}  // namespace

void wide(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    by_tile<sum_wide<1>, sum_wide<4>>(layer, call, pixels, blocks);
}

void depthwise(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    by_tile<sum_depthwise<1>, sum_depthwise<4>>(layer, call, pixels, blocks);
}

}  // namespace bitstrata::avx2

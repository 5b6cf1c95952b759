// Depthwise convolution with AVX-512 VNNI. The codes of four rows of a column are put side by side for each of sixteen
// channels; every column serves all the windows that it is part of.
#include <immintrin.h>

#include "finish_loops.h"
#include "kernels.h"
#include "window_loops.h"

namespace bitstrata::avx512 {
namespace {

constexpr int kTile = 8;  // pixels

inline __m128i load16(const std::uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }

// One column: sixteen channels of up to four rows. From rows one after another to channels one after another.
template <int Rows>
inline __m512i column_of(const std::uint8_t* from, std::size_t row) {
    const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i column = _mm512_zextsi128_si512(load16(from));
    if constexpr (Rows > 1) column = _mm512_inserti32x4(column, load16(from + row), 1);
    if constexpr (Rows > 2) column = _mm512_inserti32x4(column, load16(from + 2 * row), 2);
    if constexpr (Rows > 3) column = _mm512_inserti32x4(column, load16(from + 3 * row), 3);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, column), bytes);
}

// K taps square, stride S, P pixels.
template <int K, int S, int P>
void sum_tile(const std::uint8_t* window, std::size_t row, std::size_t pitch, const std::int8_t* weights,
              const std::int32_t* offsets, std::int32_t (*to)[kLanes]) {
    __m512i sums[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[p] = _mm512_loadu_si512(offsets);
#pragma GCC unroll 2
    for (int first = 0; first < K; first += 4, weights += K * kLanes * 4) {
#pragma GCC unroll 19
        for (int x = 0; x < (P - 1) * S + K; ++x) {
            const std::uint8_t* from = window + first * row + x * pitch;
            const __m512i column = K - first < 4 ? column_of<K % 4>(from, row) : column_of<4>(from, row);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) {
                const int tap = x - p * S;
                if (tap < 0 || tap >= K) continue;
                sums[p] = _mm512_dpbusd_epi32(sums[p], column, _mm512_loadu_si512(weights + tap * kLanes * 4));
            }
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) _mm512_storeu_si512(to[p], sums[p]);
}

using SumTile = void (*)(const std::uint8_t*, std::size_t, std::size_t, const std::int8_t*, const std::int32_t*,
                         std::int32_t (*)[kLanes]);

template <int K, int S>
constexpr SumTile kSumTile[kTile] = {sum_tile<K, S, 1>, sum_tile<K, S, 2>, sum_tile<K, S, 3>, sum_tile<K, S, 4>,
                                     sum_tile<K, S, 5>, sum_tile<K, S, 6>, sum_tile<K, S, 7>, sum_tile<K, S, 8>};

}  // namespace

void depthwise(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const bool three = layer.segment_count == 9, dense = layer.stride_width == 1;
    const SumTile* sum = three ? (dense ? kSumTile<3, 1> : kSumTile<3, 2>) : (dense ? kSumTile<5, 1> : kSumTile<5, 2>);
    const std::size_t count = pixels.end - pixels.begin;
    const Position from = position_of(call.height, call.width, pixels.begin);
    const Finish finish(call.epilogue);
    Piece pieces[kStrip];
    const std::size_t piece_count = tiles_of(layer, call, from, count, kTile, pieces);
    alignas(64) std::int32_t sums[kStrip][kLanes];
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        for (std::size_t tile = 0; tile < piece_count; ++tile) {
            const Piece& piece = pieces[tile];
            sum[piece.pixels - 1](piece.window + block.channel, call.row, layer.inputs, layer.weights + block.weights,
                                  layer.offsets + block.channel, sums + piece.first);
        }
        finish(sums, from, pixels.begin, count, block.channel, block.channels);
    }
}

}  // namespace bitstrata::avx512

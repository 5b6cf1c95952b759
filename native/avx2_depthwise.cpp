// Depthwise convolution with AVX2 in 16-bit sums: the codes of two rows of a column are put side by side for each of 32
// channels; every column serves all the windows that it is part of.
#include <immintrin.h>

#include "finish_loops.h"
#include "kernels.h"
#include "window_loops.h"

namespace bitstrata::avx2 {
namespace {

constexpr int kTile = 4;  // pixels

using Tile = std::int16_t (*)[kLanes];

inline void store8(__m128i sums, std::int16_t* to) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), sums); }

// K taps square, stride S, P pixels. Half 0 is the first eight channels of both blocks, half 1 their last eight.
template <int K, int S, int P, int Half>
inline void sum_half(const std::uint8_t* window, std::size_t row, std::size_t pitch, const std::int8_t* weights,
                     const std::int16_t* start, Tile first_block, Tile second_block) {
    __m256i sums[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sums[p] = load_bytes(start + Half * 16);
#pragma GCC unroll 3
    for (int y = 0; y < K; y += 2, weights += K * 64) {
#pragma GCC unroll 11
        for (int x = 0; x < (P - 1) * S + K; ++x) {
            const std::uint8_t* from = window + y * row + x * pitch;
            // The last row of an odd number is paired with itself, and a weight of zero.
            const __m256i one = load_bytes(from), other = y + 1 < K ? load_bytes(from + row) : one;
            const __m256i column = Half == 0 ? _mm256_unpacklo_epi8(one, other) : _mm256_unpackhi_epi8(one, other);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                const int tap = x - p * S;
                if (tap < 0 || tap >= K) continue;
                const __m256i products = _mm256_maddubs_epi16(column, load_bytes(weights + tap * 64 + Half * 32));
                sums[p] = _mm256_add_epi16(sums[p], products);
            }
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
        store8(_mm256_castsi256_si128(sums[p]), first_block[p] + Half * 8);
        store8(_mm256_extracti128_si256(sums[p], 1), second_block[p] + Half * 8);
    }
}

template <int K, int S, int P>
void sum_tile(const std::uint8_t* window, std::size_t row, std::size_t pitch, const std::int8_t* weights,
              const std::int16_t* start, Tile first_block, Tile second_block) {
    sum_half<K, S, P, 0>(window, row, pitch, weights, start, first_block, second_block);
    sum_half<K, S, P, 1>(window, row, pitch, weights, start, first_block, second_block);
}

using SumTile = void (*)(const std::uint8_t*, std::size_t, std::size_t, const std::int8_t*, const std::int16_t*, Tile,
                         Tile);

template <int K, int S>
constexpr SumTile kSumTile[kTile] = {sum_tile<K, S, 1>, sum_tile<K, S, 2>, sum_tile<K, S, 3>, sum_tile<K, S, 4>};

}  // namespace

void narrow_depthwise(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const bool three = layer.segment_count == 9, dense = layer.stride_width == 1;
    const SumTile* sum = three ? (dense ? kSumTile<3, 1> : kSumTile<3, 2>) : (dense ? kSumTile<5, 1> : kSumTile<5, 2>);
    const std::size_t count = pixels.end - pixels.begin;
    const Position from = position_of(call.height, call.width, pixels.begin);
    const Finish finish(call.epilogue);
    Piece pieces[kStrip];
    const std::size_t piece_count = tiles_of(layer, call, from, count, kTile, pieces);
    std::int16_t sums[2][kStrip][kLanes];
    for (std::size_t index = blocks.begin / 2 * 2; index < blocks.end; index += 2) {
        const Block& block = layer.blocks[index];
        std::int16_t start[2 * kLanes];
        for (std::size_t lane = 0; lane < 2 * kLanes; ++lane) {
            const std::size_t channel = block.channel + lane / 16 * 8 + lane % 16 / 8 * 16 + lane % 8;
            start[lane] = static_cast<std::int16_t>(layer.offsets[channel]);  // modulo 2^16; whole sums fit
        }
        for (std::size_t tile = 0; tile < piece_count; ++tile) {
            const Piece& piece = pieces[tile];
            sum[piece.pixels - 1](piece.window + block.channel, call.row, layer.inputs, layer.weights + block.weights,
                                  start, sums[0] + piece.first, sums[1] + piece.first);
        }
        // Blocks come in twos here, but another thread may have been given one of them.
        for (std::size_t one = index < blocks.begin ? blocks.begin : index; one < index + 2 && one < blocks.end; ++one) {
            const Block& of = layer.blocks[one];
            finish(sums[one - index], from, pixels.begin, count, of.channel, of.channels);
        }
    }
}

}  // namespace bitstrata::avx2

// Convolution on codes with AVX-512 VNNI: one instruction multiplies four codes with those of sixteen channels and adds
// the products to 32-bit sums. Nothing can overflow, so this takes layers of every width.
#include <immintrin.h>

#include "finish_loops.h"
#include "kernels.h"
#include "stream_loops.h"
#include "window_loops.h"

namespace bitstrata::avx512 {
namespace {

constexpr int kTile = 12;  // pixels; by two blocks of channels

// Four codes of pixel 0, 1 or 2 after `at`, to all lanes. In assembly, because compilers turn addresses that differ by
// multiples of one number into more pointers than there are registers.
template <int Pixel>
inline __m512i broadcast(const std::uint8_t* at, std::size_t spacing) {
    __m512i codes;
    if constexpr (Pixel == 0) {
        asm("vpbroadcastd (%1),%0" : "=v"(codes) : "r"(at), "r"(spacing), "m"(*at));
    } else if constexpr (Pixel == 1) {
        asm("vpbroadcastd (%1,%2),%0" : "=v"(codes) : "r"(at), "r"(spacing), "m"(*at));
    } else {
        asm("vpbroadcastd (%1,%2,2),%0" : "=v"(codes) : "r"(at), "r"(spacing), "m"(*at));
    }
    return codes;
}

template <int P, int V, int Pixel = 0>
inline void step(const std::uint8_t* const (&at)[(P + 2) / 3], std::size_t spacing, const __m512i (&weights)[V],
                 __m512i (&sums)[P][V]) {
    if constexpr (Pixel < P) {
        const __m512i codes = broadcast<Pixel % 3>(at[Pixel / 3], spacing);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[Pixel][v] = _mm512_dpbusd_epi32(sums[Pixel][v], codes, weights[v]);
        step<P, V, Pixel + 1>(at, spacing, weights, sums);
    }
}

// Sums of P pixels and V neighbouring blocks of one group.
template <int P, int V>
void sum_tile(const PackedView<std::int8_t>& layer, const Block* blocks, std::size_t row, const Piece& piece,
              std::int32_t* const* to) {
    __m512i sums[P][V];
    const std::int8_t* weights[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
        const __m512i start = layer.shift == 0 ? _mm512_loadu_si512(layer.offsets + blocks[v].channel)
                                               : _mm512_setzero_si512();
#pragma GCC unroll 12
        for (int p = 0; p < P; ++p) sums[p][v] = start;
        weights[v] = layer.weights + blocks[v].weights;
    }
    const std::size_t spacing = piece.spacing;
    const Run* last = layer.runs + blocks[0].last_run;
    for (const Run* run = layer.runs + blocks[0].first_run; run != last; ++run) {
        const std::uint8_t* at[(P + 2) / 3];
        at[0] = piece.window + run->row * row + run->column;
#pragma GCC unroll 4
        for (int three = 1; three < (P + 2) / 3; ++three) at[three] = at[three - 1] + 3 * spacing;
        for (std::size_t left = run->steps; left > 0; --left) {
            __m512i vectors[V];
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) {
                vectors[v] = _mm512_loadu_si512(weights[v]);
                weights[v] += kLanes * 4;
            }
            step<P, V>(at, spacing, vectors, sums);
#pragma GCC unroll 4
            for (auto& one : at) one += 4;
        }
    }
#pragma GCC unroll 12
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) _mm512_storeu_si512(to[v] + static_cast<std::size_t>(p) * kLanes, sums[p][v]);
    }
}

using SumTile = void (*)(const PackedView<std::int8_t>&, const Block*, std::size_t, const Piece&, std::int32_t* const*);

// By the number of pixels, less one.
template <int V>
constexpr SumTile kSumTile[kTile] = {sum_tile<1, V>, sum_tile<2, V>,  sum_tile<3, V>,  sum_tile<4, V>,
                                     sum_tile<5, V>, sum_tile<6, V>,  sum_tile<7, V>,  sum_tile<8, V>,
                                     sum_tile<9, V>, sum_tile<10, V>, sum_tile<11, V>, sum_tile<12, V>};

}  // namespace

void direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const std::size_t count = pixels.end - pixels.begin;
    const Position from = position_of(call.height, call.width, pixels.begin);
    const Finish finish(call.epilogue);
    const Stream stream(call.epilogue);
    Piece pieces[kStrip];
    const std::size_t piece_count = tiles_of(layer, call, from, count, kTile, pieces);
    alignas(64) std::int32_t sums[2][kStrip][kLanes];
    std::int32_t window_sums[kStrip];
    std::size_t summed_group = static_cast<std::size_t>(-1);
    for (std::size_t index = blocks.begin; index < blocks.end;) {
        const Block* block = layer.blocks + index;
        const bool two = index + 1 < blocks.end && block[1].group == block[0].group;
        for (std::size_t tile = 0; tile < piece_count; ++tile) {
            const Piece& piece = pieces[tile];
            for (std::size_t which = 0; which < (two ? 2 : 1) && stream.usable(); ++which) {
                stream.ask(pixels.begin + piece.first, piece.pixels, block[which].channel);
            }
            std::int32_t* const to[2] = {sums[0][piece.first], sums[1][piece.first]};
            (two ? kSumTile<2> : kSumTile<1>)[piece.pixels - 1](layer, block, call.row, piece, to);
        }
        if (layer.compensation != 0 && block->group != summed_group) {
            compensate(layer, call, pieces, piece_count, block->group, window_sums);
            summed_group = block->group;
        }
        for (std::size_t which = 0; which < (two ? 2 : 1); ++which, ++index) {
            const Block& one = block[which];
            if (layer.shift != 0) {
                shift_and_add(layer, layer.offsets + one.channel, window_sums, count, sums[which]);
            }
            if (stream.usable() && one.channels == kLanes) {
                stream(sums[which], pixels.begin, count, one.channel);
            } else {
                finish(sums[which], from, pixels.begin, count, one.channel, one.channels);
            }
        }
    }
}

}  // namespace bitstrata::avx512

// The loops of Winograd convolution in floats: transforms, products, and the way through a set of tiles.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "finish_loops.h"
#include "float_winograd.h"

namespace bitstrata {
namespace {

using T = FloatTile3;

#if defined(__AVX512F__)

constexpr std::size_t kTilesAtOnce = 14;  // by two vectors: 28 sums, two vectors of weights and one of values

// A place of the parts: from an even row and from the odd one that follows it.
ALWAYS_INLINE Lanes load_place(const float* even, const float* odd, std::size_t /*part*/) {
    return {_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(even)), _mm256_loadu_ps(odd), 1)};
}

#else

constexpr std::size_t kTilesAtOnce = 6;  // twelve sums

ALWAYS_INLINE Lanes load_place(const float* even, const float* odd, std::size_t part) {
    return load(part == 0 ? even : odd);
}

#endif

constexpr std::size_t kVectors = 2, kGroupLanes = kVectors * kWidth, kPlaceVectors = kPlaceLanes / kWidth;

using Scratch = FloatWinogradScratch<kGroupLanes>;

// Along one axis: six values to six points.
ALWAYS_INLINE void transform_values(const Lanes (&d)[T::kPoints], Lanes (&v)[T::kPoints]) {
    const Lanes even = d[4] - d[2], odd = d[3] - d[1];
    v[0] = multiply_add(spread(-1.5f), odd, (d[0] - d[2]) + even);
    v[1] = multiply_add(spread(-1.5f), d[1] + d[2], multiply_add(spread(-0.5f), odd, even));
    v[2] = multiply_add(spread(1.5f), d[2] - d[1], multiply_add(spread(-2.5f), odd, even));
    v[3] = multiply_add(spread(0.5f), odd, even);
    v[4] = multiply_add(spread(-2.0f), odd, even);
    v[5] = multiply_add(spread(-1.5f), even, (d[5] - d[3]) - odd);
}

// Six points to three results.
ALWAYS_INLINE void transform_products(const Lanes (&m)[T::kPoints], Lanes (&y)[T::kOutput]) {
    const Lanes sum = m[1] + m[2], difference = m[1] - m[2];
    y[0] = (m[0] + sum) + (m[3] + m[4]);
    y[1] = multiply_add(spread(2.0f), m[3], multiply_add(spread(-0.5f), m[4], difference));
    y[2] = multiply_add(spread(4.0f), m[3], multiply_add(spread(0.25f), m[4], sum + m[5]));
}

// Inputs of some tiles in one row, at all pairs of points. Where a tile reaches over the edge, the last row or column
// stands for those beyond: what is computed from them is not stored.
inline void transform_inputs(const FloatWinogradView& layer, const Call& call, const Position& at, std::size_t tiles,
                             Scratch& scratch) {
    const float* image = static_cast<const float*>(call.input) + at.sample * call.image;
    const float* even[T::kPoints];
    const float* odd[T::kPoints];
    for (std::size_t i = 0; i < T::kPoints; ++i) {
        const std::size_t last = call.height + 2, y = at.y + i < last ? at.y + i : last;
        even[i] = image + 2 * y * call.row;
        odd[i] = y < last ? even[i] + call.row : even[i];  // beyond the window: it has no weight there
    }
    // The last column is an even one. The odd one after it has no weight, but it must be a number.
    const std::size_t columns = (tiles + 1) * T::kOutput, last = call.width + 2 - at.x;
    alignas(64) float edge[2][T::kPoints][kPartLanes] = {};
    for (std::size_t i = 0; i < T::kPoints && last < columns; ++i) {
        const std::size_t place = (at.x + last) * 2 * layer.inputs;
        std::memcpy(edge[0][i], even[i] + place, layer.inputs * sizeof(float));
        std::memcpy(edge[1][i], odd[i] + place, layer.inputs * sizeof(float));
    }
    for (std::size_t column = 0; column < columns; ++column) {
        const std::size_t place = (at.x + column) * 2 * layer.inputs;
        for (std::size_t part = 0; part < kPlaceVectors; ++part) {
            Lanes d[T::kPoints], v[T::kPoints];
#pragma GCC unroll 6
            for (std::size_t i = 0; i < T::kPoints; ++i) {
                d[i] = column < last ? load_place(even[i] + place, odd[i] + place, part)
                                     : load_place(edge[0][i], edge[1][i], part);
            }
            transform_values(d, v);
#pragma GCC unroll 6
            for (std::size_t p = 0; p < T::kPoints; ++p) store(v[p], scratch.halves[p][column] + part * kWidth);
        }
    }
    for (std::size_t p = 0; p < T::kPoints; ++p) {
        for (std::size_t tile = 0; tile < tiles; ++tile) {
            for (std::size_t part = 0; part < kPlaceVectors; ++part) {
                Lanes d[T::kPoints], v[T::kPoints];
#pragma GCC unroll 6
                for (std::size_t j = 0; j < T::kPoints; ++j) {
                    d[j] = load(scratch.halves[p][tile * T::kOutput + j] + part * kWidth);
                }
                transform_values(d, v);
#pragma GCC unroll 6
                for (std::size_t q = 0; q < T::kPoints; ++q) {
                    store(v[q], scratch.values[p][q][tile] + part * kWidth);
                }
            }
        }
    }
}

// The products of C tiles from tile `begin` on, at one point of the rows and all points of the columns: each summed up
// over `parts` parities of rows, both parities of columns (one at the last point), and channels.
template <std::size_t C>
void multiply_tiles(const float (*values)[T::kInHand][kPlaceLanes], std::size_t begin, const float* weights,
                    std::size_t parts, std::size_t inputs, float (*to)[T::kInHand][kGroupLanes]) {
    for (std::size_t q = 0; q < T::kPoints; ++q) {
        const std::size_t steps = q + 1 == T::kPoints ? inputs : 2 * inputs;
        Lanes sums[C][kVectors];
#pragma GCC unroll 14
        for (std::size_t c = 0; c < C; ++c) sums[c][0] = sums[c][1] = spread(0.0f);
        for (std::size_t part = 0; part < parts; ++part) {
            const float* from = values[q][begin] + part * kPartLanes;
            for (const float* end = from + steps; from != end; ++from, weights += kGroupLanes) {
                const Lanes first = load(weights), second = load(weights + kWidth);
#pragma GCC unroll 14
                for (std::size_t c = 0; c < C; ++c) {
                    const Lanes value = spread(from[c * kPlaceLanes]);
                    sums[c][0] = multiply_add(value, first, sums[c][0]);
                    sums[c][1] = multiply_add(value, second, sums[c][1]);
                }
            }
        }
#pragma GCC unroll 14
        for (std::size_t c = 0; c < C; ++c) {
            store(sums[c][0], to[q][begin + c]);
            store(sums[c][1], to[q][begin + c] + kWidth);
        }
    }
}

using MultiplyTiles = void (*)(const float (*)[T::kInHand][kPlaceLanes], std::size_t, const float*, std::size_t,
                               std::size_t, float (*)[T::kInHand][kGroupLanes]);

struct MultiplyTable {
    MultiplyTiles of[kTilesAtOnce];  // by the number of tiles, less one
};

template <std::size_t... C>
constexpr MultiplyTable multiply_table(std::index_sequence<C...>) {
    return {{multiply_tiles<C + 1>...}};
}

constexpr MultiplyTable kMultiply = multiply_table(std::make_index_sequence<kTilesAtOnce>{});

// The results of some tiles for one group of outputs.
inline void compute_group(const FloatWinogradView& layer, std::size_t group, std::size_t tiles, Scratch& scratch) {
    constexpr std::size_t kPairs = 2 * T::kPoints - 1;
    const float* weights = layer.weights + group * kPairs * kPairs * layer.inputs * kGroupLanes;
    const std::size_t sets = (tiles + kTilesAtOnce - 1) / kTilesAtOnce;
    const EvenParts even(tiles, sets);
    for (std::size_t p = 0; p < T::kPoints; ++p) {
        const std::size_t parts = p + 1 == T::kPoints ? 1 : 2;
        for (std::size_t set = 0, begin = 0; set < sets; begin += even[set++]) {
            kMultiply.of[even[set] - 1](scratch.values[p], begin, weights, parts, layer.inputs, scratch.products);
        }
        weights += parts * kPairs * layer.inputs * kGroupLanes;
        for (std::size_t tile = 0; tile < tiles; ++tile) {
            for (std::size_t vector = 0; vector < kGroupLanes; vector += kWidth) {
                Lanes m[T::kPoints], y[T::kOutput];
#pragma GCC unroll 6
                for (std::size_t q = 0; q < T::kPoints; ++q) m[q] = load(scratch.products[q][tile] + vector);
                transform_products(m, y);
#pragma GCC unroll 3
                for (std::size_t j = 0; j < T::kOutput; ++j) store(y[j], scratch.rows[p][tile][j] + vector);
            }
        }
    }
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        for (std::size_t vector = 0; vector < kGroupLanes; vector += kWidth) {
            for (std::size_t j = 0; j < T::kOutput; ++j) {
                Lanes m[T::kPoints], y[T::kOutput];
#pragma GCC unroll 6
                for (std::size_t p = 0; p < T::kPoints; ++p) m[p] = load(scratch.rows[p][tile][j] + vector);
                transform_products(m, y);
                const std::size_t block = vector / kLanes, lane = vector % kLanes;
#pragma GCC unroll 3
                for (std::size_t i = 0; i < T::kOutput; ++i) {
                    store(y[i], scratch.results[block][i][tile * T::kOutput + j] + lane);
                }
            }
        }
    }
}

// Some sets of tiles of some groups; a set lies in one row of tiles.
inline void run_sets(const FloatWinogradView& layer, const Call& call, Range sets, Range groups) {
    Scratch& scratch = *reinterpret_cast<Scratch*>(call.scratch);
    const std::size_t down = (call.height + T::kOutput - 1) / T::kOutput;
    const std::size_t across = (call.width + T::kOutput - 1) / T::kOutput;
    const std::size_t sets_across = (across + T::kInHand - 1) / T::kInHand;
    const Finish finish(call.epilogue);
    for (std::size_t set = sets.begin; set < sets.end; ++set) {
        const std::size_t row = set / sets_across, place = set % sets_across;
        const std::size_t first = place * across / sets_across, tiles = (place + 1) * across / sets_across - first;
        const Position at{row / down, row % down * T::kOutput, first * T::kOutput};
        transform_inputs(layer, call, at, tiles, scratch);
        const std::size_t most = tiles * T::kOutput, left = call.width - at.x, pixels = most < left ? most : left;
        for (std::size_t group = groups.begin; group < groups.end; ++group) {
            compute_group(layer, group, tiles, scratch);
            for (std::size_t i = 0; i < T::kOutput && at.y + i < call.height; ++i) {
                const std::size_t number = (at.sample * call.height + at.y + i) * call.width + at.x;
                for (std::size_t block = 0; block < kGroupLanes / kLanes; ++block) {
                    const std::size_t channel = group * kGroupLanes + block * kLanes;
                    if (channel >= layer.outputs) break;
                    const std::size_t channels = layer.outputs - channel;
                    finish(scratch.results[block][i], {at.sample, at.y + i, at.x}, number, pixels, channel,
                           channels < kLanes ? channels : kLanes);
                }
            }
        }
    }
}

}  // namespace
}  // namespace bitstrata

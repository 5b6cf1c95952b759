// What the Winograd kernels of all instruction sets have in common: the transforms, and the way through a set of tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "finish_loops.h"
#include "winograd.h"

namespace bitstrata {
namespace {

// The transforms along one axis, with as few additions as they allow. L is a vector of integers of any width.
template <class L>
ALWAYS_INLINE L doubled(L x) {
    return x + x;
}

template <class L>
ALWAYS_INLINE void transform_codes(Tile2, const L* d, L* v) {
    v[0] = d[0] - d[2];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[1] - d[3];
}

template <class L>
ALWAYS_INLINE void transform_products(Tile2, const L* m, L* y) {
    y[0] = doubled(m[0]) + (m[1] + m[2]);
    y[1] = (m[1] - m[2]) - doubled(m[3]);
}

template <class L>
ALWAYS_INLINE void transform_codes(Tile3, const L* d, L* v) {
    const L across = d[3] - d[1], near = d[2] - d[1];
    v[0] = doubled(d[0] - d[2]) + across;
    v[1] = (d[1] + d[2]) - across;
    v[2] = (doubled(near) + near) - across;
    v[3] = across;
    v[4] = (d[4] - d[2]) - doubled(across);
}

template <class L>
ALWAYS_INLINE void transform_products(Tile3, const L* m, L* y) {
    const L thrice = doubled(m[1]) + m[1], twice = doubled(m[3]), last = doubled(m[4]);
    y[0] = ((doubled(m[0]) + m[0]) + thrice) + (m[2] + m[3]);
    y[1] = (thrice - m[2]) + twice;
    y[2] = (thrice + m[2]) + (doubled(twice + last) + last);
}

template <class L>
ALWAYS_INLINE void transform_codes(Tile4, const L* d, L* v) {
    const L even = d[2] + d[4], odd = d[1] + d[3], real = d[4] - d[2], imaginary = d[3] - d[1];
    v[0] = d[0] - d[4];
    v[1] = even + odd;
    v[2] = even - odd;
    v[3] = real + imaginary;
    v[4] = imaginary - real;
    v[5] = imaginary;
    v[6] = d[5] - d[1];
}

template <class L>
ALWAYS_INLINE void transform_products(Tile4, const L* m, L* y) {
    const L sum = m[1] + m[2], difference = m[1] - m[2];
    const L real = doubled(m[3] + m[5]), imaginary = doubled(m[4] + m[5]);
    y[0] = (doubled(doubled(m[0])) + sum) + real;
    y[1] = difference + imaginary;
    y[2] = sum - real;
    y[3] = (difference - imaginary) + doubled(doubled(m[6]));
}

// Along both axes; get(i, j) and put(i, j, value) are the two sides.
template <class T, class L, class Get, class Put>
ALWAYS_INLINE void transform_codes(Get get, Put put) {
    L half[T::kPoints][T::kInput];
#pragma GCC unroll 8
    for (int column = 0; column < T::kInput; ++column) {
        L d[T::kInput], v[T::kPoints];
#pragma GCC unroll 8
        for (int row = 0; row < T::kInput; ++row) d[row] = get(row, column);
        transform_codes(T{}, d, v);
#pragma GCC unroll 8
        for (int point = 0; point < T::kPoints; ++point) half[point][column] = v[point];
    }
#pragma GCC unroll 8
    for (int row = 0; row < T::kPoints; ++row) {
        L v[T::kPoints];
        transform_codes(T{}, half[row], v);
#pragma GCC unroll 8
        for (int column = 0; column < T::kPoints; ++column) put(row, column, v[column]);
    }
}

template <class T, class L, class Get, class Put>
ALWAYS_INLINE void transform_products(Get get, Put put) {
    L half[T::kOutput][T::kPoints];
#pragma GCC unroll 8
    for (int column = 0; column < T::kPoints; ++column) {
        L m[T::kPoints], y[T::kOutput];
#pragma GCC unroll 8
        for (int row = 0; row < T::kPoints; ++row) m[row] = get(row, column);
        transform_products(T{}, m, y);
#pragma GCC unroll 8
        for (int row = 0; row < T::kOutput; ++row) half[row][column] = y[row];
    }
#pragma GCC unroll 8
    for (int row = 0; row < T::kOutput; ++row) {
        L y[T::kOutput];
        transform_products(T{}, half[row], y);
#pragma GCC unroll 8
        for (int column = 0; column < T::kOutput; ++column) put(row, column, y[column]);
    }
}

// The codes that a tile reads. Where it reaches over the edge, the last row or column stands for those beyond: what is
// computed from them is not stored, and they are codes, so V stays in bytes.
template <class T>
struct TileCodes {
    const std::uint8_t* rows[T::kInput];
    std::size_t columns[T::kInput];

    TileCodes(const Call& call, std::size_t inputs, const Position& at) {
        const auto* image = static_cast<const std::uint8_t*>(call.input) + at.sample * call.image;
        for (std::size_t place = 0; place < T::kInput; ++place) {
            const std::size_t y = at.y + place, x = at.x + place;
            rows[place] = image + (y < call.height + 2 ? y : call.height + 1) * call.row;
            columns[place] = (x < call.width + 2 ? x : call.width + 1) * inputs;
        }
    }
};

// Adds up windows of all results of some tiles side by side: first each place over all inputs, which fits 16 bits, then
// three by three. Isa sums up four places at a time. Results are in rows as long as the tiles together.
template <class T, class Isa>
inline void sum_windows(const Call& call, std::size_t inputs, std::int32_t factor, const Position& at, std::size_t tiles,
                        std::int32_t* to) {
    constexpr std::size_t kMostPlaces = kMostTiles * T::kOutput + T::kInput + 4;
    const std::size_t columns = tiles * T::kOutput, places = columns + 2;
    const auto* image = static_cast<const std::uint8_t*>(call.input) + at.sample * call.image;
    std::uint16_t sums[T::kInput][kMostPlaces];
    for (std::size_t row = 0; row < T::kInput; ++row) {
        const std::size_t y = at.y + row;
        const std::uint8_t* from = image + (y < call.height + 2 ? y : call.height + 1) * call.row;
        for (std::size_t place = 0; place < places; place += 4) {
            const std::uint8_t* four[4];
            for (std::size_t index = 0; index < 4; ++index) {
                const std::size_t x = at.x + place + index;
                four[index] = from + (x < call.width + 2 ? x : call.width + 1) * inputs;
            }
            const std::uint64_t values = Isa::sum_four(four, inputs);
            std::memcpy(sums[row] + place, &values, sizeof values);
        }
    }
    std::int32_t triples[kMostPlaces];
    for (std::size_t row = 0; row < T::kOutput; ++row, to += columns) {
        for (std::size_t x = 0; x < places; ++x) {
            triples[x] = factor * (sums[row][x] + sums[row + 1][x] + sums[row + 2][x]);
        }
        for (std::size_t x = 0; x < columns; ++x) to[x] = triples[x] + triples[x + 1] + triples[x + 2];
    }
}

// Tiles whose products are computed at a time, as even as possible: so many parts, and the first tile of each.
struct Parts {
    std::size_t count, first[10];

    Parts(std::size_t tiles, std::size_t at_most) : count((tiles + at_most - 1) / at_most) {
        const EvenParts even(tiles, count);
        first[0] = 0;
        for (std::size_t part = 0; part < count; ++part) first[part + 1] = first[part] + even[part];
    }
};

// The window sums of pixels side by side, in rows that far apart.
struct WindowSums {
    const std::int32_t* first;
    std::size_t row;
};

// Some tiles of some groups. Isa has the vectors and the products.
template <class T, class Isa>
inline void run_tiles(const WinogradView& layer, const Call& call, Range tiles, Range groups) {
    constexpr int kPositions = T::kPoints * T::kPoints;
    constexpr std::size_t kOutputs = T::kOutput * T::kOutput, kRun = T::kInHand * T::kOutput;
    using Results = std::int32_t[T::kOutput][kRun][kLanes];
    unsigned char* codes = call.scratch;
    unsigned char* products = call.scratch + layer.products;
    auto* window_sums = reinterpret_cast<std::int32_t*>(call.scratch + layer.window_sums);
    auto* results = reinterpret_cast<Results*>(call.scratch + layer.results);
    const std::size_t count = tiles.end - tiles.begin;
    const std::size_t down = (call.height + T::kOutput - 1) / T::kOutput;
    const std::size_t across = (call.width + T::kOutput - 1) / T::kOutput;
    const auto place_of = [&](std::size_t tile) {
        return Position{tile / (down * across), tile / across % down * T::kOutput, tile % across * T::kOutput};
    };

    Position place = place_of(tiles.begin);
    for (std::size_t tile = 0; tile < count; ++tile) {
        const TileCodes<T> from(call, layer.inputs, place);
        place.x += T::kOutput;
        if (place.x >= call.width) {
            place.x = 0;
            place.y += T::kOutput;
        }
        if (place.y >= call.height) {
            place.y = 0;
            ++place.sample;
        }
        for (std::size_t input = 0; input < layer.inputs; input += Isa::kBytes) {
            unsigned char* to = codes + tile * layer.code_row + input;
            transform_codes<T, typename Isa::Bytes>(
                [&](int row, int column) { return Isa::load_bytes(from.rows[row] + from.columns[column] + input); },
                [&](int row, int column, typename Isa::Bytes v) {
                    const int position = row * T::kPoints + column;
                    Isa::store_bytes(v + Isa::spread_bytes(layer.lifts[position]), to + position * layer.code_position);
                });
        }
    }
    // Tiles of one row of them, as far as they are among these: their window sums lie together.
    const auto row_of = [&](std::size_t tile) {
        const std::size_t number = tiles.begin + tile, begin = number - number % across, end = begin + across;
        return Range{begin > tiles.begin ? begin - tiles.begin : 0, (end < tiles.end ? end : tiles.end) - tiles.begin};
    };
    if (layer.compensation != 0) {
        for (std::size_t tile = 0; tile < count; tile = row_of(tile).end) {
            sum_windows<T, Isa>(call, layer.inputs, layer.compensation, place_of(tiles.begin + tile),
                                row_of(tile).end - tile, window_sums + tile * kOutputs);
        }
    } else if (!layer.plain) {
        std::memset(window_sums, 0, count * kOutputs * sizeof(std::int32_t));
    }

    const Finish finish(call.epilogue);
    // As even as possible, so that no set is small.
    static_assert(T::kInHand / Isa::kRows < 9, "parts have too few places");
    const std::size_t sets = (count + T::kInHand - 1) / T::kInHand;
    for (std::size_t group = groups.begin; group < groups.end; ++group) {
        const std::size_t channel = group * layer.lanes;
        for (std::size_t set = 0; set < sets; ++set) {
            const std::size_t begin = set * count / sets, end = (set + 1) * count / sets;
            const Parts parts(end - begin, Isa::kRows);
            for (std::size_t position = 0; position < kPositions; ++position) {
                Isa::multiply(layer, group * kPositions + position,
                              codes + position * layer.code_position + begin * layer.code_row, parts,
                              products + position * layer.product_position);
            }
            // Tiles side by side give rows of pixels side by side.
            for (std::size_t first = begin, last; first < end; first = last) {
                const Position at = place_of(tiles.begin + first);
                const Range row = row_of(first);
                last = row.end < end ? row.end : end;
                if (last - first > kStrip / T::kOutput) last = first + kStrip / T::kOutput;  // that `finish` takes
                const WindowSums sums{window_sums + row.begin * kOutputs + (first - row.begin) * T::kOutput,
                                      (row.end - row.begin) * T::kOutput};
                for (std::size_t tile = first; tile < last; ++tile) {
                    const unsigned char* from = products + (tile - begin) * Isa::row_bytes(layer);
                    const std::size_t column = (tile - first) * T::kOutput;
                    if (layer.plain) {
                        Isa::template finish_tile<T, true>(layer, channel, from, sums, results, column);
                    } else {
                        Isa::template finish_tile<T, false>(layer, channel, from, sums, results, column);
                    }
                }
                const std::size_t most = (last - first) * T::kOutput;
                const std::size_t pixels = at.x + most < call.width ? most : call.width - at.x;
                for (std::size_t row = 0; row < T::kOutput && at.y + row < call.height; ++row) {
                    const std::size_t number = (at.sample * call.height + at.y + row) * call.width + at.x;
                    for (std::size_t lane = 0; lane < layer.lanes && channel + lane < layer.outputs; lane += kLanes) {
                        const std::size_t left = layer.outputs - channel - lane;
                        finish(results[lane / kLanes][row], {at.sample, at.y + row, at.x}, number, pixels, channel + lane,
                               left < kLanes ? left : kLanes);
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace bitstrata

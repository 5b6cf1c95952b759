// Pooling: channels are lanes, and windows are reduced in registers.
#pragma once

#include <cstddef>

#include "float_step.h"
#include "finish_loops.h"

namespace bitstrata {
namespace {

// Loads may read lanes beyond the last channel: the next pixel, or the buffer's slack.
inline const float* source_at(const FloatStep& step, const Epilogue& epilogue, std::size_t source) {
    return reinterpret_cast<const float*>(epilogue.arena + step.sources[source].offset);
}

// The taps of a window along one axis that lie inside the image: first, first + dilation, ... below end.
struct Taps {
    std::size_t first, end;
    std::size_t counted;  // by an average: all places up to the end of the padding
};

inline Taps taps_at(std::size_t index, std::size_t stride, std::size_t kernel, std::size_t dilation, std::size_t before,
                    std::size_t after, std::size_t size) {
    const std::size_t start = index * stride;  // counted from the padding's first place
    const std::size_t end = start + dilation * (kernel - 1) + 1;
    const std::size_t padded = before + size + after;
    std::size_t first = start;
    if (first < before) first += (before - first + dilation - 1) / dilation * dilation;
    const std::size_t inside_end = end < before + size ? end : before + size;
    const std::size_t counted_end = end < padded ? end : padded;
    return {first - before, inside_end > before ? inside_end - before : 0,
            counted_end > start ? counted_end - start : 0};
}

// What one pixel of the result is made of: rows times columns of places in the source.
struct Places {
    const float* first;  // of channel 0
    std::size_t rows, columns;
    std::size_t row, column;  // the way from one to the next, in elements
    float count;              // that an average divides by
};

inline std::size_t taps(const Taps& along, std::size_t dilation) {
    return along.first < along.end ? (along.end - along.first + dilation - 1) / dilation : 0;
}

inline Places places_of_window(const FloatStep& step, const float* source, const Position& at) {
    const Window& w = step.window;
    const Image& image = step.sources[0].shape;
    const Taps rows = taps_at(at.y, w.stride_height, w.kernel_height, w.dilation_height, w.padding.top,
                              w.padding.bottom, image.height);
    const Taps columns = taps_at(at.x, w.stride_width, w.kernel_width, w.dilation_width, w.padding.left,
                                 w.padding.right, image.width);
    const std::size_t count = w.count_padding ? rows.counted * columns.counted
                                              : (rows.end - rows.first) * (columns.end - columns.first);
    const std::size_t row = at.sample * image.height + rows.first - step.rows_before;
    return {source + (row * image.width + columns.first) * image.channels,
            taps(rows, w.dilation_height),
            taps(columns, w.dilation_width),
            w.dilation_height * image.width * image.channels,
            w.dilation_width * image.channels,
            static_cast<float>(count)};
}

// Window i of n spans floor(i s / n) to ceil((i + 1) s / n).
inline Places places_of_span(const FloatStep& step, const float* source, const Position& at) {
    const Image& image = step.sources[0].shape;
    const std::size_t top = at.y * image.height / step.result.height;
    const std::size_t bottom = ((at.y + 1) * image.height + step.result.height - 1) / step.result.height;
    const std::size_t left = at.x * image.width / step.result.width;
    const std::size_t right = ((at.x + 1) * image.width + step.result.width - 1) / step.result.width;
    const std::size_t rows = bottom - top, columns = right - left;
    const std::size_t first = (at.sample * image.height + top) * image.width + left;
    return {source + first * image.channels, rows,           columns, image.width * image.channels,
            image.channels,                  static_cast<float>(rows * columns)};
}

// Sums are made row by row and in registers; Vectors says of how many channels at once.
template <bool Largest, std::size_t Vectors>
inline void reduce(const Places& places, std::size_t rows, std::size_t columns, std::size_t channel, Lanes* y) {
    for (std::size_t v = 0; v < Vectors; ++v) y[v] = spread(Largest ? -__builtin_inff() : 0.0f);
    const float* row = places.first + channel;
    for (std::size_t r = 0; r < rows; ++r, row += places.row) {
        const float* from = row;
        for (std::size_t c = 0; c < columns; ++c, from += places.column) {
            for (std::size_t v = 0; v < Vectors; ++v) {
                const Lanes x = load(from + v * kWidth);
                y[v] = Largest ? at_least(x, y[v]) : y[v] + x;
            }
        }
    }
    for (std::size_t v = 0; v < Vectors; ++v) {
        if (!Largest) y[v] = y[v] / spread(places.count);
    }
}

constexpr std::size_t kBlockVectors = kLanes / kWidth;

template <bool Largest>
inline void pool_pixel(const Places& places, std::size_t channel, float (&to)[kLanes]) {
    Lanes y[kBlockVectors];
    if (places.rows == 3 && places.columns == 3) {
        reduce<Largest, kBlockVectors>(places, 3, 3, channel, y);  // known to the compiler, which unrolls it
    } else {
        reduce<Largest, kBlockVectors>(places, places.rows, places.columns, channel, y);
    }
    for (std::size_t v = 0; v < kBlockVectors; ++v) store(y[v], to + v * kWidth);
}

// Blocks that are reduced side by side: memory is then read in longer stretches, and additions need not wait for each
// other.
constexpr std::size_t kSideBySide = 4;
constexpr std::size_t kFewPixels = kStrip / kSideBySide;

// `count` pixels, at most kStrip; the first is number `first` of the result.
template <bool Largest>
inline void pool(const Epilogue& epilogue, const Places* places, const Position* positions, std::size_t first,
                 std::size_t count, Range blocks) {
    float tile[kStrip][kLanes];
    const auto finish_block = [&](std::size_t block, const float (*from)[kLanes]) {
        const std::size_t left = epilogue.channels - block * kLanes;
        finish(epilogue, from, positions, first, count, block * kLanes, left < kLanes ? left : kLanes);
    };
    std::size_t block = blocks.begin;
    for (; count <= kFewPixels && block + kSideBySide <= blocks.end; block += kSideBySide) {
        for (std::size_t p = 0; p < count; ++p) {
            constexpr std::size_t kVectors = kSideBySide * kBlockVectors;
            Lanes y[kVectors];
            reduce<Largest, kVectors>(places[p], places[p].rows, places[p].columns, block * kLanes, y);
            for (std::size_t v = 0; v < kVectors; ++v) {
                store(y[v], tile[v / kBlockVectors * count + p] + v % kBlockVectors * kWidth);
            }
        }
        for (std::size_t b = 0; b < kSideBySide; ++b) finish_block(block + b, tile + b * count);
    }
    for (; block < blocks.end; ++block) {
        for (std::size_t p = 0; p < count; ++p) pool_pixel<Largest>(places[p], block * kLanes, tile[p]);
        finish_block(block, tile);
    }
}

inline bool pools(FloatKind kind) {
    return kind == FloatKind::max_pool || kind == FloatKind::average_pool || kind == FloatKind::adaptive_max_pool ||
           kind == FloatKind::adaptive_average_pool;
}

inline void run_pool(const FloatStep& step, const Epilogue& epilogue, const Position* positions, Range pixels,
                     Range blocks) {
    const float* source = source_at(step, epilogue, 0);
    const bool windows = step.kind == FloatKind::max_pool || step.kind == FloatKind::average_pool;
    const std::size_t count = pixels.end - pixels.begin;
    Places places[kStrip];
    for (std::size_t p = 0; p < count; ++p) {
        places[p] = windows ? places_of_window(step, source, positions[p]) : places_of_span(step, source, positions[p]);
    }
    const bool largest = step.kind == FloatKind::max_pool || step.kind == FloatKind::adaptive_max_pool;
    const std::size_t some = blocks.end - blocks.begin < kSideBySide ? kStrip : kFewPixels;
    for (std::size_t p = 0; p < count; p += some) {
        const std::size_t now = count - p < some ? count - p : some;
        (largest ? pool<true> : pool<false>)(epilogue, places + p, positions + p, pixels.begin + p, now, blocks);
    }
}

}  // namespace
}  // namespace bitstrata

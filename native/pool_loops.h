// Pooling: the windows of one pixel, for kLanes channels at once.
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

inline void reduce_max(const float* from, float (&y)[kLanes]) {
    for (std::size_t lane = 0; lane < kLanes; lane += kWidth) {
        store(at_least(load(from + lane), load(y + lane)), y + lane);
    }
}

inline void reduce_sum(const float* from, float (&y)[kLanes]) {
    for (std::size_t lane = 0; lane < kLanes; lane += kWidth) store(load(y + lane) + load(from + lane), y + lane);
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

inline void pool(const FloatStep& step, const Epilogue& epilogue, const Position& at, std::size_t channel,
                 float (&y)[kLanes]) {
    const Window& w = step.window;
    const Image& image = step.sources[0].shape;
    const Taps rows = taps_at(at.y, w.stride_height, w.kernel_height, w.dilation_height, w.padding.top,
                              w.padding.bottom, image.height);
    const Taps columns = taps_at(at.x, w.stride_width, w.kernel_width, w.dilation_width, w.padding.left,
                                 w.padding.right, image.width);
    const bool largest = step.kind == FloatKind::max_pool;
    for (float& one : y) one = largest ? -__builtin_inff() : 0.0f;
    const std::size_t first = at.sample * image.height * image.width * image.channels + channel;
    const float* source = source_at(step, epilogue, 0) + first;
    for (std::size_t row = rows.first; row < rows.end; row += w.dilation_height) {
        for (std::size_t column = columns.first; column < columns.end; column += w.dilation_width) {
            const float* from = source + (row * image.width + column) * image.channels;
            if (largest) {
                reduce_max(from, y);
            } else {
                reduce_sum(from, y);
            }
        }
    }
    if (largest) return;
    const std::size_t count = w.count_padding ? rows.counted * columns.counted
                                              : (rows.end - rows.first) * (columns.end - columns.first);
    for (float& one : y) one = one / static_cast<float>(count);
}

// Window i of n spans floor(i s / n) to ceil((i + 1) s / n).
inline void adaptive_pool(const FloatStep& step, const Epilogue& epilogue, const Position& at, std::size_t channel,
                          float (&y)[kLanes]) {
    const Image& image = step.sources[0].shape;
    const std::size_t top = at.y * image.height / step.result.height;
    const std::size_t bottom = ((at.y + 1) * image.height + step.result.height - 1) / step.result.height;
    const std::size_t left = at.x * image.width / step.result.width;
    const std::size_t right = ((at.x + 1) * image.width + step.result.width - 1) / step.result.width;
    const bool largest = step.kind == FloatKind::adaptive_max_pool;
    for (float& one : y) one = largest ? -__builtin_inff() : 0.0f;
    const std::size_t first = at.sample * image.height * image.width * image.channels + channel;
    const float* source = source_at(step, epilogue, 0) + first;
    for (std::size_t row = top; row < bottom; ++row) {
        for (std::size_t column = left; column < right; ++column) {
            const float* from = source + (row * image.width + column) * image.channels;
            if (largest) {
                reduce_max(from, y);
            } else {
                reduce_sum(from, y);
            }
        }
    }
    if (largest) return;
    const float count = static_cast<float>((bottom - top) * (right - left));
    for (float& one : y) one = one / count;
}

}  // namespace
}  // namespace bitstrata

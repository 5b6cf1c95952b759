// The loops of steps without weights: each fills a tile of pixels by kLanes channels.
#pragma once

#include <cstddef>
#include <cstring>

#include "finish_loops.h"
#include "float_step.h"
#include "input_loops.h"
#include "pool_loops.h"

namespace bitstrata {
namespace {

using Tile = float (*)[kLanes];

inline void copy_lanes(const float* from, float (&to)[kLanes]) { std::memcpy(to, from, sizeof to); }

inline std::size_t pixel_of(const Image& image, std::size_t sample, std::size_t y, std::size_t x) {
    return ((sample * image.height + y) * image.width + x) * image.channels;
}

inline void concatenate(const FloatStep& step, const Epilogue& epilogue, std::size_t first, std::size_t count,
                        std::size_t channel, std::size_t channels, Tile tile) {
    std::size_t start = 0;  // the source's first channel in the result
    for (std::size_t index = 0; index < step.source_count; ++index) {
        const std::size_t size = step.sources[index].shape.channels, end = start + size;
        if (end > channel && start < channel + channels) {
            const std::size_t from = start > channel ? start : channel;
            const std::size_t to = end < channel + channels ? end : channel + channels;
            const float* source = source_at(step, epilogue, index) + first * size + (from - start);
            for (std::size_t p = 0; p < count; ++p) {
                std::memcpy(tile[p] + (from - channel), source + p * size, (to - from) * sizeof(float));
            }
        }
        start = end;
    }
}

// The index in [0, size) that stands at `index - before`, or -1 where a constant does.
inline std::ptrdiff_t padded_index(PadMode mode, std::size_t index, std::size_t before, std::size_t size) {
    const auto place = static_cast<std::ptrdiff_t>(index) - static_cast<std::ptrdiff_t>(before);
    const auto end = static_cast<std::ptrdiff_t>(size);
    if (place >= 0 && place < end) return place;
    std::ptrdiff_t found = place;
    switch (mode) {
        case PadMode::constant:
            return -1;
        case PadMode::reflect:
            found = place < 0 ? -place : 2 * (end - 1) - place;
            break;
        case PadMode::circular:
            found = place < 0 ? place + end : place - end;
            break;
        case PadMode::replicate:
            break;
    }
    // Replicated places, and padding wider than the plan allows: never outside the image.
    return found < 0 ? 0 : found >= end ? end - 1 : found;
}

inline void pad(const FloatStep& step, const Epilogue& epilogue, const Position& at, std::size_t channel,
                float (&y)[kLanes]) {
    const Image& image = step.sources[0].shape;
    const std::ptrdiff_t row = padded_index(step.mode, at.y, step.top, image.height);
    const std::ptrdiff_t column = padded_index(step.mode, at.x, step.left, image.width);
    for (float& one : y) one = step.value;
    if (row < 0 || column < 0) return;
    const float* from = source_at(step, epilogue, 0) +
                        pixel_of(image, at.sample, static_cast<std::size_t>(row), static_cast<std::size_t>(column));
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::size_t place = channel + lane;
        if (place >= step.before && place - step.before < image.channels) y[lane] = from[place - step.before];
    }
}

inline void slice(const FloatStep& step, const Epilogue& epilogue, const Position& at, std::size_t channel,
                  std::size_t channels, float (&y)[kLanes]) {
    const Image& image = step.sources[0].shape;
    const std::size_t row = step.axis == 2 ? step.start + at.y * step.step : at.y;
    const std::size_t column = step.axis == 3 ? step.start + at.x * step.step : at.x;
    const float* from = source_at(step, epilogue, 0) + pixel_of(image, at.sample, row, column);
    if (step.axis != 1) return copy_lanes(from + channel, y);
    for (std::size_t lane = 0; lane < channels; ++lane) y[lane] = from[step.start + (channel + lane) * step.step];
}

// Both shapes read their elements in NCHW order.
inline void reshape(const FloatStep& step, const Epilogue& epilogue, const Position& at, std::size_t channel,
                    std::size_t channels, float (&y)[kLanes]) {
    const Image& image = step.sources[0].shape;
    const float* source = source_at(step, epilogue, 0);
    for (std::size_t lane = 0; lane < channels; ++lane) {
        const std::size_t element = ((channel + lane) * step.result.height + at.y) * step.result.width + at.x;
        const std::size_t column = element % image.width, rest = element / image.width;
        y[lane] = source[pixel_of(image, at.sample, rest % image.height, column) + rest / image.height];
    }
}

inline void multiply(const FloatStep& step, const Epilogue& epilogue, const Position& at, std::size_t pixel,
                     std::size_t channel, float (&y)[kLanes]) {
    const float* factors[2];
    for (std::size_t index = 0; index < 2; ++index) {
        const Image& image = step.sources[index].shape;
        // A height and width of 1 is spread over the other's.
        const std::size_t place = image.height * image.width == 1 ? at.sample : pixel;
        factors[index] = source_at(step, epilogue, index) + place * image.channels + channel;
    }
    for (std::size_t lane = 0; lane < kLanes; lane += kWidth) {
        store(load(factors[0] + lane) * load(factors[1] + lane), y + lane);
    }
}

inline void make_tile(const FloatStep& step, const float* external, const Epilogue& epilogue, const Position* positions,
                      Range pixels, std::size_t channel, std::size_t channels, Tile tile) {
    const std::size_t first = pixels.begin, count = pixels.end - pixels.begin;
    const std::size_t dense = first * step.result.channels + channel;
    switch (step.kind) {
        case FloatKind::input:
            return read_input(step, external, positions, count, channel, channels, tile);
        case FloatKind::copy: {
            const float* from = source_at(step, epilogue, 0) + dense;
            for (std::size_t p = 0; p < count; ++p) copy_lanes(from + p * step.result.channels, tile[p]);
            return;
        }
        case FloatKind::add: {
            const float* a = source_at(step, epilogue, 0) + dense;
            const float* b = source_at(step, epilogue, 1) + dense;
            for (std::size_t p = 0; p < count; ++p, a += step.result.channels, b += step.result.channels) {
                for (std::size_t lane = 0; lane < kLanes; lane += kWidth) {
                    store(load(a + lane) + load(b + lane), tile[p] + lane);
                }
            }
            return;
        }
        case FloatKind::concatenate:
            return concatenate(step, epilogue, first, count, channel, channels, tile);
        case FloatKind::multiply:
            for (std::size_t p = 0; p < count; ++p) multiply(step, epilogue, positions[p], first + p, channel, tile[p]);
            return;
        case FloatKind::max_pool:
        case FloatKind::average_pool:
        case FloatKind::adaptive_max_pool:
        case FloatKind::adaptive_average_pool:
            return;  // run_pool's
        case FloatKind::pad:
            for (std::size_t p = 0; p < count; ++p) pad(step, epilogue, positions[p], channel, tile[p]);
            return;
        case FloatKind::slice:
            for (std::size_t p = 0; p < count; ++p) slice(step, epilogue, positions[p], channel, channels, tile[p]);
            return;
        case FloatKind::reshape:
            for (std::size_t p = 0; p < count; ++p) reshape(step, epilogue, positions[p], channel, channels, tile[p]);
            return;
    }
}

inline void run_strip(const FloatStep& step, const float* external, const Epilogue& epilogue, Range pixels,
                      Range blocks) {
    Position positions[kStrip];
    locate(step.result.height, step.result.width, pixels.begin, pixels.end, positions);
    if (pools(step.kind)) return run_pool(step, epilogue, positions, pixels, blocks);
    float tile[kStrip][kLanes] = {};
    for (std::size_t block = blocks.begin; block < blocks.end; ++block) {
        const std::size_t channel = block * kLanes;
        const std::size_t left = step.result.channels - channel, channels = left < kLanes ? left : kLanes;
        make_tile(step, external, epilogue, positions, pixels, channel, channels, tile);
        finish(epilogue, tile, positions, pixels.begin, pixels.end - pixels.begin, channel, channels);
    }
}

inline void run_float_step(const FloatStep& step, const float* external, const Epilogue& epilogue, Range pixels,
                           Range blocks) {
    if (step.kind == FloatKind::input && kept_as_it_is(epilogue)) {
        return copy_input(step, external, epilogue, pixels, blocks);
    }
    for (std::size_t pixel = pixels.begin; pixel < pixels.end; pixel += kStrip) {
        const std::size_t end = pixel + kStrip < pixels.end ? pixel + kStrip : pixels.end;
        run_strip(step, external, epilogue, {pixel, end}, blocks);
    }
}

}  // namespace
}  // namespace bitstrata

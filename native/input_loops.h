// The caller's input, NCHW, as tiles or straight into the buffers of those who read it.
#pragma once

#include <cstddef>
#include <cstring>

#include "finish_loops.h"
#include "float_step.h"
#include "interleave_loops.h"

namespace bitstrata {
namespace {

inline void read_input(const FloatStep& step, const float* external, const Position* positions, std::size_t count,
                       std::size_t channel, std::size_t channels, float (*tile)[kLanes]) {
    const Image& image = step.result;
    for (std::size_t p = 0; p < count; ++p) {
        const Position& at = positions[p];
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const std::size_t plane = at.sample * image.channels + channel + lane;
            tile[p][lane] = lane < channels ? external[(plane * image.height + at.y) * image.width + at.x] : 0.0f;
        }
    }
}

inline bool kept_as_it_is(const Epilogue& epilogue) {
    bool floats = !epilogue.scale && !epilogue.residual && epilogue.activation == Activation::none;
    for (std::size_t index = 0; index < epilogue.output_count; ++index) {
        floats = floats && !epilogue.outputs[index].buffer.codes;
    }
    return floats;
}

// Pixels of one row: `from` is the first one's channel 0, and planes are that far apart.
inline void interleave(const float* __restrict from, std::size_t plane, std::size_t pixels, std::size_t channels,
                       float* __restrict to) {
    if (channels == 3) {  // images
        interleave_three(from, plane, pixels, to);
    } else if (plane == 1) {
        std::memcpy(to, from, channels * sizeof(float));
    } else {
        for (std::size_t p = 0; p < pixels; ++p) {
            for (std::size_t channel = 0; channel < channels; ++channel) {
                to[p * channels + channel] = from[channel * plane + p];
            }
        }
    }
}

inline void copy_input(const FloatStep& step, const float* external, const Epilogue& epilogue, Range pixels,
                       Range blocks) {
    if (blocks.begin != 0) return;  // all channels go with the first block
    const Image& image = step.result;
    const std::size_t plane = image.height * image.width;
    for (std::size_t pixel = pixels.begin; pixel < pixels.end;) {
        const std::size_t x = pixel % image.width, line = pixel / image.width;
        const std::size_t sample = line / image.height, y = line % image.height;
        const std::size_t count = pixels.end - pixel < image.width - x ? pixels.end - pixel : image.width - x;
        const float* from = external + sample * image.channels * plane + y * image.width + x;
        for (std::size_t index = 0; index < epilogue.output_count; ++index) {
            const Buffer& buffer = epilogue.outputs[index].buffer;
            float* start = reinterpret_cast<float*>(epilogue.arena + buffer.offset);
            const std::size_t place = buffer.origin + sample * buffer.image + y * buffer.row + x * image.channels;
            interleave(from, plane, count, image.channels, start + place);
        }
        pixel += count;
    }
}

}  // namespace
}  // namespace bitstrata

// The epilogue at work on a tile of accumulators: some pixels by up to kLanes channels.
#pragma once

#include <cstdint>
#include <cstring>

#include "activation_loops.h"
#include "epilogue.h"

namespace bitstrata {
namespace {

// The kLanes channels of one pixel.
struct Pixel {
    Lanes first, second;
};

inline Pixel load_pixel(const float* from, std::size_t channels) {
    if (channels == kLanes) return {load(from), load(from + kWidth)};
    float some[kLanes] = {};
    std::memcpy(some, from, channels * sizeof(float));
    return {load(some), load(some + kWidth)};
}

inline void store_floats(const Pixel& y, float* to, std::size_t channels) {
    if (channels == kLanes) {
        store(y.first, to);
        store(y.second, to + kWidth);
    } else {
        float some[kLanes];
        store(y.first, some);
        store(y.second, some + kWidth);
        std::memcpy(to, some, channels * sizeof(float));
    }
}

// Clamping to whole numbers before rounding gives the same codes as after it.
inline Lanes coded(const Output& output, Lanes y) {
    const Lanes scaled = at_least(y * spread(output.inverse_step), spread(output.low));
    return at_most(scaled, spread(output.high));
}

inline void store_codes(const Output& output, const Pixel& y, std::uint8_t* to, std::size_t channels) {
    // Rounded before the zero point is added: a half may become even or odd by it.
    const Lanes zero_point = spread(static_cast<float>(output.zero_point));
    const Lanes first = round_to_even(coded(output, y.first)) + zero_point;
    const Lanes second = round_to_even(coded(output, y.second)) + zero_point;
    if (channels == kLanes) {
        store_bytes(first, second, to);
    } else {
        std::uint8_t some[kLanes];
        store_bytes(first, second, some);
        std::memcpy(to, some, channels);
    }
}

inline void store_pixel(const Epilogue& epilogue, const Pixel& y, const Position& at, std::size_t channel,
                        std::size_t channels) {
    for (std::size_t index = 0; index < epilogue.output_count; ++index) {
        const Output& output = epilogue.outputs[index];
        const Buffer& buffer = output.buffer;
        const std::size_t place =
            buffer.origin + at.sample * buffer.image + at.y * buffer.row + at.x * epilogue.channels + channel;
        unsigned char* start = epilogue.arena + buffer.offset;
        if (buffer.codes) {
            store_codes(output, y, start + place, channels);
        } else {
            store_floats(y, reinterpret_cast<float*>(start) + place, channels);
        }
    }
}

// tile[p] belongs to the pixel at positions[p], number first + p of the result, and to the channels from `channel` on.
// T is the type of the accumulators: int32 or float. Lanes from `channels` on hold anything.
template <typename T>
inline void finish(const Epilogue& epilogue, const T (*tile)[kLanes], const Position* positions, std::size_t first,
                   std::size_t pixels, std::size_t channel, std::size_t channels) {
    if (epilogue.accumulators) {
        for (std::size_t p = 0; p < pixels; ++p) {
            std::int32_t* to = epilogue.accumulators + (first + p) * epilogue.channels + channel;
            std::memcpy(to, tile[p], channels * sizeof(T));
        }
        return;
    }
    for (std::size_t p = 0; p < pixels; ++p) {
        Pixel y{load(tile[p]), load(tile[p] + kWidth)};
        if (epilogue.scale) {
            const float* scale = epilogue.scale + channel;
            const float* bias = epilogue.bias + channel;
            y.first = y.first * load(scale) + load(bias);
            y.second = y.second * load(scale + kWidth) + load(bias + kWidth);
        }
        if (epilogue.residual) {
            const Pixel residual =
                load_pixel(epilogue.residual + (first + p) * epilogue.channels + channel, channels);
            y.first = y.first + residual.first;
            y.second = y.second + residual.second;
        }
        y.first = activated(epilogue.activation, y.first);
        y.second = activated(epilogue.activation, y.second);
        store_pixel(epilogue, y, positions[p], channel, channels);
    }
}

// The positions of the pixels [first, last) of a result.
inline void locate(std::size_t height, std::size_t width, std::size_t first, std::size_t last, Position* positions) {
    Position at{first / (height * width), first / width % height, first % width};
    for (std::size_t pixel = first; pixel < last; ++pixel) {
        positions[pixel - first] = at;
        if (++at.x == width) {
            at.x = 0;
            if (++at.y == height) {
                at.y = 0;
                ++at.sample;
            }
        }
    }
}

}  // namespace
}  // namespace bitstrata

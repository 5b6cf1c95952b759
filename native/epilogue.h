// What happens to a result before it is stored: scale and bias, residual, activation, then floats or codes for each
// consumer. Plain data; finish_loops.h does the work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "buffer.h"

namespace bitstrata {

// Channels that kernels and epilogue handle at a time. Tables per channel are readable this far beyond their end.
constexpr std::size_t kLanes = 16;

// Pixels that one piece of work covers. Images of common networks are 7, 14, 28, 56 or 112 pixels wide, the narrowest 49
// pixels in all: so pieces rarely end within a row, and never leave a single pixel over.
constexpr std::size_t kStrip = 56;

enum class Activation { none, relu, relu6, hard_sigmoid, hard_swish, sigmoid, silu };

// One place where a result is stored: as floats, or as the codes that one consumer reads.
struct Output {
    Buffer buffer;
    float inverse_step;  // of codes; code = clamp(rint(y * inverse_step), low, high) + zero_point
    float low, high;     // -zero_point and top - zero_point: whole numbers, so clamping first rounds to the same code
    int zero_point;
};

struct Epilogue {
    unsigned char* arena;
    const Output* outputs;
    std::size_t output_count;
    const float* scale;  // per channel, or null: y is the accumulator itself
    const float* bias;
    const float* slope;  // of lines that give codes (code_lines.h), or null
    const float* offset;
    const float* residual;  // dense, of the result's shape, or null
    Activation activation;
    std::int32_t* accumulators;  // for tests: where raw integers go instead of all the above, or null
    std::size_t channels;        // of the whole result
};

// Where a pixel of the result lies.
struct Position {
    std::size_t sample, y, x;
};

// Writes the borders that belong to the pixels [first, last) of a result of that shape: the zero point, or 0.0f.
void fill_borders(const Epilogue& epilogue, const Image& shape, std::size_t first, std::size_t last);

}  // namespace bitstrata

// The quantisers of training: de-quantised values in float32 and their straight-through gradients, one pass each.
// Their readable twin is src/bitstrata/training/quantisers.py, and a test says that both are equal.
#pragma once

#include <cstddef>

namespace bitstrata {

// One quantiser, as plain numbers. The tensor is `channels` rows of `row` elements; with one step for the whole
// tensor there is one row.
struct Quantiser {
    float low, high;      // the range of the source codes (minus the zero point, for activations)
    int dropped;          // m, the planes that are not there at this width; 0 for activations
    bool compensated;     // whether the midpoint of the merged bucket is used
};

// out = (floor(q / 2^m) + z) 2^m s with q = clip(rint(x / s), low, high).
void fake_quantise(const float* x, const float* steps, float* out, std::size_t channels, std::size_t row,
                   Quantiser quantiser, int threads);

// x_gradient = gradient where x / s lies in [low, high], else 0;
// step_gradients[c] = (<gradient, out> - <x_gradient, x>) / s, the sums taken in the channel.
void fake_quantise_backward(const float* gradient, const float* x, const float* steps, float* x_gradient,
                            float* step_gradients, std::size_t channels, std::size_t row, Quantiser quantiser,
                            int threads);

}  // namespace bitstrata

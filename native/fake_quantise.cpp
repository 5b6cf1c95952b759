#include "fake_quantise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel.h"

// One source, several instruction sets: the compiler makes a clone per target and the loader picks at run time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define PER_INSTRUCTION_SET __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PER_INSTRUCTION_SET
#endif

namespace bitstrata {
namespace {

// Elements that one thread takes at a time; also the span of one float32 partial sum.
constexpr std::size_t kChunk = 1 << 15;

// Sums are kept in this many independent lanes, so that the loop vectorises without reordering any one lane.
constexpr std::size_t kLanes = 32;

struct Scalars {
    float inverse, half_step, low, high, down, up, offset;
};

Scalars scalars_of(float step, Quantiser quantiser) {
    const float factor = static_cast<float>(1 << quantiser.dropped);
    return {1.0f / step, 0.5f * step,    quantiser.low, quantiser.high,
            1.0f / factor, 2.0f * factor, quantiser.compensated ? factor - 1.0f : 0.0f};
}

// floor(q / 2^m) 2^(m+1) + 2^m - 1: the value in units of half a step, an exact small integer.
inline float half_steps(float scaled, const Scalars& s) {
    const float code = std::min(std::max(std::nearbyint(scaled), s.low), s.high);
    return std::floor(code * s.down) * s.up + s.offset;
}

PER_INSTRUCTION_SET
void forward_span(const float* __restrict x, float* __restrict out, std::size_t count, Scalars s) {
    for (std::size_t i = 0; i < count; ++i) out[i] = half_steps(x[i] * s.inverse, s) * s.half_step;
}

PER_INSTRUCTION_SET
double backward_span(const float* __restrict gradient, const float* __restrict x, float* __restrict x_gradient,
                     std::size_t count, Scalars s) {
    float lanes[kLanes] = {};
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const float g = gradient[i + lane], value = x[i + lane], scaled = value * s.inverse;
            const float passed = (scaled >= s.low && scaled <= s.high) ? g : 0.0f;
            x_gradient[i + lane] = passed;
            lanes[lane] += g * (half_steps(scaled, s) * s.half_step) - passed * value;
        }
    }
    double sum = 0.0;
    for (float lane : lanes) sum += lane;
    for (; i < count; ++i) {
        const float g = gradient[i], value = x[i], scaled = value * s.inverse;
        const float passed = (scaled >= s.low && scaled <= s.high) ? g : 0.0f;
        x_gradient[i] = passed;
        sum += g * (half_steps(scaled, s) * s.half_step) - passed * value;
    }
    return sum;
}

std::size_t chunks_of(std::size_t row) { return (row + kChunk - 1) / kChunk; }

}  // namespace

void fake_quantise(const float* x, const float* steps, float* out, std::size_t channels, std::size_t row,
                   Quantiser quantiser, int threads) {
    const std::size_t per_row = chunks_of(row);
    parallel_chunks(channels * per_row, channels * row <= kChunk ? 1 : threads, [&](std::size_t chunk) {
        const std::size_t channel = chunk / per_row, begin = (chunk % per_row) * kChunk;
        const std::size_t start = channel * row + begin;
        forward_span(x + start, out + start, std::min(kChunk, row - begin), scalars_of(steps[channel], quantiser));
    });
}

void fake_quantise_backward(const float* gradient, const float* x, const float* steps, float* x_gradient,
                            float* step_gradients, std::size_t channels, std::size_t row, Quantiser quantiser,
                            int threads) {
    const std::size_t per_row = chunks_of(row);
    std::vector<double> partial(channels * per_row);
    parallel_chunks(channels * per_row, channels * row <= kChunk ? 1 : threads, [&](std::size_t chunk) {
        const std::size_t channel = chunk / per_row, begin = (chunk % per_row) * kChunk;
        const std::size_t start = channel * row + begin;
        partial[chunk] = backward_span(gradient + start, x + start, x_gradient + start,
                                       std::min(kChunk, row - begin), scalars_of(steps[channel], quantiser));
    });
    // Added up in a fixed order: the result does not depend on the number of threads.
    for (std::size_t channel = 0; channel < channels; ++channel) {
        double sum = 0.0;
        for (std::size_t chunk = 0; chunk < per_row; ++chunk) sum += partial[channel * per_row + chunk];
        step_gradients[channel] = static_cast<float>(sum / steps[channel]);
    }
}

}  // namespace bitstrata

#include "model.h"

#include <cmath>

namespace grid {
namespace {

std::size_t windows(std::size_t size, std::size_t kernel, std::size_t stride, std::size_t dilation) {
    return (size - (dilation * (kernel - 1) + 1)) / stride + 1;
}

// Calls add(sum, weight's index, input's index, or -1 in the padding) for every product of every result.
template <typename Sum, typename Add>
std::vector<Sum> convolve(const Task& task, Add add) {
    const Geometry& g = task.geometry;
    const Image result = task.result();
    std::vector<Sum> sums;
    sums.reserve(result.batch * result.height * result.width * result.channels);
    for (std::size_t sample = 0; sample < result.batch; ++sample)
        for (std::size_t y = 0; y < result.height; ++y)
            for (std::size_t x = 0; x < result.width; ++x)
                for (std::size_t output = 0; output < g.outputs; ++output) {
                    Sum sum = 0;
                    const std::size_t group = output / g.group_outputs();
                    for (std::size_t i = 0; i < g.kernel_height; ++i)
                        for (std::size_t j = 0; j < g.kernel_width; ++j) {
                            const std::size_t row = y * g.stride_height + i * g.dilation_height - task.padding.top;
                            const std::size_t column = x * g.stride_width + j * g.dilation_width - task.padding.left;
                            const bool inside = row < task.image.height && column < task.image.width;
                            for (std::size_t input = 0; input < g.group_inputs(); ++input) {
                                const std::size_t weight =
                                    ((output * g.group_inputs() + input) * g.kernel_height + i) * g.kernel_width + j;
                                const std::size_t place =
                                    ((sample * task.image.height + row) * task.image.width + column) * g.inputs +
                                    group * g.group_inputs() + input;
                                add(sum, weight, inside ? static_cast<std::ptrdiff_t>(place) : -1);
                            }
                        }
                    sums.push_back(sum);
                }
    return sums;
}

// exp(x), operation for operation as src/bitstrata/runtime/activations.py has it.
float exponential(float x) {
    x = x > -87.0f ? x : -87.0f;
    x = x < 88.0f ? x : 88.0f;
    const float whole = std::nearbyint(x * 1.44269504088896341f);
    float r = x - whole * 0.693359375f;
    r = r - whole * -2.12194440e-4f;
    float polynomial = 1.9875691500e-4f;
    for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
        polynomial = polynomial * r + factor;
    }
    float mantissa = polynomial * (r * r);
    mantissa = mantissa + r;
    mantissa = mantissa + 1.0f;
    return mantissa * std::ldexp(1.0f, static_cast<int>(whole));
}

float relu6(float x) {
    const float positive = x > 0.0f ? x : 0.0f;
    return positive < 6.0f ? positive : 6.0f;
}

}  // namespace

std::size_t Task::height() const {
    const Geometry& g = geometry;
    return windows(padding.top + image.height + padding.bottom, g.kernel_height, g.stride_height, g.dilation_height);
}

std::size_t Task::width() const {
    const Geometry& g = geometry;
    return windows(padding.left + image.width + padding.right, g.kernel_width, g.stride_width, g.dilation_width);
}

std::vector<std::int32_t> accumulators(const Task& task, const std::vector<std::int8_t>& weights,
                                       const std::vector<std::uint8_t>& codes) {
    const int dropped = task.coding.dropped(), zero = task.coding.zero_point;
    // Padding holds the code of zero, so it adds nothing.
    return convolve<std::int32_t>(task, [&](std::int32_t& sum, std::size_t weight, std::ptrdiff_t place) {
        const int odd = weights[weight] * (2 << dropped) + (1 << dropped) - 1;
        if (place >= 0) sum += odd * (codes[static_cast<std::size_t>(place)] - zero);
    });
}

std::vector<float> float_sums(const Task& task, const std::vector<float>& weights, const std::vector<float>& values) {
    return convolve<float>(task, [&](float& sum, std::size_t weight, std::ptrdiff_t place) {
        if (place >= 0) sum += weights[weight] * values[static_cast<std::size_t>(place)];
    });
}

float activated(Activation activation, float x) {
    switch (activation) {
        case Activation::none:
            break;
        case Activation::relu:
            return x > 0.0f ? x : 0.0f;
        case Activation::relu6:
            return relu6(x);
        case Activation::hard_sigmoid:
            return relu6(x + 3.0f) / 6.0f;
        case Activation::hard_swish:
            return x * relu6(x + 3.0f) / 6.0f;
        case Activation::sigmoid:
            return 1.0f / (1.0f + exponential(-x));
        case Activation::silu:
            return x / (1.0f + exponential(-x));
    }
    return x;
}

std::uint8_t code_of(const Output& output, float y) {
    const float rounded = std::nearbyint(y * output.inverse_step);
    const float clamped = rounded < output.low ? output.low : rounded > output.high ? output.high : rounded;
    return static_cast<std::uint8_t>(static_cast<int>(clamped) + output.zero_point);
}

}  // namespace grid

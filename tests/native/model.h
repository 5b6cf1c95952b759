// What the kernels must give, computed one number after another with nothing of theirs.
#pragma once

#include <cstdint>
#include <vector>

#include "layer.h"

namespace grid {

using bitstrata::Activation;
using bitstrata::Border;
using bitstrata::Coding;
using bitstrata::Geometry;
using bitstrata::Image;
using bitstrata::Output;

// One layer on one image.
struct Task {
    Geometry geometry;
    Coding coding;
    Image image;
    Border padding;

    std::size_t height() const;  // of the result
    std::size_t width() const;
    Image result() const { return {image.batch, height(), width(), geometry.outputs}; }
};

// Codes in NHWC order without border; results in NHWC order.
std::vector<std::int32_t> accumulators(const Task& task, const std::vector<std::int8_t>& weights,
                                       const std::vector<std::uint8_t>& codes);
std::vector<float> float_sums(const Task& task, const std::vector<float>& weights, const std::vector<float>& values);

float activated(Activation activation, float x);
std::uint8_t code_of(const Output& output, float y);

}  // namespace grid

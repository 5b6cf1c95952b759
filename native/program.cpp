#include "program.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "select.h"

namespace bitstrata {

Program::Program() : float_step_(choose_float_steps()) {}

std::size_t Program::add(std::unique_ptr<Layer> layer, std::string kernel, bool quantised, std::size_t channels,
                         const float* scale, const float* bias) {
    auto made = std::make_unique<TabledLayer>();
    made->layer = std::move(layer);
    made->kernel = std::move(kernel);
    made->quantised = quantised;
    made->channels = channels;
    made->scale = Aligned<float>(channels + kLanes);
    made->bias = Aligned<float>(channels + kLanes);
    std::copy_n(scale, channels, made->scale.data());
    std::copy_n(bias, channels, made->bias.data());
    layers_.push_back(std::move(made));
    return layers_.size() - 1;
}

std::size_t Program::add_quantised(const Geometry& geometry, const Coding& coding, const std::int8_t* codes,
                                   const float* scale, const float* bias) {
    const QuantisedKernel& kernel = choose_quantised(geometry, coding, codes);
    return add(kernel.prepare(geometry, coding, codes), kernel.name, true, geometry.outputs, scale, bias);
}

std::size_t Program::add_float(const Geometry& geometry, const float* weights, const float* scale, const float* bias) {
    const FloatKernel& kernel = choose_float(geometry);
    return add(kernel.prepare(geometry, weights), kernel.name, false, geometry.outputs, scale, bias);
}

std::size_t Program::add_affine(std::size_t channels, const float* scale, const float* bias) {
    return add(nullptr, "", false, channels, scale, bias);
}

const TabledLayer& Program::layer(std::size_t number) const {
    if (number >= layers_.size()) throw std::invalid_argument("there is no such layer");
    return *layers_[number];
}

}  // namespace bitstrata

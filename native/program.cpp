#include "program.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "planes.h"
#include "scratches.h"
#include "select.h"
#include "thread_pool.h"

namespace bitstrata {
namespace {

std::int64_t most_of(const Geometry& geometry, const Coding& coding) {
    const auto products = static_cast<std::int64_t>(geometry.group_inputs() * geometry.taps());
    return products * (static_cast<std::int64_t>(coding.top()) << coding.source_bits);
}

}  // namespace

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
    const std::size_t number =
        add(kernel.prepare(geometry, coding, codes), kernel.name, true, geometry.outputs, scale, bias);
    layers_[number]->most = most_of(geometry, coding);
    return number;
}

std::size_t Program::add_float(const Geometry& geometry, const float* weights, const float* scale, const float* bias) {
    const FloatKernel& kernel = choose_float(geometry);
    return add(kernel.prepare(geometry, weights), kernel.name, false, geometry.outputs, scale, bias);
}

std::size_t Program::add_affine(std::size_t channels, const float* scale, const float* bias) {
    return add(nullptr, "", false, channels, scale, bias);
}

std::size_t Program::add_planes(const Geometry& geometry, const Coding& coding, std::vector<const std::uint8_t*> planes,
                                const float* scale, const float* bias) {
    const std::size_t number = add(nullptr, "", true, geometry.outputs, scale, bias);
    layers_[number]->most = most_of(geometry, coding);
    waiting_.push_back({number, geometry, coding, std::move(planes)});
    return number;
}

void Program::prepare(std::size_t threads) {
    if (waiting_.empty()) return;
    // The largest first: what is left at the end, when a thread finds no more work, is little. All of a thread's layers
    // are unpacked to the same memory.
    std::vector<Waiting> layers = std::move(waiting_);
    waiting_.clear();
    std::stable_sort(layers.begin(), layers.end(),
                     [](const Waiting& a, const Waiting& b) { return a.weights() > b.weights(); });
    const std::size_t count = std::clamp<std::size_t>(threads, 1, layers.size());
    const std::size_t bytes = (plane_bytes(layers[0].weights()) * 8 + kAlignment - 1) / kAlignment * kAlignment;
    Aligned<unsigned char> memory(bytes * count, false);
    Scratches scratches(memory.data(), bytes, count);
    std::vector<std::exception_ptr> failures(layers.size());
    parallel_for(layers.size(), count, [&](std::size_t index) {
        const Waiting& one = layers[index];
        const Scratches::Taken taken(scratches);
        auto* codes = reinterpret_cast<std::int8_t*>(taken.memory);
        try {
            unpack_planes(one.planes, one.weights(), codes);
            const QuantisedKernel& kernel = choose_quantised(one.geometry, one.coding, codes);
            TabledLayer& layer = *layers_[one.layer];
            layer.layer = kernel.prepare(one.geometry, one.coding, codes);
            layer.kernel = kernel.name;
        } catch (...) {
            failures[index] = std::current_exception();
        }
    });
    for (const std::exception_ptr& failure : failures) {
        if (failure) std::rethrow_exception(failure);
    }
}

const TabledLayer& Program::layer(std::size_t number) const {
    if (number >= layers_.size()) throw std::invalid_argument("there is no such layer");
    if (layers_[number]->quantised && !layers_[number]->layer) throw std::invalid_argument("a layer that is not prepared");
    return *layers_[number];
}

}  // namespace bitstrata

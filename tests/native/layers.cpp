// Every kernel on a grid of layers: accumulators, and what epilogues make of them.
#include <algorithm>
#include <cmath>
#include <memory>

#include "guarded.h"
#include "model.h"
#include "outputs.h"
#include "report.h"
#include "select.h"

namespace grid {
namespace {

using bitstrata::Call;
using bitstrata::Cut;
using bitstrata::Epilogue;
using bitstrata::FloatKernel;
using bitstrata::kSlack;
using bitstrata::Layer;
using bitstrata::QuantisedKernel;

constexpr unsigned char kFilling = 0xA5;

// An input with its border, which ends at the forbidden page but for the slack that loads may touch.
template <typename T>
class Input {
public:
    Input(const Task& task, const std::vector<T>& values, T padding)
        : buffer_(bitstrata::make_buffer(0, task.image, task.padding, sizeof(T) == 1, bytes_of(task))),
          memory_(bytes_of(task)) {
        auto* to = reinterpret_cast<T*>(memory_.data());
        std::memset(memory_.data(), 0xff, memory_.size());  // what lies beyond must not matter
        std::fill_n(to, task.image.batch * buffer_.image, padding);
        const std::size_t row = task.image.width * task.image.channels;
        for (std::size_t index = 0; index < values.size(); ++index) {
            const std::size_t line = index / row;
            to[buffer_.origin + line / task.image.height * buffer_.image + line % task.image.height * buffer_.row +
               index % row] = values[index];
        }
    }
    Call call(const Task& task, const Epilogue& epilogue) const {
        return {memory_.data(), buffer_.row, buffer_.image, task.height(), task.width(), nullptr, epilogue};
    }

private:
    static std::size_t bytes_of(const Task& task) {
        return bitstrata::buffer_bytes(task.image, task.padding, sizeof(T) == 1);
    }

    bitstrata::Buffer buffer_;
    Guarded memory_;
};

// In pieces as the executor cuts them; `sets` of blocks as its threads do. False where scratch memory is written beyond
// its end, of which only the slack may be read.
bool run(const Layer& layer, Call call, const Image& result, std::size_t sets) {
    const Guarded workspace(layer.workspace(result)), scratch((layer.scratch() + 63) / 64 * 64 + kSlack);
    std::memset(scratch.data(), kFilling, scratch.size());
    call.workspace = workspace.data();
    call.scratch = scratch.data();
    const Cut cut = layer.cut(result);
    sets = std::min(sets, layer.blocks());
    for (std::size_t unit = 0; unit < cut.units; unit += cut.at_most) {
        for (std::size_t set = 0; set < sets; ++set) {
            layer.run(call, {unit, std::min(unit + cut.at_most, cut.units)},
                      {set * layer.blocks() / sets, (set + 1) * layer.blocks() / sets});
        }
    }
    return std::all_of(scratch.data() + layer.scratch(), scratch.data() + scratch.size(),
                       [](unsigned char byte) { return byte == kFilling; });
}

std::string name_of(const Task& task) {
    const Geometry& g = task.geometry;
    std::string name;
    for (std::size_t number : {g.inputs, g.outputs, g.groups, g.kernel_height, g.kernel_width, g.stride_height,
                               g.stride_width, g.dilation_height, g.dilation_width, task.padding.top,
                               task.padding.bottom, task.padding.left, task.padding.right, task.image.batch,
                               task.image.height, task.image.width}) {
        name += std::to_string(number) + ",";
    }
    return name + std::to_string(task.coding.bits) + "/" + std::to_string(task.coding.source_bits) + "o" +
           std::to_string(task.coding.zero_point);
}

class Layers {
public:
    explicit Layers(Report& report) : report_(report) {}

    void quantised(const Task& task, Fill weight_fill = Fill::any, Fill code_fill = Fill::any) {
        const Geometry& g = task.geometry;
        const int half = 1 << (task.coding.bits - 1);
        Random random(++number_);
        std::vector<std::int8_t> weights(g.outputs * g.group_inputs() * g.taps());
        for (auto& one : weights) one = static_cast<std::int8_t>(pick(random, weight_fill, -half, half - 1));
        std::vector<std::uint8_t> codes(task.image.batch * task.image.height * task.image.width * g.inputs);
        for (auto& one : codes) one = static_cast<std::uint8_t>(pick(random, code_fill, 0, task.coding.top()));
        check(task, weights, codes);
    }

    // The longest sums: codes are at that end of their range where products have one sign, and only one of every
    // `spacing` inputs counts, so that it falls to the same lane of a vector each time.
    void longest(const Task& task, std::size_t spacing) {
        const Geometry& g = task.geometry;
        const int half = 1 << (task.coding.bits - 1);
        Random random(++number_);
        std::vector<bool> positive(g.inputs);
        for (std::size_t input = 0; input < g.inputs; ++input) positive[input] = random.next() % 2 != 0;
        std::vector<std::int8_t> weights(g.outputs * g.group_inputs() * g.taps());
        for (std::size_t index = 0; index < weights.size(); ++index) {
            const std::size_t input = index / g.taps() % g.group_inputs();
            if (input % spacing == 0) weights[index] = static_cast<std::int8_t>(positive[input] ? half - 1 : -half);
        }
        std::vector<std::uint8_t> codes(task.image.batch * task.image.height * task.image.width * g.inputs);
        for (std::size_t index = 0; index < codes.size(); ++index) {
            codes[index] = static_cast<std::uint8_t>(positive[index % g.inputs] ? task.coding.top() : 0);
        }
        check(task, weights, codes);
    }

    // With small whole numbers, whose sums are exact in every order, and with any.
    void floats(const Task& task, bool whole) {
        const Geometry& g = task.geometry;
        Random random(++number_);
        const auto number = [&] { return whole ? static_cast<float>(random.between(-9, 9)) : random.symmetric(); };
        std::vector<float> weights(g.outputs * g.group_inputs() * g.taps());
        for (float& one : weights) one = number();
        std::vector<float> values(task.image.batch * task.image.height * task.image.width * g.inputs);
        for (float& one : values) one = number();
        const Input<float> input(task, values, 0.0f);
        const std::vector<float> sums = float_sums(task, weights, values);
        const std::string name = std::to_string(number_) + ":" + name_of(task) + (whole ? "whole" : "float");
        Digest digest;
        for (const FloatKernel& kernel : bitstrata::float_kernels()) {
            const bool rounds = std::string(kernel.name).find("winograd") != std::string::npos;  // whole numbers too
            if (!kernel.supports(g) || (whole && rounds)) continue;
            const auto layer = kernel.prepare(g, weights.data());
            if (whole) {
                Outputs outputs(task.result(), number_, true);
                run(*layer, input.call(task, outputs.epilogue()), task.result(), 1);
                if (!outputs.right(sums)) report_.differs(kernel.name, name);
                if (!outputs.kept_inside()) report_.differs(std::string(kernel.name) + " outside", name);
                if (kernel.name == std::string("portable.float")) digest.add(outputs.bytes());
            } else {
                Outputs outputs(task.result(), 2, false);  // floats as they are
                run(*layer, input.call(task, outputs.epilogue()), task.result(), 1);
                const std::vector<unsigned char> bytes = outputs.bytes();
                const float most = 1e-6f * static_cast<float>(g.group_inputs() * g.taps());
                for (std::size_t index = 0; index < sums.size(); ++index) {
                    float found;
                    std::memcpy(&found, bytes.data() + index * sizeof found, sizeof found);
                    if (!(std::fabs(found - sums[index]) <= most)) {
                        report_.differs(kernel.name, name);
                        break;
                    }
                }
                if (kernel.name == std::string("portable.float")) digest.add(bytes);
            }
            report_.ran(kernel.name);
        }
        report_.result(name, digest);
    }

private:
    void check(const Task& task, const std::vector<std::int8_t>& weights, const std::vector<std::uint8_t>& codes) {
        const Geometry& g = task.geometry;
        const Input<std::uint8_t> input(task, codes, static_cast<std::uint8_t>(task.coding.zero_point));
        const std::vector<std::int32_t> sums = accumulators(task, weights, codes);
        Outputs outputs(task.result(), number_, true);
        const std::string name = std::to_string(number_) + ":" + name_of(task) + outputs.name();
        std::vector<unsigned char> result;
        for (const QuantisedKernel& kernel : bitstrata::quantised_kernels()) {
            if (!kernel.supports(g, task.coding, weights.data())) continue;
            const auto layer = kernel.prepare(g, task.coding, weights.data());
            const Guarded raw(sums.size() * sizeof(std::int32_t));
            Epilogue epilogue{};
            epilogue.accumulators = reinterpret_cast<std::int32_t*>(raw.data());
            epilogue.channels = g.outputs;
            const std::size_t sets = 1 + number_ % 3;
            bool inside = run(*layer, input.call(task, epilogue), task.result(), sets);
            if (std::memcmp(raw.data(), sums.data(), raw.size()) != 0) report_.differs(kernel.name, name);
            inside &= run(*layer, input.call(task, outputs.epilogue()), task.result(), sets);
            if (!outputs.right(sums)) report_.differs(std::string(kernel.name) + " epilogue", name);
            if (!inside || !outputs.kept_inside()) report_.differs(std::string(kernel.name) + " outside", name);
            report_.ran(kernel.name);
            result = outputs.bytes();
        }
        Digest digest;
        digest.add(sums);
        digest.add(result);
        report_.result(name, digest);
    }

    Report& report_;
    std::size_t number_ = 0;
};

Task task_of(std::size_t inputs, std::size_t outputs, std::size_t groups, std::size_t kernel, std::size_t stride,
             std::size_t padding, std::size_t height, std::size_t width, std::size_t batch = 1) {
    return {{inputs, outputs, groups, kernel, kernel, stride, stride, 1, 1},
            {2, 4, 0},
            {batch, height, width, inputs},
            {padding, padding, padding, padding}};
}

Task coded(Task task, int bits, int source_bits, int zero_point) {
    task.coding = {bits, source_bits, zero_point};
    return task;
}

void windows(Layers& layers) {
    constexpr std::size_t kWindows[][2] = {{1, 1}, {3, 3}, {5, 5}, {7, 7}, {1, 7}, {3, 2}, {2, 5}};
    constexpr std::size_t kStrides[][2] = {{1, 1}, {2, 2}, {3, 1}}, kDilations[][2] = {{1, 1}, {2, 1}, {1, 3}};
    constexpr Border kPaddings[] = {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 0, 1, 3}};
    constexpr std::size_t kChannels[][3] = {{5, 17, 1}, {12, 6, 3}, {19, 19, 19}, {40, 40, 40}};
    for (const auto& window : kWindows)
        for (const auto& stride : kStrides)
            for (const auto& dilation : kDilations)
                for (const auto& padding : kPaddings)
                    for (const auto& [inputs, outputs, groups] : kChannels) {
                        Task task{{inputs, outputs, groups, window[0], window[1], stride[0], stride[1], dilation[0],
                                   dilation[1]},
                                  {3, 4, 3},
                                  {2, 13, 19, inputs},
                                  padding};
                        if (window[0] * window[1] > 25) task.image.batch = 1;
                        layers.quantised(task);
                        if (padding.top == 1 && groups < 40) layers.floats(task, true);
                    }
}

void channels(Layers& layers) {
    for (std::size_t inputs : {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 129}) {
        for (std::size_t outputs : {1, 3, 8, 16, 17, 33, 64}) {
            layers.quantised(coded(task_of(inputs, outputs, 1, 3, 1, 1, 3, 5, 2), 2, 4, 1));
            layers.quantised(coded(task_of(inputs, outputs, 1, 1, 1, 0, 7, 7), 4, 4, 0));
            layers.floats(task_of(inputs, outputs, 1, 1, 1, 0, 7, 7), false);
            layers.floats(task_of(inputs, outputs, 1, 1, 1, 0, 1, 1, 5), false);
            for (std::size_t side : {1, 4, 7, 12, 18, 23, 30}) {  // first layers of networks
                if (inputs <= 4) layers.floats(task_of(inputs, outputs, 1, 7, 2, 3, side, 41 - side, 2), false);
            }
        }
        // Rows longer than a strip, once with each kind of epilogue.
        for (int kind = 0; inputs == 17 && kind < 13; ++kind) {
            layers.quantised(coded(task_of(inputs, 33, 1, 3, 1, 1, 4, 72), 2, 4, 0));
        }
        if (inputs == 1) continue;
        for (std::size_t kernel : {3, 5}) {
            for (std::size_t stride : {1, 2}) {
                layers.quantised(coded(task_of(inputs, inputs, inputs, kernel, stride, kernel / 2, 9, 11, 2), 3, 4, 2));
            }
        }
        layers.quantised(coded(task_of(inputs, 2 * inputs, inputs, 3, 1, 1, 6, 5), 3, 4, 2));
    }
}

// All widths, with codes at the ends of their ranges.
void extremes(Layers& layers) {
    constexpr std::size_t kChannels[][3] = {{40, 18, 1}, {20, 20, 20}, {24, 18, 2}, {48, 34, 1}};
    struct Filled {
        Fill weights, codes;
        int zero_quarters;  // of the top code
    };
    constexpr Filled kFilled[] = {{Fill::lowest, Fill::highest, 0},   {Fill::highest, Fill::highest, 0},
                                  {Fill::lowest, Fill::lowest, 4},    {Fill::highest, Fill::lowest, 4},
                                  {Fill::extremes, Fill::extremes, 1}, {Fill::any, Fill::any, 2}};
    for (int source_bits = 2; source_bits <= 8; ++source_bits)
        for (int bits = 2; bits <= source_bits; ++bits)
            for (const auto& [inputs, outputs, groups] : kChannels)
                for (const Filled& filled : kFilled) {
                    const int zero_point = ((1 << bits) - 1) * filled.zero_quarters / 4;
                    layers.quantised(
                        coded(task_of(inputs, outputs, groups, 3, 1, 1, 4, 5), bits, source_bits, zero_point),
                        filled.weights, filled.codes);
                }
    for (int bits : {2, 3, 4, 7, 8})  // more products than any 16-bit sum can hold
        for (Fill fill : {Fill::lowest, Fill::highest, Fill::extremes}) {
            layers.quantised(coded(task_of(4096, 9, 1, 1, 1, 0, 1, 3), bits, 8, 0), fill, Fill::highest);
            layers.quantised(coded(task_of(256, 17, 1, 3, 1, 1, 4, 4), bits, bits, 1), fill, Fill::highest);
        }
    for (int bits = 2; bits <= 8; ++bits)
        for (std::size_t spacing : {1, 2, 4}) {
            layers.longest(coded(task_of(512, 17, 1, 3, 1, 1, 6, 6), bits, bits, 0), spacing);
            layers.longest(coded(task_of(4096, 9, 1, 1, 1, 0, 1, 3), bits, 8, 0), spacing);
        }
}

// Windows of 3x3 at stride 1, where tiles reach over the edge in every way.
void tiles(Layers& layers) {
    for (std::size_t height = 1; height <= 9; height += 2)
        for (std::size_t width : {1, 2, 3, 4, 5, 8, 13, 30})
            for (int bits = 2; bits <= 5; ++bits) {
                const std::size_t outputs = 16 + height * width % 3 * 15, inputs = 16 + width;
                layers.quantised(coded(task_of(inputs, outputs, 1, 3, 1, 1, height, width, 1 + width % 2), bits,
                                       bits < 5 ? 4 : 8, static_cast<int>(height) % (1 << bits)));
            }
    for (int bits = 2; bits <= 4; ++bits) {  // many tiles, and unpadded ones
        layers.quantised(coded(task_of(32, 33, 1, 3, 1, 1, 28, 28), bits, 4, 1));
        layers.quantised(coded(task_of(64, 64, 1, 3, 1, 0, 14, 15), bits, 4, 0));
        layers.quantised(coded(task_of(130, 48, 1, 3, 1, 1, 7, 7, 2), bits, 4, 3));
    }
}

// Strips that end within rows and images.
void strips(Layers& layers) {
    for (std::size_t width : {1, 2, 6, 7, 28, 55, 56, 57, 113})
        for (std::size_t batch : {1, 3}) {
            layers.quantised(coded(task_of(6, 20, 1, 1, 1, 0, 3, width, batch), 3, 4, 0));
            layers.quantised(coded(task_of(18, 18, 18, 3, 1, 1, 3, width, batch), 3, 4, 1));
            layers.quantised(coded(task_of(3, 16, 1, 3, 2, 1, 5, width, batch), 8, 8, 100));
            layers.floats(task_of(3, 18, 1, 3, 2, 1, 5, width, batch), true);
            layers.floats(task_of(3, 18, 1, 3, 2, 1, 5, width, batch), false);
        }
}

}  // namespace

void check_layers(Report& report) {
    Layers layers(report);
    windows(layers);
    channels(layers);
    extremes(layers);
    tiles(layers);
    strips(layers);
}

}  // namespace grid

// Binding the steps of a plan to their buffers, with all the checks that a run relies on.
#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "limits.h"
#include "program.h"

namespace bitstrata {
namespace {

void require(bool condition, const char* otherwise) {
    if (!condition) throw std::invalid_argument(otherwise);
}

bool dense(const Buffer& buffer) {
    const Border& border = buffer.border;
    return !buffer.codes && border.top + border.bottom + border.left + border.right == 0;
}

template <typename T>
T named(const std::unordered_map<std::string, T>& table, const std::string& name) {
    const auto found = table.find(name);
    require(found != table.end(), "a step of unknown kind or activation");
    return found->second;
}

FloatKind kind_named(const std::string& name) {
    static const std::unordered_map<std::string, FloatKind> table = {
        {"input", FloatKind::input},
        {"copy", FloatKind::copy},
        {"add", FloatKind::add},
        {"multiply", FloatKind::multiply},
        {"concatenate", FloatKind::concatenate},
        {"max_pool", FloatKind::max_pool},
        {"average_pool", FloatKind::average_pool},
        {"adaptive_max_pool", FloatKind::adaptive_max_pool},
        {"adaptive_average_pool", FloatKind::adaptive_average_pool},
        {"pad", FloatKind::pad},
        {"slice", FloatKind::slice},
        {"reshape", FloatKind::reshape},
    };
    return named(table, name);
}

// The numbers of a step, one after another, each within its bounds.
class Parameters {
public:
    explicit Parameters(const std::vector<std::int64_t>& values) : values_(values) {}
    std::size_t next(std::int64_t low, std::int64_t high) {
        require(used_ < values_.size(), "a step with too few parameters");
        const std::int64_t value = values_[used_++];
        require(value >= low && value <= high, "a parameter of a step is out of its bounds");
        return static_cast<std::size_t>(value);
    }
    void end() const { require(used_ == values_.size(), "a step with too many parameters"); }

private:
    const std::vector<std::int64_t>& values_;
    std::size_t used_ = 0;
};

Window window_of(Parameters& parameters) {
    Window window{};
    for (std::size_t* size : {&window.kernel_height, &window.kernel_width, &window.stride_height, &window.stride_width,
                              &window.dilation_height, &window.dilation_width}) {
        *size = parameters.next(1, kMaxWindow);
    }
    Border& padding = window.padding;
    for (std::size_t* size : {&padding.top, &padding.bottom, &padding.left, &padding.right}) {
        *size = parameters.next(0, kMaxWindow);
    }
    window.count_padding = parameters.next(0, 1) == 1;
    return window;
}

std::size_t elements(const Image& image) { return image.batch * image.height * image.width * image.channels; }

}  // namespace

Activation activation_named(const std::string& name) {
    static const std::unordered_map<std::string, Activation> table = {
        {"none", Activation::none},
        {"relu", Activation::relu},
        {"relu6", Activation::relu6},
        {"hard_sigmoid", Activation::hard_sigmoid},
        {"hard_swish", Activation::hard_swish},
        {"sigmoid", Activation::sigmoid},
        {"silu", Activation::silu},
    };
    return named(table, name);
}

Plan::Plan(const Program& program, std::size_t arena_bytes, Image input)
    : program_(program), arena_bytes_(arena_bytes), input_(input) {}

void Plan::add(const StepDescription& description, std::vector<Buffer> inputs, const Buffer* residual,
               std::vector<Output> outputs, std::size_t workspace_offset) {
    require(!outputs.empty(), "a step without a result");
    Step step{};
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    step.result = step.outputs[0].buffer.shape;
    step.activation = activation_named(description.activation);
    step.workspace_offset = workspace_offset;
    for (const Buffer& buffer : step.inputs) {
        // Made again: whether a buffer fits shows only now that the arena is known.
        (void)make_buffer(buffer.offset, buffer.shape, buffer.border, buffer.codes, arena_bytes_);
    }
    for (const Output& output : step.outputs) {
        const Buffer& buffer = output.buffer;
        (void)make_buffer(buffer.offset, buffer.shape, buffer.border, buffer.codes, arena_bytes_);
        require(same_shape(buffer.shape, step.result), "outputs of one step with different shapes");
    }
    if (residual) {
        (void)make_buffer(residual->offset, residual->shape, residual->border, residual->codes, arena_bytes_);
        require(dense(*residual) && same_shape(residual->shape, step.result), "a residual of another shape");
        step.has_residual = true;
        step.residual = *residual;
    }
    if (description.layer >= 0) {
        step.layer = &program_.layer(static_cast<std::size_t>(description.layer));
        require(step.layer->channels == step.result.channels, "a table for another number of channels");
    }
    step.convolves = description.kind == "convolution";
    if (step.convolves) {
        bind_convolution(step);
    } else {
        bind_floats(step, description);
    }
    if (step.convolves) scratch_bytes_ = std::max(scratch_bytes_, step.layer->layer->scratch());
    for (Step& earlier : steps_) {
        if (earlier.joined && reads(step, earlier.outputs[0].buffer)) earlier.joined = false;
    }
    if (!steps_.empty() && can_join(steps_.back(), step)) steps_.back().joined = true;
    steps_.push_back(std::move(step));
    if (!steps_.back().convolves) {
        steps_.back().floats.sources = steps_.back().inputs.data();  // which moving left where it was
        steps_.back().floats.source_count = steps_.back().inputs.size();
    }
}

void Plan::add_result(const Buffer& buffer) {
    (void)make_buffer(buffer.offset, buffer.shape, buffer.border, buffer.codes, arena_bytes_);
    require(dense(buffer), "results are dense floats");
    for (Step& step : steps_) {
        if (step.joined && step.outputs[0].buffer.offset == buffer.offset) step.joined = false;
    }
    results_.push_back(buffer);
}

void Plan::bind_convolution(Step& step) const {
    require(step.layer && step.layer->layer, "a convolution without weights");
    require(step.inputs.size() == 1, "a convolution has one input");
    const Geometry& g = step.layer->layer->geometry;
    const Buffer& input = step.inputs[0];
    const Border& border = input.border;
    require(input.codes == step.layer->quantised, "a layer that reads codes gets floats, or the other way round");
    require(input.shape.batch == step.result.batch && input.shape.channels == g.inputs, "an input that does not fit");
    const std::size_t height = border.top + input.shape.height + border.bottom;
    const std::size_t width = border.left + input.shape.width + border.right;
    require((step.result.height - 1) * g.stride_height + g.dilation_height * (g.kernel_height - 1) < height &&
                (step.result.width - 1) * g.stride_width + g.dilation_width * (g.kernel_width - 1) < width,
            "windows reach over the input");
    if (step.layer->quantised && !step.has_residual && step.outputs.size() == 1 && step.outputs[0].buffer.codes) {
        step.lines = code_lines(step.layer->scale.data(), step.layer->bias.data(), step.layer->channels,
                                step.layer->most, step.outputs[0], step.activation);
    }
    step.blocks = step.layer->layer->blocks();
    step.cut = step.layer->layer->cut(step.result);
    const std::size_t workspace = step.layer->layer->workspace(step.result);
    require(workspace <= arena_bytes_ && step.workspace_offset <= arena_bytes_ - workspace,
            "a workspace reaches over the end of the arena");
}

void Plan::bind_floats(Step& step, const StepDescription& description) const {
    FloatStep& floats = step.floats;
    floats.kind = kind_named(description.kind);
    floats.result = step.result;
    floats.value = description.value;
    step.blocks = (step.result.channels + kLanes - 1) / kLanes;
    step.cut = {step.result.batch * step.result.height * step.result.width,
                floats.kind == FloatKind::input ? kInputStrips * kStrip : kStrip};
    require(!step.layer || !step.layer->layer, "weights for a step that has none");
    Parameters parameters(description.parameters);
    const std::size_t count = step.inputs.size();
    const Image& result = step.result;
    for (const Buffer& input : step.inputs) {
        require(dense(input), "a step that reads floats gets codes");
        require(input.shape.batch == result.batch, "an input of another batch size");
    }
    if (floats.kind == FloatKind::input) {
        require(count == 0 && same_shape(result, input_), "an input step of another shape than the input");
        return parameters.end();
    }
    require(count > 0, "a step without inputs");
    const Image& first = step.inputs[0].shape;
    const bool two = floats.kind == FloatKind::add || floats.kind == FloatKind::multiply;
    require(floats.kind == FloatKind::concatenate || count == (two ? 2 : 1), "a step with too few or too many inputs");
    switch (floats.kind) {
        case FloatKind::input:
            break;
        case FloatKind::copy:
        case FloatKind::add:
            for (const Buffer& input : step.inputs) require(same_shape(input.shape, result), "shapes that differ");
            break;
        case FloatKind::multiply:
            for (const Buffer& input : step.inputs) {
                require(input.shape.channels == result.channels, "factors with different channels");
                require(same_shape(input.shape, result) || input.shape.height * input.shape.width == 1,
                        "factors of different sizes");
            }
            break;
        case FloatKind::concatenate: {
            std::size_t channels = 0;
            for (const Buffer& input : step.inputs) {
                require(input.shape.height == result.height && input.shape.width == result.width, "shapes that differ");
                channels += input.shape.channels;
            }
            require(channels == result.channels, "channels that do not add up");
            break;
        }
        case FloatKind::max_pool:
        case FloatKind::average_pool:
            require(first.channels == result.channels, "pooling that changes channels");
            floats.window = window_of(parameters);
            break;
        case FloatKind::adaptive_max_pool:
        case FloatKind::adaptive_average_pool:
            require(first.channels == result.channels, "pooling that changes channels");
            break;
        case FloatKind::pad:
            floats.before = parameters.next(0, kMaxWindow);
            floats.top = parameters.next(0, kMaxWindow);
            floats.left = parameters.next(0, kMaxWindow);
            floats.mode = static_cast<PadMode>(parameters.next(0, static_cast<std::int64_t>(PadMode::circular)));
            break;
        case FloatKind::slice: {
            floats.axis = parameters.next(1, 3);
            const auto along = [&](const Image& image) {
                return floats.axis == 1 ? image.channels : floats.axis == 2 ? image.height : image.width;
            };
            const std::size_t size = along(first), kept = along(result);
            floats.start = parameters.next(0, static_cast<std::int64_t>(size) - 1);
            floats.step = parameters.next(1, kMaxWindow);
            require(kept - 1 <= (size - 1 - floats.start) / floats.step, "a slice reaches over the end");
            Image rest = first;
            (floats.axis == 1 ? rest.channels : floats.axis == 2 ? rest.height : rest.width) = kept;
            require(same_shape(rest, result), "a slice along one axis changes another");
            break;
        }
        case FloatKind::reshape:
            require(elements(first) == elements(result), "a reshape that changes the number of elements");
            break;
    }
    parameters.end();
}

}  // namespace bitstrata

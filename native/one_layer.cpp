#include "one_layer.h"

#include <algorithm>
#include <stdexcept>

#include "arena.h"
#include "select.h"

namespace bitstrata {
namespace {

// Null for a float kernel, which takes no quantised layer.
const QuantisedKernel* kernel_named(const std::string& name) {
    for (const QuantisedKernel& kernel : quantised_kernels()) {
        if (name == kernel.name) return &kernel;
    }
    for (const FloatKernel& kernel : float_kernels()) {
        if (name == kernel.name) return nullptr;
    }
    throw std::invalid_argument("there is no such kernel on this processor");
}

std::size_t windows(std::size_t size, std::size_t kernel, std::size_t stride, std::size_t dilation) {
    const std::size_t extent = dilation * (kernel - 1) + 1;
    if (size < extent) throw std::invalid_argument("a window does not fit the image");
    return (size - extent) / stride + 1;
}

}  // namespace

bool run_one_layer(const std::string& name, const Geometry& g, const Coding& coding, const std::int8_t* weights,
                   Image image, Border padding, const std::uint8_t* x, std::int32_t* out, std::size_t out_size) {
    const QuantisedKernel* kernel = kernel_named(name);
    if (image.channels != g.inputs) throw std::invalid_argument("an input with other channels than the layer");
    const std::size_t bytes = buffer_bytes(image, padding, true);
    const Buffer buffer = make_buffer(0, image, padding, true, bytes);
    const std::size_t height =
        windows(padding.top + image.height + padding.bottom, g.kernel_height, g.stride_height, g.dilation_height);
    const std::size_t width =
        windows(padding.left + image.width + padding.right, g.kernel_width, g.stride_width, g.dilation_width);
    const std::size_t pixels = image.batch * height * width;
    if (pixels * g.outputs != out_size) throw std::invalid_argument("a result of another size than the layer's");
    if (!kernel || !kernel->supports(g, coding, weights)) return false;

    Aligned<std::uint8_t> input(bytes - kSlack);  // it adds as much itself: not a byte more than in an arena
    std::fill_n(input.data(), bytes, static_cast<std::uint8_t>(coding.zero_point));
    // What lies beyond the buffer must not matter.
    std::fill_n(input.data() + bytes - kSlack, kSlack, std::uint8_t{0xff});
    const std::size_t size = image.height * image.width;
    for (std::size_t index = 0; index < image.batch * image.channels * size; ++index) {
        const std::size_t plane = index / size, place = index % size;
        input[buffer.origin + plane / image.channels * buffer.image + place / image.width * buffer.row +
              place % image.width * image.channels + plane % image.channels] = x[index];
    }

    const auto layer = kernel->prepare(g, coding, weights);
    Aligned<std::int32_t> sums(out_size);
    Aligned<unsigned char> workspace(layer->workspace({image.batch, height, width, g.outputs}));
    Epilogue epilogue{};
    epilogue.accumulators = sums.data();
    epilogue.channels = g.outputs;
    Aligned<unsigned char> scratch(layer->scratch());
    const Call call{input.data(),     buffer.row, buffer.image,  height, width,
                    workspace.data(), epilogue,   scratch.data()};
    const Cut cut = layer->cut({image.batch, height, width, g.outputs});
    for (std::size_t unit = 0; unit < cut.units; unit += cut.at_most) {
        layer->run(call, {unit, std::min(unit + cut.at_most, cut.units)}, {0, layer->blocks()});
    }
    for (std::size_t index = 0; index < out_size; ++index) {
        const std::size_t plane = index / (height * width), place = index % (height * width);
        const std::size_t sample = plane / g.outputs, channel = plane % g.outputs;
        out[index] = sums[(sample * height * width + place) * g.outputs + channel];
    }
    return true;
}

}  // namespace bitstrata

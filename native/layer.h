// The interface behind which all kernels stand: a layer's description, and its weights prepared for one kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "buffer.h"
#include "epilogue.h"

namespace bitstrata {

// A convolution; a linear layer is one on images of one pixel.
struct Geometry {
    std::size_t inputs, outputs, groups;  // channels
    std::size_t kernel_height, kernel_width;
    std::size_t stride_height, stride_width;
    std::size_t dilation_height, dilation_width;

    std::size_t group_inputs() const { return inputs / groups; }
    std::size_t group_outputs() const { return outputs / groups; }
    std::size_t taps() const { return kernel_height * kernel_width; }
    bool depthwise() const { return groups > 1 && groups == inputs && groups == outputs; }
};

// How the integers of a quantised layer are to be read.
struct Coding {
    int bits, source_bits, zero_point;

    int dropped() const { return source_bits - bits; }
    int top() const { return (1 << bits) - 1; }
    // The weight that a code stands for, in half source steps.
    int odd(int code) const { return code * (2 << dropped()) + (1 << dropped()) - 1; }
};

// One run of a layer. Its input has a border as wide as the padding, so every window lies inside the buffer.
struct Call {
    const void* input;            // codes or floats, from the first place of the border on
    std::size_t row, image;       // in elements
    std::size_t height, width;    // of the result
    unsigned char* workspace;     // as many bytes as the layer asked for, or null
    Epilogue epilogue;
    unsigned char* scratch = nullptr;  // likewise, but for one piece of the run alone
};

struct Range {
    std::size_t begin, end;
};

// How a result is cut: into units of a layer's own choice, and at most so many of them to a piece of work.
struct Cut {
    std::size_t units, at_most;
};

// The weights of one layer, prepared for one kernel. A block is a set of output channels, at most kLanes of one group.
class Layer {
public:
    explicit Layer(const Geometry& geometry) : geometry(geometry) {}
    virtual ~Layer() = default;

    virtual std::size_t blocks() const = 0;

    // The units are pixels, in strips, where a layer does not say otherwise.
    virtual Cut cut(const Image& result) const { return {result.batch * result.height * result.width, kStrip}; }

    // Computes some units of some blocks, epilogue included. Called from several threads at once.
    virtual void run(const Call& call, Range units, Range blocks) const noexcept = 0;

    // Rows of the result that are computed together, from its first row on; how they are grouped may change their last
    // bits.
    virtual std::size_t rows_together() const { return 1; }

    // Bytes of scratch memory that one run needs, shared by all its threads.
    virtual std::size_t workspace(const Image& /*result*/) const { return 0; }

    // Bytes of scratch memory that each piece of a run needs for itself.
    virtual std::size_t scratch() const { return 0; }

    const Geometry geometry;
};

// A kernel for quantised layers. Weights are codes (outputs, inputs of a group, kernel height, kernel width).
struct QuantisedKernel {
    const char* name;
    const char* isa;
    bool (*supports)(const Geometry&, const Coding&, const std::int8_t* codes);
    std::unique_ptr<Layer> (*prepare)(const Geometry&, const Coding&, const std::int8_t* codes);
    // Whether a layer that it supports should get it; null where it always should.
    bool (*worthwhile)(const Geometry&, const Coding&) = nullptr;
};

struct FloatKernel {
    const char* name;
    const char* isa;
    bool (*supports)(const Geometry&);
    std::unique_ptr<Layer> (*prepare)(const Geometry&, const float* weights);
};

}  // namespace bitstrata

// A network prepared for this machine: the layers of one view (built once), and plans of steps (one per input shape).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena.h"
#include "code_lines.h"
#include "float_step.h"
#include "layer.h"

namespace bitstrata {

// A layer with its table; without weights it is an affine map.
struct TabledLayer {
    std::unique_ptr<Layer> layer;
    std::string kernel;
    bool quantised;
    Aligned<float> scale, bias;
    std::size_t channels;  // of the table
    std::int64_t most;     // that an accumulator of a quantised layer can be, or its negative
};

class Scratches;

class Program {
public:
    Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // All return the layer's number. Kernels are chosen here.
    std::size_t add_quantised(const Geometry& geometry, const Coding& coding, const std::int8_t* codes,
                              const float* scale, const float* bias);
    std::size_t add_float(const Geometry& geometry, const float* weights, const float* scale, const float* bias);
    std::size_t add_affine(std::size_t channels, const float* scale, const float* bias);

    // The same of planes, which must stay where they are until `prepare`.
    std::size_t add_planes(const Geometry& geometry, const Coding& coding, std::vector<const std::uint8_t*> planes,
                           const float* scale, const float* bias);
    // Prepares the layers that were added as planes, on so many threads.
    void prepare(std::size_t threads);

    const TabledLayer& layer(std::size_t number) const;

private:
    friend class Plan;
    std::size_t add(std::unique_ptr<Layer> layer, std::string kernel, bool quantised, std::size_t channels,
                    const float* scale, const float* bias);

    struct Waiting {
        std::size_t layer;
        Geometry geometry;
        Coding coding;
        std::vector<const std::uint8_t*> planes;

        std::size_t weights() const { return geometry.outputs * geometry.group_inputs() * geometry.taps(); }
    };

    std::vector<std::unique_ptr<TabledLayer>> layers_;
    std::vector<Waiting> waiting_;
    FloatStepLoops float_step_;
    mutable Arenas arenas_, scratches_;
};

// Throws std::invalid_argument where there is none of that name.
Activation activation_named(const std::string& name);

// What a step is besides its buffers; the numbers mean what its kind says.
struct StepDescription {
    std::string kind;
    std::ptrdiff_t layer = -1;
    std::string activation = "none";
    std::vector<std::int64_t> parameters;
    float value = 0.0f;
};

// The steps for one input shape, bound to places in an arena. Everything is checked when it is added, so that a run
// cannot leave its arena whatever the planner did. Runs change nothing here.
class Plan {
public:
    Plan(const Program& program, std::size_t arena_bytes, Image input);
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    void add(const StepDescription& description, std::vector<Buffer> inputs, const Buffer* residual,
             std::vector<Output> outputs, std::size_t workspace_offset);
    // The next result that the caller gets.
    void add_result(const Buffer& buffer);

    std::size_t arena_bytes() const { return arena_bytes_; }
    const Image& input() const { return input_; }
    const std::vector<Buffer>& results() const { return results_; }

    std::size_t step_count() const { return steps_.size(); }

    // x is of the input's shape, each result of its buffer's; all are dense and NCHW. Where `seconds` is given, the
    // time of each step is written there, and last that of writing the results.
    void run(const float* x, float* const* results, std::size_t threads, double* seconds = nullptr) const;

private:
    struct Step {
        const TabledLayer* layer;  // or null
        bool convolves;            // else `floats` says what to do
        FloatStep floats;
        std::vector<Buffer> inputs;
        bool has_residual;
        Buffer residual;
        std::vector<Output> outputs;
        std::optional<CodeLines> lines;  // of its only output
        Image result;
        Activation activation;
        std::size_t workspace_offset, blocks;
        Cut cut;
        bool joined;  // only the next step reads the result, and both are run together
    };

    void bind_convolution(Step& step) const;
    void bind_floats(Step& step, const StepDescription& description) const;
    static bool reads(const Step& step, const Buffer& buffer);
    static bool can_join(const Step& first, const Step& second);
    static Epilogue epilogue_of(const Step& step, unsigned char* arena);
    void run_joined(const Step& first, const Step& second, unsigned char* arena, Scratches& scratches,
                    std::size_t threads) const;
    void run_step(const Step& step, const float* x, unsigned char* arena, Scratches& scratches,
                  std::size_t threads) const;

    const Program& program_;
    std::size_t arena_bytes_, scratch_bytes_ = 0;
    Image input_;
    std::vector<Step> steps_;
    std::vector<Buffer> results_;
};

}  // namespace bitstrata

// What Python sees of the runtime: layers and plans are built here and run without the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "binding.h"
#include "limits.h"
#include "one_layer.h"
#include "planes.h"
#include "program.h"
#include "roofline.h"
#include "select.h"
#include "thread_pool.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace bitstrata;

namespace {

template <typename T, int Dimensions>
using Array = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Dense = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Sizes = std::array<std::size_t, 4>;
using Pair = std::array<std::size_t, 2>;

void require(bool condition, const char* otherwise) {
    if (!condition) throw std::invalid_argument(otherwise);
}

// Of weights (outputs, inputs of a group, kernel height, kernel width).
Geometry geometry_of(const Sizes& weights, Pair stride, Pair dilation, std::size_t groups) {
    const auto limit = static_cast<std::size_t>(kMaxWindow), most = static_cast<std::size_t>(kMaxDimension);
    for (std::size_t size : {weights[2], weights[3], stride[0], stride[1], dilation[0], dilation[1]}) {
        require(size >= 1 && size <= limit, "a kernel size, stride or dilation is out of its bounds");
    }
    require(weights[0] > 0 && weights[1] > 0 && groups > 0 && weights[0] % groups == 0,
            "weights that do not fit their groups");
    require(groups <= most && weights[1] <= most / groups && weights[0] <= most, "too many channels");
    return {weights[1] * groups, weights[0], groups,     weights[2], weights[3],
            stride[0],           stride[1],  dilation[0], dilation[1]};
}

template <typename T>
Sizes sizes_of(const Array<T, 4>& array) {
    return {array.shape(0), array.shape(1), array.shape(2), array.shape(3)};
}

Coding coding_of(const Geometry& geometry, int bits, int source_bits, int zero_point) {
    require(bits >= kMinWidth && bits <= source_bits && source_bits <= kMaxWidth, "a width is out of its bounds");
    const Coding coding{bits, source_bits, zero_point};
    require(zero_point >= 0 && zero_point <= coding.top(), "a zero point is no code");
    const std::size_t largest = static_cast<std::size_t>(coding.top()) << source_bits;
    require(geometry.group_inputs() * geometry.taps() <= static_cast<std::size_t>(kMaxAccumulator) / largest,
            "accumulators could overflow 32 bits");
    return coding;
}

void check_codes(const Array<std::int8_t, 4>& codes, int bits) {
    // Shifted to start at zero, codes that fit have no bit above those of their width: one pass without branches.
    const int half = 1 << (bits - 1);
    unsigned seen = 0;
    for (std::size_t index = 0; index < codes.size(); ++index) {
        seen |= static_cast<std::uint8_t>(codes.data()[index] + half);
    }
    require(seen < 2u * static_cast<unsigned>(half), "codes do not fit their width");
}

void check_table(const Array<float, 1>& scale, const Array<float, 1>& bias, std::size_t channels) {
    require(scale.size() == channels && bias.size() == channels, "scale and bias of another size than the channels");
}

Buffer buffer_of(std::size_t offset, Sizes shape, Sizes border, bool codes) {
    const auto most = static_cast<std::size_t>(kMaxDimension);
    for (std::size_t size : shape) require(size <= most * 128, "a dimension is too large");
    for (std::size_t size : border) require(size <= static_cast<std::size_t>(kMaxWindow), "a border is too wide");
    return make_buffer(offset, {shape[0], shape[1], shape[2], shape[3]}, {border[0], border[1], border[2], border[3]},
                       codes, std::numeric_limits<std::size_t>::max());
}

Output output_of(const Buffer& buffer, float inverse_step, int zero_point, int top) {
    require(zero_point >= 0 && zero_point <= top && top <= 255, "a zero point is no code");
    return {buffer, inverse_step, static_cast<float>(-zero_point), static_cast<float>(top - zero_point), zero_point};
}

// Planes belong to Python until they are prepared.
class HeldProgram : public Program {
public:
    std::vector<Array<std::uint8_t, 1>> planes;
};

using Results = std::vector<Dense<float>>;

void run(const Plan& plan, const Dense<const float>& x, const Results& results, std::size_t threads,
         double* seconds = nullptr) {
    const auto size = [](const Image& image) { return image.batch * image.height * image.width * image.channels; };
    require(x.size() == size(plan.input()), "an input of another size than the plan's");
    require(results.size() == plan.results().size(), "another number of results than the plan's");
    std::vector<float*> places;
    for (std::size_t index = 0; index < results.size(); ++index) {
        require(results[index].size() == size(plan.results()[index].shape), "a result of another size than the plan's");
        places.push_back(results[index].data());
    }
    Unlocked unlocked;
    plan.run(x.data(), places.data(), threads, seconds);
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const QuantisedKernel& kernel : quantised_kernels()) names.emplace_back(kernel.name);
    for (const FloatKernel& kernel : float_kernels()) names.emplace_back(kernel.name);
    return names;
}

}  // namespace

void bind_runtime(nb::module_& m) {
    m.def("kernel_names", &kernel_names, "The kernels that this processor can run, the preferred first.");
    m.def("isa", &chosen_isa, "The instruction set that new sessions get: avx512, avx2, dotprod, neon or portable.");
    m.def("worker_count", &worker_count, "How many threads of the runtime's own are running.");
    m.def("stop_threads", &stop_thread_pool, nb::call_guard<nb::gil_scoped_release>(),
          "Ends the runtime's own threads; later calls run on the calling thread alone.");
    m.def("multiply_rate", &multiply_rate, "floats"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Multiply-accumulates per second that one thread of this processor can do at most, of floats or of bytes.");
    m.def("read_rate", &read_rate, "bytes"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Bytes per second that one thread can read from a stretch of that size.");
    nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
        nb::gil_scoped_release unlocked;
        park_other_threads();
        stop_thread_pool();
    }));

    m.def(
        "accumulators",
        [](const std::string& kernel, const Array<std::int8_t, 4>& codes, const Array<std::uint8_t, 4>& x,
           const Dense<std::int32_t>& out, Pair stride, Sizes padding, Pair dilation, std::size_t groups, int bits,
           int source_bits, int zero_point) {
            const Geometry geometry = geometry_of(sizes_of(codes), stride, dilation, groups);
            const Coding coding = coding_of(geometry, bits, source_bits, zero_point);
            check_codes(codes, bits);
            const Image image{x.shape(0), x.shape(2), x.shape(3), x.shape(1)};
            return run_one_layer(kernel, geometry, coding, codes.data(), image,
                                 {padding[0], padding[1], padding[2], padding[3]}, x.data(), out.data(), out.size());
        },
        "kernel"_a, "codes"_a.noconvert(), "x"_a.noconvert(), "out"_a.noconvert(), "stride"_a, "padding"_a,
        "dilation"_a, "groups"_a, "bits"_a, "source_bits"_a, "zero_point"_a,
        "Writes the accumulators of one quantised layer to `out`; False where the kernel does not take the layer.");

    nb::class_<Buffer>(m, "Buffer")
        .def(
            "__init__",
            [](Buffer* self, std::size_t offset, Sizes shape, Sizes border, bool codes) {
                new (self) Buffer(buffer_of(offset, shape, border, codes));
            },
            "offset"_a, "shape"_a, "border"_a, "codes"_a);
    nb::class_<Output>(m, "Output")
        .def(
            "__init__",
            [](Output* self, const Buffer& buffer, float inverse_step, int zero_point, int top) {
                new (self) Output(output_of(buffer, inverse_step, zero_point, top));
            },
            "buffer"_a, "inverse_step"_a, "zero_point"_a, "top"_a);

    m.def(
        "code_lines",
        [](const Array<float, 2>& table, std::int64_t most, const Output& output, const std::string& activation)
            -> std::optional<std::vector<std::pair<float, float>>> {
            require(table.shape(0) == 2 && most > 0, "a table of scales and biases, and a bound");
            const std::size_t channels = table.shape(1);
            const float* scale = table.data();
            const auto lines =
                code_lines(scale, scale + channels, channels, most, output, activation_named(activation));
            if (!lines) return std::nullopt;
            std::vector<std::pair<float, float>> made;
            for (std::size_t channel = 0; channel < channels; ++channel) {
                made.emplace_back(lines->slope[channel], lines->offset[channel]);
            }
            return made;
        },
        "table"_a.noconvert(), "most"_a, "output"_a, "activation"_a,
        "Slope and offset of each channel's codes; None where accumulators up to `most` have no such lines.");

    nb::class_<HeldProgram>(m, "Program")
        .def(nb::init<>())
        .def(
            "add_quantised",
            [](HeldProgram& self, const Array<std::int8_t, 4>& codes, Pair stride, Pair dilation, std::size_t groups,
               int bits, int source_bits, int zero_point, const Array<float, 1>& scale, const Array<float, 1>& bias) {
                const Geometry geometry = geometry_of(sizes_of(codes), stride, dilation, groups);
                const Coding coding = coding_of(geometry, bits, source_bits, zero_point);
                check_codes(codes, bits);
                check_table(scale, bias, geometry.outputs);
                Unlocked unlocked;
                return self.add_quantised(geometry, coding, codes.data(), scale.data(), bias.data());
            },
            "codes"_a.noconvert(), "stride"_a, "dilation"_a, "groups"_a, "bits"_a, "source_bits"_a, "zero_point"_a,
            "scale"_a.noconvert(), "bias"_a.noconvert())
        .def(
            "add_planes",
            [](HeldProgram& self, const std::vector<Array<std::uint8_t, 1>>& planes, Sizes shape, Pair stride,
               Pair dilation, std::size_t groups, int source_bits, int zero_point, const Array<float, 1>& scale,
               const Array<float, 1>& bias) {
                const Geometry geometry = geometry_of(shape, stride, dilation, groups);
                require(planes.size() <= static_cast<std::size_t>(kMaxWidth), "a width is out of its bounds");
                const Coding coding = coding_of(geometry, static_cast<int>(planes.size()), source_bits, zero_point);
                check_table(scale, bias, geometry.outputs);
                const std::size_t count = geometry.outputs * geometry.group_inputs() * geometry.taps();
                std::vector<const std::uint8_t*> places;
                for (const auto& plane : planes) {
                    require(plane.size() == plane_bytes(count), "a plane of another size than the weights");
                    places.push_back(plane.data());
                }
                self.planes.insert(self.planes.end(), planes.begin(), planes.end());
                return self.add_planes(geometry, coding, std::move(places), scale.data(), bias.data());
            },
            "planes"_a, "shape"_a, "stride"_a, "dilation"_a, "groups"_a, "source_bits"_a, "zero_point"_a,
            "scale"_a.noconvert(), "bias"_a.noconvert(),
            "A quantised layer of the leading planes of its codes; `prepare` makes it ready.")
        .def(
            "prepare",
            [](HeldProgram& self, std::size_t threads) {
                {
                    Unlocked unlocked;
                    self.prepare(threads);
                }
                self.planes.clear();
            },
            "threads"_a, "Prepares all layers of planes, on so many threads.")
        .def(
            "add_float",
            [](HeldProgram& self, const Array<float, 4>& weights, Pair stride, Pair dilation, std::size_t groups,
               const Array<float, 1>& scale, const Array<float, 1>& bias) {
                const Geometry geometry = geometry_of(sizes_of(weights), stride, dilation, groups);
                check_table(scale, bias, geometry.outputs);
                Unlocked unlocked;
                return self.add_float(geometry, weights.data(), scale.data(), bias.data());
            },
            "weights"_a.noconvert(), "stride"_a, "dilation"_a, "groups"_a, "scale"_a.noconvert(), "bias"_a.noconvert())
        .def(
            "add_affine",
            [](HeldProgram& self, const Array<float, 1>& scale, const Array<float, 1>& bias) {
                check_table(scale, bias, scale.size());
                return self.add_affine(scale.size(), scale.data(), bias.data());
            },
            "scale"_a.noconvert(), "bias"_a.noconvert())
        .def("kernel", [](const HeldProgram& self, std::size_t layer) { return self.layer(layer).kernel; }, "layer"_a)
        .def(
            "workspace",
            [](const HeldProgram& self, std::size_t layer, Sizes shape) -> std::size_t {
                const TabledLayer& found = self.layer(layer);
                return found.layer ? found.layer->workspace({shape[0], shape[1], shape[2], shape[3]}) : 0;
            },
            "layer"_a, "shape"_a, "Bytes of scratch memory for a result (batch, height, width, channels).");

    nb::class_<Plan>(m, "Plan")
        .def(
            "__init__",
            [](Plan* self, const HeldProgram& program, std::size_t arena_bytes, Sizes input) {
                new (self) Plan(program, arena_bytes, {input[0], input[1], input[2], input[3]});
            },
            "program"_a, "arena_bytes"_a, "input"_a, nb::keep_alive<1, 2>())
        .def(
            "add",
            [](Plan& self, std::string kind, std::ptrdiff_t layer, std::vector<Buffer> inputs,
               const std::optional<Buffer>& residual, std::string activation, std::vector<Output> outputs,
               std::vector<std::int64_t> parameters, float value, std::size_t workspace) {
                self.add({std::move(kind), layer, std::move(activation), std::move(parameters), value},
                         std::move(inputs), residual ? &*residual : nullptr, std::move(outputs), workspace);
            },
            "kind"_a, "layer"_a, "inputs"_a, "residual"_a.none(), "activation"_a, "outputs"_a, "parameters"_a,
            "value"_a, "workspace"_a)
        .def("add_result", &Plan::add_result, "buffer"_a)
        .def(
            "run",
            [](const Plan& self, const Dense<const float>& x, const Results& results, std::size_t threads) {
                run(self, x, results, threads);
            },
            "x"_a.noconvert(), "results"_a, "threads"_a)
        .def(
            "profile",
            [](const Plan& self, const Dense<const float>& x, const Results& results, std::size_t threads) {
                std::vector<double> seconds(self.step_count() + 1);
                run(self, x, results, threads, seconds.data());
                return seconds;
            },
            "x"_a.noconvert(), "results"_a, "threads"_a,
            "Runs, and returns the seconds of each step, and last those of writing the results.");
}

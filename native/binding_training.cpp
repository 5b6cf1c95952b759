// What Python sees of the training kernels. Tensors come in as DLPack arrays, so torch is neither linked nor included.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "binding.h"
#include "fake_quantise.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Any dense layout: the caller makes sure that all tensors of a call are laid out alike. Arguments are never converted:
// results written to a converted copy would be lost without a word.
using Tensor = nb::ndarray<float, nb::device::cpu>;
using ReadOnly = nb::ndarray<const float, nb::device::cpu>;

std::size_t row_length(const ReadOnly& x, const ReadOnly& steps) {
    if (steps.size() == 0 || x.size() % steps.size() != 0) throw std::invalid_argument("steps do not divide the tensor");
    return x.size() / steps.size();
}

void same_size(std::size_t expected, std::size_t found) {
    if (expected != found) throw std::invalid_argument("tensors of different sizes");
}

}  // namespace

void bind_training(nb::module_& m) {
    m.def(
        "fake_quantise",
        [](const ReadOnly& x, const ReadOnly& steps, const Tensor& out, float low, float high, int dropped,
           bool compensated, int threads) {
            same_size(x.size(), out.size());
            const std::size_t row = row_length(x, steps);
            nb::gil_scoped_release unlocked;
            bitstrata::fake_quantise(x.data(), steps.data(), out.data(), steps.size(), row,
                                     {low, high, dropped, compensated}, threads);
        },
        "x"_a.noconvert(), "steps"_a.noconvert(), "out"_a.noconvert(), "low"_a, "high"_a, "dropped"_a, "compensated"_a, "threads"_a);

    m.def(
        "fake_quantise_backward",
        [](const ReadOnly& gradient, const ReadOnly& x, const ReadOnly& steps, const Tensor& x_gradient,
           const Tensor& step_gradients, float low, float high, int dropped, bool compensated, int threads) {
            same_size(x.size(), gradient.size());
            same_size(x.size(), x_gradient.size());
            same_size(steps.size(), step_gradients.size());
            const std::size_t row = row_length(x, steps);
            nb::gil_scoped_release unlocked;
            bitstrata::fake_quantise_backward(gradient.data(), x.data(), steps.data(), x_gradient.data(),
                                              step_gradients.data(), steps.size(), row,
                                              {low, high, dropped, compensated}, threads);
        },
        "gradient"_a.noconvert(), "x"_a.noconvert(), "steps"_a.noconvert(), "x_gradient"_a.noconvert(),
        "step_gradients"_a.noconvert(), "low"_a, "high"_a, "dropped"_a, "compensated"_a, "threads"_a);

    m.def("has_thread_pool", &bitstrata::has_thread_pool,
          "Whether an OpenMP pool was found in the process; without one kernels run on the calling thread.");
}

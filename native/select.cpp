#include "select.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "kernels.h"
#include "packing.h"

namespace bitstrata {
namespace {

// A layer packed for loops of that signature; all kernels here differ in packing and loops only.
template <typename T, void (*Loops)(const PackedView<T>&, const Call&, Range, Range) noexcept>
class PackedLayer final : public Layer {
public:
    PackedLayer(const Geometry& geometry, Packed<T> packed, int shift, std::int32_t compensation)
        : Layer(geometry), packed_(std::move(packed)), view_(view_of(packed_, geometry)) {
        view_.shift = shift;
        view_.compensation = compensation;
    }
    std::size_t blocks() const override { return packed_.blocks.size(); }
    void run(const Call& call, Range pixels, Range blocks) const noexcept override {
        Loops(view_, call, pixels, blocks);
    }

private:
    Packed<T> packed_;
    PackedView<T> view_;
};

template <typename T>
void set_offsets(Packed<T>& packed, const Codes& codes) {
    for (std::size_t output = 0; output < codes.geometry.outputs; ++output) {
        packed.offsets[output] = codes.offset(output);
    }
}

bool any(const Geometry&, const Coding&, const std::int8_t*) { return true; }
bool depthwise_only(const Geometry& g, const Coding&, const std::int8_t*) { return g.depthwise(); }

using OddLoops = void (*)(const PackedView<std::int16_t>&, const Call&, Range, Range) noexcept;

std::unique_ptr<Layer> prepare_odd(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    auto packed = pack<std::int16_t, 1>(g, [&](auto... at) { return static_cast<std::int16_t>(codes.odd(at...)); });
    set_offsets(packed, codes);
    return std::make_unique<PackedLayer<std::int16_t, portable::odd>>(g, std::move(packed), 0, 0);
}

template <std::size_t K, OddLoops Loops>
std::unique_ptr<Layer> prepare_depthwise(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    auto packed =
        pack_depthwise<std::int16_t, K>(g, [&](auto... at) { return static_cast<std::int16_t>(codes.odd(at...)); });
    set_offsets(packed, codes);
    return std::make_unique<PackedLayer<std::int16_t, Loops>>(g, std::move(packed), 0, 0);
}

template <void (*Loops)(const PackedView<float>&, const Call&, Range, Range) noexcept>
std::unique_ptr<Layer> prepare_floats(const Geometry& g, const float* weights) {
    auto packed = pack<float, 1>(g, [&](std::size_t output, std::size_t input, std::size_t y, std::size_t x) {
        return weights[((output * g.group_inputs() + input) * g.kernel_height + y) * g.kernel_width + x];
    });
    return std::make_unique<PackedLayer<float, Loops>>(g, std::move(packed), 0, 0);
}

#if defined(BITSTRATA_AVX2)
std::unique_ptr<Layer> prepare_direct(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    auto packed = pack<std::int8_t, 4>(g, [&](auto... at) { return static_cast<std::int8_t>(codes.code(at...)); });
    cut_runs(packed, coding.top());
    set_offsets(packed, codes);
    return std::make_unique<PackedLayer<std::int8_t, avx2::direct>>(g, std::move(packed), coding.dropped() + 1,
                                                                    (1 << coding.dropped()) - 1);
}

// Steps of four, in the order that avx2::wide multiplies in: of all channels elements 0 and 2, then 1 and 3.
std::unique_ptr<Layer> prepare_wide(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    auto packed = pack<std::int16_t, 4>(g, [&](auto... at) { return static_cast<std::int16_t>(codes.odd(at...)); });
    for (std::size_t step = 0; step < packed.weights.size(); step += kLanes * 4) {
        std::int16_t* to = packed.weights.data() + step;
        std::int16_t from[kLanes * 4];
        std::copy_n(to, kLanes * 4, from);
        for (std::size_t index = 0; index < kLanes * 4; ++index) {
            const std::size_t lane = index / 4, element = index % 4;
            to[element % 2 * kLanes * 2 + lane * 2 + element / 2] = from[index];
        }
    }
    set_offsets(packed, codes);
    return std::make_unique<PackedLayer<std::int16_t, avx2::wide>>(g, std::move(packed), 0, 0);
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

bool portable_only() {
    const char* wanted = std::getenv("BITSTRATA_KERNELS");
    return wanted && std::strcmp(wanted, "portable") == 0;
}

bool usable(const char* isa) { return !portable_only() || std::strcmp(isa, "portable") == 0; }

}  // namespace

const std::vector<QuantisedKernel>& quantised_kernels() {
    static const std::vector<QuantisedKernel> kernels = [] {
        std::vector<QuantisedKernel> list;
#if defined(BITSTRATA_AVX2)
        if (has_avx2()) {
            list.push_back({"avx2.depthwise", "avx2", depthwise_only, prepare_depthwise<2, avx2::depthwise>});
            list.push_back({"avx2.direct", "avx2", pairs_fit, prepare_direct});
            list.push_back({"avx2.wide", "avx2", any, prepare_wide});
        }
#endif
        list.push_back({"portable.depthwise", "portable", depthwise_only, prepare_depthwise<1, portable::depthwise>});
        list.push_back({"portable.odd", "portable", any, prepare_odd});
        return list;
    }();
    return kernels;
}

const std::vector<FloatKernel>& float_kernels() {
    static const std::vector<FloatKernel> kernels = [] {
        std::vector<FloatKernel> list;
#if defined(BITSTRATA_AVX2)
        if (has_avx2()) list.push_back({"avx2.float", "avx2", prepare_floats<avx2::floats>});
#endif
        list.push_back({"portable.float", "portable", prepare_floats<portable::floats>});
        return list;
    }();
    return kernels;
}

const QuantisedKernel& choose_quantised(const Geometry& geometry, const Coding& coding, const std::int8_t* codes) {
    for (const QuantisedKernel& kernel : quantised_kernels()) {
        if (usable(kernel.isa) && kernel.supports(geometry, coding, codes)) return kernel;
    }
    throw std::logic_error("no kernel for a quantised layer");  // the last one takes everything
}

const FloatKernel& choose_float() {
    for (const FloatKernel& kernel : float_kernels()) {
        if (usable(kernel.isa)) return kernel;
    }
    throw std::logic_error("no kernel for a float layer");
}

FloatStepLoops choose_float_steps() {
#if defined(BITSTRATA_AVX2)
    if (has_avx2() && !portable_only()) return avx2::float_step;
#endif
    return portable::float_step;
}

std::string chosen_isa() { return choose_float().isa; }

}  // namespace bitstrata

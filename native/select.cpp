#include "select.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>

#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include "float_winograd.h"
#include "kernels.h"
#include "lookup.h"
#include "packing.h"
#include "winograd.h"

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
bool any_float(const Geometry&) { return true; }
bool depthwise_only(const Geometry& g, const Coding&, const std::int8_t*) { return g.depthwise(); }

using OddLoops = void (*)(const PackedView<std::int16_t>&, const Call&, Range, Range) noexcept;

template <OddLoops Loops>
std::unique_ptr<Layer> prepare_odd(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    auto packed = pack<std::int16_t, 1>(g, values, [coding](int code) { return coding.odd(code); });
    set_offsets(packed, codes);
    return std::make_unique<PackedLayer<std::int16_t, Loops>>(g, std::move(packed), 0, 0);
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
    auto packed = pack<float, 1>(g, weights, [](float weight) { return weight; });
    return std::make_unique<PackedLayer<float, Loops>>(g, std::move(packed), 0, 0);
}

#if defined(BITSTRATA_AVX2) || defined(BITSTRATA_NEON)
using DirectLoops = void (*)(const PackedView<std::int8_t>&, const Call&, Range, Range) noexcept;

// Codes as bytes. Where the odd integers that they stand for are bytes too, those: then there is nothing to compensate.
template <DirectLoops Loops, bool Cut>
std::unique_ptr<Layer> prepare_direct(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    const bool odd = coding.source_bits < 8;
    auto packed = pack<std::int8_t, 4>(g, values, CodeBytes(coding, odd));
    if (Cut) cut_runs(packed, coding.top());
    set_offsets(packed, codes);
    return std::make_unique<PackedLayer<std::int8_t, Loops>>(g, std::move(packed), odd ? 0 : coding.dropped() + 1,
                                                             odd ? 0 : (1 << coding.dropped()) - 1);
}

#endif

#if defined(BITSTRATA_AVX2)
// Steps of four, in the order that avx2::wide multiplies in: of all channels elements 0 and 2, then 1 and 3.
std::unique_ptr<Layer> prepare_wide(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    auto packed = pack<std::int16_t, 4>(g, values, [coding](int code) { return coding.odd(code); });
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

// The windows that kernels for depthwise layers have code for.
bool common_depthwise(const Geometry& g) {
    const bool square = g.kernel_height == g.kernel_width && g.stride_height == g.stride_width;
    return g.depthwise() && square && g.dilation_height == 1 && g.dilation_width == 1 &&
           (g.kernel_height == 3 || g.kernel_height == 5) && g.stride_height <= 2;
}

bool narrow_depthwise(const Geometry& g, const Coding& coding, const std::int8_t* codes) {
    return common_depthwise(g) && short_depthwise(g, coding, codes);
}

std::unique_ptr<Layer> prepare_narrow_depthwise(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    // Interleaving the bytes of two rows leaves the first eight channels of either half in one vector.
    const auto lane = [](std::size_t index) { return index / 16 * 8 + index % 16 / 8 * 16 + index % 8; };
    auto packed = pack_columns(g, 2, 2 * kLanes, lane,
                               [&](auto... at) { return static_cast<std::int8_t>(codes.odd(at...)); });
    set_offsets(packed, codes);
    return std::make_unique<PackedLayer<std::int8_t, avx2::narrow_depthwise>>(g, std::move(packed), 0, 0);
}
#endif

#if defined(BITSTRATA_AVX512)
bool not_depthwise(const Geometry& g, const Coding&, const std::int8_t*) { return !g.depthwise(); }

bool byte_depthwise(const Geometry& g, const Coding& coding, const std::int8_t*) {
    return common_depthwise(g) && coding.source_bits < 8;
}

std::unique_ptr<Layer> prepare_byte_depthwise(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    auto packed = pack_columns(g, 4, kLanes, [](std::size_t index) { return index; },
                               [&](auto... at) { return static_cast<std::int8_t>(codes.odd(at...)); });
    set_offsets(packed, codes);
    return std::make_unique<PackedLayer<std::int8_t, avx512::depthwise>>(g, std::move(packed), 0, 0);
}

// Also whether the system saves the wide registers: the compiler's check asks for that.
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

#if defined(BITSTRATA_NEON)
// NEON multiplies signed bytes with signed bytes.
bool signed_codes(const Geometry& g, const Coding& coding, const std::int8_t*) {
    return !g.depthwise() && coding.bits < 8;
}

bool narrow_depthwise(const Geometry& g, const Coding& coding, const std::int8_t* codes) {
    return g.depthwise() && short_depthwise(g, coding, codes);
}

std::unique_ptr<Layer> prepare_narrow_depthwise(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    const Codes codes{g, coding, values};
    auto packed =
        pack_depthwise<std::int8_t, 1>(g, [&](auto... at) { return static_cast<std::int8_t>(codes.odd(at...)); });
    set_offsets(packed, codes);
    return std::make_unique<PackedLayer<std::int8_t, neon::narrow_depthwise>>(g, std::move(packed), 0, 0);
}
#endif

// Instruction sets from the least to the most able; those of one family of processors.
constexpr const char* kSets[] = {"portable", "neon", "dotprod", "avx2", "avx512"};

std::size_t rank(const char* isa) {
    std::size_t found = 0;
    for (std::size_t index = 0; index < std::size(kSets); ++index) {
        if (std::strcmp(isa, kSets[index]) == 0) found = index;
    }
    return found;
}

bool usable(const char* isa) {
    const char* most = std::getenv("BITSTRATA_KERNELS");
    return !most || std::none_of(std::begin(kSets), std::end(kSets), [&](auto set) { return !std::strcmp(set, most); }) ||
           rank(isa) <= rank(most);
}

}  // namespace

#if defined(BITSTRATA_NEON)
bool has_dotprod() {
#if defined(__linux__)
    constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP, which old headers do not name
    return (getauxval(AT_HWCAP) & kDotProduct) != 0;
#elif defined(__APPLE__)
    return true;  // every such Mac has it
#else
    return false;
#endif
}
#endif

const std::vector<QuantisedKernel>& quantised_kernels() {
    static const std::vector<QuantisedKernel> kernels = [] {
        std::vector<QuantisedKernel> list;
#if defined(BITSTRATA_AVX512)
        if (has_avx512()) {
            for (const QuantisedKernel& kernel : avx512_winograd_kernels()) list.push_back(kernel);
            list.push_back({"avx512.depthwise", "avx512", byte_depthwise, prepare_byte_depthwise});
            list.push_back({"avx512.direct", "avx512", not_depthwise, prepare_direct<avx512::direct, false>});
        }
#endif
#if defined(BITSTRATA_AVX2)
        if (has_avx2()) {
            for (const QuantisedKernel& kernel : avx2_winograd_kernels()) list.push_back(kernel);
            for (const QuantisedKernel& kernel : avx2_lookup_kernels()) list.push_back(kernel);
            list.push_back({"avx2.narrow_depthwise", "avx2", narrow_depthwise, prepare_narrow_depthwise});
            list.push_back({"avx2.depthwise", "avx2", depthwise_only, prepare_depthwise<2, avx2::depthwise>});
            list.push_back({"avx2.direct", "avx2", pairs_fit, prepare_direct<avx2::direct, true>});
            list.push_back({"avx2.wide", "avx2", any, prepare_wide});
        }
#endif
#if defined(BITSTRATA_NEON)
        if (has_dotprod()) {
            for (const QuantisedKernel& kernel : dotprod_winograd_kernels()) list.push_back(kernel);
            list.push_back({"dotprod.direct", "dotprod", signed_codes, prepare_direct<dotprod::direct, false>});
        }
        for (const QuantisedKernel& kernel : neon_winograd_kernels()) list.push_back(kernel);
        list.push_back({"neon.narrow_depthwise", "neon", narrow_depthwise, prepare_narrow_depthwise});
        list.push_back({"neon.depthwise", "neon", depthwise_only, prepare_depthwise<1, neon::depthwise>});
        list.push_back({"neon.direct", "neon", signed_codes, prepare_direct<neon::direct, true>});
        list.push_back({"neon.wide", "neon", any, prepare_odd<neon::wide>});
#endif
        list.push_back({"portable.depthwise", "portable", depthwise_only, prepare_depthwise<1, portable::depthwise>});
        list.push_back({"portable.odd", "portable", any, prepare_odd<portable::odd>});
        return list;
    }();
    return kernels;
}

const std::vector<FloatKernel>& float_kernels() {
    static const std::vector<FloatKernel> kernels = [] {
        std::vector<FloatKernel> list;
#if defined(BITSTRATA_AVX512)
        if (has_avx512()) {
            list.push_back({"avx512.float_winograd", "avx512", float_winograd_takes, prepare_avx512_float_winograd});
            list.push_back({"avx512.float", "avx512", any_float, prepare_floats<avx512::floats>});
        }
#endif
#if defined(BITSTRATA_AVX2)
        if (has_avx2()) {
            list.push_back({"avx2.float_winograd", "avx2", float_winograd_takes, prepare_avx2_float_winograd});
            list.push_back({"avx2.float", "avx2", any_float, prepare_floats<avx2::floats>});
        }
#endif
#if defined(BITSTRATA_NEON)
        list.push_back({"neon.float", "neon", any_float, prepare_floats<neon::floats>});
#endif
        list.push_back({"portable.float", "portable", any_float, prepare_floats<portable::floats>});
        return list;
    }();
    return kernels;
}

const QuantisedKernel& choose_quantised(const Geometry& geometry, const Coding& coding, const std::int8_t* codes) {
    for (const QuantisedKernel& kernel : quantised_kernels()) {
        if (!usable(kernel.isa) || (kernel.worthwhile && !kernel.worthwhile(geometry, coding))) continue;
        if (kernel.supports(geometry, coding, codes)) return kernel;
    }
    throw std::logic_error("no kernel for a quantised layer");  // the last one takes everything
}

const FloatKernel& choose_float(const Geometry& geometry) {
    for (const FloatKernel& kernel : float_kernels()) {
        if (usable(kernel.isa) && kernel.supports(geometry)) return kernel;
    }
    throw std::logic_error("no kernel for a float layer");
}

FloatStepLoops choose_float_steps() {
#if defined(BITSTRATA_AVX512)
    if (has_avx512() && usable("avx512")) return avx512::float_step;
#endif
#if defined(BITSTRATA_AVX2)
    if (has_avx2() && usable("avx2")) return avx2::float_step;
#endif
#if defined(BITSTRATA_NEON)
    if (usable("neon")) return neon::float_step;
#endif
    return portable::float_step;
}

#if defined(BITSTRATA_AVX2)
bool uses_avx2() { return has_avx2() && usable("avx2"); }
#endif

std::string chosen_isa() {
    std::string best = "portable";
    for (const QuantisedKernel& kernel : quantised_kernels()) {
        if (usable(kernel.isa) && rank(kernel.isa) > rank(best.c_str())) best = kernel.isa;
    }
    return best;
}

}  // namespace bitstrata

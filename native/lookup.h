// Convolution of two-bit weights by looking sums up. For every four codes of a window there is a table of the 16 sums
// of some of them; a plane's bits of four weights are the place in it. Tables are made once per pixel and serve all
// outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layer.h"
#include "packing.h"

namespace bitstrata {

// Outputs that are looked up at once, one byte each.
constexpr std::size_t kLookups = 2 * kLanes;

// What the loops see. A block is a set of kLookups output channels; a step is four inputs.
struct LookupView {
    PackedView<std::int8_t> window;  // its segments, strides and offsets, and what becomes of sums; no weights
    const std::uint8_t* places;      // by block and step: in the tables, of the lower plane, then of the upper one
    const std::uint32_t* cuts;       // by block: the first of its runs; one more at the end
    const std::uint32_t* runs;       // steps after which 8-bit sums must be widened
    std::size_t outputs, steps;
};

#if defined(BITSTRATA_AVX2)
// The kernels that look up, in the order in which they are tried.
std::vector<QuantisedKernel> avx2_lookup_kernels();

namespace avx2 {
void lookup(const LookupView& layer, const Call& call, Range pixels, Range blocks) noexcept;
}  // namespace avx2
#endif

}  // namespace bitstrata

// Which kernels there are, and which one a layer gets.
#pragma once

#include <string>
#include <vector>

#include "float_step.h"
#include "layer.h"

namespace bitstrata {

// All kernels that this processor can run, the preferred first. Environment variables play no part here.
const std::vector<QuantisedKernel>& quantised_kernels();
const std::vector<FloatKernel>& float_kernels();

// The best kernel for a layer. BITSTRATA_KERNELS in the environment names the highest instruction set that is used:
// avx512, avx2, dotprod (NEON with dot products), neon or portable.
const QuantisedKernel& choose_quantised(const Geometry& geometry, const Coding& coding, const std::int8_t* codes);
const FloatKernel& choose_float(const Geometry& geometry);
FloatStepLoops choose_float_steps();

#if defined(BITSTRATA_AVX2)
// Whether layers get kernels with AVX2 or better now.
bool uses_avx2();
#endif

// The instruction set that layers get now, by those names.
std::string chosen_isa();

#if defined(BITSTRATA_NEON)
// Whether this processor multiplies and adds four bytes at a time.
bool has_dotprod();
#endif

}  // namespace bitstrata

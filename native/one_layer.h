// Runs a single quantised layer with a kernel of one's choice: how tests look at each kernel by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "layer.h"

namespace bitstrata {

// From codes (NCHW) to raw accumulators (NCHW). False where the kernel does not take such a layer.
bool run_one_layer(const std::string& kernel, const Geometry& geometry, const Coding& coding,
                   const std::int8_t* weights, Image image, Border padding, const std::uint8_t* x, std::int32_t* out,
                   std::size_t out_size);

}  // namespace bitstrata

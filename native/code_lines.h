// Codes of accumulators by one multiplication and addition. The epilogue defines a code by scale and bias, the inverse
// step of the consumer, rounding, bounds and zero point. All of that but rounding and bounds is one line for each
// channel: slope * accumulator + offset. It is used only where it is proven to give every accumulator the same code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "arena.h"
#include "epilogue.h"

namespace bitstrata {

struct CodeLines {
    Aligned<float> slope, offset;  // per channel
};

// The lines of all channels; nothing where one has none. No accumulator is larger than `most`, nor smaller than its
// negative.
std::optional<CodeLines> code_lines(const float* scale, const float* bias, std::size_t channels, std::int64_t most,
                                    const Output& output, Activation activation);

}  // namespace bitstrata

// The limits of src/bitstrata/limits.py that the native code checks too.
#pragma once

#include <cstdint>

namespace bitstrata {

constexpr std::int64_t kMinWidth = 2, kMaxWidth = 8;       // bits
constexpr std::int64_t kMaxDimension = std::int64_t{1} << 24;
constexpr std::int64_t kMaxWindow = 4096;                  // kernel size, stride, dilation, padding
constexpr std::int64_t kMaxAccumulator = 0x7fffffff;

}  // namespace bitstrata

// Planes, as an artifact stores them, back to codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bitstrata {

// The bytes of one plane of so many weights.
inline std::size_t plane_bytes(std::size_t count) { return (count + 7) / 8; }

// The codes that the leading planes stand for: the sign first, eight weights to a byte, the first in its lowest bit.
// Writes whole bytes of planes: up to seven codes more than there are.
void unpack_planes(const std::vector<const std::uint8_t*>& planes, std::size_t count, std::int8_t* to);

#if defined(BITSTRATA_AVX2)
namespace avx2 {
// The same for whole words of 32 weights, so many of them.
void unpack_words(const std::uint8_t* const* planes, std::size_t plane_count, std::size_t words,
                  std::int8_t* to) noexcept;
}  // namespace avx2
#endif

}  // namespace bitstrata

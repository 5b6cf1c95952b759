// The loops of all kernels, by instruction set. Each computes some pixels of some blocks of a packed layer.
#pragma once

#include <cstdint>

#include "layer.h"
#include "packing.h"

namespace bitstrata {

namespace portable {
void odd(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
void depthwise(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
void floats(const PackedView<float>& layer, const Call& call, Range pixels, Range blocks) noexcept;
}  // namespace portable

#if defined(BITSTRATA_AVX2)
namespace avx2 {
// Codes as bytes, products summed in 16 bits for as long as they provably fit.
void direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
// Odd integers as 16 bits: for 8-bit weights whose products could saturate.
void wide(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
void depthwise(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
// Depthwise windows of 3x3 and 5x5, stride 1 and 2, with sums that fit 16 bits.
void narrow_depthwise(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
void floats(const PackedView<float>& layer, const Call& call, Range pixels, Range blocks) noexcept;
}  // namespace avx2
#endif

#if defined(BITSTRATA_AVX512)
namespace avx512 {
// Codes of any width as bytes, products summed in 32 bits.
void direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
// Depthwise windows of 3x3 and 5x5, stride 1 and 2.
void depthwise(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
void floats(const PackedView<float>& layer, const Call& call, Range pixels, Range blocks) noexcept;
}  // namespace avx512
#endif

#if defined(BITSTRATA_NEON)
namespace neon {
// Codes of up to seven bits as bytes, products summed in 16 bits for as long as they provably fit.
void direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
// Odd integers as 16 bits: for codes of eight bits.
void wide(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
void depthwise(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
// Depthwise layers with sums that fit 16 bits.
void narrow_depthwise(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
void floats(const PackedView<float>& layer, const Call& call, Range pixels, Range blocks) noexcept;
}  // namespace neon
namespace dotprod {
// Codes of up to seven bits as bytes, products summed in 32 bits.
void direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept;
}  // namespace dotprod
#endif

}  // namespace bitstrata

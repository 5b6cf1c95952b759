// Products of bytes with NEON: four codes by those of sixteen channels. Codes of up to seven bits are signed bytes too,
// and NEON multiplies only bytes of one kind.
//
// Compiled twice: every processor multiplies bytes into 16-bit sums; those with the dot product, for whose file the
// compiler is told so, add four products at a time to 32-bit sums.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "epilogue.h"

namespace bitstrata {
namespace {

inline int8x16_t broadcast4(const std::uint8_t* from) {
    std::uint32_t four;
    std::memcpy(&four, from, sizeof four);
    return vreinterpretq_s8_u32(vdupq_n_u32(four));
}

// The sums of one pixel, or tile of one.
#if defined(__ARM_FEATURE_DOTPROD)

constexpr int kPixels = 6;          // at a time: 24 sums, four vectors of weights and one of codes fit the registers
constexpr bool kShortSums = false;  // whether sums must be widened before they could overflow 16 bits

struct ByteSums {
    int32x4_t parts[4];

    ByteSums() {
        for (int32x4_t& part : parts) part = vdupq_n_s32(0);
    }
    void add(int8x16_t codes, const int8x16_t (&weights)[4]) {
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) parts[part] = vdotq_s32(parts[part], weights[part], codes);
    }
    // Of channels 4 part to 4 part + 3.
    int32x4_t words(int part) const { return parts[part]; }
    // Of channels 8 half to 8 half + 7, modulo 2^16.
    int16x8_t shorts(int half) const {
        return vuzp1q_s16(vreinterpretq_s16_s32(parts[2 * half]), vreinterpretq_s16_s32(parts[2 * half + 1]));
    }
};

#else

constexpr int kPixels = 3;
constexpr bool kShortSums = true;

struct ByteSums {
    int16x8_t parts[8];  // two channels each, by elements of a step

    ByteSums() {
        for (int16x8_t& part : parts) part = vdupq_n_s16(0);
    }
    void add(int8x16_t codes, const int8x16_t (&weights)[4]) {
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            parts[2 * part] = vmlal_s8(parts[2 * part], vget_low_s8(weights[part]), vget_low_s8(codes));
            parts[2 * part + 1] = vmlal_high_s8(parts[2 * part + 1], weights[part], codes);
        }
    }
    int32x4_t words(int part) const {
        return vpaddq_s32(vpaddlq_s16(parts[2 * part]), vpaddlq_s16(parts[2 * part + 1]));
    }
    int16x8_t shorts(int half) const {
        const int16x8_t* four = parts + 4 * half;
        return vpaddq_s16(vpaddq_s16(four[0], four[1]), vpaddq_s16(four[2], four[3]));
    }
};

#endif

// Adds the products of some steps: codes of P pixels, `spacing` bytes apart, with weights `weight_step` bytes apart.
template <int P>
inline void add_products(const std::uint8_t* codes, std::size_t spacing, const std::int8_t* weights,
                         std::size_t weight_step, std::size_t steps, ByteSums (&sums)[P]) {
    for (; steps > 0; --steps, codes += 4, weights += weight_step) {
        const int8x16_t vectors[4] = {vld1q_s8(weights), vld1q_s8(weights + 16), vld1q_s8(weights + 32),
                                      vld1q_s8(weights + 48)};
#pragma GCC unroll 6
        for (int p = 0; p < P; ++p) sums[p].add(broadcast4(codes + static_cast<std::size_t>(p) * spacing), vectors);
    }
}

}  // namespace
}  // namespace bitstrata

// From floats to codes: groups of pixels, kLanes channels each, rounded, clamped and stored as bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "epilogue.h"
#include "lanes_loops.h"

namespace bitstrata {
namespace {

constexpr std::size_t kParts = kLanes / kWidth;

// The kLanes channels of one pixel.
struct Pixel {
    Lanes parts[kParts];
};

// Codes are rint(y * inverse_step), clamped, plus the zero point. Rounding and clamping may change places: all bounds
// are whole, or rounded with the numbers. So may the clamping of a ReLU: it is a bound on codes too.
struct Coder {
    float inverse_step, low, high;  // bounds before rounding
    std::int16_t zero_point;
    std::uint8_t first, last;  // the codes of the bounds
};

#if defined(__AVX512F__)

constexpr std::size_t kGroup = 4;  // pixels that are packed together

ALWAYS_INLINE void store_some(__m128i bytes, std::uint8_t* to, std::size_t channels) {
    _mm_mask_storeu_epi8(to, static_cast<__mmask16>((1u << channels) - 1), bytes);
}

// Values of any size that fits 32 bits: `count` pixels, `step` bytes apart. Moved says that they have the zero point in
// them.
template <bool Moved>
ALWAYS_INLINE void store_group(const Pixel (&y)[kGroup], const Coder& coder, std::uint8_t* to, std::size_t step,
                               std::size_t count, std::size_t channels) {
    const auto rounded = [&](std::size_t p) { return _mm512_cvtps_epi32(y[p].parts[0].values); };
    const __m512i zero_point = _mm512_set1_epi16(coder.zero_point);
    __m512i one = _mm512_packs_epi32(rounded(0), rounded(1)), other = _mm512_packs_epi32(rounded(2), rounded(3));
    if (!Moved) {
        one = _mm512_adds_epi16(one, zero_point);
        other = _mm512_adds_epi16(other, zero_point);
    }
    __m512i bytes = _mm512_packus_epi16(one, other);
    bytes = _mm512_max_epu8(bytes, _mm512_set1_epi8(static_cast<char>(coder.first)));
    bytes = _mm512_min_epu8(bytes, _mm512_set1_epi8(static_cast<char>(coder.last)));
    // Packing leaves four channels of each pixel in every quarter.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    bytes = _mm512_permutexvar_epi32(order, bytes);
    if (channels == kLanes && count == kGroup) {
        const auto at = [&](std::size_t p) { return reinterpret_cast<__m128i*>(to + p * step); };
        _mm_storeu_si128(at(0), _mm512_castsi512_si128(bytes));
        _mm_storeu_si128(at(1), _mm512_extracti32x4_epi32(bytes, 1));
        _mm_storeu_si128(at(2), _mm512_extracti32x4_epi32(bytes, 2));
        _mm_storeu_si128(at(3), _mm512_extracti32x4_epi32(bytes, 3));
        return;
    }
    store_some(_mm512_castsi512_si128(bytes), to, channels);
    if (count > 1) store_some(_mm512_extracti32x4_epi32(bytes, 1), to + step, channels);
    if (count > 2) store_some(_mm512_extracti32x4_epi32(bytes, 2), to + 2 * step, channels);
    if (count > 3) store_some(_mm512_extracti32x4_epi32(bytes, 3), to + 3 * step, channels);
}

ALWAYS_INLINE Pixel load_pixel(const float* from, std::size_t channels) {
    return {{{_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << channels) - 1), from)}}};
}

ALWAYS_INLINE void store_floats(const Pixel& y, float* to, std::size_t channels) {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << channels) - 1), y.parts[0].values);
}

#else

#if defined(__AVX2__)

constexpr std::size_t kGroup = 2;

ALWAYS_INLINE void store_some(__m128i bytes, std::uint8_t* to, std::size_t channels) {
    if (channels == kLanes) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    } else if (channels == kLanes / 2) {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
    } else {
        std::uint8_t some[kLanes];
        _mm_storeu_si128(reinterpret_cast<__m128i*>(some), bytes);
        std::memcpy(to, some, channels);
    }
}

template <bool Moved>
ALWAYS_INLINE void store_group(const Pixel (&y)[kGroup], const Coder& coder, std::uint8_t* to, std::size_t step,
                               std::size_t count, std::size_t channels) {
    const __m256i zero_point = _mm256_set1_epi16(coder.zero_point);
    const auto shorts = [&](std::size_t p) {
        const __m256i first = _mm256_cvtps_epi32(y[p].parts[0].values);
        const __m256i second = _mm256_cvtps_epi32(y[p].parts[1].values);
        const __m256i packed = _mm256_packs_epi32(first, second);
        return Moved ? packed : _mm256_adds_epi16(packed, zero_point);
    };
    __m256i bytes = _mm256_packus_epi16(shorts(0), shorts(1));
    bytes = _mm256_max_epu8(bytes, _mm256_set1_epi8(static_cast<char>(coder.first)));
    bytes = _mm256_min_epu8(bytes, _mm256_set1_epi8(static_cast<char>(coder.last)));
    // Packing leaves every other four channels of each pixel in either half.
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    store_some(_mm256_castsi256_si128(bytes), to, channels);
    if (count > 1) store_some(_mm256_extracti128_si256(bytes, 1), to + step, channels);
}

#elif defined(BITSTRATA_NEON_LANES)

constexpr std::size_t kGroup = 1;

template <bool Moved>
ALWAYS_INLINE void store_group(const Pixel (&y)[kGroup], const Coder& coder, std::uint8_t* to, std::size_t /*step*/,
                               std::size_t /*count*/, std::size_t channels) {
    const auto shorts = [&](std::size_t part) {
        const int16x4_t first = vqmovn_s32(vcvtnq_s32_f32(y[0].parts[part].values));
        const int16x8_t both = vqmovn_high_s32(first, vcvtnq_s32_f32(y[0].parts[part + 1].values));
        return Moved ? both : vqaddq_s16(both, vdupq_n_s16(coder.zero_point));
    };
    uint8x16_t bytes = vqmovun_high_s16(vqmovun_s16(shorts(0)), shorts(2));
    bytes = vminq_u8(vmaxq_u8(bytes, vdupq_n_u8(coder.first)), vdupq_n_u8(coder.last));
    if (channels == kLanes) return vst1q_u8(to, bytes);
    std::uint8_t some[kLanes];
    vst1q_u8(some, bytes);
    std::memcpy(to, some, channels);
}

#else

constexpr std::size_t kGroup = 1;

template <bool /*Moved*/>
ALWAYS_INLINE void store_group(const Pixel (&y)[kGroup], const Coder& coder, std::uint8_t* to, std::size_t /*step*/,
                               std::size_t /*count*/, std::size_t channels) {
    float values[kLanes];
    for (std::size_t part = 0; part < kParts; ++part) {
        const Lanes clamped = at_most(at_least(y[0].parts[part], spread(coder.low)), spread(coder.high));
        store(round_to_even(clamped), values + part * kWidth);
    }
    std::uint8_t codes[kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        codes[lane] = static_cast<std::uint8_t>(static_cast<int>(values[lane]) + coder.zero_point);
    }
    std::memcpy(to, codes, channels);
}

#endif

ALWAYS_INLINE Pixel load_pixel(const float* from) {
    Pixel y;
    for (std::size_t part = 0; part < kParts; ++part) y.parts[part] = load(from + part * kWidth);
    return y;
}

ALWAYS_INLINE void store_floats(const Pixel& y, float* to) {
    for (std::size_t part = 0; part < kParts; ++part) store(y.parts[part], to + part * kWidth);
}

// Pixels are handed to no function that is called: one whose address is taken would stay in memory.
ALWAYS_INLINE Pixel load_pixel(const float* from, std::size_t channels) {
    if (channels == kLanes) return load_pixel(from);
    float some[kLanes] = {};
    std::memcpy(some, from, channels * sizeof(float));
    return load_pixel(some);
}

ALWAYS_INLINE void store_floats(const Pixel& y, float* to, std::size_t channels) {
    if (channels == kLanes) return store_floats(y, to);
    float some[kLanes];
    store_floats(y, some);
    std::memcpy(to, some, channels * sizeof(float));
}

#endif

}  // namespace
}  // namespace bitstrata

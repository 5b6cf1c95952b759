// Four, eight or sixteen floats at a time: vector registers where the file is compiled for them, else a loop.
//
// Headers named *_loops.h are compiled once per instruction set. All they define is in an unnamed namespace: a shared
// definition could be the one with instructions that the processor does not have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(BITSTRATA_PLAIN_LANES)  // every such processor has NEON
#define BITSTRATA_NEON_LANES
#include <arm_neon.h>
#endif

// What must not become a call: around calls vectors go through memory.
#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace bitstrata {
namespace {

#if defined(__AVX512F__)

constexpr std::size_t kWidth = 16;

struct Lanes {
    __m512 values;
};

inline Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Lanes load(const std::int32_t* from) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(from))}; }
inline Lanes load(const std::int16_t* from) {
    const __m256i shorts = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(shorts))};
}
inline void store(Lanes x, float* to) { _mm512_storeu_ps(to, x.values); }
inline Lanes spread(float x) { return {_mm512_set1_ps(x)}; }

inline Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.values, b.values)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.values, b.values)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.values, b.values)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.values, b.values)}; }
// The bound, where x is not a number.
inline Lanes at_least(Lanes x, Lanes low) { return {_mm512_max_ps(x.values, low.values)}; }
inline Lanes at_most(Lanes x, Lanes high) { return {_mm512_min_ps(x.values, high.values)}; }
// a * b + c, rounded once.
constexpr bool kFused = true;
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.values, b.values, c.values)}; }
inline bool all_below(Lanes x, Lanes bound) {
    return _mm512_cmp_ps_mask(x.values, bound.values, _CMP_LT_OQ) == 0xffff;
}
inline Lanes without_sign(Lanes x) { return {_mm512_abs_ps(x.values)}; }

// Half to even.
inline Lanes round_to_even(Lanes x) {
    return {_mm512_roundscale_ps(x.values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

// 2^x for whole x from -126 to 127.
inline Lanes power_of_two(Lanes x) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(x.values), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}

#elif defined(__AVX2__)

constexpr std::size_t kWidth = 8;

struct Lanes {
    __m256 values;
};

inline Lanes load(const float* from) { return {_mm256_loadu_ps(from)}; }
inline Lanes load(const std::int32_t* from) {
    return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline Lanes load(const std::int16_t* from) {
    const __m128i shorts = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(shorts))};
}
inline void store(Lanes x, float* to) { _mm256_storeu_ps(to, x.values); }
inline Lanes spread(float x) { return {_mm256_set1_ps(x)}; }

inline Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.values, b.values)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.values, b.values)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.values, b.values)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.values, b.values)}; }
// The bound, where x is not a number.
inline Lanes at_least(Lanes x, Lanes low) { return {_mm256_max_ps(x.values, low.values)}; }
inline Lanes at_most(Lanes x, Lanes high) { return {_mm256_min_ps(x.values, high.values)}; }
// a * b + c, rounded once.
constexpr bool kFused = true;
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {_mm256_fmadd_ps(a.values, b.values, c.values)}; }
inline bool all_below(Lanes x, Lanes bound) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x.values, bound.values, _CMP_LT_OQ)) == 0xff;
}
inline Lanes without_sign(Lanes x) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.values)}; }

// Half to even.
inline Lanes round_to_even(Lanes x) {
    return {_mm256_round_ps(x.values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

// 2^x for whole x from -126 to 127.
inline Lanes power_of_two(Lanes x) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(x.values), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}

#elif defined(BITSTRATA_NEON_LANES)

constexpr std::size_t kWidth = 4;

struct Lanes {
    float32x4_t values;
};

inline Lanes load(const float* from) { return {vld1q_f32(from)}; }
inline Lanes load(const std::int32_t* from) { return {vcvtq_f32_s32(vld1q_s32(from))}; }
inline Lanes load(const std::int16_t* from) { return {vcvtq_f32_s32(vmovl_s16(vld1_s16(from)))}; }
inline void store(Lanes x, float* to) { vst1q_f32(to, x.values); }
inline Lanes spread(float x) { return {vdupq_n_f32(x)}; }

inline Lanes operator+(Lanes a, Lanes b) { return {vaddq_f32(a.values, b.values)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {vsubq_f32(a.values, b.values)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {vmulq_f32(a.values, b.values)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {vdivq_f32(a.values, b.values)}; }
// The bound, where x is not a number or both are zero, which NEON's own maximum and minimum see otherwise.
inline Lanes at_least(Lanes x, Lanes low) {
    return {vbslq_f32(vcgtq_f32(x.values, low.values), x.values, low.values)};
}
inline Lanes at_most(Lanes x, Lanes high) {
    return {vbslq_f32(vcltq_f32(x.values, high.values), x.values, high.values)};
}
// a * b + c, rounded once.
constexpr bool kFused = true;
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {vfmaq_f32(c.values, a.values, b.values)}; }
inline bool all_below(Lanes x, Lanes bound) { return vminvq_u32(vcltq_f32(x.values, bound.values)) != 0; }
inline Lanes without_sign(Lanes x) { return {vabsq_f32(x.values)}; }

// Half to even.
inline Lanes round_to_even(Lanes x) { return {vrndnq_f32(x.values)}; }

// 2^x for whole x from -126 to 127.
inline Lanes power_of_two(Lanes x) {
    const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(x.values), vdupq_n_s32(127));
    return {vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23))};
}

#else

constexpr std::size_t kWidth = 8;

struct Lanes {
    float values[kWidth];
};

template <typename Operation>
inline Lanes each(Operation operation) {
    Lanes result;
    for (std::size_t lane = 0; lane < kWidth; ++lane) result.values[lane] = operation(lane);
    return result;
}

inline Lanes load(const float* from) {
    return each([&](std::size_t i) { return from[i]; });
}
inline Lanes load(const std::int32_t* from) {
    return each([&](std::size_t i) { return static_cast<float>(from[i]); });
}
inline Lanes load(const std::int16_t* from) {
    return each([&](std::size_t i) { return static_cast<float>(from[i]); });
}
inline void store(Lanes x, float* to) { std::memcpy(to, x.values, sizeof x.values); }
inline Lanes spread(float x) {
    return each([&](std::size_t) { return x; });
}

inline Lanes operator+(Lanes a, Lanes b) {
    return each([&](std::size_t i) { return a.values[i] + b.values[i]; });
}
inline Lanes operator-(Lanes a, Lanes b) {
    return each([&](std::size_t i) { return a.values[i] - b.values[i]; });
}
inline Lanes operator*(Lanes a, Lanes b) {
    return each([&](std::size_t i) { return a.values[i] * b.values[i]; });
}
inline Lanes operator/(Lanes a, Lanes b) {
    return each([&](std::size_t i) { return a.values[i] / b.values[i]; });
}
inline Lanes at_least(Lanes x, Lanes low) {
    return each([&](std::size_t i) { return x.values[i] > low.values[i] ? x.values[i] : low.values[i]; });
}
constexpr bool kFused = false;  // there may be no instruction for it
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
    return each([&](std::size_t i) { return __builtin_fmaf(a.values[i], b.values[i], c.values[i]); });
}
inline bool all_below(Lanes x, Lanes bound) {
    bool all = true;
    for (std::size_t i = 0; i < kWidth; ++i) all = all && x.values[i] < bound.values[i];
    return all;
}
inline Lanes without_sign(Lanes x) {
    return each([&](std::size_t i) { return x.values[i] < 0.0f ? 0.0f - x.values[i] : x.values[i]; });
}
inline Lanes at_most(Lanes x, Lanes high) {
    return each([&](std::size_t i) { return x.values[i] < high.values[i] ? x.values[i] : high.values[i]; });
}

// For |x| < 2^22: beyond 1.5 * 2^23 a float has no fraction, so the addition rounds.
inline Lanes round_to_even(Lanes x) {
    constexpr float kShift = 12582912.0f;
    return each([&](std::size_t i) { return (x.values[i] + kShift) - kShift; });
}

inline Lanes power_of_two(Lanes x) {
    return each([&](std::size_t i) {
        const std::int32_t bits = (static_cast<std::int32_t>(x.values[i]) + 127) << 23;
        float power;
        std::memcpy(&power, &bits, sizeof power);
        return power;
    });
}

#endif

}  // namespace
}  // namespace bitstrata

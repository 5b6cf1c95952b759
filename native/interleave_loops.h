// Three planes of one row to pixels of three channels, a vector of pixels at a time.
#pragma once

#include <cstddef>

#include "lanes_loops.h"

namespace bitstrata {
namespace {

#if defined(__AVX2__)

// Of each of the three vectors that three vectors of planes become: which element every lane is, and of which plane.
struct Interleaving {
    int elements[3][kWidth] = {};
    unsigned lanes[3][3] = {};  // by vector and plane, a bit for each lane

    constexpr Interleaving() {
        for (std::size_t index = 0; index < 3 * kWidth; ++index) {
            elements[index / kWidth][index % kWidth] = static_cast<int>(index / 3);
            lanes[index / kWidth][index % 3] |= 1u << index % kWidth;
        }
    }
};

constexpr Interleaving kInterleaving;

template <std::size_t Vector>
inline void store_interleaved(const Lanes (&planes)[3], float* to) {
    constexpr unsigned kSecond = kInterleaving.lanes[Vector][1], kThird = kInterleaving.lanes[Vector][2];
    const int* elements = kInterleaving.elements[Vector];
#if defined(__AVX512F__)
    const __m512i from = _mm512_loadu_si512(elements);
    __m512 pixels = _mm512_permutexvar_ps(from, planes[0].values);
    pixels = _mm512_mask_permutexvar_ps(pixels, static_cast<__mmask16>(kSecond), from, planes[1].values);
    pixels = _mm512_mask_permutexvar_ps(pixels, static_cast<__mmask16>(kThird), from, planes[2].values);
#else
    const __m256i from = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(elements));
    const auto spread_out = [&](const Lanes& plane) { return _mm256_permutevar8x32_ps(plane.values, from); };
    __m256 pixels = _mm256_blend_ps(spread_out(planes[0]), spread_out(planes[1]), kSecond);
    pixels = _mm256_blend_ps(pixels, spread_out(planes[2]), kThird);
#endif
    store({pixels}, to + Vector * kWidth);
}

#endif

// `from` is the first pixel's channel 0, and planes are that far apart.
inline void interleave_three(const float* from, std::size_t plane, std::size_t pixels, float* to) {
    std::size_t p = 0;
#if defined(__AVX2__)
    for (; p + kWidth <= pixels; p += kWidth) {
        const Lanes planes[3] = {load(from + p), load(from + plane + p), load(from + 2 * plane + p)};
        store_interleaved<0>(planes, to + 3 * p);
        store_interleaved<1>(planes, to + 3 * p);
        store_interleaved<2>(planes, to + 3 * p);
    }
#endif
    for (; p < pixels; ++p) {
        to[3 * p] = from[p];
        to[3 * p + 1] = from[plane + p];
        to[3 * p + 2] = from[2 * plane + p];
    }
}

}  // namespace
}  // namespace bitstrata

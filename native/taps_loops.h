// Codes of 3x3 windows, which lie tap by tap, to words of four inputs, which is how byte kernels read them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace bitstrata {
namespace {

constexpr std::size_t kWord = 4;

// Four inputs of one output to one word per tap, the words so many bytes apart.
inline void gather_taps_of_one(const std::int8_t* from, std::uint8_t* to, std::size_t apart) {
    for (std::size_t tap = 0; tap < 9; ++tap, to += apart) {
        for (std::size_t input = 0; input < kWord; ++input) to[input] = static_cast<std::uint8_t>(from[input * 9 + tap]);
    }
}

#if defined(__SSE2__)
// The same of four outputs, `stride` codes from one to the next; their words lie side by side.
inline void gather_taps_of_four(const std::int8_t* from, std::size_t stride, std::uint8_t* to, std::size_t apart) {
    const auto load = [](const std::int8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
    __m128i first[4], second[4], last[4];  // by output: the words of taps 0 to 3, of 4 to 7, and of 8
    for (std::size_t output = 0; output < 4; ++output, from += stride) {
        // Of each input its nine taps and more; the last vector is read from where it ends with them.
        const __m128i a = load(from), b = load(from + 9), c = load(from + 18), d = _mm_srli_si128(load(from + 20), 7);
        const __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
        first[output] = _mm_unpacklo_epi16(ab, cd);
        second[output] = _mm_unpackhi_epi16(ab, cd);
        last[output] = _mm_unpacklo_epi16(_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
    }
    const auto store = [&](std::size_t tap, __m128i words) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + tap * apart), words);
    };
    const auto transpose = [&](std::size_t tap, const __m128i(&of)[4]) {
        const __m128i low = _mm_unpacklo_epi32(of[0], of[1]), low_too = _mm_unpacklo_epi32(of[2], of[3]);
        const __m128i high = _mm_unpackhi_epi32(of[0], of[1]), high_too = _mm_unpackhi_epi32(of[2], of[3]);
        store(tap, _mm_unpacklo_epi64(low, low_too));
        store(tap + 1, _mm_unpackhi_epi64(low, low_too));
        store(tap + 2, _mm_unpacklo_epi64(high, high_too));
        store(tap + 3, _mm_unpackhi_epi64(high, high_too));
    };
    transpose(0, first);
    transpose(4, second);
    store(8, _mm_unpacklo_epi64(_mm_unpacklo_epi32(last[0], last[1]), _mm_unpacklo_epi32(last[2], last[3])));
}
#endif

// Four inputs of some outputs: to + tap * apart + output * 4. No byte but those of the 36 codes of each is read.
inline void gather_taps(const std::int8_t* from, std::size_t stride, std::size_t outputs, std::uint8_t* to,
                        std::size_t apart) {
    std::size_t output = 0;
#if defined(__SSE2__)
    for (; output + 4 <= outputs; output += 4) {
        gather_taps_of_four(from + output * stride, stride, to + output * kWord, apart);
    }
#endif
    for (; output < outputs; ++output) gather_taps_of_one(from + output * stride, to + output * kWord, apart);
}

}  // namespace
}  // namespace bitstrata

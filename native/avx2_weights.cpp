// Transforms weights for Winograd kernels and unpacks planes, with AVX2.
#include <immintrin.h>
#include "planes.h"
#include "winograd_weights_loops.h"

namespace bitstrata::avx2 {

void winograd_weights2(const WeightGroup& group) noexcept { transform_weights<Tile2>(group); }
void winograd_weights3(const WeightGroup& group) noexcept { transform_weights<Tile3>(group); }
void winograd_weights4(const WeightGroup& group) noexcept { transform_weights<Tile4>(group); }

void unpack_words(const std::uint8_t* const* planes, std::size_t plane_count, std::size_t words,
                  std::int8_t* to) noexcept {
    // Of a word each byte eight times, and of each of these another bit.
    const __m256i bytes = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3,
                                           3, 3, 3, 3);
    const __m256i bits = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    for (std::size_t word = 0; word < words; ++word, to += 32) {
        __m256i codes = _mm256_setzero_si256();
        for (std::size_t plane = 0; plane < plane_count; ++plane) {
            std::int32_t four;
            std::memcpy(&four, planes[plane] + word * 4, sizeof(four));
            const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(four), bytes), bits);
            const __m256i set = _mm256_cmpeq_epi8(spread, bits);  // all ones where the bit is set: minus one
            // The sign counts negative: the first plane stays as it is, later ones are added behind it.
            codes = _mm256_add_epi8(codes, codes);
            codes = plane == 0 ? set : _mm256_sub_epi8(codes, set);
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), codes);
    }
}

}  // namespace bitstrata::avx2

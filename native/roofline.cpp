#include "roofline.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#if defined(BITSTRATA_AVX2)
#include <immintrin.h>
#elif defined(BITSTRATA_NEON)
#include <arm_neon.h>

#include "select.h"
#endif

namespace bitstrata {
namespace {

// Short trials, of which the best counts: whatever else happens on the machine only makes one slower.
constexpr int kTrials = 60;
constexpr double kTrialSeconds = 2e-4;
// Independent sums: enough to hide how long an addition takes, few enough for 16 registers.
constexpr int kSums = 12;

using Loop = double (*)(std::size_t rounds);  // runs, and returns how many operations that was

// Keeps a value that a loop computes from being optimised away.
template <typename T>
void use(const T& value) {
#if defined(__GNUC__)
    asm volatile("" : : "g"(&value) : "memory");
#else
    volatile const T* place = &value;
    (void)*place;
#endif
}

template <typename Run>
double best_rate(const Run& run) {
    using Clock = std::chrono::steady_clock;
    const auto timed = [&](std::size_t rounds) {
        const auto start = Clock::now();
        const double operations = run(rounds);
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        return std::pair<double, double>(operations, std::max(seconds, 1e-9));
    };
    std::size_t rounds = 1;
    while (timed(rounds).second < kTrialSeconds && rounds < (std::size_t{1} << 40)) rounds *= 2;
    double best = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
        const auto [operations, seconds] = timed(rounds);
        best = std::max(best, operations / seconds);
    }
    return best;
}

[[maybe_unused]] double portable_bytes(std::size_t rounds) {
    constexpr std::size_t kSize = 256;
    std::uint8_t codes[kSize];
    std::int8_t weights[kSize];
    std::int16_t sums[kSize] = {};
    std::fill_n(codes, kSize, std::uint8_t{1});
    std::fill_n(weights, kSize, std::int8_t{1});
    for (std::size_t round = 0; round < rounds; ++round) {
        use(codes);
        for (std::size_t index = 0; index < kSize; ++index) {
            sums[index] = static_cast<std::int16_t>(sums[index] + codes[index] * weights[index]);
        }
    }
    use(sums);
    return static_cast<double>(rounds) * kSize;
}

[[maybe_unused]] double portable_floats(std::size_t rounds) {
    constexpr std::size_t kSize = 48;
    float factors[kSize], sums[kSize] = {};
    std::fill_n(factors, kSize, 1.0f);
    for (std::size_t round = 0; round < rounds; ++round) {
        use(factors);
        for (std::size_t index = 0; index < kSize; ++index) sums[index] += factors[index] * 0.5f;
    }
    use(sums);
    return static_cast<double>(rounds) * kSize;
}

std::uint64_t portable_read(const std::uint64_t* data, std::size_t words) {
    std::uint64_t sums[8] = {};
    for (std::size_t index = 0; index + 8 <= words; index += 8) {
        for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += data[index + lane];
    }
    std::uint64_t sum = 0;
    for (std::uint64_t one : sums) sum += one;
    return sum;
}

#if defined(BITSTRATA_AVX2)
// Functions with instruction sets of their own: nothing here is inline, so nothing can be linked from elsewhere.
#define BITSTRATA_TARGET(isa) __attribute__((target(isa), noinline))

// Hides from the compiler that an operand is the same each time.
#define BITSTRATA_HIDE(operand) asm volatile("" : "+v"(operand))
#define BITSTRATA_HIDE_AVX2(operand) asm volatile("" : "+x"(operand))

BITSTRATA_TARGET("avx2") double avx2_bytes(std::size_t rounds) {
    __m256i codes = _mm256_set1_epi8(1), weights = _mm256_set1_epi8(1), sums[kSums];
    for (__m256i& sum : sums) sum = _mm256_setzero_si256();
    for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int index = 0; index < kSums; ++index) {
            BITSTRATA_HIDE_AVX2(codes);
            sums[index] = _mm256_add_epi16(sums[index], _mm256_maddubs_epi16(codes, weights));
        }
    }
    for (const __m256i& sum : sums) use(sum);
    return static_cast<double>(rounds) * kSums * 32;
}

BITSTRATA_TARGET("avx2,fma") double avx2_floats(std::size_t rounds) {
    __m256 factors = _mm256_set1_ps(1.0f), weights = _mm256_set1_ps(0.5f), sums[kSums];
    for (__m256& sum : sums) sum = _mm256_setzero_ps();
    for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int index = 0; index < kSums; ++index) {
            BITSTRATA_HIDE_AVX2(factors);
            sums[index] = _mm256_fmadd_ps(factors, weights, sums[index]);
        }
    }
    for (const __m256& sum : sums) use(sum);
    return static_cast<double>(rounds) * kSums * 8;
}

BITSTRATA_TARGET("avx512f,avx512vnni") double vnni_bytes(std::size_t rounds) {
    __m512i codes = _mm512_set1_epi32(0x01010101), weights = _mm512_set1_epi32(0x01010101), sums[kSums];
    for (__m512i& sum : sums) sum = _mm512_setzero_si512();
    for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int index = 0; index < kSums; ++index) {
            BITSTRATA_HIDE(codes);
            sums[index] = _mm512_dpbusd_epi32(sums[index], codes, weights);
        }
    }
    for (const __m512i& sum : sums) use(sum);
    return static_cast<double>(rounds) * kSums * 64;
}

BITSTRATA_TARGET("avx512f") double avx512_floats(std::size_t rounds) {
    __m512 factors = _mm512_set1_ps(1.0f), weights = _mm512_set1_ps(0.5f), sums[kSums];
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
    for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int index = 0; index < kSums; ++index) {
            BITSTRATA_HIDE(factors);
            sums[index] = _mm512_fmadd_ps(factors, weights, sums[index]);
        }
    }
    for (const __m512& sum : sums) use(sum);
    return static_cast<double>(rounds) * kSums * 16;
}

BITSTRATA_TARGET("avx2") std::uint64_t avx2_read(const std::uint64_t* data, std::size_t words) {
    __m256i sums[4];
    for (__m256i& sum : sums) sum = _mm256_setzero_si256();
    for (std::size_t index = 0; index + 16 <= words; index += 16) {
#pragma GCC unroll 4
        for (int lane = 0; lane < 4; ++lane) {
            const auto* from = reinterpret_cast<const __m256i*>(data + index + 4 * static_cast<std::size_t>(lane));
            sums[lane] = _mm256_or_si256(sums[lane], _mm256_loadu_si256(from));
        }
    }
    const __m256i all = _mm256_or_si256(_mm256_or_si256(sums[0], sums[1]), _mm256_or_si256(sums[2], sums[3]));
    use(all);
    return 0;
}
#endif

#if defined(BITSTRATA_NEON)
#define BITSTRATA_HIDE_NEON(operand) asm volatile("" : "+w"(operand))

double neon_bytes(std::size_t rounds) {
    int8x8_t codes = vdup_n_s8(1), weights = vdup_n_s8(1);
    int16x8_t sums[kSums];
    for (int16x8_t& sum : sums) sum = vdupq_n_s16(0);
    for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int index = 0; index < kSums; ++index) {
            BITSTRATA_HIDE_NEON(codes);
            sums[index] = vmlal_s8(sums[index], codes, weights);
        }
    }
    for (const int16x8_t& sum : sums) use(sum);
    return static_cast<double>(rounds) * kSums * 8;
}

__attribute__((target("arch=armv8.2-a+dotprod"), noinline)) double dotprod_bytes(std::size_t rounds) {
    int8x16_t codes = vdupq_n_s8(1), weights = vdupq_n_s8(1);
    int32x4_t sums[kSums];
    for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
    for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int index = 0; index < kSums; ++index) {
            BITSTRATA_HIDE_NEON(codes);
            sums[index] = vdotq_s32(sums[index], codes, weights);
        }
    }
    for (const int32x4_t& sum : sums) use(sum);
    return static_cast<double>(rounds) * kSums * 16;
}

double neon_floats(std::size_t rounds) {
    float32x4_t factors = vdupq_n_f32(1.0f), weights = vdupq_n_f32(0.5f), sums[kSums];
    for (float32x4_t& sum : sums) sum = vdupq_n_f32(0.0f);
    for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int index = 0; index < kSums; ++index) {
            BITSTRATA_HIDE_NEON(factors);
            sums[index] = vfmaq_f32(sums[index], factors, weights);
        }
    }
    for (const float32x4_t& sum : sums) use(sum);
    return static_cast<double>(rounds) * kSums * 4;
}
#endif

Loop multiply_loop(bool floats) {
#if defined(BITSTRATA_AVX2)
    if (floats && __builtin_cpu_supports("avx512f")) return avx512_floats;
    if (!floats && __builtin_cpu_supports("avx512vnni")) return vnni_bytes;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return floats ? avx2_floats : avx2_bytes;
#endif
#if defined(BITSTRATA_NEON)
    return floats ? neon_floats : has_dotprod() ? dotprod_bytes : neon_bytes;
#else
    return floats ? portable_floats : portable_bytes;
#endif
}

}  // namespace

double multiply_rate(bool floats) { return best_rate(multiply_loop(floats)); }

double read_rate(std::size_t bytes) {
    const std::size_t words = std::max<std::size_t>(bytes / sizeof(std::uint64_t) / 16 * 16, 16);
    const std::vector<std::uint64_t> data(words, 1);
    auto read = portable_read;
#if defined(BITSTRATA_AVX2)
    if (__builtin_cpu_supports("avx2")) read = avx2_read;
#endif
    return best_rate([&](std::size_t rounds) {
        for (std::size_t round = 0; round < rounds; ++round) {
            const std::uint64_t sum = read(data.data(), words);
            use(sum);
        }
        return static_cast<double>(rounds) * static_cast<double>(words * sizeof(std::uint64_t));
    });
}

}  // namespace bitstrata

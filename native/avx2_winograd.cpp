// Winograd convolution with AVX2: products of bytes added up in 16 bits, widened before they could overflow, or never
// where the results themselves fit 16 bits.
#include <immintrin.h>

#include "winograd_loops.h"

namespace bitstrata::avx2 {
namespace {

struct Bytes {
    __m256i values;
    friend Bytes operator+(Bytes a, Bytes b) { return {_mm256_add_epi8(a.values, b.values)}; }
    friend Bytes operator-(Bytes a, Bytes b) { return {_mm256_sub_epi8(a.values, b.values)}; }
};

struct Shorts {
    __m256i values;
    friend Shorts operator+(Shorts a, Shorts b) { return {_mm256_add_epi16(a.values, b.values)}; }
    friend Shorts operator-(Shorts a, Shorts b) { return {_mm256_sub_epi16(a.values, b.values)}; }
};

struct Words {
    __m256i values;
    friend Words operator+(Words a, Words b) { return {_mm256_add_epi32(a.values, b.values)}; }
    friend Words operator-(Words a, Words b) { return {_mm256_sub_epi32(a.values, b.values)}; }
};

inline __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store(__m256i values, void* to) { _mm256_storeu_si256(static_cast<__m256i*>(to), values); }

constexpr std::size_t kRows = 6;  // tiles at a time; with two vectors their sums take twelve of the sixteen registers

// Weights are fetched ahead of their use. Where those of a position have at most kNear bytes, that far ahead; else those
// of the next position, a share with every pass over these: they may come from a far cache, and must not all be waited
// for at once.
constexpr std::size_t kNear = 4096;
struct Next {
    const std::int8_t* at;
    std::size_t step;
};

// Sums up the products of R tiles by 16 outputs in 16 bits, in steps of four inputs. In assembly, because compilers keep
// some of the twelve sums in memory.
#define BITSTRATA_ROW(ADDRESS, X, Y)                                                                                 \
    "vpbroadcastd " ADDRESS ",%[t]\n\tvpmaddubsw %[w0],%[t],%[u]\n\tvpmaddubsw %[w1],%[t],%[t]\n\t"                  \
    "vpaddw %[u],%[" X "],%[" X "]\n\tvpaddw %[t],%[" Y "],%[" Y "]\n\t"
#define BITSTRATA_ZERO(NAME)                                                                                         \
    "vpxor %[" NAME "0],%[" NAME "0],%[" NAME "0]\n\tvpxor %[" NAME "1],%[" NAME "1],%[" NAME "1]\n\t"
#define BITSTRATA_THREE_ROWS \
    BITSTRATA_ROW("(%[a])", "a0", "a1") BITSTRATA_ROW("(%[a],%[s])", "b0", "b1") BITSTRATA_ROW("(%[a],%[s],2)", "c0", "c1")
#define BITSTRATA_NEAR "prefetcht0 4096(%[w])\n\t"
#define BITSTRATA_FAR "prefetcht0 (%[n])\n\tadd %[ns],%[n]\n\t"
#define BITSTRATA_LOOP(FETCH, ZEROS, ROWS)                                                                           \
    BITSTRATA_ZERO("a") BITSTRATA_ZERO("b") BITSTRATA_ZERO("c") ZEROS                                                \
    ".p2align 4\n1:\n\tvmovdqu (%[w]),%[w0]\n\tvmovdqu 32(%[w]),%[w1]\n\t" FETCH ROWS                               \
    "add $4,%[a]\n\tadd $4,%[b]\n\tadd %[ws],%[w]\n\tdec %[steps]\n\tjnz 1b\n\t"
#define BITSTRATA_SUM(NAME, ROW) [NAME##0] "=&x"(sums[ROW][0]), [NAME##1] "=&x"(sums[ROW][1])
#define BITSTRATA_OPERANDS                                                                                           \
    [a] "+r"(a), [b] "+r"(b), [w] "+r"(w), [n] "+r"(next.at), [steps] "+r"(steps), [t] "=&x"(t), [u] "=&x"(u), [w0] "=&x"(w0),           \
        [w1] "=&x"(w1), BITSTRATA_SUM(a, 0), BITSTRATA_SUM(b, 1), BITSTRATA_SUM(c, 2)
#define BITSTRATA_INPUTS [s] "r"(row), [ws] "r"(weight_step), [ns] "r"(next.step) : "cc", "memory"

#define BITSTRATA_BY_ROWS(FETCH)                                                                                     \
    if constexpr (R == 3) {                                                                                          \
        asm volatile(BITSTRATA_LOOP(FETCH, "", BITSTRATA_THREE_ROWS) : BITSTRATA_OPERANDS : BITSTRATA_INPUTS);       \
    } else if constexpr (R == 4) {                                                                                   \
        asm volatile(BITSTRATA_LOOP(FETCH, BITSTRATA_ZERO("d"),                                                      \
                                    BITSTRATA_THREE_ROWS BITSTRATA_ROW("(%[b])", "d0", "d1"))                        \
                     : BITSTRATA_OPERANDS, BITSTRATA_SUM(d, 3)                                                       \
                     : BITSTRATA_INPUTS);                                                                            \
    } else if constexpr (R == 5) {                                                                                   \
        asm volatile(BITSTRATA_LOOP(FETCH, BITSTRATA_ZERO("d") BITSTRATA_ZERO("e"),                                  \
                                    BITSTRATA_THREE_ROWS BITSTRATA_ROW("(%[b])", "d0", "d1")                         \
                                        BITSTRATA_ROW("(%[b],%[s])", "e0", "e1"))                                    \
                     : BITSTRATA_OPERANDS, BITSTRATA_SUM(d, 3), BITSTRATA_SUM(e, 4)                                  \
                     : BITSTRATA_INPUTS);                                                                            \
    } else {                                                                                                         \
        asm volatile(BITSTRATA_LOOP(FETCH, BITSTRATA_ZERO("d") BITSTRATA_ZERO("e") BITSTRATA_ZERO("f"),              \
                                    BITSTRATA_THREE_ROWS BITSTRATA_ROW("(%[b])", "d0", "d1")                         \
                                        BITSTRATA_ROW("(%[b],%[s])", "e0", "e1")                                     \
                                            BITSTRATA_ROW("(%[b],%[s],2)", "f0", "f1"))                              \
                     : BITSTRATA_OPERANDS, BITSTRATA_SUM(d, 3), BITSTRATA_SUM(e, 4), BITSTRATA_SUM(f, 5)             \
                     : BITSTRATA_INPUTS);                                                                            \
    }

template <int R, bool Far>
ALWAYS_INLINE void sum_products(const std::uint8_t* a, std::size_t row, const std::int8_t* w, std::size_t weight_step,
                                Next& next, std::size_t steps, __m256i (&sums)[R][2]) {
    const std::uint8_t* b = a + 3 * row;
    __m256i t, u, w0, w1;
    if constexpr (Far) {
        BITSTRATA_BY_ROWS(BITSTRATA_FAR)
    } else {
        BITSTRATA_BY_ROWS(BITSTRATA_NEAR)
    }
}
#undef BITSTRATA_ROW
#undef BITSTRATA_ZERO
#undef BITSTRATA_THREE_ROWS
#undef BITSTRATA_LOOP
#undef BITSTRATA_SUM
#undef BITSTRATA_OPERANDS
#undef BITSTRATA_INPUTS
#undef BITSTRATA_NEAR
#undef BITSTRATA_FAR
#undef BITSTRATA_BY_ROWS

// R tiles by 16 outputs. Narrow sums need no widening on the way; the low halves of the 32-bit lanes stored are the
// first eight outputs, the high halves the others.
template <int R, bool Far>
void multiply_tiles(const WinogradView& layer, std::size_t place, const std::uint8_t* codes, const std::int8_t* weights,
                    const std::int32_t* start, unsigned char* to, const Next* fetched) {
    const __m256i ones = _mm256_set1_epi16(1);
    const std::size_t weight_step = layer.lanes * 4;
    Next next{};
    if (Far) next = *fetched;
    if (layer.narrow) {
        __m256i sums[R][2];
        sum_products<R, Far>(codes, layer.code_row, weights, weight_step, next, layer.steps, sums);
        for (int r = 0; r < R; ++r) {
            const __m256i first = _mm256_add_epi32(_mm256_madd_epi16(sums[r][0], ones), load(start));
            const __m256i second = _mm256_add_epi32(_mm256_madd_epi16(sums[r][1], ones), load(start + 8));
            store(_mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xAA), to + r * layer.lanes * 2);
        }
        return;
    }
    std::size_t start_row = 0;  // all tiles start with the same sums, then each with its own
    for (std::uint32_t run = layer.cuts[place]; run < layer.cuts[place + 1]; ++run) {
        __m256i sums[R][2];
        const std::size_t steps = layer.runs[run];
        sum_products<R, Far>(codes, layer.code_row, weights, weight_step, next, steps, sums);
        codes += steps * 4;
        weights += steps * weight_step;
        for (int r = 0; r < R; ++r) {
            for (int half = 0; half < 2; ++half) {
                const __m256i before = load(start + r * start_row + half * 8);
                const __m256i widened = _mm256_madd_epi16(sums[r][half], ones);
                store(_mm256_add_epi32(widened, before), to + r * layer.lanes * 4 + half * 32);
            }
        }
        start = reinterpret_cast<const std::int32_t*>(to);
        start_row = layer.lanes;
    }
}

using Multiply = void (*)(const WinogradView&, std::size_t, const std::uint8_t*, const std::int8_t*, const std::int32_t*,
                          unsigned char*, const Next*);

// Where there are fewer than three tiles, the rows beyond hold anything, and are not used.
template <bool Far>
constexpr Multiply kMultiply[kRows] = {multiply_tiles<3, Far>, multiply_tiles<3, Far>, multiply_tiles<3, Far>,
                                       multiply_tiles<4, Far>, multiply_tiles<5, Far>, multiply_tiles<6, Far>};

struct Isa {
    using Bytes = avx2::Bytes;
    static constexpr std::size_t kBytes = 32, kRows = avx2::kRows;

    static Bytes load_bytes(const std::uint8_t* from) { return {load(from)}; }
    static void store_bytes(Bytes v, unsigned char* to) { store(v.values, to); }
    static Bytes spread_bytes(std::uint32_t four) { return {_mm256_set1_epi32(static_cast<int>(four))}; }

    static std::size_t row_bytes(const WinogradView& layer) { return layer.lanes * (layer.narrow ? 2 : 4); }

    static void multiply(const WinogradView& layer, std::size_t place, const std::uint8_t* codes, const Parts& parts,
                         unsigned char* to) {
        const std::size_t size = layer.lanes * layer.steps * 4, blocks = layer.lanes / kLanes;
        const std::int8_t* weights = layer.weights + place * size;
        const std::int32_t* starts = layer.starts + place * layer.lanes;
        const bool far = size > kNear;
        const auto& loops = far ? kMultiply<true> : kMultiply<false>;
        const std::size_t passes = far ? parts.count * blocks : 1;
        Next next{weights + size, far ? layer.lanes * 4 / passes : 0};
        for (std::size_t part = 0; part < parts.count; ++part) {
            const std::size_t first = parts.first[part], rows = parts.first[part + 1] - first;
            for (std::size_t block = 0; block < blocks; ++block) {
                const std::size_t lane = block * kLanes;
                loops[rows - 1](layer, place, codes + first * layer.code_row, weights + lane * 4, starts + lane,
                                to + first * row_bytes(layer) + lane * (layer.narrow ? 2 : 4), &next);
                if (far) next.at += size / passes;
            }
        }
    }

    // The sums of four rows of codes, 16 bits each.
    static std::uint64_t sum_four(const std::uint8_t* const (&rows)[4], std::size_t inputs) {
        alignas(32) static constexpr std::uint8_t kMasks[64] = {
            255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
            255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
        const __m256i zero = _mm256_setzero_si256();
        __m256i sums[4] = {zero, zero, zero, zero};
        for (std::size_t input = 0; input < inputs; input += 32) {
            const std::size_t left = inputs - input;
            const __m256i inside = load(kMasks + (left < 32 ? 32 - left : 0));
#pragma GCC unroll 4
            for (int row = 0; row < 4; ++row) {
                const __m256i codes = _mm256_and_si256(load(rows[row] + input), inside);
                sums[row] = _mm256_add_epi64(sums[row], _mm256_sad_epu8(codes, zero));
            }
        }
        // Side by side in 64 bits, then four of those.
        const __m256i low = _mm256_or_si256(sums[0], _mm256_slli_epi64(sums[1], 16));
        const __m256i high = _mm256_or_si256(sums[2], _mm256_slli_epi64(sums[3], 16));
        const __m256i four = _mm256_or_si256(low, _mm256_slli_epi64(high, 32));
        const __m128i pair = _mm_add_epi16(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
        return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_add_epi16(pair, _mm_unpackhi_epi64(pair, pair))));
    }

    // Eight results of the last transform, as accumulators.
    template <bool Plain>
    static ALWAYS_INLINE void put(__m256i y, __m256i right, __m256i left, __m256i offset, const std::int32_t* window_sum,
                                  std::int32_t* to) {
        y = _mm256_srav_epi32(y, right);
        if (!Plain) {
            y = _mm256_add_epi32(_mm256_sllv_epi32(y, left), offset);
            y = _mm256_add_epi32(y, _mm256_set1_epi32(*window_sum));
        }
        store(y, to);
    }

    template <class T, bool Plain, class Results>
    static void finish_tile(const WinogradView& layer, std::size_t channel, const unsigned char* products,
                            const WindowSums& window_sums, Results* results, std::size_t column) {
        const std::int32_t* offsets = layer.offsets + channel;
        const auto sum_at = [&](int i, int j) { return window_sums.first + i * window_sums.row + column + j; };
        const __m256i left = _mm256_set1_epi32(layer.left);
        if (layer.narrow) {
            const __m256i right = _mm256_set1_epi32(16 + layer.right);
            for (std::size_t block = 0; block < layer.lanes / kLanes; ++block) {
                const unsigned char* from = products + block * 32;
                const __m256i first = load(offsets + block * kLanes), second = load(offsets + block * kLanes + 8);
                transform_products<T, Shorts>(
                    [&](int i, int j) { return Shorts{load(from + (i * T::kPoints + j) * layer.product_position)}; },
                    [&](int i, int j, Shorts y) {
                        __m256i both = y.values;
                        if (T::kInverse != 1) {
                            both = _mm256_mullo_epi16(both, _mm256_set1_epi16(static_cast<short>(T::kInverse)));
                        }
                        std::int32_t* to = results[block][i][column + j];
                        put<Plain>(_mm256_slli_epi32(both, 16), right, left, first, sum_at(i, j), to);
                        put<Plain>(both, right, left, second, sum_at(i, j), to + 8);
                    });
            }
            return;
        }
        const __m256i right = _mm256_set1_epi32(layer.right);
        for (std::size_t lane = 0; lane < layer.lanes; lane += 8) {
            const unsigned char* from = products + lane * 4;
            const __m256i offset = load(offsets + lane);
            transform_products<T, Words>(
                [&](int i, int j) { return Words{load(from + (i * T::kPoints + j) * layer.product_position)}; },
                [&](int i, int j, Words y) {
                    __m256i values = y.values;
                    if (T::kInverse != 1) values = _mm256_mullo_epi32(values, _mm256_set1_epi32(T::kInverse));
                    put<Plain>(values, right, left, offset, sum_at(i, j),
                               results[lane / kLanes][i][column + j] + lane % kLanes);
                });
        }
    }
};

}  // namespace

void winograd2(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept {
    run_tiles<Tile2, Isa>(layer, call, tiles, groups);
}

void winograd3(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept {
    run_tiles<Tile3, Isa>(layer, call, tiles, groups);
}

void winograd4(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept {
    run_tiles<Tile4, Isa>(layer, call, tiles, groups);
}

}  // namespace bitstrata::avx2

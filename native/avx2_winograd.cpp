// Winograd convolution with AVX2: products of bytes added up in 16 bits, widened before they could overflow, or never
// where the results themselves fit 16 bits.
#include <immintrin.h>

#include "avx2_rows_loops.h"
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

// What the blocks of 16 outputs of a set of tiles have in common. Sums begin with `start`; both that and where they go
// are given for the first block and the first tile.
struct Sum {
    const std::uint8_t* codes;
    const std::int8_t* weights;
    std::size_t steps, weight_step;
    Next next;
    const std::int32_t* start;
    unsigned char* to;
    std::size_t start_row, row;  // bytes from tile to tile
    std::size_t blocks;
};

// R tiles by 16 outputs, block after block, in steps of four inputs. In assembly for the reasons that avx2_direct.cpp
// gives.
#define BITSTRATA_ADD_START(X, Y)                                                                                   \
    "vpmaddwd %%ymm14,%%ymm" X ",%%ymm" X "\n\tvpmaddwd %%ymm14,%%ymm" Y ",%%ymm" Y "\n\t"                          \
    "vpaddd (%[start]),%%ymm" X ",%%ymm" X "\n\tvpaddd 32(%[start]),%%ymm" Y ",%%ymm" Y "\n\t"
#define BITSTRATA_NEXT_TILE "add %[row],%[out]\n\tadd %[start_row],%[start]\n\t"
#define BITSTRATA_WIDE(X, Y)                                                                                        \
    BITSTRATA_ADD_START(X, Y)                                                                                       \
    "vmovdqu %%ymm" X ",(%[out])\n\tvmovdqu %%ymm" Y ",32(%[out])\n\t" BITSTRATA_NEXT_TILE
#define BITSTRATA_NARROW(X, Y)                                                                                      \
    BITSTRATA_ADD_START(X, Y)                                                                                       \
    "vpslld $16,%%ymm" Y ",%%ymm" Y "\n\tvpblendw $0xAA,%%ymm" Y ",%%ymm" X ",%%ymm" X "\n\t"                       \
    "vmovdqu %%ymm" X ",(%[out])\n\t" BITSTRATA_NEXT_TILE
#define BITSTRATA_NEAR "prefetcht0 4096(%[w])\n\t"
#define BITSTRATA_FAR "prefetcht0 (%[n])\n\tadd %[ns],%[n]\n\t"

#define BITSTRATA_SUM_TILES(R, FETCH, STORE, SIZE)                                                                  \
    asm volatile("1:\n\t" BITSTRATA_SUMS_##R(BITSTRATA_CLEAR) "mov %[steps],%[count]\n\t"                           \
                 ".p2align 4\n2:\n\t"                                                                               \
                 "vmovdqu (%[w]),%%ymm12\n\tvmovdqu 32(%[w]),%%ymm13\n\t" FETCH BITSTRATA_ROWS_##R                  \
                 "add $4,%[a]\n\tadd %[ws],%[w]\n\tdec %[count]\n\tjnz 2b\n\t"                                      \
                 "sub %[codes_back],%[a]\n\tsub %[weights_back],%[w]\n\t"                                           \
                 "vpcmpeqw %%ymm14,%%ymm14,%%ymm14\n\tvpsrlw $15,%%ymm14,%%ymm14\n\t" BITSTRATA_SUMS_##R(STORE)     \
                 "sub %[start_back],%[start]\n\tsub %[back],%[out]\n\tadd $" SIZE ",%[out]\n\t"                     \
                 "dec %[blocks]\n\tjnz 1b\n\t"                                                                      \
                 : [a] "+&r"(a), [w] "+&r"(w), [n] "+&r"(sum.next.at), [count] "=&r"(count), [start] "+&r"(start),  \
                   [out] "+&r"(out), [blocks] "+&r"(blocks)                                                         \
                 : [s] "r"(s), [s3] "r"(s3), [s5] "r"(s5), [ws] "r"(sum.weight_step), [ns] "r"(sum.next.step),      \
                   [steps] "m"(sum.steps), [codes_back] "m"(codes_back), [weights_back] "m"(weights_back),          \
                   [start_row] "m"(sum.start_row), [row] "m"(sum.row), [start_back] "m"(start_back),                \
                   [back] "m"(back)                                                                                 \
                 : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",  \
                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

template <bool Far, bool Narrow>
void sum_tiles(std::size_t rows, std::ptrdiff_t s, Sum& sum) {
    const std::ptrdiff_t s3 = 3 * s, s5 = 5 * s;
    const std::uint8_t* a = sum.codes;
    const std::int8_t* w = sum.weights;
    const std::int32_t* start = sum.start;
    unsigned char* out = sum.to;
    const std::size_t codes_back = sum.steps * 4, weights_back = sum.steps * sum.weight_step - 64;
    const std::size_t made = rows < 3 ? 3 : rows, start_back = made * sum.start_row - 64, back = made * sum.row;
    std::size_t count, blocks = sum.blocks;
#define BITSTRATA_BY_STORE(R)                                                                                       \
    if constexpr (Far && Narrow) {                                                                                  \
        BITSTRATA_SUM_TILES(R, BITSTRATA_FAR, BITSTRATA_NARROW, "32");                                              \
    } else if constexpr (Far) {                                                                                     \
        BITSTRATA_SUM_TILES(R, BITSTRATA_FAR, BITSTRATA_WIDE, "64");                                                \
    } else if constexpr (Narrow) {                                                                                  \
        BITSTRATA_SUM_TILES(R, BITSTRATA_NEAR, BITSTRATA_NARROW, "32");                                             \
    } else {                                                                                                        \
        BITSTRATA_SUM_TILES(R, BITSTRATA_NEAR, BITSTRATA_WIDE, "64");                                               \
    }
    switch (rows) {
        case 6:
            BITSTRATA_BY_STORE(6)
            break;
        case 5:
            BITSTRATA_BY_STORE(5)
            break;
        case 4:
            BITSTRATA_BY_STORE(4)
            break;
        default:  // where there are fewer than three, the rows beyond hold anything, and are not used
            BITSTRATA_BY_STORE(3)
    }
#undef BITSTRATA_BY_STORE
}

struct Isa {
    using Bytes = avx2::Bytes;
    static constexpr std::size_t kBytes = 32, kRows = avx2::kRows;

    static Bytes load_bytes(const std::uint8_t* from) { return {load(from)}; }
    static void store_bytes(Bytes v, unsigned char* to) { store(v.values, to); }
    static Bytes spread_bytes(std::uint32_t four) { return {_mm256_set1_epi32(static_cast<int>(four))}; }

    static std::size_t row_bytes(const WinogradView& layer) { return layer.lanes * (layer.narrow ? 2 : 4); }

    // Narrow sums need no widening on the way; the low halves of the 32-bit lanes stored are the first eight outputs of
    // a block, the high halves the others.
    static void multiply(const WinogradView& layer, std::size_t place, const std::uint8_t* codes, const Parts& parts,
                         unsigned char* to) {
        const std::size_t size = layer.lanes * layer.steps * 4, blocks = layer.lanes / kLanes;
        const bool far = size > kNear;
        const auto sum_tiles = layer.narrow ? (far ? avx2::sum_tiles<true, true> : avx2::sum_tiles<false, true>)
                                            : (far ? avx2::sum_tiles<true, false> : avx2::sum_tiles<false, false>);
        for (std::size_t part = 0; part < parts.count; ++part) {
            const std::size_t first = parts.first[part], rows = parts.first[part + 1] - first;
            Sum sum{codes + first * layer.code_row, layer.weights + place * size, layer.steps, layer.lanes * 4,
                    {layer.weights + (place + 1) * size + part * size / parts.count,
                     far ? layer.lanes * 4 / (parts.count * blocks) : 0},
                    layer.starts + place * layer.lanes, to + first * row_bytes(layer), 0, row_bytes(layer), blocks};
            if (layer.narrow) {
                sum_tiles(rows, static_cast<std::ptrdiff_t>(layer.code_row), sum);
                continue;
            }
            for (std::uint32_t run = layer.cuts[place]; run < layer.cuts[place + 1]; ++run) {
                sum.steps = layer.runs[run];
                sum_tiles(rows, static_cast<std::ptrdiff_t>(layer.code_row), sum);
                sum.codes += sum.steps * 4;
                sum.weights += sum.steps * sum.weight_step;
                sum.start = reinterpret_cast<const std::int32_t*>(sum.to);  // first all the same, then each its own
                sum.start_row = sum.row;
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

// Winograd convolution with AVX-512 and VNNI: four products of bytes at a time, added up in 32 bits.
#include <immintrin.h>

#include "winograd_loops.h"

namespace bitstrata::avx512 {
namespace {

struct Bytes {
    __m512i values;
    friend Bytes operator+(Bytes a, Bytes b) { return {_mm512_add_epi8(a.values, b.values)}; }
    friend Bytes operator-(Bytes a, Bytes b) { return {_mm512_sub_epi8(a.values, b.values)}; }
};

struct Shorts {
    __m512i values;
    friend Shorts operator+(Shorts a, Shorts b) { return {_mm512_add_epi16(a.values, b.values)}; }
    friend Shorts operator-(Shorts a, Shorts b) { return {_mm512_sub_epi16(a.values, b.values)}; }
};

struct Words {
    __m512i values;
    friend Words operator+(Words a, Words b) { return {_mm512_add_epi32(a.values, b.values)}; }
    friend Words operator-(Words a, Words b) { return {_mm512_sub_epi32(a.values, b.values)}; }
};

inline __m512i load(const void* from) { return _mm512_loadu_si512(from); }

inline __m512i broadcast4(const std::uint8_t* from) {
    std::int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

// Weights are fetched ahead of their use. Where those of a position have at most kNear bytes, that far ahead; else those
// of the next position, a share with every part of the tiles: they may come from a far cache, and must not all be waited
// for at once.
constexpr std::size_t kNear = 4096;
struct Next {
    const std::int8_t* at;
    std::size_t step;
};

// R tiles by V vectors of kLanes outputs. Narrow sums of two vectors are stored as one: the low halves of its 32-bit
// lanes are the first vector's sums, the high halves the second's.
template <int R, int V, bool Far>
void multiply_tiles(const std::uint8_t* codes, std::size_t row, const std::int8_t* weights, std::size_t steps,
                    const std::int32_t* starts, unsigned char* to, bool narrow, const Next* fetched) {
    Next next{};
    if (Far) next = *fetched;
    __m512i sums[R][V];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[r][v] = load(starts + v * kLanes);
    }
    for (std::size_t step = 0; step < steps; ++step, codes += 4, weights += V * kLanes * 4, next.at += Far ? next.step : 0) {
        __m512i vectors[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            vectors[v] = load(weights + v * kLanes * 4);
            const std::int8_t* ahead = Far ? next.at : weights + kNear;
            _mm_prefetch(reinterpret_cast<const char*>(ahead + v * kLanes * 4), _MM_HINT_T0);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const __m512i four = broadcast4(codes + r * row);
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], four, vectors[v]);
        }
    }
    if (V == 2 && narrow) {
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const __m512i high = _mm512_slli_epi32(sums[r][V - 1], 16);
            _mm512_storeu_si512(to + r * 64, _mm512_mask_blend_epi16(0xAAAAAAAA, sums[r][0], high));
        }
        return;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) _mm512_storeu_si512(to + (r * V + v) * 64, sums[r][v]);
    }
}

using Multiply = void (*)(const std::uint8_t*, std::size_t, const std::int8_t*, std::size_t, const std::int32_t*,
                          unsigned char*, bool, const Next*);

constexpr std::size_t kRows = 12;  // tiles at a time, at most: with two vectors 24 sums stay in registers

template <int V, bool Far>
constexpr Multiply kMultiply[kRows] = {
    multiply_tiles<1, V, Far>, multiply_tiles<2, V, Far>, multiply_tiles<3, V, Far>,  multiply_tiles<4, V, Far>,
    multiply_tiles<5, V, Far>, multiply_tiles<6, V, Far>, multiply_tiles<7, V, Far>,  multiply_tiles<8, V, Far>,
    multiply_tiles<9, V, Far>, multiply_tiles<10, V, Far>, multiply_tiles<11, V, Far>, multiply_tiles<12, V, Far>};

struct Isa {
    using Bytes = avx512::Bytes;
    static constexpr std::size_t kBytes = 64, kRows = avx512::kRows;

    static Bytes load_bytes(const std::uint8_t* from) { return {load(from)}; }
    static void store_bytes(Bytes v, unsigned char* to) { _mm512_storeu_si512(to, v.values); }
    static Bytes spread_bytes(std::uint32_t four) { return {_mm512_set1_epi32(static_cast<int>(four))}; }

    static std::size_t row_bytes(const WinogradView& layer) { return layer.lanes * (layer.narrow ? 2 : 4); }

    static void multiply(const WinogradView& layer, std::size_t place, const std::uint8_t* codes, const Parts& parts,
                         unsigned char* to) {
                const std::size_t size = layer.lanes * layer.steps * 4;
        const std::int8_t* weights = layer.weights + place * size;
        const bool far = size > kNear, two = layer.lanes > kLanes;
        const auto& loops = far ? (two ? kMultiply<2, true> : kMultiply<1, true>)
                                : (two ? kMultiply<2, false> : kMultiply<1, false>);
        const std::size_t passes = far ? parts.count : 1;
        Next next{weights + size, far ? layer.lanes * 4 / passes : 0};
        for (std::size_t part = 0; part < parts.count; ++part) {
            const std::size_t first = parts.first[part], rows = parts.first[part + 1] - first;
            loops[rows - 1](codes + first * layer.code_row, layer.code_row, weights, layer.steps,
                            layer.starts + place * layer.lanes, to + first * row_bytes(layer), layer.narrow,
                            &next);
            if (far) next.at += size / passes;
        }
    }

    // The sums of four rows of codes, 16 bits each.
    static std::uint64_t sum_four(const std::uint8_t* const (&rows)[4], std::size_t inputs) {
        const __m512i zero = _mm512_setzero_si512();
        __m512i sums[4] = {zero, zero, zero, zero};
        for (std::size_t input = 0; input < inputs; input += 64) {
            const std::size_t left = inputs - input;
            const __mmask64 inside = left < 64 ? (__mmask64{1} << left) - 1 : ~__mmask64{0};
#pragma GCC unroll 4
            for (int row = 0; row < 4; ++row) {
                const __m512i codes = _mm512_maskz_loadu_epi8(inside, rows[row] + input);
                sums[row] = _mm512_add_epi64(sums[row], _mm512_sad_epu8(codes, zero));
            }
        }
        // Side by side in 64 bits, then eight of those.
        const __m512i low = _mm512_or_si512(sums[0], _mm512_slli_epi64(sums[1], 16));
        const __m512i high = _mm512_or_si512(sums[2], _mm512_slli_epi64(sums[3], 16));
        const __m512i four = _mm512_or_si512(low, _mm512_slli_epi64(high, 32));
        const __m256i halves = _mm256_add_epi16(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
        const __m128i pair = _mm_add_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
        return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_add_epi16(pair, _mm_unpackhi_epi64(pair, pair))));
    }

    // Results of the last transform, as accumulators.
    template <bool Plain>
    static ALWAYS_INLINE void put(__m512i y, __m512i right, __m512i left, __m512i offset, const std::int32_t* window_sum,
                                  std::int32_t* to) {
        y = _mm512_srav_epi32(y, right);
        if (!Plain) {
            y = _mm512_add_epi32(_mm512_sllv_epi32(y, left), offset);
            y = _mm512_add_epi32(y, _mm512_set1_epi32(*window_sum));
        }
        _mm512_storeu_si512(to, y);
    }

    template <class T, bool Plain, class Results>
    static void finish_tile(const WinogradView& layer, std::size_t channel, const unsigned char* products,
                            const WindowSums& window_sums, Results* results, std::size_t column) {
        const std::int32_t* offsets = layer.offsets + channel;
        const auto sum_at = [&](int i, int j) { return window_sums.first + i * window_sums.row + column + j; };
        const __m512i left = _mm512_set1_epi32(layer.left);
        if (layer.narrow) {
            const __m512i right = _mm512_set1_epi32(16 + layer.right);
            const __m512i first = load(offsets), second = load(offsets + kLanes);
            transform_products<T, Shorts>(
                [&](int i, int j) { return Shorts{load(products + (i * T::kPoints + j) * layer.product_position)}; },
                [&](int i, int j, Shorts y) {
                    __m512i both = y.values;
                    if (T::kInverse != 1) both = _mm512_mullo_epi16(both, _mm512_set1_epi16(static_cast<short>(T::kInverse)));
                    put<Plain>(_mm512_slli_epi32(both, 16), right, left, first, sum_at(i, j), results[0][i][column + j]);
                    put<Plain>(both, right, left, second, sum_at(i, j), results[1][i][column + j]);
                });
            return;
        }
        const __m512i right = _mm512_set1_epi32(layer.right);
        for (std::size_t block = 0; block < layer.lanes / kLanes; ++block) {
            const __m512i offset = load(offsets + block * kLanes);
            const unsigned char* from = products + block * 64;
            transform_products<T, Words>(
                [&](int i, int j) { return Words{load(from + (i * T::kPoints + j) * layer.product_position)}; },
                [&](int i, int j, Words y) {
                    __m512i values = y.values;
                    if (T::kInverse != 1) values = _mm512_mullo_epi32(values, _mm512_set1_epi32(T::kInverse));
                    put<Plain>(values, right, left, offset, sum_at(i, j), results[block][i][column + j]);
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

}  // namespace bitstrata::avx512

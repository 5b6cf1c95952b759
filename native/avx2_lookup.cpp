// Sums of two-bit weights by table look-up with AVX2: one instruction looks up 32 sums of up to four codes.
#include <immintrin.h>

#include "avx2_rows_loops.h"
#include "finish_loops.h"
#include "lookup.h"
#include "stream_loops.h"
#include "window_loops.h"

namespace bitstrata::avx2 {
namespace {

constexpr std::size_t kTile = 6;  // pixels; the sums of both planes stay in registers
constexpr std::size_t kTable = 16;

// Planes as the upper bit's weight says: a code is its lower bit less twice its upper one.
alignas(32) constexpr std::int8_t kPlanes[32] = {1, -2, 1, -2, 1, -2, 1, -2, 1, -2, 1, -2, 1, -2, 1, -2,
                                                 1, -2, 1, -2, 1, -2, 1, -2, 1, -2, 1, -2, 1, -2, 1, -2};

// Up to six pixels by 32 outputs, over one run: out[p] = start[p] + sums. In assembly for the reason that
// avx2_direct.cpp gives. The tables of a tile's pixels lie together, step after step.
#define BITSTRATA_LOOK_UP(AT, X, Y)                                                              \
    "vbroadcasti128 " AT "(%[tables]),%%ymm14\n\tvpshufb %%ymm12,%%ymm14,%%ymm15\n\t"            \
    "vpshufb %%ymm13,%%ymm14,%%ymm14\n\tvpaddb %%ymm15,%%ymm" X ",%%ymm" X "\n\t"                \
    "vpaddb %%ymm14,%%ymm" Y ",%%ymm" Y "\n\t"
#define BITSTRATA_WIDEN(X, Y)                                                                    \
    "vpunpcklbw %%ymm" Y ",%%ymm" X ",%%ymm14\n\tvpunpckhbw %%ymm" Y ",%%ymm" X ",%%ymm15\n\t"   \
    "vpmaddubsw %%ymm12,%%ymm14,%%ymm14\n\tvpmaddubsw %%ymm12,%%ymm15,%%ymm15\n\t"               \
    "vpaddw (%[start]),%%ymm14,%%ymm14\n\tvpaddw 32(%[start]),%%ymm15,%%ymm15\n\t"               \
    "vmovdqu %%ymm14,(%[out])\n\tvmovdqu %%ymm15,32(%[out])\n\t"                                 \
    "add $64,%[out]\n\tadd %[start_step],%[start]\n\t"

#define BITSTRATA_LOOK_UPS_1 BITSTRATA_LOOK_UP("", "0", "1")
#define BITSTRATA_LOOK_UPS_2 BITSTRATA_LOOK_UPS_1 BITSTRATA_LOOK_UP("16", "2", "3")
#define BITSTRATA_LOOK_UPS_3 BITSTRATA_LOOK_UPS_2 BITSTRATA_LOOK_UP("32", "4", "5")
#define BITSTRATA_LOOK_UPS_4 BITSTRATA_LOOK_UPS_3 BITSTRATA_LOOK_UP("48", "6", "7")
#define BITSTRATA_LOOK_UPS_5 BITSTRATA_LOOK_UPS_4 BITSTRATA_LOOK_UP("64", "8", "9")
#define BITSTRATA_LOOK_UPS_6 BITSTRATA_LOOK_UPS_5 BITSTRATA_LOOK_UP("80", "10", "11")

#define BITSTRATA_SUM_PIXELS(P)                                                                                       \
    inline void sum_##P(const std::uint8_t*& tables, const std::uint8_t*& places, std::size_t steps,                  \
                        const std::int16_t* start, std::ptrdiff_t start_step, std::int16_t* out) {                    \
        asm volatile(BITSTRATA_SUMS_##P(BITSTRATA_CLEAR)                                                              \
                     ".p2align 5\n1:\n\t"                                                                             \
                     "vmovdqu (%[places]),%%ymm12\n\tvmovdqu 32(%[places]),%%ymm13\n\t" BITSTRATA_LOOK_UPS_##P        \
                     "add $" #P "*16,%[tables]\n\tadd $64,%[places]\n\tdec %[steps]\n\tjnz 1b\n\t"                    \
                     "vmovdqu (%[planes]),%%ymm12\n\t" BITSTRATA_SUMS_##P(BITSTRATA_WIDEN)                            \
                     : [tables] "+&r"(tables), [places] "+&r"(places), [steps] "+&r"(steps), [out] "+&r"(out),        \
                       [start] "+&r"(start)                                                                           \
                     : [planes] "r"(kPlanes), [start_step] "r"(start_step)                                            \
                     : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",        \
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                 \
    }
BITSTRATA_SUM_PIXELS(1)
BITSTRATA_SUM_PIXELS(2)
BITSTRATA_SUM_PIXELS(3)
BITSTRATA_SUM_PIXELS(4)
BITSTRATA_SUM_PIXELS(5)
BITSTRATA_SUM_PIXELS(6)

// All of a block's sums for the pixels of a tile.
inline void sum_tile(const LookupView& layer, std::size_t block, const std::uint8_t* tables, std::size_t pixels,
                     std::int16_t (*sums)[kLookups]) {
    alignas(32) static constexpr std::int16_t kNothing[kLookups] = {};
    const std::uint8_t* places = layer.places + block * layer.steps * 2 * kLookups;
    const std::int16_t* start = kNothing;
    std::ptrdiff_t start_step = 0;
    for (std::size_t run = layer.cuts[block]; run != layer.cuts[block + 1]; ++run) {
        const std::size_t steps = layer.runs[run];
        switch (pixels) {
            case 1:
                sum_1(tables, places, steps, start, start_step, sums[0]);
                break;
            case 2:
                sum_2(tables, places, steps, start, start_step, sums[0]);
                break;
            case 3:
                sum_3(tables, places, steps, start, start_step, sums[0]);
                break;
            case 4:
                sum_4(tables, places, steps, start, start_step, sums[0]);
                break;
            case 5:
                sum_5(tables, places, steps, start, start_step, sums[0]);
                break;
            default:
                sum_6(tables, places, steps, start, start_step, sums[0]);
        }
        start = sums[0];
        start_step = sizeof sums[0];
    }
}

constexpr std::int8_t kZero = 9;  // where half a vector of codes and pair sums is zero

// The tables of eight codes of two pixels, one in either half: two tables for each pixel. A half holds the codes, then
// the sums of every two of them with zeros in between; an entry is one of the first two codes, their sum or zero, and
// likewise of the other two.
inline void make_two(__m256i codes, __m256i* tables) {
    const auto spread = [](__m128i half) { return _mm256_broadcastsi128_si256(half); };
    const __m256i places[2][2] = {
        {spread(_mm_setr_epi8(kZero, 0, 1, 8, kZero, 0, 1, 8, kZero, 0, 1, 8, kZero, 0, 1, 8)),
         spread(_mm_setr_epi8(kZero, kZero, kZero, kZero, 2, 2, 2, 2, 3, 3, 3, 3, 10, 10, 10, 10))},
        {spread(_mm_setr_epi8(kZero, 4, 5, 12, kZero, 4, 5, 12, kZero, 4, 5, 12, kZero, 4, 5, 12)),
         spread(_mm_setr_epi8(kZero, kZero, kZero, kZero, 6, 6, 6, 6, 7, 7, 7, 7, 14, 14, 14, 14))}};
    for (int table = 0; table < 2; ++table) {
        tables[table] = _mm256_add_epi8(_mm256_shuffle_epi8(codes, places[table][0]),
                                        _mm256_shuffle_epi8(codes, places[table][1]));
    }
}

// The tables of two pixels' windows side by side, or of one pixel's; `spacing` bytes from step to step.
template <bool Two>
inline void make_tables(const LookupView& layer, const std::uint8_t* window, std::size_t pixel, std::size_t row,
                        std::uint8_t* to, std::size_t spacing) {
    const auto store = [](std::uint8_t* at, __m256i table) {
        if (Two) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), table);
        } else {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(table));
        }
    };
    const auto load = [](const std::uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
    for (std::size_t index = 0; index < layer.window.segment_count; ++index) {
        const Segment& segment = layer.window.segments[index];
        const std::uint8_t* from = window + segment.row * row + segment.column;
        for (std::size_t left = (segment.length + 3) / 4; left > 0; from += 16) {
            __m256i codes = _mm256_castsi128_si256(load(from));
            if (Two) codes = _mm256_inserti128_si256(codes, load(from + pixel), 1);
            // What lies beyond a segment's end is never looked up; bounded, so that zeros stay zeros.
            codes = _mm256_and_si256(codes, _mm256_set1_epi8(3));
            const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi8(1));
            __m256i tables[4];
            make_two(_mm256_unpacklo_epi64(codes, pairs), tables);
            make_two(_mm256_unpackhi_epi64(codes, pairs), tables + 2);
            const std::size_t made = left < 4 ? left : 4;
            if (made == 4) {
                for (std::size_t table = 0; table < 4; ++table) store(to + table * spacing, tables[table]);
            } else {
                for (std::size_t table = 0; table < made; ++table) store(to + table * spacing, tables[table]);
            }
            left -= made;
            to += made * spacing;
        }
    }
}

// From sums of codes to accumulators, kLanes of them.
inline void widen(const LookupView& layer, const std::int16_t* sums, const __m256i (&offsets)[2], std::int32_t added,
                  std::int32_t* to) {
    const __m128i shift = _mm_cvtsi32_si128(layer.window.shift);
    const __m256i more = _mm256_set1_epi32(added);
    for (int half = 0; half < 2; ++half) {
        const __m128i shorts = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sums + half * 8));
        const __m256i shifted = _mm256_sll_epi32(_mm256_cvtepi16_epi32(shorts), shift);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + half * 8),
                            _mm256_add_epi32(_mm256_add_epi32(shifted, more), offsets[half]));
    }
}

}  // namespace

void lookup(const LookupView& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const std::size_t count = pixels.end - pixels.begin;
    const Position from = position_of(call.height, call.width, pixels.begin);
    const Finish finish(call.epilogue);
    const Stream stream(call.epilogue);
    Piece pieces[kStrip];
    const std::size_t piece_count = tiles_of(layer.window, call, from, count, kTile, pieces);
    std::int32_t window_sums[kStrip] = {};
    if (layer.window.compensation != 0) compensate(layer.window, call, pieces, piece_count, 0, window_sums);
    for (std::size_t tile = 0; tile < piece_count; ++tile) {
        const Piece& piece = pieces[tile];
        for (std::size_t p = 0; p < piece.pixels; p += 2) {
            std::uint8_t* to = call.scratch + (piece.first * layer.steps + p) * kTable;
            (p + 1 < piece.pixels ? make_tables<true> : make_tables<false>)(
                layer, piece.window + p * piece.spacing, piece.spacing, call.row, to, piece.pixels * kTable);
        }
    }
    for (std::size_t block = blocks.begin; block < blocks.end; ++block) {
        const std::size_t channel = block * kLookups;
        std::int16_t shorts[kStrip][kLookups];
        for (std::size_t tile = 0; tile < piece_count; ++tile) {
            const Piece& piece = pieces[tile];
            if (stream.usable()) {
                stream.ask(pixels.begin + piece.first, piece.pixels, channel);
                stream.ask(pixels.begin + piece.first, piece.pixels, channel + kLanes);
            }
            sum_tile(layer, block, call.scratch + piece.first * layer.steps * kTable, piece.pixels,
                     shorts + piece.first);
        }
        for (std::size_t part = 0; part < kLookups && channel + part < layer.outputs; part += kLanes) {
            const std::size_t left = layer.outputs - channel - part, channels = left < kLanes ? left : kLanes;
            const bool streams = stream.usable() && channels == kLanes;
            const std::int32_t* offsets = layer.window.offsets + channel + part;
            const __m256i added[2] = {load_bytes(offsets), load_bytes(offsets + 8)};
            std::int32_t sums[kStrip][kLanes];
            for (std::size_t p = 0; p < count; ++p) widen(layer, shorts[p] + part, added, window_sums[p], sums[p]);
            if (streams) {
                stream(sums, pixels.begin, count, channel + part);
            } else {
                finish(sums, from, pixels.begin, count, channel + part, channels);
            }
        }
    }
}

}  // namespace bitstrata::avx2

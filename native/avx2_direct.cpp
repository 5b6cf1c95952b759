// Convolution on codes with AVX2: four codes are broadcast, multiplied with those of eight channels at once, and summed
// in 16 bits.
#include <immintrin.h>

#include <cstddef>

#include "finish_loops.h"
#include "kernels.h"
#include "stream_loops.h"
#include "window_loops.h"

namespace bitstrata::avx2 {
namespace {

constexpr std::size_t kTile = 6;  // pixels; with two vectors of channels the sums stay in registers

static_assert(offsetof(Run, row) == 0 && offsetof(Run, column) == 8 && offsetof(Run, steps) == 16 &&
              offsetof(Run, flush) == 24 && sizeof(Run) == 32);

// Sixteen channels of up to six pixels, `s` bytes apart: out[p] = start[p] + sums, over the runs up to the next flush.
// Weights are asked for ahead: a block's are so few that the processor does not see by itself what follows. In assembly,
// because twelve sums, two vectors of weights and two products take all sixteen registers, and compilers put some of them
// on the stack.
#define BITSTRATA_ROW(ADDRESS, X, Y)                                                             \
    "vpbroadcastd " ADDRESS ",%%ymm14\n\tvpmaddubsw %%ymm12,%%ymm14,%%ymm15\n\t"                 \
    "vpmaddubsw %%ymm13,%%ymm14,%%ymm14\n\tvpaddw %%ymm15,%%ymm" X ",%%ymm" X "\n\t"             \
    "vpaddw %%ymm14,%%ymm" Y ",%%ymm" Y "\n\t"
#define BITSTRATA_CLEAR(X, Y) "vpxor %%xmm" X ",%%xmm" X ",%%xmm" X "\n\tvpxor %%xmm" Y ",%%xmm" Y ",%%xmm" Y "\n\t"
#define BITSTRATA_WIDEN(X, Y)                                                                    \
    "vpmaddwd %%ymm14,%%ymm" X ",%%ymm" X "\n\tvpmaddwd %%ymm14,%%ymm" Y ",%%ymm" Y "\n\t"       \
    "vpaddd (%[start]),%%ymm" X ",%%ymm" X "\n\tvpaddd 32(%[start]),%%ymm" Y ",%%ymm" Y "\n\t"   \
    "vmovdqu %%ymm" X ",(%[out])\n\tvmovdqu %%ymm" Y ",32(%[out])\n\t"                           \
    "add $64,%[out]\n\tadd %[start_step],%[start]\n\t"

#define BITSTRATA_1(OF) OF##_1
#define BITSTRATA_2(OF) BITSTRATA_1(OF) OF##_2
#define BITSTRATA_3(OF) BITSTRATA_2(OF) OF##_3
#define BITSTRATA_4(OF) BITSTRATA_3(OF) OF##_4
#define BITSTRATA_5(OF) BITSTRATA_4(OF) OF##_5
#define BITSTRATA_6(OF) BITSTRATA_5(OF) OF##_6
#define ROW_1 BITSTRATA_ROW("(%[a])", "0", "1")
#define ROW_2 BITSTRATA_ROW("(%[a],%[s])", "2", "3")
#define ROW_3 BITSTRATA_ROW("(%[a],%[s],2)", "4", "5")
#define ROW_4 BITSTRATA_ROW("(%[b])", "6", "7")
#define ROW_5 BITSTRATA_ROW("(%[b],%[s])", "8", "9")
#define ROW_6 BITSTRATA_ROW("(%[b],%[s],2)", "10", "11")
#define CLEAR_1 BITSTRATA_CLEAR("0", "1")
#define CLEAR_2 BITSTRATA_CLEAR("2", "3")
#define CLEAR_3 BITSTRATA_CLEAR("4", "5")
#define CLEAR_4 BITSTRATA_CLEAR("6", "7")
#define CLEAR_5 BITSTRATA_CLEAR("8", "9")
#define CLEAR_6 BITSTRATA_CLEAR("10", "11")
#define WIDEN_1 BITSTRATA_WIDEN("0", "1")
#define WIDEN_2 BITSTRATA_WIDEN("2", "3")
#define WIDEN_3 BITSTRATA_WIDEN("4", "5")
#define WIDEN_4 BITSTRATA_WIDEN("6", "7")
#define WIDEN_5 BITSTRATA_WIDEN("8", "9")
#define WIDEN_6 BITSTRATA_WIDEN("10", "11")

#define BITSTRATA_SUM_PIXELS(P)                                                                                     \
    inline void sum_##P(const std::uint8_t* base, std::ptrdiff_t s, std::size_t row_bytes, const std::int8_t*& w,   \
                        const Run*& run, const std::int32_t* start, std::ptrdiff_t start_step, std::int32_t* out) { \
        const std::uint8_t *a, *b;                                                                                  \
        std::size_t count;                                                                                          \
        asm volatile(BITSTRATA_##P(CLEAR) /* one run: where it begins, and its steps */                             \
                     "1:\n\tmov (%[run]),%[a]\n\timul %[row],%[a]\n\tadd 8(%[run]),%[a]\n\tadd %[base],%[a]\n\t"    \
                     "lea (%[a],%[s],2),%[b]\n\tadd %[s],%[b]\n\tmov 16(%[run]),%[count]\n\t"                       \
                     ".p2align 4\n2:\n\t"                                                                           \
                     "prefetcht0 1024(%[w])\n\t"                                                                    \
                     "vmovdqu (%[w]),%%ymm12\n\tvmovdqu 32(%[w]),%%ymm13\n\t" BITSTRATA_##P(ROW)                    \
                     "add $4,%[a]\n\tadd $4,%[b]\n\tadd $64,%[w]\n\tdec %[count]\n\tjnz 2b\n\t"                     \
                     "add $32,%[run]\n\tcmpb $0,-8(%[run])\n\tje 1b\n\t"                                            \
                     "vpcmpeqw %%ymm14,%%ymm14,%%ymm14\n\tvpsrlw $15,%%ymm14,%%ymm14\n\t" BITSTRATA_##P(WIDEN)      \
                     : [a] "=&r"(a), [b] "=&r"(b), [w] "+&r"(w), [run] "+&r"(run), [count] "=&r"(count),            \
                       [out] "+&r"(out), [start] "+&r"(start)                                                       \
                     : [base] "r"(base), [s] "r"(s), [row] "r"(row_bytes), [start_step] "r"(start_step)             \
                     : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",      \
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                               \
    }
BITSTRATA_SUM_PIXELS(1)
BITSTRATA_SUM_PIXELS(2)
BITSTRATA_SUM_PIXELS(3)
BITSTRATA_SUM_PIXELS(4)
BITSTRATA_SUM_PIXELS(5)
BITSTRATA_SUM_PIXELS(6)

// All of a block's sums for the pixels of a tile; `start` is what they begin with, per channel.
inline void sum_tile(const PackedView<std::int8_t>& layer, const Block& block, std::size_t row,
                     const std::uint8_t* window, std::size_t spacing, std::size_t pixels, const std::int32_t* start,
                     std::int32_t (*sums)[kLanes]) {
    const std::int8_t* weights = layer.weights + block.weights;
    const Run* run = layer.runs + block.first_run;
    const Run* last = layer.runs + block.last_run;
    const auto s = static_cast<std::ptrdiff_t>(spacing);
    for (std::ptrdiff_t start_step = 0; run != last; start = sums[0], start_step = sizeof sums[0]) {
        switch (pixels) {
            case 1:
                sum_1(window, s, row, weights, run, start, start_step, sums[0]);
                break;
            case 2:
                sum_2(window, s, row, weights, run, start, start_step, sums[0]);
                break;
            case 3:
                sum_3(window, s, row, weights, run, start, start_step, sums[0]);
                break;
            case 4:
                sum_4(window, s, row, weights, run, start, start_step, sums[0]);
                break;
            case 5:
                sum_5(window, s, row, weights, run, start, start_step, sums[0]);
                break;
            default:
                sum_6(window, s, row, weights, run, start, start_step, sums[0]);
        }
    }
}

}  // namespace

void direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const std::size_t count = pixels.end - pixels.begin;
    const Position from = position_of(call.height, call.width, pixels.begin);
    const Finish finish(call.epilogue);
    const Stream stream(call.epilogue);
    Piece pieces[kStrip];
    const std::size_t piece_count = tiles_of(layer, call, from, count, kTile, pieces);
    static constexpr std::int32_t kNothing[kLanes] = {};
    std::int32_t window_sums[kStrip];
    std::size_t summed_group = static_cast<std::size_t>(-1);
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        const std::int32_t* offsets = layer.offsets + block.channel;
        const bool streams = stream.usable() && block.channels == kLanes;
        std::int32_t sums[kStrip][kLanes];
        for (std::size_t tile = 0; tile < piece_count; ++tile) {
            const Piece& piece = pieces[tile];
            if (streams) stream.ask(pixels.begin + piece.first, piece.pixels, block.channel);
            sum_tile(layer, block, call.row, piece.window, piece.spacing, piece.pixels,
                     layer.shift == 0 ? offsets : kNothing, sums + piece.first);
        }
        if (layer.shift != 0) {
            if (layer.compensation != 0 && block.group != summed_group) {
                compensate(layer, call, pieces, piece_count, block.group, window_sums);
                summed_group = block.group;
            }
            shift_and_add(layer, offsets, window_sums, count, sums);
        }
        if (streams) {
            stream(sums, pixels.begin, count, block.channel);
        } else {
            finish(sums, from, pixels.begin, count, block.channel, block.channels);
        }
    }
}

}  // namespace bitstrata::avx2

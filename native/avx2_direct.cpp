// Convolution on codes with AVX2: four codes are broadcast, multiplied with those of eight channels at once, and summed
// in 16 bits.
#include <immintrin.h>

#include <cstddef>

#include "avx2_rows_loops.h"
#include "finish_loops.h"
#include "kernels.h"
#include "stream_loops.h"
#include "window_loops.h"

namespace bitstrata::avx2 {
namespace {

constexpr std::size_t kTile = 6;  // pixels; with two vectors of channels the sums stay in registers
constexpr std::size_t kTogether = 3;  // tiles that memory is asked for at a time

// What tiles of one block have in common.
struct Sum {
    const std::int8_t* weights;
    const Run* run;
    std::size_t row;         // bytes from row to row of the input
    std::ptrdiff_t spacing;  // and from window to window
    const std::int32_t* start;  // what sums begin with, `start_step` bytes further for every pixel
    std::ptrdiff_t start_step;
    std::int32_t (*sums)[kLanes];
};

static_assert(offsetof(Piece, window) == 0 && offsetof(Piece, first) == 16 && sizeof(Piece) == 32 &&
              sizeof(std::int32_t[kLanes]) == 64);
static_assert(offsetof(Run, row) == 0 && offsetof(Run, column) == 8 && offsetof(Run, steps) == 16 &&
              offsetof(Run, flush) == 24 && sizeof(Run) == 32);

// Sixteen channels of some tiles, up to six pixels each, the windows of which are `s` bytes apart, over the runs up to
// the next flush: sums[p] = start[p] + sums. Weights are asked for ahead: a block's are so few that the processor does
// not see by itself what follows. In assembly, because twelve sums, two vectors of weights and two products take all
// sixteen registers, and compilers put some of them on the stack; and because the address of the next run or tile must
// be known before this one's sums are done, lest all units wait for it.
#define BITSTRATA_WIDEN(X, Y)                                                                    \
    "vpmaddwd %%ymm14,%%ymm" X ",%%ymm" X "\n\tvpmaddwd %%ymm14,%%ymm" Y ",%%ymm" Y "\n\t"       \
    "vpaddd (%[start]),%%ymm" X ",%%ymm" X "\n\tvpaddd 32(%[start]),%%ymm" Y ",%%ymm" Y "\n\t"   \
    "vmovdqu %%ymm" X ",(%[out])\n\tvmovdqu %%ymm" Y ",32(%[out])\n\t"                           \
    "add $64,%[out]\n\tadd %[start_step],%[start]\n\t"

#define BITSTRATA_RUN_ADDRESS(OF, TO)                                                                               \
    "mov " OF "(%[run])," TO "\n\timul %[row]," TO "\n\tadd 8+" OF "(%[run])," TO "\n\tadd (%[piece])," TO "\n\t"

#define BITSTRATA_SUM_PIXELS(P)                                                                                     \
    inline void sum_##P(const Sum& sum, const Piece* piece, const Piece* end) {                                     \
        const std::ptrdiff_t s = sum.spacing, s3 = 3 * s, s5 = 5 * s, start_step = sum.start_step;                  \
        const std::int8_t* w = sum.weights;                                                                         \
        const Run* run = sum.run;                                                                                   \
        const std::uint8_t *a, *next;                                                                               \
        const std::int32_t* start;                                                                                  \
        std::int32_t* out;                                                                                          \
        std::size_t count;                                                                                          \
        asm volatile(BITSTRATA_RUN_ADDRESS("0", "%[a]") "1:\n\t" BITSTRATA_SUMS_##P(BITSTRATA_CLEAR)                \
                     "2:\n\tmov 16(%[run]),%[count]\n\t" BITSTRATA_RUN_ADDRESS("32", "%[next]")                     \
                     ".p2align 4\n3:\n\t"                                                                           \
                     "prefetcht0 4096(%[w])\n\t"                                                                    \
                     "vmovdqu (%[w]),%%ymm12\n\tvmovdqu 32(%[w]),%%ymm13\n\t" BITSTRATA_ROWS_##P                    \
                     "add $4,%[a]\n\tadd $64,%[w]\n\tdec %[count]\n\tjnz 3b\n\t"                                    \
                     "mov %[next],%[a]\n\tadd $32,%[run]\n\tcmpb $0,-8(%[run])\n\tje 2b\n\t"                        \
                     "mov 16(%[piece]),%[start]\n\tmov %[start],%[out]\n\tshl $6,%[out]\n\tadd %[sums],%[out]\n\t"  \
                     "imul %[start_step],%[start]\n\tadd %[begin],%[start]\n\t"                                     \
                     "add $32,%[piece]\n\tmov %[first_run],%[run]\n\tmov %[weights],%[w]\n\t"                       \
                     BITSTRATA_RUN_ADDRESS("0", "%[a]")                                                             \
                     "vpcmpeqw %%ymm14,%%ymm14,%%ymm14\n\tvpsrlw $15,%%ymm14,%%ymm14\n\t"                           \
                     BITSTRATA_SUMS_##P(BITSTRATA_WIDEN)                                                            \
                     "cmp %[end],%[piece]\n\tjne 1b\n\t"                                                            \
                     : [a] "=&r"(a), [next] "=&r"(next), [w] "+&r"(w), [run] "+&r"(run), [count] "=&r"(count),      \
                       [out] "=&r"(out), [start] "=&r"(start), [piece] "+&r"(piece)                                 \
                     : [s] "r"(s), [s3] "r"(s3), [s5] "r"(s5), [start_step] "r"(start_step), [row] "m"(sum.row),    \
                       [sums] "m"(sum.sums), [begin] "m"(sum.start), [first_run] "m"(sum.run),                      \
                       [weights] "m"(sum.weights), [end] "m"(end)                                                   \
                     : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",      \
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                               \
    }
BITSTRATA_SUM_PIXELS(1)
BITSTRATA_SUM_PIXELS(2)
BITSTRATA_SUM_PIXELS(3)
BITSTRATA_SUM_PIXELS(4)
BITSTRATA_SUM_PIXELS(5)
BITSTRATA_SUM_PIXELS(6)

// Tiles of equal size, over the runs up to the next flush.
inline void sum_tiles(const Sum& sum, const Piece* first, const Piece* end) {
    switch (first->pixels) {
        case 1:
            return sum_1(sum, first, end);
        case 2:
            return sum_2(sum, first, end);
        case 3:
            return sum_3(sum, first, end);
        case 4:
            return sum_4(sum, first, end);
        case 5:
            return sum_5(sum, first, end);
        default:
            return sum_6(sum, first, end);
    }
}

// All sums of a block; `offsets` are what they begin with, per channel. before(first, pixels) is called before some are
// begun: at most so many tiles.
template <typename Before>
inline void sum_block(const PackedView<std::int8_t>& layer, const Block& block, std::size_t row, const Piece* pieces,
                      std::size_t count, const std::int32_t* offsets, std::int32_t (*sums)[kLanes],
                      std::size_t at_most, Before before) {
    Sum sum{layer.weights + block.weights, layer.runs + block.first_run, row,
            static_cast<std::ptrdiff_t>(pieces->spacing), offsets, 0, sums};
    for (const Run* last = layer.runs + block.last_run; sum.run != last;) {
        const Piece* pieces_end = pieces + count;
        for (const Piece *first = pieces, *end; first != pieces_end; first = end) {
            for (end = first + 1; end != pieces_end && end->pixels == first->pixels && end != first + at_most;) ++end;
            if (sum.start_step == 0) before(first->first, static_cast<std::size_t>(end - first) * first->pixels);
            sum_tiles(sum, first, end);
        }
        do {
            sum.weights += sum.run->steps * kLanes * 4;
        } while (!sum.run++->flush);
        sum.start = sums[0];
        sum.start_step = sizeof sums[0];
    }
}

}  // namespace

void direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const std::size_t count = pixels.end - pixels.begin;
    const Position from = position_of(call.height, call.width, pixels.begin);
    const Finish finish(call.epilogue);
    const Stream stream(call.epilogue);
    Piece pieces[kStrip + 1];  // the loop looks at one more, and makes no use of it
    const std::size_t piece_count = tiles_of(layer, call, from, count, kTile, pieces);
    static constexpr std::int32_t kNothing[kLanes] = {};
    std::int32_t window_sums[kStrip];
    std::size_t summed_group = static_cast<std::size_t>(-1);
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        const std::int32_t* offsets = layer.offsets + block.channel;
        const bool streams = stream.usable() && block.channels == kLanes;
        std::int32_t sums[kStrip][kLanes];
        const auto ask = [&](std::size_t first, std::size_t some) {
            if (streams) stream.ask(pixels.begin + first, some, block.channel);
        };
        sum_block(layer, block, call.row, pieces, piece_count, layer.shift == 0 ? offsets : kNothing, sums,
                  streams ? kTogether : kStrip, ask);
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

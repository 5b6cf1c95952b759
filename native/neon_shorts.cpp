// Quantised layers with NEON in 16-bit integers: those with codes of eight bits, and depthwise ones, which also come in
// bytes where all their sums fit 16 bits.
#include <arm_neon.h>

#include "finish_loops.h"
#include "kernels.h"
#include "window_loops.h"

namespace bitstrata::neon {
namespace {

constexpr std::size_t kTile = 4;

// Sixteen channels of a pixel in 32 bits.
struct Words {
    int32x4_t parts[4];

    explicit Words(const std::int32_t* offsets) {
        for (int part = 0; part < 4; ++part) parts[part] = vld1q_s32(offsets + part * 4);
    }
    void add(int16x8_t codes, int16x8_t weights, int half) {
        parts[2 * half] = vmlal_s16(parts[2 * half], vget_low_s16(codes), vget_low_s16(weights));
        parts[2 * half + 1] = vmlal_high_s16(parts[2 * half + 1], codes, weights);
    }
    void add(uint8x16_t codes, const std::int16_t* weights) {
        add(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(codes))), vld1q_s16(weights), 0);
        add(vreinterpretq_s16_u16(vmovl_high_u8(codes)), vld1q_s16(weights + 8), 1);
    }
    void store(std::int32_t* to) const {
        for (int part = 0; part < 4; ++part) vst1q_s32(to + part * 4, parts[part]);
    }
};

// Likewise in 16 bits. Offsets are taken modulo 2^16; whole sums fit.
struct Shorts {
    int16x8_t parts[2];

    explicit Shorts(const std::int32_t* offsets) {
        for (int half = 0; half < 2; ++half) {
            const int16x4_t low = vmovn_s32(vld1q_s32(offsets + half * 8));
            parts[half] = vmovn_high_s32(low, vld1q_s32(offsets + half * 8 + 4));
        }
    }
    void add(uint8x16_t codes, const std::int8_t* weights) {
        const int8x16_t bytes = vreinterpretq_s8_u8(codes), factors = vld1q_s8(weights);
        parts[0] = vmlal_s8(parts[0], vget_low_s8(bytes), vget_low_s8(factors));
        parts[1] = vmlal_high_s8(parts[1], bytes, factors);
    }
    void store(std::int16_t* to) const {
        for (int half = 0; half < 2; ++half) vst1q_s16(to + half * 8, parts[half]);
    }
};

// Channels are lanes; those beyond the last one read the next pixel or the buffer's slack, and are not stored.
template <class Sums>
struct Depthwise {
    template <std::size_t P, typename T>
    static void add(const PackedView<T>& layer, const Block& block, std::size_t row, const Piece& piece,
                    Sums* sums) {
        const T* weights = layer.weights + block.weights;
        for (std::size_t tap = 0; tap < layer.segment_count; ++tap, weights += kLanes) {
            const Segment& segment = layer.segments[tap];
            const std::uint8_t* from = piece.window + segment.row * row + segment.column + block.channel;
            for (std::size_t p = 0; p < P; ++p) sums[p].add(vld1q_u8(from + p * piece.spacing), weights);
        }
    }
};

// One code at a time by sixteen channels.
struct Wide {
    template <std::size_t P>
    static void add(const PackedView<std::int16_t>& layer, const Block& block, std::size_t row, const Piece& piece,
                    Words* sums) {
        const std::int16_t* weights = layer.weights + block.weights;
        for (std::size_t index = block.first_run; index < block.last_run; ++index) {
            const Run& run = layer.runs[index];
            const std::uint8_t* from = piece.window + run.row * row + run.column;
            for (std::size_t step = 0; step < run.steps; ++step, ++from, weights += kLanes) {
                const int16x8_t first = vld1q_s16(weights), second = vld1q_s16(weights + 8);
                for (std::size_t p = 0; p < P; ++p) {
                    const int16x8_t code = vdupq_n_s16(from[p * piece.spacing]);
                    sums[p].add(code, first, 0);
                    sums[p].add(code, second, 1);
                }
            }
        }
    }
};

template <class Kernel, class Sums, std::size_t P, typename T, typename Sum>
void sum_tile(const PackedView<T>& layer, const Block& block, std::size_t row, const Piece& piece,
              Sum (*to)[kLanes]) {
    const std::int32_t* offsets = layer.offsets + block.channel;
    if constexpr (P == 4) {
        Sums sums[P] = {Sums(offsets), Sums(offsets), Sums(offsets), Sums(offsets)};
        Kernel::template add<P>(layer, block, row, piece, sums);
        for (std::size_t p = 0; p < P; ++p) sums[p].store(to[p]);
    } else {  // one after another
        for (std::size_t p = 0; p < piece.pixels; ++p) {
            Sums sums(offsets);
            const Piece pixel{piece.window + p * piece.spacing, piece.spacing, piece.first + p, 1};
            Kernel::template add<1>(layer, block, row, pixel, &sums);
            sums.store(to[p]);
        }
    }
}

template <class Kernel, class Sums, typename Sum, typename T>
inline void run(const PackedView<T>& layer, const Call& call, Range pixels, Range blocks) {
    const std::size_t count = pixels.end - pixels.begin;
    const Position from = position_of(call.height, call.width, pixels.begin);
    const Finish finish(call.epilogue);
    Piece pieces[kStrip];
    const std::size_t piece_count = tiles_of(layer, call, from, count, kTile, pieces);
    Sum sums[kStrip][kLanes];
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        for (const Piece* piece = pieces; piece != pieces + piece_count; ++piece) {
            const auto sum = piece->pixels == kTile ? sum_tile<Kernel, Sums, kTile, T, Sum>
                                                    : sum_tile<Kernel, Sums, 1, T, Sum>;
            sum(layer, block, call.row, *piece, sums + piece->first);
        }
        finish(sums, from, pixels.begin, count, block.channel, block.channels);
    }
}

}  // namespace

void wide(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    run<Wide, Words, std::int32_t>(layer, call, pixels, blocks);
}

void depthwise(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    run<Depthwise<Words>, Words, std::int32_t>(layer, call, pixels, blocks);
}

void narrow_depthwise(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    run<Depthwise<Shorts>, Shorts, std::int16_t>(layer, call, pixels, blocks);
}

}  // namespace bitstrata::neon

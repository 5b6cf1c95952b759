// Convolution on codes with NEON: tiles of pixels by sixteen channels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "finish_loops.h"
#include "kernels.h"
#include "neon_bytes_loops.h"
#include "window_loops.h"

namespace bitstrata {
namespace {

// All of a block's sums for the pixels of a tile; `start` is what they begin with, per channel. From flush to flush of
// the runs, of which a layer with 32-bit sums has one.
template <int P>
void sum_tile(const PackedView<std::int8_t>& layer, const Block& block, std::size_t row, const Piece& piece,
              const std::int32_t* start, std::int32_t (*to)[kLanes]) {
    const std::int8_t* weights = layer.weights + block.weights;
    const Run* last = layer.runs + block.last_run;
    std::size_t start_step = 0;  // all pixels start with the same sums, then each with its own
    for (const Run* run = layer.runs + block.first_run; run != last; start = to[0], start_step = kLanes) {
        ByteSums sums[P];
        bool flush = false;
        for (; !flush; ++run) {
            add_products<P>(piece.window + run->row * row + run->column, piece.spacing, weights, kLanes * 4, run->steps,
                            sums);
            weights += run->steps * kLanes * 4;
            flush = run->flush;
        }
        for (std::size_t p = 0; p < P; ++p) {
            for (int part = 0; part < 4; ++part) {
                const int32x4_t before = vld1q_s32(start + p * start_step + part * 4);
                vst1q_s32(to[p] + part * 4, vaddq_s32(sums[p].words(part), before));
            }
        }
    }
}

using SumTile = void (*)(const PackedView<std::int8_t>&, const Block&, std::size_t, const Piece&, const std::int32_t*,
                         std::int32_t (*)[kLanes]);

// By the number of pixels, less one.
constexpr SumTile kSumTile[] = {
    sum_tile<1>, sum_tile<2>, sum_tile<3>,
#if defined(__ARM_FEATURE_DOTPROD)
    sum_tile<4>, sum_tile<5>, sum_tile<6>,
#endif
};
static_assert(sizeof kSumTile / sizeof *kSumTile == kPixels);

inline void run_direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) {
    const std::size_t count = pixels.end - pixels.begin;
    const Position from = position_of(call.height, call.width, pixels.begin);
    const Finish finish(call.epilogue);
    Piece pieces[kStrip];
    const std::size_t piece_count = tiles_of(layer, call, from, count, kPixels, pieces);
    static constexpr std::int32_t kNothing[kLanes] = {};
    std::int32_t window_sums[kStrip], sums[kStrip][kLanes];
    std::size_t summed_group = static_cast<std::size_t>(-1);
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        const std::int32_t* offsets = layer.offsets + block.channel;
        for (const Piece* piece = pieces; piece != pieces + piece_count; ++piece) {
            kSumTile[piece->pixels - 1](layer, block, call.row, *piece, layer.shift == 0 ? offsets : kNothing,
                                        sums + piece->first);
        }
        if (layer.compensation != 0 && block.group != summed_group) {
            compensate(layer, call, pieces, piece_count, block.group, window_sums);
            summed_group = block.group;
        }
        if (layer.shift != 0) shift_and_add(layer, offsets, window_sums, count, sums);
        finish(sums, from, pixels.begin, count, block.channel, block.channels);
    }
}

}  // namespace
}  // namespace bitstrata

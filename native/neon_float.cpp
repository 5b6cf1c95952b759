// Float layers with NEON. Their sums are rounded once per product, so they may differ from others' in the last bits;
// the epilogue after them, and the steps without weights, are exact as everywhere.
#include <arm_neon.h>

#include "float_step_loops.h"
#include "float_tiles_loops.h"

namespace bitstrata::neon {
namespace {

constexpr int kTile = 6;  // by 16 channels: 24 sums, four vectors of weights and one of inputs

template <int P>
void sum_tile(const PackedView<float>& layer, const Block& block, std::size_t row, const FloatTile& tile,
              float (*to)[kLanes]) {
    float32x4_t sums[P][4];
#pragma GCC unroll 6
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) sums[p][part] = vdupq_n_f32(0.0f);
    }
    const float* weights = layer.weights + block.weights;
    const Run* last = layer.runs + block.last_run;
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        const float* input = tile.window + run->row * row + run->column;
        for (std::size_t step = run->steps; step != 0; --step, ++input, weights += kLanes) {
            const float32x4_t vectors[4] = {vld1q_f32(weights), vld1q_f32(weights + 4), vld1q_f32(weights + 8),
                                            vld1q_f32(weights + 12)};
#pragma GCC unroll 6
            for (int p = 0; p < P; ++p) {
                const float32x4_t value = vdupq_n_f32(input[static_cast<std::size_t>(p) * tile.distance]);
#pragma GCC unroll 4
                for (int part = 0; part < 4; ++part) sums[p][part] = vfmaq_f32(sums[p][part], value, vectors[part]);
            }
        }
    }
    for (int p = 0; p < P; ++p) {
        for (int part = 0; part < 4; ++part) vst1q_f32(to[p] + part * 4, sums[p][part]);
    }
}

using SumTile = void (*)(const PackedView<float>&, const Block&, std::size_t, const FloatTile&, float (*)[kLanes]);

constexpr SumTile kTiles[kTile] = {sum_tile<1>, sum_tile<2>, sum_tile<3>, sum_tile<4>, sum_tile<5>, sum_tile<6>};

}  // namespace

void floats(const PackedView<float>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const std::size_t count = pixels.end - pixels.begin;
    Position positions[kStrip];
    FloatTile tiles[kStrip];
    locate(call.height, call.width, pixels.begin, pixels.end, positions);
    const std::size_t tile_count = cut_into_tiles(layer, call, positions, count, kTile, tiles);
    float sums[kStrip][kLanes];
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        for (const FloatTile* tile = tiles; tile != tiles + tile_count; ++tile) {
            kTiles[tile->pixels - 1](layer, block, call.row, *tile, sums + tile->first);
        }
        finish(call.epilogue, sums, positions, pixels.begin, count, block.channel, block.channels);
    }
}

void float_step(const FloatStep& step, const float* external, const Epilogue& epilogue, Range pixels,
                Range blocks) noexcept {
    run_float_step(step, external, epilogue, pixels, blocks);
}

}  // namespace bitstrata::neon

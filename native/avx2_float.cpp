// Float layers with AVX2 and FMA. Their sums are rounded once per product, so they may differ from others' in the last
// bits; the epilogue after them is exact as everywhere.
#include <immintrin.h>

#include "float_tiles_loops.h"

namespace bitstrata::avx2 {
namespace {

constexpr int kTile = 6;    // by 16 channels: twelve sums, two vectors of weights and one of inputs
constexpr int kChains = 4;  // that a single pixel's sum is made of, so that additions need not wait for each other

constexpr int kStreams = 4;          // blocks whose weights are read at the same time for a single pixel
constexpr std::size_t kAhead = 512;  // how far ahead of their use they are fetched, in elements

using Sums = float[kLanes];

inline void store_sums(__m256 first, __m256 second, Sums& to) {
    _mm256_storeu_ps(to, first);
    _mm256_storeu_ps(to + 8, second);
}

// Pixels are addressed from every third one on, which leaves registers for all addresses.
template <int P>
void sum_tile(const PackedView<float>& layer, const Block& block, std::size_t row, const FloatTile& tile, Sums* to) {
    constexpr int kPointers = (P + 2) / 3;
    __m256 sums[P][2];
#pragma GCC unroll 6
    for (int p = 0; p < P; ++p) sums[p][0] = sums[p][1] = _mm256_setzero_ps();
    const float* weights = layer.weights + block.weights;
    const std::size_t distance = tile.distance;
    const Run* last = layer.runs + block.last_run;
    const auto start_of = [&](const Run* run) { return tile.window + run->row * row + run->column; };
    const float* next = start_of(layer.runs + block.first_run);
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        const float* input[kPointers];
#pragma GCC unroll 2
        for (int i = 0; i < kPointers; ++i) input[i] = next + static_cast<std::size_t>(3 * i) * distance;
        if (run + 1 != last) next = start_of(run + 1);
        asm volatile("" : "+r"(next));  // known before this run's products are made, not after
        for (std::size_t step = run->steps; step != 0; --step, weights += kLanes) {
            const __m256 first = _mm256_load_ps(weights), second = _mm256_load_ps(weights + 8);
#pragma GCC unroll 6
            for (int p = 0; p < P; ++p) {
                const __m256 value = _mm256_broadcast_ss(input[p / 3] + static_cast<std::size_t>(p % 3) * distance);
                sums[p][0] = _mm256_fmadd_ps(value, first, sums[p][0]);
                sums[p][1] = _mm256_fmadd_ps(value, second, sums[p][1]);
            }
#pragma GCC unroll 2
            for (int i = 0; i < kPointers; ++i) ++input[i];
        }
    }
#pragma GCC unroll 6
    for (int p = 0; p < P; ++p) store_sums(sums[p][0], sums[p][1], to[p]);
}

// A single pixel: bound by how fast its weights come from memory.
void sum_pixel(const PackedView<float>& layer, const Block& block, std::size_t row, const FloatTile& tile, Sums* to) {
    __m256 sums[kChains][2];
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) sums[chain][0] = sums[chain][1] = _mm256_setzero_ps();
    const float* weights = layer.weights + block.weights;
    const auto add = [&](__m256 (&sum)[2], const float* input) {
        const __m256 value = _mm256_broadcast_ss(input);
        sum[0] = _mm256_fmadd_ps(value, _mm256_load_ps(weights), sum[0]);
        sum[1] = _mm256_fmadd_ps(value, _mm256_load_ps(weights + 8), sum[1]);
        weights += kLanes;
    };
    const Run* last = layer.runs + block.last_run;
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        const float* input = tile.window + run->row * row + run->column;
        const float* end = input + run->steps;
        for (; end - input >= kChains; input += kChains) {
#pragma GCC unroll 4
            for (int chain = 0; chain < kChains; ++chain) add(sums[chain], input + chain);
        }
        for (; input != end; ++input) add(sums[0], input);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        sums[0][half] = _mm256_add_ps(_mm256_add_ps(sums[0][half], sums[1][half]),
                                      _mm256_add_ps(sums[2][half], sums[3][half]));
    }
    store_sums(sums[0][0], sums[0][1], to[0]);
}

// A single pixel of kStreams blocks that follow each other in one group: memory answers several streams sooner than one.
void sum_streams(const PackedView<float>& layer, const Block& block, std::size_t row, const FloatTile& tile, Sums* to) {
    __m256 sums[kStreams][2];
#pragma GCC unroll 4
    for (int stream = 0; stream < kStreams; ++stream) sums[stream][0] = sums[stream][1] = _mm256_setzero_ps();
    const float* weights = layer.weights + block.weights;
    const std::size_t gap = (&block)[1].weights - block.weights;
    const Run* last = layer.runs + block.last_run;
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        const float* input = tile.window + run->row * row + run->column;
        for (const float* end = input + run->steps; input != end; ++input, weights += kLanes) {
            const __m256 value = _mm256_broadcast_ss(input);
#pragma GCC unroll 4
            for (int stream = 0; stream < kStreams; ++stream) {
                const float* from = weights + static_cast<std::size_t>(stream) * gap;
                sums[stream][0] = _mm256_fmadd_ps(value, _mm256_load_ps(from), sums[stream][0]);
                sums[stream][1] = _mm256_fmadd_ps(value, _mm256_load_ps(from + 8), sums[stream][1]);
                _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T0);
            }
        }
    }
#pragma GCC unroll 4
    for (int stream = 0; stream < kStreams; ++stream) store_sums(sums[stream][0], sums[stream][1], to[stream]);
}

using SumTile = void (*)(const PackedView<float>&, const Block&, std::size_t, const FloatTile&, Sums*);

constexpr SumTile kTiles[kTile] = {sum_pixel, sum_tile<2>, sum_tile<3>, sum_tile<4>, sum_tile<5>, sum_tile<6>};

}  // namespace

void floats(const PackedView<float>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const std::size_t count = pixels.end - pixels.begin;
    Position positions[kStrip];
    FloatTile tiles[kStrip];
    locate(call.height, call.width, pixels.begin, pixels.end, positions);
    const std::size_t tile_count = cut_into_tiles(layer, call, positions, count, kTile, tiles);
    float sums[kStrip][kLanes];
    std::size_t index = blocks.begin;
    for (; count == 1 && index + kStreams <= blocks.end; index += kStreams) {
        const Block* block = layer.blocks + index;
        if (block[kStreams - 1].group != block->group) break;
        sum_streams(layer, *block, call.row, tiles[0], sums);
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            finish(call.epilogue, sums + stream, positions, pixels.begin, 1, block[stream].channel,
                   block[stream].channels);
        }
    }
    for (; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        for (const FloatTile* tile = tiles; tile != tiles + tile_count; ++tile) {
            kTiles[tile->pixels - 1](layer, block, call.row, *tile, sums + tile->first);
        }
        finish(call.epilogue, sums, positions, pixels.begin, count, block.channel, block.channels);
    }
}

}  // namespace bitstrata::avx2

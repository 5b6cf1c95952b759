// Float layers with AVX-512. As with AVX2, sums are rounded once per product and may be added up in any order.
#include <immintrin.h>

#include <utility>

#include "float_tiles_loops.h"

namespace bitstrata::avx512 {
namespace {

constexpr int kTile = 12;  // by 32 channels: 24 sums, two vectors of weights and one of inputs
constexpr int kChains = 8;  // that a single pixel's sum is made of, so that additions need not wait for each other

constexpr int kStreams = 4;          // blocks whose weights are read at the same time for a single pixel
constexpr std::size_t kAhead = 512;  // how far ahead of their use they are fetched, in elements

using Sums = float[kStrip][kLanes];

// P pixels of B blocks that follow each other in one group. Pixels are addressed from every third one on, which leaves
// registers for all addresses.
template <int P, int B>
void sum_tile(const PackedView<float>& layer, const Block& block, std::size_t row, const FloatTile& tile, Sums* to) {
    __m512 sums[P][B];
#pragma GCC unroll 12
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
        for (int b = 0; b < B; ++b) sums[p][b] = _mm512_setzero_ps();
    }
    const float* weights = layer.weights + block.weights;
    const std::size_t gap = B > 1 ? (&block)[1].weights - block.weights : 0;
    const std::size_t distance = tile.distance;
    const Run* last = layer.runs + block.last_run;
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        constexpr int kPointers = (P + 2) / 3;
        const float* input[kPointers];
#pragma GCC unroll 4
        for (int i = 0; i < kPointers; ++i) {
            input[i] = tile.window + run->row * row + run->column + static_cast<std::size_t>(3 * i) * distance;
        }
        for (std::size_t step = run->steps; step != 0; --step, weights += kLanes) {
            __m512 weight[B];
            for (int b = 0; b < B; ++b) weight[b] = _mm512_load_ps(weights + static_cast<std::size_t>(b) * gap);
#pragma GCC unroll 12
            for (int p = 0; p < P; ++p) {
                const __m512 value = _mm512_set1_ps(input[p / 3][static_cast<std::size_t>(p % 3) * distance]);
#pragma GCC unroll 2
                for (int b = 0; b < B; ++b) sums[p][b] = _mm512_fmadd_ps(value, weight[b], sums[p][b]);
            }
#pragma GCC unroll 4
            for (int i = 0; i < kPointers; ++i) ++input[i];
        }
    }
#pragma GCC unroll 12
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
        for (int b = 0; b < B; ++b) _mm512_storeu_ps(to[b][tile.first + static_cast<std::size_t>(p)], sums[p][b]);
    }
}

// A single pixel of one block: bound by how fast its weights come from memory, so they are read from end to end.
void sum_pixel(const PackedView<float>& layer, const Block& block, std::size_t row, const FloatTile& tile, Sums* to) {
    __m512 sums[kChains];
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
    const float* weights = layer.weights + block.weights;
    const Run* last = layer.runs + block.last_run;
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        const float* input = tile.window + run->row * row + run->column;
        std::size_t step = 0;
        for (; step + kChains <= run->steps; step += kChains, weights += kChains * kLanes) {
#pragma GCC unroll 8
            for (int part = 0; part < kChains; ++part) {
                sums[part] = _mm512_fmadd_ps(_mm512_set1_ps(input[step + part]),
                                             _mm512_load_ps(weights + part * kLanes), sums[part]);
            }
        }
        for (; step < run->steps; ++step, weights += kLanes) {
            sums[0] = _mm512_fmadd_ps(_mm512_set1_ps(input[step]), _mm512_load_ps(weights), sums[0]);
        }
    }
    for (int half = kChains / 2; half > 0; half /= 2) {
        for (int part = 0; part < half; ++part) sums[part] = _mm512_add_ps(sums[part], sums[part + half]);
    }
    _mm512_storeu_ps(to[0][tile.first], sums[0]);
}

// A single pixel of kStreams blocks that follow each other in one group: memory answers several streams sooner than one.
void sum_streams(const PackedView<float>& layer, const Block& block, std::size_t row, const FloatTile& tile,
                 float (*to)[kLanes]) {
    __m512 sums[kStreams][2];
#pragma GCC unroll 4
    for (int stream = 0; stream < kStreams; ++stream) sums[stream][0] = sums[stream][1] = _mm512_setzero_ps();
    const float* weights = layer.weights + block.weights;
    const std::size_t gap = (&block)[1].weights - block.weights;
    const auto add = [&](int chain, const float* input) {
        const __m512 value = _mm512_set1_ps(*input);
#pragma GCC unroll 4
        for (int stream = 0; stream < kStreams; ++stream) {
            const float* from = weights + static_cast<std::size_t>(stream) * gap;
            sums[stream][chain] = _mm512_fmadd_ps(value, _mm512_load_ps(from), sums[stream][chain]);
            _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T0);
        }
        weights += kLanes;
    };
    const Run* last = layer.runs + block.last_run;
    for (const Run* run = layer.runs + block.first_run; run != last; ++run) {
        const float* input = tile.window + run->row * row + run->column;
        const float* end = input + run->steps;
        for (; end - input >= 2; input += 2) {
            add(0, input);
            add(1, input + 1);
        }
        if (input != end) add(0, input);
    }
#pragma GCC unroll 4
    for (int stream = 0; stream < kStreams; ++stream) {
        _mm512_storeu_ps(to[stream], _mm512_add_ps(sums[stream][0], sums[stream][1]));
    }
}

using SumTile = void (*)(const PackedView<float>&, const Block&, std::size_t, const FloatTile&, Sums*);

struct SumTiles {
    SumTile of[kTile];  // by the number of pixels, less one
};

template <int B, int... P>
constexpr SumTiles tiles_of(std::integer_sequence<int, P...>) {
    return {{sum_tile<P + 1, B>...}};
}

constexpr SumTiles kSingle = tiles_of<1>(std::make_integer_sequence<int, kTile>{});
constexpr SumTiles kDouble = tiles_of<2>(std::make_integer_sequence<int, kTile>{});

}  // namespace

void floats(const PackedView<float>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    const std::size_t count = pixels.end - pixels.begin;
    Position positions[kStrip];
    FloatTile tiles[kStrip];
    locate(call.height, call.width, pixels.begin, pixels.end, positions);
    const std::size_t tile_count = cut_into_tiles(layer, call, positions, count, kTile, tiles);
    alignas(64) Sums sums[2];
    std::size_t index = blocks.begin;
    for (; count == 1 && index + kStreams <= blocks.end; index += kStreams) {
        const Block* block = layer.blocks + index;
        if (block[kStreams - 1].group != block->group) break;
        sum_streams(layer, *block, call.row, tiles[0], sums[0]);
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            finish(call.epilogue, sums[0] + stream, positions, pixels.begin, 1, block[stream].channel,
                   block[stream].channels);
        }
    }
    while (index < blocks.end) {
        const Block* block = layer.blocks + index;
        const bool two = count > 1 && index + 1 < blocks.end && block[1].group == block->group;
        for (std::size_t i = 0; i < tile_count; ++i) {
            const std::size_t which = tiles[i].pixels - 1;
            const SumTile sum = two ? kDouble.of[which] : which ? kSingle.of[which] : sum_pixel;
            sum(layer, *block, call.row, tiles[i], sums);
        }
        for (std::size_t b = 0; b < (two ? 2u : 1u); ++b, ++index) {
            finish(call.epilogue, sums[b], positions, pixels.begin, count, block[b].channel, block[b].channels);
        }
    }
}

}  // namespace bitstrata::avx512

// Winograd convolution with NEON. V is centred on zero here, so that it fits signed bytes.
#pragma once

#include <arm_neon.h>

#include "neon_bytes_loops.h"
#include "winograd_loops.h"

namespace bitstrata {
namespace {

struct Bytes {
    uint8x16_t values;
    friend Bytes operator+(Bytes a, Bytes b) { return {vaddq_u8(a.values, b.values)}; }
    friend Bytes operator-(Bytes a, Bytes b) { return {vsubq_u8(a.values, b.values)}; }
};

struct Shorts {
    int16x8_t values;
    friend Shorts operator+(Shorts a, Shorts b) { return {vaddq_s16(a.values, b.values)}; }
    friend Shorts operator-(Shorts a, Shorts b) { return {vsubq_s16(a.values, b.values)}; }
};

struct Words {
    int32x4_t values;
    friend Words operator+(Words a, Words b) { return {vaddq_s32(a.values, b.values)}; }
    friend Words operator-(Words a, Words b) { return {vsubq_s32(a.values, b.values)}; }
};

// R tiles by 16 outputs. Narrow sums need no widening on the way.
template <int R>
void multiply_tiles(const WinogradView& layer, std::size_t place, const std::uint8_t* codes, const std::int8_t* weights,
                    const std::int32_t* start, unsigned char* to) {
    const std::size_t weight_step = layer.lanes * 4;
    if (layer.narrow) {
        ByteSums sums[R];
        add_products<R>(codes, layer.code_row, weights, weight_step, layer.steps, sums);
        for (int half = 0; half < 2; ++half) {
            const int16x4_t low = vmovn_s32(vld1q_s32(start + half * 8));
            const int16x8_t before = vmovn_high_s32(low, vld1q_s32(start + half * 8 + 4));
            for (std::size_t r = 0; r < R; ++r) {
                auto* row = reinterpret_cast<std::int16_t*>(to + r * layer.lanes * 2);
                vst1q_s16(row + half * 8, vaddq_s16(sums[r].shorts(half), before));
            }
        }
        return;
    }
    std::size_t start_row = 0;  // all tiles start with the same sums, then each with its own
    const std::uint32_t first = kShortSums ? layer.cuts[place] : 0, last = kShortSums ? layer.cuts[place + 1] : 1;
    for (std::uint32_t run = first; run < last; ++run) {
        ByteSums sums[R];
        const std::size_t steps = kShortSums ? layer.runs[run] : layer.steps;
        add_products<R>(codes, layer.code_row, weights, weight_step, steps, sums);
        codes += steps * 4;
        weights += steps * weight_step;
        for (std::size_t r = 0; r < R; ++r) {
            auto* row = reinterpret_cast<std::int32_t*>(to + r * layer.lanes * 4);
            for (int part = 0; part < 4; ++part) {
                const int32x4_t before = vld1q_s32(start + r * start_row + part * 4);
                vst1q_s32(row + part * 4, vaddq_s32(sums[r].words(part), before));
            }
        }
        start = reinterpret_cast<const std::int32_t*>(to);
        start_row = layer.lanes;
    }
}

using Multiply = void (*)(const WinogradView&, std::size_t, const std::uint8_t*, const std::int8_t*,
                          const std::int32_t*, unsigned char*);

constexpr Multiply kMultiply[] = {
    multiply_tiles<1>, multiply_tiles<2>, multiply_tiles<3>,
#if defined(__ARM_FEATURE_DOTPROD)
    multiply_tiles<4>, multiply_tiles<5>, multiply_tiles<6>,
#endif
};
static_assert(sizeof kMultiply / sizeof *kMultiply == kPixels);

struct NeonIsa {
    using Bytes = bitstrata::Bytes;
    static constexpr std::size_t kBytes = 16, kRows = kPixels;

    static Bytes load_bytes(const std::uint8_t* from) { return {vld1q_u8(from)}; }
    static Bytes spread_bytes(std::uint32_t four) { return {vreinterpretq_u8_u32(vdupq_n_u32(four))}; }
    static void store_bytes(Bytes v, unsigned char* to) { vst1q_u8(to, v.values); }

    static std::size_t row_bytes(const WinogradView& layer) { return layer.lanes * (layer.narrow ? 2 : 4); }

    static void multiply(const WinogradView& layer, std::size_t place, const std::uint8_t* codes, const Parts& parts,
                         unsigned char* to) {
        const std::int8_t* weights = layer.weights + place * layer.lanes * layer.steps * 4;
        const std::int32_t* starts = layer.starts + place * layer.lanes;
        for (std::size_t part = 0; part < parts.count; ++part) {
            const std::size_t first = parts.first[part], last = parts.first[part + 1];
            for (std::size_t lane = 0; lane < layer.lanes; lane += kLanes) {
                unsigned char* sums = to + first * row_bytes(layer) + lane * (layer.narrow ? 2 : 4);
                kMultiply[last - first - 1](layer, place, codes + first * layer.code_row, weights + lane * 4,
                                            starts + lane, sums);
            }
        }
    }

    // The sums of four rows of codes, 16 bits each.
    static std::uint64_t sum_four(const std::uint8_t* const (&rows)[4], std::size_t inputs) {
        static constexpr std::uint8_t kMasks[32] = {255, 255, 255, 255, 255, 255, 255, 255,
                                                    255, 255, 255, 255, 255, 255, 255, 255};
        uint16x8_t sums[4];
        for (uint16x8_t& sum : sums) sum = vdupq_n_u16(0);
        for (std::size_t input = 0; input < inputs; input += 16) {
            const std::size_t left = inputs - input;
            const uint8x16_t inside = vld1q_u8(kMasks + (left < 16 ? 16 - left : 0));
            for (int row = 0; row < 4; ++row) {
                sums[row] = vpadalq_u8(sums[row], vandq_u8(vld1q_u8(rows[row] + input), inside));
            }
        }
        std::uint64_t four = 0;
        for (int row = 0; row < 4; ++row) four |= static_cast<std::uint64_t>(vaddvq_u16(sums[row])) << (16 * row);
        return four;
    }

    // Four results of the last transform, as accumulators.
    template <bool Plain>
    static ALWAYS_INLINE void put(int32x4_t y, const WinogradView& layer, const std::int32_t* offsets,
                                  const std::int32_t* window_sum, std::int32_t* to) {
        y = vshlq_s32(y, vdupq_n_s32(-layer.right));
        if (!Plain) {
            y = vaddq_s32(vshlq_s32(y, vdupq_n_s32(layer.left)), vld1q_s32(offsets));
            y = vaddq_s32(y, vdupq_n_s32(*window_sum));
        }
        vst1q_s32(to, y);
    }

    template <class T, bool Plain, class Results>
    static void finish_tile(const WinogradView& layer, std::size_t channel, const unsigned char* products,
                            const WindowSums& window_sums, Results* results, std::size_t column) {
        const std::int32_t* offsets = layer.offsets + channel;
        const auto sum_at = [&](int i, int j) {
            return window_sums.first + static_cast<std::size_t>(i) * window_sums.row + column + static_cast<std::size_t>(j);
        };
        const std::size_t vector = layer.narrow ? 8 : 4;
        for (std::size_t lane = 0; lane < layer.lanes; lane += vector) {
            const unsigned char* from = products + lane * (layer.narrow ? 2 : 4);
            const auto at = [&](int i, int j) { return from + (i * T::kPoints + j) * layer.product_position; };
            const auto result = [&](int i, int j) { return results[lane / kLanes][i][column + j] + lane % kLanes; };
            if (layer.narrow) {
                transform_products<T, Shorts>(
                    [&](int i, int j) { return Shorts{vld1q_s16(reinterpret_cast<const std::int16_t*>(at(i, j)))}; },
                    [&](int i, int j, Shorts y) {
                        const int16x8_t whole = vmulq_n_s16(y.values, static_cast<std::int16_t>(T::kInverse));
                        put<Plain>(vmovl_s16(vget_low_s16(whole)), layer, offsets + lane, sum_at(i, j), result(i, j));
                        put<Plain>(vmovl_high_s16(whole), layer, offsets + lane + 4, sum_at(i, j), result(i, j) + 4);
                    });
            } else {
                transform_products<T, Words>(
                    [&](int i, int j) { return Words{vld1q_s32(reinterpret_cast<const std::int32_t*>(at(i, j)))}; },
                    [&](int i, int j, Words y) {
                        const int32x4_t whole = vmulq_n_s32(y.values, static_cast<std::int32_t>(T::kInverse));
                        put<Plain>(whole, layer, offsets + lane, sum_at(i, j), result(i, j));
                    });
            }
        }
    }
};

}  // namespace
}  // namespace bitstrata

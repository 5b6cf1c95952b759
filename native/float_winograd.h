// Winograd convolution in floats for the first layer of large networks: 7x7 windows at stride 2 on up to four channels.
//
// Rows and columns are taken apart by whether their number is even or odd. Each of the four parts is then convolved at
// stride 1, with four taps along an even axis and three along an odd one, and the parts are summed up like channels. A
// tile of 3 x 3 results needs 6 x 6 products for each of them, at the points 0, 1, -1, 2, -1/2 and infinity, instead of
// 9 x 16; at infinity an odd part has no weight, and its products are left out. In all 121 products for each channel
// instead of 441. These points keep the error of the sums near that of sums that are made one product after another. An input
// that is not finite spoils all results of the tiles that read it.
#pragma once

#include <cstddef>
#include <memory>

#include "layer.h"

namespace bitstrata {

// What the loops see. A group is a set of output channels, as many as two vectors hold.
struct FloatWinogradView {
    const float* weights;  // by group, point of the rows, point of the columns; then even and odd rows, even and odd
                           // columns, input, output
    std::size_t inputs, outputs;
};

// A tile, the points of it along one axis, and how many tiles are in hand at once.
struct FloatTile3 {
    static constexpr std::size_t kOutput = 3, kPoints = 6, kInHand = 14;
};

// What one place of the parts holds: channels of even and then of odd columns, in even and then in odd rows.
constexpr std::size_t kPartLanes = 8, kPlaceLanes = 2 * kPartLanes;

// The memory that a set of tiles is computed in.
template <std::size_t GroupLanes>
struct FloatWinogradScratch {
    using T = FloatTile3;
    // Inputs after the transform of columns, and after both.
    float halves[T::kPoints][(T::kInHand + 1) * T::kOutput][kPlaceLanes];
    float values[T::kPoints][T::kPoints][T::kInHand][kPlaceLanes];
    // Sums of products for one point of the rows; the same for all, after the transform of rows; and after both.
    float products[T::kPoints][T::kInHand][GroupLanes];
    float rows[T::kPoints][T::kInHand][T::kOutput][GroupLanes];
    float results[GroupLanes / kLanes][T::kOutput][T::kInHand * T::kOutput][kLanes];
};

using FloatWinogradLoops = void (*)(const FloatWinogradView&, const Call&, Range, Range) noexcept;

bool float_winograd_takes(const Geometry& geometry);

#if defined(BITSTRATA_AVX2)
std::unique_ptr<Layer> prepare_avx2_float_winograd(const Geometry& geometry, const float* weights);
namespace avx2 {
void float_winograd(const FloatWinogradView& layer, const Call& call, Range sets, Range groups) noexcept;
}  // namespace avx2
#endif

#if defined(BITSTRATA_AVX512)
std::unique_ptr<Layer> prepare_avx512_float_winograd(const Geometry& geometry, const float* weights);
namespace avx512 {
void float_winograd(const FloatWinogradView& layer, const Call& call, Range sets, Range groups) noexcept;
}  // namespace avx512
#endif

}  // namespace bitstrata

// Exact integer Winograd convolution: 3x3 windows at stride 1, tile by tile, with fewer products than there are taps.
//
// A tile of T x T results needs (T + 2) x (T + 2) codes. These are transformed (V = B codes B'), multiplied place by
// place with the transformed weights (U = G weights G') and summed over the inputs, and transformed back: A (U V) A'.
// All of it is in integers: A holds what would be fractions in G, so that the result is a known multiple of the true
// one. V is lifted by a constant per position, so that it fits unsigned bytes, or is centred on zero for instructions that
// multiply signed bytes only, and U must fit signed ones; where codes could break that, or a sum of what a kernel can
// hold, the kernel does not take the layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layer.h"

namespace bitstrata {

// A kind of tile: the factors of codes and weights, by point; the result is 2^kShift times the true one after it was
// multiplied by kInverse. The products of kInHand tiles are computed before they are transformed back, so that they stay
// in a near cache.

// Points 0, 1, -1 and infinity.
struct Tile2 {
    static constexpr int kOutput = 2, kInput = 4, kPoints = 4, kShift = 2;
    static constexpr std::size_t kInHand = 24;
    static constexpr std::uint32_t kInverse = 1;
    static constexpr int kCodes[4][4] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}};
    static constexpr int kWeights[4][3] = {{1, 0, 0}, {1, 1, 1}, {1, -1, 1}, {0, 0, 1}};
};

// Points 0, 1, -1, 2 and infinity. The result is 36 times the true one; 1/9 modulo 2^32 takes the 9 away.
struct Tile3 {
    static constexpr int kOutput = 3, kInput = 5, kPoints = 5, kShift = 2;
    static constexpr std::size_t kInHand = 24;
    static constexpr std::uint32_t kInverse = 0x38E38E39;
    static constexpr int kCodes[5][5] = {
        {2, -1, -2, 1, 0}, {0, 2, 1, -1, 0}, {0, -2, 3, -1, 0}, {0, -1, 0, 1, 0}, {0, 2, -1, -2, 1}};
    static constexpr int kWeights[5][3] = {{1, 0, 0}, {1, 1, 1}, {1, -1, 1}, {1, 2, 4}, {0, 0, 1}};
};

// Points 0, 1, -1 and infinity, and the pair of roots of x^2 + 1, whose complex product takes three real ones: seven
// products for four results, with factors of one only.
struct Tile4 {
    static constexpr int kOutput = 4, kInput = 6, kPoints = 7, kShift = 4;
    static constexpr std::size_t kInHand = 12;
    static constexpr std::uint32_t kInverse = 1;
    static constexpr int kCodes[7][6] = {{1, 0, 0, 0, -1, 0}, {0, 1, 1, 1, 1, 0},   {0, -1, 1, -1, 1, 0},
                                         {0, -1, -1, 1, 1, 0}, {0, -1, 1, 1, -1, 0}, {0, -1, 0, 1, 0, 0},
                                         {0, -1, 0, 0, 0, 1}};
    static constexpr int kWeights[7][3] = {{1, 0, 0}, {1, 1, 1},    {1, -1, 1}, {1, 0, -1},
                                           {0, 1, 0}, {-1, -1, 1}, {0, 0, 1}};
};

// Tiles of one run, at most.
constexpr std::size_t kMostTiles = 96;

// What the loops see: plain pointers and sizes. A group is a set of output channels, one or two blocks of kLanes.
struct WinogradView {
    const std::int8_t* weights;   // by group, position, step, output, element of the step
    const std::int32_t* starts;   // by group, position, output: what the lifts add up to, with the other sign
    const std::int32_t* offsets;  // by output: what the zero point takes away
    const std::uint32_t* lifts;   // by position, the same in all four bytes
    const std::uint32_t* cuts;    // by group and position: the first of its runs; one more at the end
    const std::uint32_t* runs;    // steps after which 16-bit sums must be widened
    std::size_t inputs, outputs, lanes, steps;
    bool narrow;  // whether all sums may be taken modulo 2^16
    bool plain;   // whether neither window sums nor offsets are added, nor sums shifted to the left
    // accumulator = (true sum << shift) + compensation * window sum + offset; what comes of the last transform is a
    // multiple of the true sum already, so it is shifted to the right or to the left
    int right, left;
    std::int32_t compensation;
    // The scratch memory, in bytes: V by position, tile and input; U V by position, tile and output; window sums; results.
    std::size_t code_row, code_position;
    std::size_t products, product_position;
    std::size_t window_sums, results;
};

// The weights of a group, to be transformed: its outputs' codes, at most as many as it has lanes, where its first
// position goes, how many bytes further the next one goes, and where the sums over all inputs go, by position and lane.
struct WeightGroup {
    const std::int8_t* codes;
    std::size_t inputs, outputs, lanes;
    std::int8_t* to;
    std::size_t apart;
    std::int32_t* sums;
};

// The Winograd kernels of an instruction set, in the order in which they are tried.
std::vector<QuantisedKernel> avx2_winograd_kernels();
std::vector<QuantisedKernel> avx512_winograd_kernels();
std::vector<QuantisedKernel> neon_winograd_kernels();
std::vector<QuantisedKernel> dotprod_winograd_kernels();

#if defined(BITSTRATA_AVX2)
namespace avx2 {
void winograd2(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd3(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd4(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd_weights2(const WeightGroup& group) noexcept;
void winograd_weights3(const WeightGroup& group) noexcept;
void winograd_weights4(const WeightGroup& group) noexcept;
}  // namespace avx2
namespace avx512 {
void winograd2(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd3(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd4(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd_weights2(const WeightGroup& group) noexcept;
void winograd_weights3(const WeightGroup& group) noexcept;
void winograd_weights4(const WeightGroup& group) noexcept;
}  // namespace avx512
#endif

#if defined(BITSTRATA_NEON)
namespace neon {
void winograd2(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd3(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd4(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
}  // namespace neon
namespace dotprod {
void winograd2(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd3(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
void winograd4(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept;
}  // namespace dotprod
#endif

}  // namespace bitstrata

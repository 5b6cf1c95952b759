#include "float_winograd.h"

#include <algorithm>

#include "arena.h"

namespace bitstrata {
namespace {

using T = FloatTile3;

constexpr std::size_t kTaps = 4, kWindow = 7;

// Weights at each point, divided by the product of its distances from the other points; taps from the first on.
constexpr double kWeights[T::kPoints][kTaps] = {{1, 0, 0, 0},
                                                {-1.0 / 3, -1.0 / 3, -1.0 / 3, -1.0 / 3},
                                                {1.0 / 3, -1.0 / 3, 1.0 / 3, -1.0 / 3},
                                                {1.0 / 15, 2.0 / 15, 4.0 / 15, 8.0 / 15},
                                                {-16.0 / 15, 8.0 / 15, -4.0 / 15, 2.0 / 15},
                                                {0, 0, 0, 1}};

// A weight at a pair of points, of the part with that parity: summed up in double precision, and rounded once.
double transformed(const float* window, std::size_t p, std::size_t q, std::size_t odd_row, std::size_t odd_column) {
    double sum = 0.0;
    for (std::size_t y = odd_row; y < kWindow; y += 2) {
        for (std::size_t x = odd_column; x < kWindow; x += 2) {
            sum += kWeights[p][y / 2] * kWeights[q][x / 2] * static_cast<double>(window[y * kWindow + x]);
        }
    }
    return sum;
}

std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

template <std::size_t GroupLanes, FloatWinogradLoops Loops>
class FloatWinogradLayer final : public Layer {
public:
    FloatWinogradLayer(const Geometry& g, const float* weights)
        : Layer(g), packed_(blocks() * kProducts * g.inputs * GroupLanes), view_{packed_.data(), g.inputs, g.outputs} {
        for (std::size_t output = 0; output < g.outputs; ++output) {
            float* to = packed_.data() + output / GroupLanes * kProducts * g.inputs * GroupLanes + output % GroupLanes;
            for (std::size_t p = 0; p < T::kPoints; ++p) {
                for (std::size_t q = 0; q < T::kPoints; ++q) pack(weights, output, p, q, to);
            }
        }
    }

    std::size_t blocks() const override { return divided_up(geometry.outputs, GroupLanes); }

    // Units are sets of tiles side by side.
    Cut cut(const Image& result) const override {
        const std::size_t across = divided_up(result.width, T::kOutput);
        return {result.batch * divided_up(result.height, T::kOutput) * divided_up(across, T::kInHand), 1};
    }

    std::size_t rows_together() const override { return T::kOutput; }

    std::size_t scratch() const override { return sizeof(FloatWinogradScratch<GroupLanes>); }

    void run(const Call& call, Range sets, Range groups) const noexcept override { Loops(view_, call, sets, groups); }

private:
    // Pairs of a point and a parity, squared.
    static constexpr std::size_t kProducts = (2 * T::kPoints - 1) * (2 * T::kPoints - 1);

    void pack(const float* weights, std::size_t output, std::size_t p, std::size_t q, float*& to) const {
        const std::size_t parities_of_rows = p + 1 == T::kPoints ? 1 : 2, parities = q + 1 == T::kPoints ? 1 : 2;
        for (std::size_t odd_row = 0; odd_row < parities_of_rows; ++odd_row) {
            for (std::size_t odd_column = 0; odd_column < parities; ++odd_column) {
                for (std::size_t input = 0; input < geometry.inputs; ++input, to += GroupLanes) {
                    const float* window = weights + (output * geometry.inputs + input) * kWindow * kWindow;
                    *to = static_cast<float>(transformed(window, p, q, odd_row, odd_column));
                }
            }
        }
    }

    Aligned<float> packed_;
    FloatWinogradView view_;
};

}  // namespace

bool float_winograd_takes(const Geometry& g) {
    return g.kernel_height == kWindow && g.kernel_width == kWindow && g.stride_height == 2 && g.stride_width == 2 &&
           g.dilation_height == 1 && g.dilation_width == 1 && g.groups == 1 && 2 * g.inputs <= kPartLanes &&
           g.outputs >= kLanes;
}

#if defined(BITSTRATA_AVX2)
std::unique_ptr<Layer> prepare_avx2_float_winograd(const Geometry& geometry, const float* weights) {
    return std::make_unique<FloatWinogradLayer<kLanes, avx2::float_winograd>>(geometry, weights);
}
#endif

#if defined(BITSTRATA_AVX512)
std::unique_ptr<Layer> prepare_avx512_float_winograd(const Geometry& geometry, const float* weights) {
    return std::make_unique<FloatWinogradLayer<2 * kLanes, avx512::float_winograd>>(geometry, weights);
}
#endif

}  // namespace bitstrata

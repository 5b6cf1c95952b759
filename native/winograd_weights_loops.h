// Weights transformed for Winograd kernels, as bytes and in the order in which they are packed.
//
// All sums are taken modulo 2^8, which is exact where the results are known to fit bytes: so a vector of the plainest
// instruction set holds sixteen of them, and nothing is put into another order afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "taps_loops.h"
#include "winograd.h"

namespace bitstrata {
namespace {

template <class T, std::size_t Lanes>
class PackedTransform {
public:
    static constexpr std::size_t kBytes = Lanes * 4;  // one position of a step: four elements of every output
    static constexpr int kPositions = T::kPoints * T::kPoints;

    explicit PackedTransform(const WeightGroup& group)
        : inputs_(group.inputs), lanes_(group.outputs), codes_(group.codes) {}

    // Writes the step that starts with the given input, its positions so many bytes apart. Steps come in their order.
    void step(std::size_t input, std::int8_t* to, std::size_t apart) {
        gather(input);
        count();
        points(to, apart, std::make_integer_sequence<int, T::kPoints>());
    }

    // By position and output: the sums over all inputs, which are the transform of the weights' sums.
    void sums(std::int32_t* to) {
        flush();
        for (int position = 0; position < kPositions; ++position) {
            const auto& down = T::kWeights[position / T::kPoints];
            const auto& across = T::kWeights[position % T::kPoints];
            for (std::size_t lane = 0; lane < Lanes; ++lane) {
                std::int32_t sum = 0;
                for (int tap = 0; tap < 9; ++tap) sum += down[tap / 3] * across[tap % 3] * sums_[tap][lane];
                to[position * Lanes + lane] = sum;
            }
        }
    }

private:
    using Bytes = std::uint8_t[kBytes];

    // Four inputs of every output, nine taps each, to one word per tap.
    void gather(std::size_t input) {
        const std::size_t elements = inputs_ - input < 4 ? inputs_ - input : 4;
        const std::int8_t* from = codes_ + input * 9;
        if (elements == 4) return gather_taps(from, inputs_ * 9, lanes_, weights_[0], kBytes);
        for (std::size_t lane = 0; lane < lanes_; ++lane) {
            std::int8_t padded[36] = {};
            std::memcpy(padded, from + lane * inputs_ * 9, elements * 9);
            gather_taps_of_one(padded, weights_[0] + lane * 4, kBytes);
        }
    }

    // Adds the weights up, two of them to a short sum.
    void count() {
        for (int tap = 0; tap < 9; ++tap) {
            std::int16_t pairs[kBytes / 2];
            std::memcpy(pairs, weights_[tap], kBytes);
            for (std::size_t pair = 0; pair < kBytes / 2; ++pair) {
                const auto low = static_cast<std::int16_t>(static_cast<std::uint16_t>(pairs[pair]) << 8);
                const int sum = (low >> 8) + (pairs[pair] >> 8);
                short_sums_[tap][pair] = static_cast<std::int16_t>(short_sums_[tap][pair] + sum);
            }
        }
        if (++counted_ == 64) flush();  // of at most 2 * 128 each: they cannot overflow
    }

    void flush() {
        for (int tap = 0; tap < 9; ++tap) {
            for (std::size_t lane = 0; lane < Lanes; ++lane) {
                sums_[tap][lane] += short_sums_[tap][lane * 2] + short_sums_[tap][lane * 2 + 1];
            }
        }
        std::memset(short_sums_, 0, sizeof(short_sums_));
        counted_ = 0;
    }

    template <int... Points>
    void points(std::int8_t* to, std::size_t apart, std::integer_sequence<int, Points...> all) {
        (row<Points>(to + Points * T::kPoints * apart, apart, all), ...);
    }

    template <int Down, int... Across>
    void row(std::int8_t* to, std::size_t apart, std::integer_sequence<int, Across...>) {
        alignas(64) Bytes half[3];
        for (int x = 0; x < 3; ++x) combine<Down>(weights_[x], weights_[3 + x], weights_[6 + x], half[x]);
        (combine<Across>(half[0], half[1], half[2], reinterpret_cast<std::uint8_t*>(to + Across * apart)), ...);
    }

    template <int Point>
    static void combine(const Bytes& a, const Bytes& b, const Bytes& c, std::uint8_t* __restrict to) {
        constexpr int f = T::kWeights[Point][0], g = T::kWeights[Point][1], h = T::kWeights[Point][2];
        for (std::size_t index = 0; index < kBytes; ++index) {
            to[index] = static_cast<std::uint8_t>(times<f>(a[index]) + times<g>(b[index]) + times<h>(c[index]));
        }
    }

    // Sums of bytes, which every instruction set has, in place of products, which few have.
    template <int Factor>
    static std::uint8_t times(std::uint8_t value) {
        static_assert(Factor == 0 || Factor == 1 || Factor == -1 || Factor == 2 || Factor == 4);
        if (Factor == 0) return 0;
        if (Factor < 0) return static_cast<std::uint8_t>(-value);
        std::uint8_t product = value;
        for (int power = 1; power < Factor; power *= 2) product = static_cast<std::uint8_t>(product + product);
        return product;
    }

    std::size_t inputs_, lanes_;
    const std::int8_t* codes_;
    alignas(64) Bytes weights_[9] = {};  // by tap, output and element
    alignas(64) std::int16_t short_sums_[9][kBytes / 2] = {};
    std::int32_t sums_[9][Lanes] = {};
    int counted_ = 0;
};

template <class T, std::size_t Lanes>
void transform_lanes(const WeightGroup& group) {
    PackedTransform<T, Lanes> transform(group);
    std::int8_t* to = group.to;
    for (std::size_t input = 0; input < group.inputs; input += 4, to += Lanes * 4) transform.step(input, to, group.apart);
    transform.sums(group.sums);
}

template <class T>
void transform_weights(const WeightGroup& group) {
    group.lanes == kLanes ? transform_lanes<T, kLanes>(group) : transform_lanes<T, 2 * kLanes>(group);
}

}  // namespace
}  // namespace bitstrata

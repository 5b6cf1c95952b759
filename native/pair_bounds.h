// How long 16-bit sums of products provably stay exact.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bitstrata {

// The most and the least that sums can be, in each of which two weights at a time are multiplied by inputs from zero to
// `top`. It is the weights that are summed up here, in 16 bits: they are far smaller than the products.
template <std::size_t Pairs>
class PairBounds {
public:
    // `top` is at least two.
    explicit PairBounds(int top)
        : highest_(static_cast<std::int16_t>(32767 / top)), lowest_(static_cast<std::int16_t>(-(32768 / top))) {}

    // Adds two weights to each sum; false where one could leave 16 bits, and then there is nothing to do but to clear.
    bool add(const std::int8_t* weights) {
        std::int16_t outside = 0;
        for (std::size_t pair = 0; pair < Pairs; ++pair) {
            std::uint16_t both;  // the order of the two is all the same
            std::memcpy(&both, weights + pair * 2, sizeof(both));
            const auto one = static_cast<std::int16_t>(static_cast<std::int16_t>(both << 8) >> 8);
            const auto other = static_cast<std::int16_t>(static_cast<std::int16_t>(both) >> 8);
            const std::int16_t none = 0;
            above_[pair] = static_cast<std::int16_t>(above_[pair] + std::max(one, none) + std::max(other, none));
            below_[pair] = static_cast<std::int16_t>(below_[pair] + std::min(one, none) + std::min(other, none));
            outside = static_cast<std::int16_t>(outside | (above_[pair] > highest_) | (below_[pair] < lowest_));
        }
        return outside == 0;
    }

    void clear() {
        std::fill_n(above_, Pairs, std::int16_t{0});
        std::fill_n(below_, Pairs, std::int16_t{0});
    }

private:
    std::int16_t highest_, lowest_;
    std::int16_t above_[Pairs] = {}, below_[Pairs] = {};
};

}  // namespace bitstrata

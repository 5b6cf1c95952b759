// The activation functions, operation for operation those of src/bitstrata/runtime/activations.py.
#pragma once

#include "epilogue.h"
#include "lanes_loops.h"

namespace bitstrata {
namespace {

// exp(r) - 1 - r over r^2, highest power first.
constexpr float kPolynomial[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};

inline Lanes exponential(Lanes x) {
    x = at_most(at_least(x, spread(-87.0f)), spread(88.0f));
    const Lanes whole = round_to_even(x * spread(1.44269504088896341f));
    Lanes r = x - whole * spread(0.693359375f);
    r = r - whole * spread(-2.12194440e-4f);
    Lanes polynomial = spread(kPolynomial[0]);
    for (int power = 1; power < 6; ++power) polynomial = polynomial * r + spread(kPolynomial[power]);
    Lanes mantissa = polynomial * (r * r);
    mantissa = mantissa + r;
    mantissa = mantissa + spread(1.0f);
    return mantissa * power_of_two(whole);
}

ALWAYS_INLINE Lanes relu(Lanes x) { return at_least(x, spread(0.0f)); }

ALWAYS_INLINE Lanes relu6(Lanes x) { return at_most(at_least(x, spread(0.0f)), spread(6.0f)); }

inline Lanes one_plus_exponential_of_minus(Lanes x) { return spread(1.0f) + exponential(spread(-0.0f) - x); }

inline Lanes activated(Activation activation, Lanes x) {
    switch (activation) {
        case Activation::none:
            break;
        case Activation::relu:
            return relu(x);
        case Activation::relu6:
            return relu6(x);
        case Activation::hard_sigmoid:
            return relu6(x + spread(3.0f)) / spread(6.0f);
        case Activation::hard_swish:
            return (x * relu6(x + spread(3.0f))) / spread(6.0f);
        case Activation::sigmoid:
            return spread(1.0f) / one_plus_exponential_of_minus(x);
        case Activation::silu:
            return x / one_plus_exponential_of_minus(x);
    }
    return x;
}

}  // namespace
}  // namespace bitstrata

// The epilogue at work on accumulators: some pixels by up to kLanes channels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "activation_loops.h"
#include "code_loops.h"
#include "epilogue.h"

namespace bitstrata {
namespace {

// What becomes of accumulators before they are stored, for kLanes channels; loaded once for many pixels.
struct Table {
    bool scaled;
    Pixel scale, bias;
};

inline Table table_of(const float* scale, const float* bias, std::size_t channel) {
    Table table{scale != nullptr, {}, {}};
    for (std::size_t part = 0; part < kParts; ++part) {
        const std::size_t at = channel + part * kWidth;
        table.scale.parts[part] = table.scaled ? load(scale + at) : spread(1.0f);
        table.bias.parts[part] = table.scaled ? load(bias + at) : spread(0.0f);
    }
    return table;
}

// Pixels side by side in one row of the result: everything about them is evenly spaced.
template <typename T>
struct Row {
    const T (*tile)[kLanes];
    const float* residual;  // or null
    std::size_t pixels, channels;
    std::size_t step;  // elements from pixel to pixel
};

template <typename T, bool Residual>
ALWAYS_INLINE Pixel scaled_pixel(const Row<T>& row, const Table& table, std::size_t p) {
    Pixel y;
    for (std::size_t part = 0; part < kParts; ++part) {
        const Lanes sum = load(row.tile[p] + part * kWidth);
        y.parts[part] = sum * table.scale.parts[part] + table.bias.parts[part];
    }
    if (Residual) {
        const Pixel residual = load_pixel(row.residual + p * row.step, row.channels);
        for (std::size_t part = 0; part < kParts; ++part) y.parts[part] = y.parts[part] + residual.parts[part];
    }
    return y;
}

// Whether an activation only bounds its input, so that it can be a bound on codes.
inline bool bounds(Activation activation) {
    return activation == Activation::none || activation == Activation::relu || activation == Activation::relu6;
}

// How codes are made of values that the activation was applied to, or is folded into the bounds for.
inline Coder coder_of(const Output& output, Activation folded) {
    Coder coder{output.inverse_step, output.low, output.high, static_cast<std::int16_t>(output.zero_point), 0, 0};
    if (folded != Activation::none && coder.low < 0.0f) coder.low = 0.0f;
    if (folded == Activation::relu6 && 6.0f * output.inverse_step < coder.high) {
        coder.high = 6.0f * output.inverse_step;
    }
    coder.first = static_cast<std::uint8_t>(static_cast<int>(coder.low) + output.zero_point);
    constexpr float kShift = 12582912.0f;  // beyond which a float has no fraction: the addition rounds
    coder.last = static_cast<std::uint8_t>(static_cast<int>((coder.high + kShift) - kShift) + output.zero_point);
    return coder;
}

// Whether whatever 32-bit accumulator gives numbers that, multiplied with the inverse step, fit 32 bits.
inline bool fits(const Table& table, const Coder& coder) {
    bool all = true;
    for (std::size_t part = 0; part < kParts; ++part) {
        const Lanes most = without_sign(table.scale.parts[part]) * spread(2147483648.0f) +
                           without_sign(table.bias.parts[part]);
        all = all && all_below(most * spread(coder.inverse_step), spread(1073741824.0f));
    }
    return all;
}

// Numbers that codes are made of: of any size; such that, multiplied with the inverse step, they fit 32 bits; or by a
// line, so that they have only to be rounded and bounded.
enum class Numbers { any, fitting, by_line };

// Codes of value(p) for all pixels p, each asked for once: it may overwrite what it is made of.
template <Numbers Kind, typename Value>
inline void store_codes(Value value, std::size_t pixels, const Coder& coder, std::uint8_t* to, std::size_t step,
                        std::size_t channels) {
    const Lanes inverse = spread(coder.inverse_step), low = spread(coder.low), high = spread(coder.high);
    const auto coded = [&](std::size_t p) __attribute__((always_inline)) {
        Pixel y = value(p);
        for (std::size_t part = 0; part < kParts; ++part) {
            Lanes& lanes = y.parts[part];
            if (Kind != Numbers::by_line) lanes = lanes * inverse;
            if (Kind == Numbers::any) lanes = at_most(at_least(lanes, low), high);
        }
        return y;
    };
    Pixel group[kGroup];
    std::size_t p = 0;
    for (; p + kGroup <= pixels; p += kGroup, to += kGroup * step) {
#pragma GCC unroll 4
        for (std::size_t index = 0; index < kGroup; ++index) group[index] = coded(p + index);
        store_group<Kind == Numbers::by_line>(group, coder, to, step, kGroup, channels);
    }
    if (p == pixels) return;
    for (std::size_t index = 0; index < kGroup; ++index) {
        group[index] = p + index < pixels ? coded(p + index) : group[0];
    }
    store_group<Kind == Numbers::by_line>(group, coder, to, step, pixels - p, channels);
}

// The common case: one consumer, which reads codes, and an activation that is a bound.
template <typename T, bool Residual>
inline void finish_codes(const Row<T>& row, const Table& table, const Coder& coder, bool fits, std::uint8_t* to) {
    const auto value = [&](std::size_t p) __attribute__((always_inline)) {
        return scaled_pixel<T, Residual>(row, table, p);
    };
    if (fits) {
        store_codes<Numbers::fitting>(value, row.pixels, coder, to, row.step, row.channels);
    } else {
        store_codes<Numbers::any>(value, row.pixels, coder, to, row.step, row.channels);
    }
}

// The same by lines.
template <typename T>
inline void finish_lines(const Row<T>& row, const Table& lines, const Coder& coder, std::uint8_t* to) {
    const auto value = [&](std::size_t p) __attribute__((always_inline)) {
        Pixel y;
        for (std::size_t part = 0; part < kParts; ++part) {
            const Lanes sum = load(row.tile[p] + part * kWidth);
            y.parts[part] = multiply_add(sum, lines.scale.parts[part], lines.bias.parts[part]);
        }
        return y;
    };
    store_codes<Numbers::by_line>(value, row.pixels, coder, to, row.step, row.channels);
}

template <typename T, bool Residual>
inline void finish_floats(const Row<T>& row, const Table& table, Activation activation, float* to, std::size_t step) {
    const auto each = [&](auto activate) {
        for (std::size_t p = 0; p < row.pixels; ++p) {
            Pixel y;
            if (table.scaled) {
                y = scaled_pixel<T, Residual>(row, table, p);
            } else {  // no multiplication: it would lose the sign of a zero, or the payload of what is not a number
                for (std::size_t part = 0; part < kParts; ++part) y.parts[part] = load(row.tile[p] + part * kWidth);
                if (Residual) {
                    const Pixel residual = load_pixel(row.residual + p * row.step, row.channels);
                    for (std::size_t part = 0; part < kParts; ++part) {
                        y.parts[part] = y.parts[part] + residual.parts[part];
                    }
                }
            }
            for (std::size_t part = 0; part < kParts; ++part) y.parts[part] = activate(y.parts[part]);
            store_floats(y, to + p * step, row.channels);
        }
    };
    switch (activation) {
        case Activation::none:
            return each([](Lanes x) { return x; });
        case Activation::relu:
            return each([](Lanes x) { return relu(x); });
        default:
            return each([&](Lanes x) { return activated(activation, x); });
    }
}

inline std::size_t place_of(const Epilogue& epilogue, const Buffer& buffer, const Position& at, std::size_t channel) {
    return buffer.origin + at.sample * buffer.image + at.y * buffer.row + at.x * epilogue.channels + channel;
}

// Any number of outputs: floats first, then codes from those.
template <typename T>
inline void finish_any(const Epilogue& epilogue, const Row<T>& row, const Table& table, const Position& at,
                       std::size_t channel) {
    float values[kStrip][kLanes];
    float* floats = values[0];
    std::size_t step = kLanes;
    const auto codes_at = [&](const Buffer& buffer) {
        return epilogue.arena + buffer.offset + place_of(epilogue, buffer, at, channel);
    };
    const auto floats_at = [&](const Buffer& buffer) {
        return reinterpret_cast<float*>(epilogue.arena + buffer.offset) + place_of(epilogue, buffer, at, channel);
    };
    for (std::size_t index = 0; index < epilogue.output_count; ++index) {
        if (epilogue.outputs[index].buffer.codes) continue;
        floats = floats_at(epilogue.outputs[index].buffer);
        step = row.step;
        break;
    }
    if (row.residual) {
        finish_floats<T, true>(row, table, epilogue.activation, floats, step);
    } else {
        finish_floats<T, false>(row, table, epilogue.activation, floats, step);
    }
    for (std::size_t index = 0; index < epilogue.output_count; ++index) {
        const Output& output = epilogue.outputs[index];
        const auto value = [&](std::size_t p) __attribute__((always_inline)) {
            return load_pixel(floats + p * step, row.channels);
        };
        if (output.buffer.codes) {
            const Coder coder = coder_of(output, Activation::none);
            store_codes<Numbers::any>(value, row.pixels, coder, codes_at(output.buffer), row.step, row.channels);
        } else if (float* to = floats_at(output.buffer); to != floats) {
            for (std::size_t p = 0; p < row.pixels; ++p) store_floats(value(p), to + p * row.step, row.channels);
        }
    }
}

// Floats for one consumer and codes for another, in one pass.
template <typename T, bool Residual, bool Relu>
inline void finish_both(const Row<T>& row, const Table& table, const Coder& coder, float* floats, std::uint8_t* to) {
    const auto value = [&](std::size_t p) __attribute__((always_inline)) {
        const Pixel y = scaled_pixel<T, Residual>(row, table, p);
        Pixel bounded;
        for (std::size_t part = 0; part < kParts; ++part) {
            bounded.parts[part] = Relu ? relu(y.parts[part]) : y.parts[part];
        }
        store_floats(bounded, floats + p * row.step, row.channels);
        return bounded;
    };
    store_codes<Numbers::any>(value, row.pixels, coder, to, row.step, row.channels);
}

// Moves a position on by one row's end.
inline void next_row(Position& at, std::size_t height) {
    at.x = 0;
    if (++at.y == height) {
        at.y = 0;
        ++at.sample;
    }
}

// An epilogue with what is the same for all its tiles.
class Finish {
public:
    explicit Finish(const Epilogue& epilogue) : epilogue_(epilogue) {
        if (epilogue.accumulators) return;
        const Output& only = epilogue.outputs[0];
        simple_ = epilogue.output_count == 1 && only.buffer.codes && epilogue.scale && bounds(epilogue.activation);
        if (simple_) coder_ = coder_of(only, epilogue.activation);
        if (epilogue.output_count == 2 && epilogue.scale && epilogue.activation <= Activation::relu &&
            epilogue.outputs[0].buffer.codes != epilogue.outputs[1].buffer.codes) {
            codes_ = only.buffer.codes ? &epilogue.outputs[0] : &epilogue.outputs[1];
            floats_ = only.buffer.codes ? &epilogue.outputs[1] : &epilogue.outputs[0];
            coder_ = coder_of(*codes_, Activation::none);
        }
        width_ = only.buffer.shape.width;
        height_ = only.buffer.shape.height;
        for (std::size_t index = 0; index < epilogue.output_count; ++index) {
            const Buffer& buffer = epilogue.outputs[index].buffer;
            if (buffer.row != width_ * epilogue.channels || buffer.image != height_ * buffer.row) dense_ = false;
        }
    }

    // tile[p] is of pixel number first + p of the result, whose first one is at `at`, and of the channels from `channel`
    // on. T is the type of the accumulators: int32, int16 or float. Lanes from `channels` on hold anything. At most
    // kStrip pixels; the more at once, the better.
    template <typename T>
    void operator()(const T (*tile)[kLanes], Position at, std::size_t first, std::size_t pixels, std::size_t channel,
                    std::size_t channels) const {
        if (epilogue_.accumulators) return copy(tile, first, pixels, channel, channels);
        constexpr bool kWhole = std::is_integral<T>::value;
        const bool by_lines = kFused && kWhole && epilogue_.slope;
        const Table table = by_lines ? table_of(epilogue_.slope, epilogue_.offset, channel)
                                     : table_of(epilogue_.scale, epilogue_.bias, channel);
        const bool small = kWhole && !by_lines && simple_ && !epilogue_.residual && fits(table, coder_);
        while (pixels > 0) {
            const std::size_t left = dense_ ? pixels : width_ - at.x, some = left < pixels ? left : pixels;
            Row<T> row{tile, nullptr, some, channels, epilogue_.channels};
            if (epilogue_.residual) row.residual = epilogue_.residual + first * epilogue_.channels + channel;
            if (floats_) {
                const Buffer &codes = codes_->buffer, &floats = floats_->buffer;
                std::uint8_t* to = epilogue_.arena + codes.offset + place_of(epilogue_, codes, at, channel);
                float* also = reinterpret_cast<float*>(epilogue_.arena + floats.offset) +
                              place_of(epilogue_, floats, at, channel);
                if (epilogue_.activation == Activation::relu) {
                    row.residual ? finish_both<T, true, true>(row, table, coder_, also, to)
                                 : finish_both<T, false, true>(row, table, coder_, also, to);
                } else {
                    row.residual ? finish_both<T, true, false>(row, table, coder_, also, to)
                                 : finish_both<T, false, false>(row, table, coder_, also, to);
                }
            } else if (!simple_) {
                finish_any(epilogue_, row, table, at, channel);
            } else {
                const Buffer& buffer = epilogue_.outputs[0].buffer;
                std::uint8_t* to = epilogue_.arena + buffer.offset + place_of(epilogue_, buffer, at, channel);
                if (by_lines) {
                    if constexpr (kFused && kWhole) finish_lines(row, table, coder_, to);
                } else if (row.residual) {
                    finish_codes<T, true>(row, table, coder_, false, to);
                } else {
                    finish_codes<T, false>(row, table, coder_, small, to);
                }
            }
            tile += some;
            first += some;
            pixels -= some;
            next_row(at, height_);
        }
    }

private:
    template <typename T>
    void copy(const T (*tile)[kLanes], std::size_t first, std::size_t pixels, std::size_t channel,
              std::size_t channels) const {
        for (std::size_t p = 0; p < pixels; ++p) {
            std::int32_t* to = epilogue_.accumulators + (first + p) * epilogue_.channels + channel;
            for (std::size_t lane = 0; lane < channels; ++lane) to[lane] = static_cast<std::int32_t>(tile[p][lane]);
        }
    }

    const Epilogue& epilogue_;
    bool simple_ = false;  // one consumer, which reads codes
    const Output *floats_ = nullptr, *codes_ = nullptr;  // where there is one of each, and nothing else
    bool dense_ = true;    // rows follow each other without a border
    Coder coder_{};
    std::size_t width_ = 0, height_ = 0;
};

// The same for kernels with tiles in any order; positions[p] is that of tile[p].
template <typename T>
inline void finish(const Epilogue& epilogue, const T (*tile)[kLanes], const Position* positions, std::size_t first,
                   std::size_t pixels, std::size_t channel, std::size_t channels) {
    Finish{epilogue}(tile, positions[0], first, pixels, channel, channels);
}

// Things that are shared out among parts as evenly as can be: the first parts have one more. One division for all of them.
struct EvenParts {
    std::size_t least, larger;

    EvenParts(std::size_t things, std::size_t parts) : least(things / parts), larger(things - least * parts) {}
    std::size_t operator[](std::size_t part) const { return least + (part < larger ? 1 : 0); }
};

// Where a pixel of a result lies.
inline Position position_of(std::size_t height, std::size_t width, std::size_t pixel) {
    const std::size_t row = pixel / width;
    return {row / height, row % height, pixel % width};
}

// The positions of the pixels [first, last) of a result.
inline void locate(std::size_t height, std::size_t width, std::size_t first, std::size_t last, Position* positions) {
    Position at = position_of(height, width, first);
    for (std::size_t pixel = first; pixel < last; ++pixel) {
        positions[pixel - first] = at;
        if (++at.x == width) next_row(at, height);
    }
}

}  // namespace
}  // namespace bitstrata

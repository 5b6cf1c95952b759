// Weights in the order in which kernels read them.
//
// With NHWC inputs, what an output pixel needs is a short list of contiguous segments: one per kernel row where the
// taps of a row touch, else one per tap. A kernel goes through the segments in steps of K elements; for every step the
// weights of a block's kLanes output channels lie together, K elements each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "arena.h"
#include "layer.h"
#include "taps_loops.h"

namespace bitstrata {

// Steps through one segment, or a part of one.
struct Run {
    std::size_t row, column;  // where in the window: in rows, and in elements along the row
    std::size_t steps;
    bool flush;  // whether 16-bit sums must be widened afterwards
};

struct Block {
    std::size_t channel, channels;  // its outputs
    std::size_t group;
    std::size_t weights;  // index of its first weight
    std::size_t first_run, last_run;
};

struct Segment {
    std::size_t row, column, length;  // as in Run; the length in elements
};

std::vector<Segment> segments_of(const Geometry& geometry);

// What kernels see: plain pointers, because their files are compiled for other instruction sets.
template <typename T>
struct PackedView {
    const Block* blocks;
    const Run* runs;
    const T* weights;
    const std::int32_t* offsets;  // per output channel: what the zero point takes away
    std::size_t inputs, group_inputs;
    std::size_t stride_height, stride_width;
    int shift;                   // accumulator = (sum << shift) + compensation * window sum + offset
    std::int32_t compensation;
    const Segment* segments;     // of the window, for its sum
    std::size_t segment_count;
};

template <typename T>
struct Packed {
    std::vector<Block> blocks;
    std::vector<Run> runs;
    std::vector<Segment> segments;
    Aligned<T> weights;
    Aligned<std::int32_t> offsets;
};

// One output's weights of a segment, which goes through the inputs once per tap of a row.
template <typename T, std::size_t K, typename Stored, typename Convert>
void pack_segment(const Stored* from, std::size_t taps, std::size_t inputs, std::size_t length, T* to,
                  Convert convert) {
    if (inputs % K == 0) {  // no step has weights of two taps
        for (std::size_t x = 0; x < length / inputs; ++x) {
            const Stored* weights = from + x;
            for (std::size_t step = 0; step < inputs / K; ++step, weights += K * taps, to += kLanes * K) {
                T converted[K];
                for (std::size_t element = 0; element < K; ++element) {
                    converted[element] = static_cast<T>(convert(weights[element * taps]));
                }
                std::memcpy(to, converted, sizeof(converted));
            }
        }
        return;
    }
    for (std::size_t element = 0; element < length; ++element) {
        const Stored weight = from[element % inputs * taps + element / inputs];
        to[element / K * kLanes * K + element % K] = static_cast<T>(convert(weight));
    }
}

// Codes as bytes: as they are, or the odd integers that they stand for, which are codes moved up with ones behind them.
struct CodeBytes {
    explicit CodeBytes(const Coding& coding, bool odd)
        : shift(odd ? coding.dropped() + 1 : 0), ones(odd ? (1 << coding.dropped()) - 1 : 0) {}

    int operator()(int code) const { return code * (1 << shift) + ones; }

    // Of many words at once, in place, modulo 2^8.
    void convert(std::uint8_t* words, std::size_t count) const {
        constexpr std::uint32_t kEach = 0x01010101;
        const std::uint32_t kept = kEach * (0xffu >> shift), added = kEach * static_cast<std::uint32_t>(ones);
        for (std::size_t index = 0; index < count; ++index) {
            std::uint32_t word;
            std::memcpy(&word, words + index * kWord, sizeof(word));
            word = (word & kept) << shift | added;
            std::memcpy(words + index * kWord, &word, sizeof(word));
        }
    }

    int shift, ones;
};

constexpr std::size_t kMostTaps = 9;

// The outputs of a block, where no step has weights of two taps: a word of four inputs at a time, and what a step holds
// for all outputs at once: of one tap or of nine. Lanes without an output weigh nothing.
inline void pack_words(const std::int8_t* from, std::size_t taps, std::size_t inputs, std::size_t channels,
                       std::int8_t* to, const CodeBytes& bytes) {
    constexpr std::size_t kStep = kLanes * kWord;
    alignas(64) std::uint8_t words[kMostTaps][kStep] = {};
    for (std::size_t step = 0; step < inputs / kWord; ++step, from += kWord * taps, to += kStep) {
        if (taps == kMostTaps) {
            gather_taps(from, inputs * taps, channels, words[0], kStep);
        } else {
            for (std::size_t lane = 0; lane < channels; ++lane) {
                std::memcpy(words[0] + lane * kWord, from + lane * inputs, kWord);
            }
        }
        for (std::size_t tap = 0; tap < taps; ++tap) {
            bytes.convert(words[tap], channels);
            std::memcpy(to + tap * (inputs / kWord) * kStep, words[tap], kStep);
        }
    }
}

// The same of floats with one tap, a float at a time.
inline void pack_single(const float* from, std::size_t inputs, std::size_t channels, float* to) {
    for (std::size_t input = 0; input < inputs; ++input, ++from, to += kLanes) {
        for (std::size_t lane = 0; lane < channels; ++lane) to[lane] = from[lane * inputs];
        for (std::size_t lane = channels; lane < kLanes; ++lane) to[lane] = 0.0f;
    }
}

// Packs any layer; its weights lie by output, input of the group, y and x, and convert(weight) is what is packed.
// K elements to a step.
template <typename T, std::size_t K, typename Stored, typename Convert>
Packed<T> pack(const Geometry& g, const Stored* weights, Convert convert) {
    const std::size_t group_inputs = g.group_inputs(), taps = g.taps();
    Packed<T> packed;
    packed.segments = segments_of(g);
    std::size_t steps = 0;
    for (const Segment& segment : packed.segments) steps += (segment.length + K - 1) / K;
    const std::size_t blocks_per_group = (g.group_outputs() + kLanes - 1) / kLanes;
    constexpr bool kWords = std::is_same_v<Convert, CodeBytes> && sizeof(T) == 1 && K == kWord;
    constexpr bool kFloats = std::is_same_v<T, float> && K == 1;
    const bool whole = (kWords && (taps == 1 || taps == kMostTaps) && group_inputs % kWord == 0) || (kFloats && taps == 1);
    packed.weights = Aligned<T>(g.groups * blocks_per_group * steps * kLanes * K, !whole);
    packed.offsets = Aligned<std::int32_t>(g.outputs + kLanes);
    std::size_t place = 0;
    for (std::size_t block = 0; block < g.groups * blocks_per_group; ++block) {
        const std::size_t group = block / blocks_per_group, within = block % blocks_per_group * kLanes;
        const std::size_t channel = group * g.group_outputs() + within;
        const std::size_t channels = g.group_outputs() - within < kLanes ? g.group_outputs() - within : kLanes;
        packed.blocks.push_back({channel, channels, group, place, packed.runs.size(), 0});
        const Stored* of_block = weights + channel * group_inputs * taps;
        T* to = packed.weights.data() + place;
        if (whole) {  // segments follow one another tap by tap
            if constexpr (kWords) pack_words(of_block, taps, group_inputs, channels, to, convert);
            if constexpr (kFloats) pack_single(of_block, group_inputs, channels, to);
        }
        for (const Segment& segment : packed.segments) {
            const std::size_t y = segment.row / g.dilation_height;
            const std::size_t first_x = segment.column / (g.dilation_width * g.inputs);
            const std::size_t length = segment.length, count = (length + K - 1) / K;
            packed.runs.push_back({segment.row, segment.column + group * g.group_inputs(), count, false});
            const Stored* from = of_block + y * g.kernel_width + first_x;
            for (std::size_t lane = 0; lane < channels && !whole; ++lane, from += group_inputs * taps) {
                pack_segment<T, K>(from, taps, group_inputs, length, packed.weights.data() + place + lane * K, convert);
            }
            place += count * kLanes * K;
        }
        packed.runs.back().flush = true;
        packed.blocks.back().last_run = packed.runs.size();
    }
    return packed;
}

// Packs a depthwise layer: channels are lanes, a step is K taps, and runs are not used.
template <typename T, std::size_t K, typename Weight>
Packed<T> pack_depthwise(const Geometry& g, Weight weight) {
    Packed<T> packed;
    packed.segments = segments_of(g);  // one per tap
    const std::size_t steps = (g.taps() + K - 1) / K, blocks = (g.outputs + kLanes - 1) / kLanes;
    packed.weights = Aligned<T>(blocks * steps * kLanes * K);
    packed.offsets = Aligned<std::int32_t>(g.outputs + kLanes);
    for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t channel = block * kLanes, place = block * steps * kLanes * K;
        const std::size_t channels = g.outputs - channel < kLanes ? g.outputs - channel : kLanes;
        packed.blocks.push_back({channel, channels, 0, place, 0, 0});
        for (std::size_t tap = 0; tap < g.taps(); ++tap) {
            T* step = packed.weights.data() + place + tap / K * kLanes * K + tap % K;
            for (std::size_t lane = 0; lane < channels; ++lane) {
                step[lane * K] = weight(channel + lane, 0, tap / g.kernel_width, tap % g.kernel_width);
            }
        }
    }
    return packed;
}

// Packs a depthwise layer for kernels that go through its window column by column, some rows of a column at a time:
// groups of lanes; for each of them steps of rows, columns, and then that many taps of every lane. lane(i) is the
// channel, counted from the group's first, that lane i computes. Missing rows and channels weigh nothing.
template <typename Weight, typename Lane>
Packed<std::int8_t> pack_columns(const Geometry& g, std::size_t rows, std::size_t lanes, Lane lane, Weight weight) {
    Packed<std::int8_t> packed;
    packed.segments = segments_of(g);
    const std::size_t steps = (g.kernel_height + rows - 1) / rows, groups = (g.outputs + lanes - 1) / lanes;
    const std::size_t step_size = g.kernel_width * lanes * rows;
    packed.weights = Aligned<std::int8_t>(groups * steps * step_size);
    packed.offsets = Aligned<std::int32_t>(g.outputs + lanes);
    for (std::size_t channel = 0; channel < g.outputs; channel += kLanes) {
        const std::size_t channels = g.outputs - channel < kLanes ? g.outputs - channel : kLanes;
        packed.blocks.push_back({channel, channels, 0, channel / lanes * steps * step_size, 0, 0});
    }
    for (std::size_t group = 0; group < groups; ++group) {
        for (std::size_t index = 0; index < lanes; ++index) {
            const std::size_t channel = group * lanes + lane(index);
            if (channel >= g.outputs) continue;
            for (std::size_t y = 0; y < g.kernel_height; ++y) {
                for (std::size_t x = 0; x < g.kernel_width; ++x) {
                    const std::size_t step = group * steps + y / rows;
                    packed.weights[step * step_size + (x * lanes + index) * rows + y % rows] = weight(channel, 0, y, x);
                }
            }
        }
    }
    return packed;
}

template <typename T>
PackedView<T> view_of(const Packed<T>& packed, const Geometry& g) {
    return {packed.blocks.data(), packed.runs.data(),   packed.weights.data(), packed.offsets.data(),  g.inputs,
            g.group_inputs(),     g.stride_height,      g.stride_width,        0,                      0,
            packed.segments.data(), packed.segments.size()};
}

// Codes by place, and the odd integers 2^(m+1) q + 2^m - 1 that they stand for.
struct Codes {
    const Geometry& geometry;
    const Coding& coding;
    const std::int8_t* codes;

    int code(std::size_t output, std::size_t input, std::size_t y, std::size_t x) const {
        const Geometry& g = geometry;
        return codes[((output * g.group_inputs() + input) * g.kernel_height + y) * g.kernel_width + x];
    }
    int odd(std::size_t output, std::size_t input, std::size_t y, std::size_t x) const {
        return coding.odd(code(output, input, y, x));
    }
    // -o times the sum of an output's odd integers.
    std::int32_t offset(std::size_t output) const;
};

// Whether every product pair fits 16 bits, so that vpmaddubsw never saturates on this layer.
bool pairs_fit(const Geometry& geometry, const Coding& coding, const std::int8_t* codes);

// Whether every accumulator of a depthwise layer fits 16 bits, and every odd integer 8 bits.
bool short_depthwise(const Geometry& geometry, const Coding& coding, const std::int8_t* codes);

// Cuts the runs of a layer packed by fours so that no 16-bit sum can overflow between two flushes, whatever the input:
// a bound from the actual weights. Intermediate wrapping is harmless, so only the ends of a stretch are bounded.
void cut_runs(Packed<std::int8_t>& packed, int top);

}  // namespace bitstrata

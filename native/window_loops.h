// What direct convolutions share: tiles of evenly spaced windows, and what is added to sums of codes.
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "finish_loops.h"
#include "packing.h"

namespace bitstrata {
namespace {

#if defined(__AVX2__)
inline __m256i load_bytes(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
#endif

// Pixels of a strip, the windows of which are evenly spaced.
struct Piece {
    const std::uint8_t* window;  // of the first one
    std::size_t spacing;         // in bytes
    std::size_t first, pixels;   // counted from the strip's first
};

// Cuts a strip into tiles of at most `most` pixels, as equal as can be. Where rows and images follow each other as
// pixels do, tiles reach over their ends. `at` is where the strip begins.
template <typename T>
inline std::size_t tiles_of(const PackedView<T>& layer, const Call& call, Position at, std::size_t count,
                            std::size_t most, Piece* tiles) {
    const std::size_t spacing = layer.stride_width * layer.inputs, lines = layer.stride_height * call.row;
    const bool rows_touch = lines == call.width * spacing, images_touch = call.image == call.height * lines;
    std::size_t made = 0;
    for (std::size_t first = 0; first < count;) {
        std::size_t length = call.width - at.x;
        if (rows_touch && images_touch) length = count;
        if (length > count - first) length = count - first;
        const std::uint8_t* window = static_cast<const std::uint8_t*>(call.input) + at.sample * call.image +
                                     at.y * lines + at.x * spacing;
        const std::size_t parts = (length + most - 1) / most;
        const EvenParts even(length, parts);
        for (std::size_t part = 0; part < parts; ++part) {
            const std::size_t pixels = even[part];
            tiles[made++] = {window, spacing, first, pixels};
            window += pixels * spacing;
            first += pixels;
        }
        next_row(at, call.height);
    }
    return made;
}

// The sum of all codes of a window, in one group.
inline std::int32_t window_sum(const PackedView<std::int8_t>& layer, const std::uint8_t* window, std::size_t row) {
#if defined(__AVX2__)
    alignas(32) static constexpr std::uint8_t kMasks[64] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    const __m256i zero = _mm256_setzero_si256();
    __m256i sum = zero;
    for (std::size_t index = 0; index < layer.segment_count; ++index) {
        const Segment& segment = layer.segments[index];
        const std::uint8_t* from = window + segment.row * row + segment.column;
        std::size_t left = segment.length;
        for (; left >= 32; left -= 32, from += 32) sum = _mm256_add_epi64(sum, _mm256_sad_epu8(load_bytes(from), zero));
        if (left > 0) {
            const __m256i inside = _mm256_and_si256(load_bytes(from), load_bytes(kMasks + 32 - left));
            sum = _mm256_add_epi64(sum, _mm256_sad_epu8(inside, zero));
        }
    }
    alignas(32) std::int64_t quarters[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(quarters), sum);
    return static_cast<std::int32_t>(quarters[0] + quarters[1] + quarters[2] + quarters[3]);
#else
    std::uint32_t sum = 0;
    for (std::size_t index = 0; index < layer.segment_count; ++index) {
        const Segment& segment = layer.segments[index];
        const std::uint8_t* from = window + segment.row * row + segment.column;
        for (std::size_t element = 0; element < segment.length; ++element) sum += from[element];
    }
    return static_cast<std::int32_t>(sum);
#endif
}

// For each pixel, what compensation adds to its sums in one group.
inline void compensate(const PackedView<std::int8_t>& layer, const Call& call, const Piece* pieces, std::size_t count,
                       std::size_t group, std::int32_t* added) {
    for (std::size_t index = 0; index < count; ++index) {
        const Piece& piece = pieces[index];
        const std::uint8_t* window = piece.window + group * layer.group_inputs;
        for (std::size_t p = 0; p < piece.pixels; ++p, window += piece.spacing) {
            added[piece.first + p] = layer.compensation * window_sum(layer, window, call.row);
        }
    }
}

// From sums of codes to accumulators.
inline void shift_and_add(const PackedView<std::int8_t>& layer, const std::int32_t* offsets, const std::int32_t* added,
                          std::size_t pixels, std::int32_t (*sums)[kLanes]) {
    for (std::size_t p = 0; p < pixels; ++p) {
        const std::uint32_t more = layer.compensation != 0 ? static_cast<std::uint32_t>(added[p]) : 0;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            // Unsigned: parts of a sum that fits may wrap.
            const std::uint32_t shifted = static_cast<std::uint32_t>(sums[p][lane]) << layer.shift;
            sums[p][lane] = static_cast<std::int32_t>(shifted + more + static_cast<std::uint32_t>(offsets[lane]));
        }
    }
}

}  // namespace
}  // namespace bitstrata

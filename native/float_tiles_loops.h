// How a strip of pixels is cut for kernels of float layers: into tiles whose windows lie at equal distances, so that a
// tile needs one pointer and one distance. Parts of a row are such tiles, and so are the samples of a linear layer.
#pragma once

#include <cstddef>

#include "finish_loops.h"
#include "kernels.h"

namespace bitstrata {
namespace {

struct FloatTile {
    const float* window;   // of its first pixel
    std::size_t distance;  // from one window to the next, in elements
    std::size_t first;     // its first pixel, counted from the strip's
    std::size_t pixels;
};

// Cuts the pixels of a strip into tiles of at most `most` pixels, as equal as possible; never more than kStrip tiles.
inline std::size_t cut_into_tiles(const PackedView<float>& layer, const Call& call, const Position* positions,
                                  std::size_t count, std::size_t most, FloatTile* tiles) {
    const bool vectors = call.height * call.width == 1;
    const std::size_t distance = vectors ? call.image : layer.stride_width * layer.inputs;
    std::size_t made = 0;
    for (std::size_t begin = 0; begin < count;) {
        const Position& at = positions[begin];
        std::size_t pixels = vectors ? count : call.width - at.x;
        if (pixels > count - begin) pixels = count - begin;
        const float* window = static_cast<const float*>(call.input) + at.sample * call.image +
                              at.y * layer.stride_height * call.row + at.x * layer.stride_width * layer.inputs;
        const std::size_t parts = (pixels + most - 1) / most;
        const EvenParts even(pixels, parts);
        for (std::size_t part = 0; part < parts; ++part) {
            tiles[made++] = {window, distance, begin, even[part]};
            window += even[part] * distance;
            begin += even[part];
        }
    }
    return made;
}

}  // namespace
}  // namespace bitstrata

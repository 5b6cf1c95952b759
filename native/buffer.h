// Where a value lies: images in NHWC order inside an arena, with a border around each image where a consumer pads.
#pragma once

#include <cstddef>

namespace bitstrata {

// Every buffer starts at a multiple of this many bytes, and vector loads may run over its end by as many.
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSlack = 64;

struct Image {
    std::size_t batch, height, width, channels;
};

struct Border {
    std::size_t top, bottom, left, right;
};

// One value in the arena: float32, or unsigned codes of one byte.
struct Buffer {
    std::size_t offset;  // in bytes from the start of the arena
    Image shape;         // without the border
    Border border;
    bool codes;
    // Counted in elements: the first pixel inside the border, and the way to the next row and image.
    std::size_t origin, row, image;
};

// Throws std::invalid_argument where a size is zero or the buffer does not end inside `arena_bytes`.
Buffer make_buffer(std::size_t offset, Image shape, Border border, bool codes, std::size_t arena_bytes);

// Sizes of a buffer with its border and slack; throws std::invalid_argument on overflow.
std::size_t buffer_bytes(Image shape, Border border, bool codes);

bool same_shape(const Image& a, const Image& b);

}  // namespace bitstrata

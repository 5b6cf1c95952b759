#include "buffer.h"

#include <limits>
#include <stdexcept>

namespace bitstrata {
namespace {

std::size_t times(std::size_t a, std::size_t b) {
    if (b != 0 && a > std::numeric_limits<std::size_t>::max() / b) throw std::invalid_argument("a size overflows");
    return a * b;
}

std::size_t plus(std::size_t a, std::size_t b) {
    if (a > std::numeric_limits<std::size_t>::max() - b) throw std::invalid_argument("a size overflows");
    return a + b;
}

}  // namespace

std::size_t buffer_bytes(Image shape, Border border, bool codes) {
    const std::size_t height = plus(shape.height, plus(border.top, border.bottom));
    const std::size_t width = plus(shape.width, plus(border.left, border.right));
    const std::size_t elements = times(times(shape.batch, height), times(width, shape.channels));
    return plus(times(elements, codes ? 1 : sizeof(float)), kSlack);
}

Buffer make_buffer(std::size_t offset, Image shape, Border border, bool codes, std::size_t arena_bytes) {
    if (shape.batch == 0 || shape.height == 0 || shape.width == 0 || shape.channels == 0) {
        throw std::invalid_argument("a buffer of size zero");
    }
    if (offset % kAlignment != 0) throw std::invalid_argument("a buffer that is not aligned");
    if (plus(offset, buffer_bytes(shape, border, codes)) > arena_bytes) {
        throw std::invalid_argument("a buffer reaches over the end of the arena");
    }
    const std::size_t row = (border.left + shape.width + border.right) * shape.channels;
    const std::size_t image = (border.top + shape.height + border.bottom) * row;
    return {offset, shape, border, codes, border.top * row + border.left * shape.channels, row, image};
}

bool same_shape(const Image& a, const Image& b) {
    return a.batch == b.batch && a.height == b.height && a.width == b.width && a.channels == b.channels;
}

}  // namespace bitstrata

#include "epilogue.h"

#include <cstring>

namespace bitstrata {
namespace {

void fill(const Output& output, unsigned char* arena, std::size_t element, std::size_t count) {
    const std::size_t size = output.buffer.codes ? 1 : sizeof(float);
    const int byte = output.buffer.codes ? output.zero_point : 0;  // all bits of 0.0f are zero
    std::memset(arena + output.buffer.offset + element * size, byte, count * size);
}

}  // namespace

void fill_borders(const Epilogue& epilogue, const Image& shape, std::size_t first, std::size_t last) {
    for (std::size_t index = 0; index < epilogue.output_count; ++index) {
        const Output& output = epilogue.outputs[index];
        const Buffer& buffer = output.buffer;
        const Border& border = buffer.border;
        if (border.top + border.bottom + border.left + border.right == 0) continue;
        // A row's left border belongs to its first pixel, its right border to its last one; likewise the rows above and
        // below an image.
        std::size_t line = first / shape.width, sample = line / shape.height, y = line % shape.height;
        for (; line * shape.width < last; ++line, ++y) {
            if (y == shape.height) {
                y = 0;
                ++sample;
            }
            const std::size_t image = sample * buffer.image, row = image + (border.top + y) * buffer.row;
            if (line * shape.width >= first) {
                if (y == 0) fill(output, epilogue.arena, image, border.top * buffer.row);
                fill(output, epilogue.arena, row, border.left * shape.channels);
            }
            if ((line + 1) * shape.width <= last) {
                const std::size_t right = border.right * shape.channels;
                fill(output, epilogue.arena, row + buffer.row - right, right);
                if (y + 1 == shape.height) fill(output, epilogue.arena, row + buffer.row, border.bottom * buffer.row);
            }
        }
    }
}

}  // namespace bitstrata

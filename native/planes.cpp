#include "planes.h"

#include <array>
#include <cstring>

#include "select.h"

namespace bitstrata {
namespace {

constexpr std::size_t kStretch = 1024;  // bytes of a plane

// By byte: its eight bits as eight bytes of zero or one.
std::array<std::uint64_t, 256> spread_bits() {
    std::array<std::uint64_t, 256> spread{};
    for (std::size_t byte = 0; byte < spread.size(); ++byte) {
        std::uint8_t bits[8];
        for (std::size_t bit = 0; bit < 8; ++bit) bits[bit] = static_cast<std::uint8_t>(byte >> bit & 1);
        std::memcpy(&spread[byte], bits, sizeof(bits));
    }
    return spread;
}

// Byte by byte of the planes.
void unpack_bytes(const std::vector<const std::uint8_t*>& planes, std::size_t count, std::int8_t* to) {
    static const std::array<std::uint64_t, 256> table = spread_bits();
    const std::uint64_t* spread = table.data();
    const std::size_t bytes = plane_bytes(count), bits = planes.size();
    // Eight bytes of zero or one, times what a set bit means in a byte: no product reaches into the next one. The sign
    // fills all bits above its own.
    const auto value = [&](std::size_t plane) -> std::uint64_t {
        return plane == 0 ? 0xffu << (bits - 1) & 0xffu : 1u << (bits - 1 - plane);
    };
    // In stretches that stay in the nearest cache, two planes at a time: the first pass writes, later ones add.
    for (std::size_t start = 0; start < bytes; start += kStretch) {
        const std::size_t stop = start + kStretch < bytes ? start + kStretch : bytes;
        for (std::size_t plane = 0; plane < bits; plane += 2) {
            const bool two = plane + 1 < bits;
            const std::uint8_t* one = planes[plane];
            const std::uint8_t* other = planes[two ? plane + 1 : plane];
            const std::uint64_t first = value(plane), second = two ? value(plane + 1) : 0;
            for (std::size_t byte = start; byte < stop; ++byte) {
                std::uint64_t eight = 0;
                if (plane > 0) std::memcpy(&eight, to + byte * 8, sizeof(eight));
                eight |= spread[one[byte]] * first | spread[other[byte]] * second;
                std::memcpy(to + byte * 8, &eight, sizeof(eight));
            }
        }
    }
}

}  // namespace

void unpack_planes(const std::vector<const std::uint8_t*>& planes, std::size_t count, std::int8_t* to) {
#if defined(BITSTRATA_AVX2)
    if (uses_avx2()) {  // all but a rest
        const std::size_t words = count / 32;
        avx2::unpack_words(planes.data(), planes.size(), words, to);
        std::vector<const std::uint8_t*> rest = planes;
        for (const std::uint8_t*& plane : rest) plane += words * 4;
        return unpack_bytes(rest, count - words * 32, to + words * 32);
    }
#endif
    unpack_bytes(planes, count, to);
}

}  // namespace bitstrata

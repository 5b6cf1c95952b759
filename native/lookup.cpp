#include "lookup.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

namespace bitstrata {
namespace {

constexpr int kTop = 3, kMostByte = 255;  // the highest code; the highest 8-bit sum
constexpr std::size_t kTable = 16;

// Which output a byte of a block belongs to: widening interleaves the eight bytes of either half of both planes, and
// outputs are to come out in their order.
constexpr std::size_t output_of(std::size_t byte) { return byte / 16 * 8 + byte % 16 / 8 * 16 + byte % 8; }

std::size_t steps_of(const Geometry& g) {
    std::size_t steps = 0;
    for (const Segment& segment : segments_of(g)) steps += (segment.length + 3) / 4;
    return steps;
}

// Two bits, and sums that fit 16 bits at their end, whatever the input; on the way there they may wrap.
bool supported(const Geometry& g, const Coding& coding, const std::int8_t* codes) {
    if (coding.bits != 2 || g.groups != 1) return false;
    const std::size_t count = g.inputs * g.taps();
    for (std::size_t output = 0; output < g.outputs; ++output) {
        std::int32_t most = 0, least = 0;  // a layer whose sums left 32 bits is none
        for (std::size_t index = 0; index < count; ++index) {
            const std::int32_t code = codes[output * count + index];
            most += kTop * std::max(code, 0);
            least += kTop * std::min(code, 0);
        }
        if (most > std::numeric_limits<std::int16_t>::max() || least < std::numeric_limits<std::int16_t>::min()) {
            return false;
        }
    }
    return true;
}

class LookupLayer final : public Layer {
public:
    LookupLayer(const Geometry& g, const Coding& coding, const std::int8_t* values)
        : Layer(g), segments_(segments_of(g)), offsets_(g.outputs + kLookups) {
        const Codes codes{g, coding, values};
        view_.steps = steps_of(g);
        view_.outputs = g.outputs;
        places_ = Aligned<std::uint8_t>(blocks() * view_.steps * 2 * kLookups);
        for (std::size_t block = 0; block < blocks(); ++block) pack(codes, block);
        cuts_.push_back(static_cast<std::uint32_t>(runs_.size()));
        for (std::size_t output = 0; output < g.outputs; ++output) offsets_[output] = codes.offset(output);
        view_.window = {nullptr, nullptr, nullptr, offsets_.data(), g.inputs, g.inputs, g.stride_height, g.stride_width,
                        coding.dropped() + 1, (1 << coding.dropped()) - 1, segments_.data(), segments_.size()};
        view_.places = places_.data();
        view_.cuts = cuts_.data();
        view_.runs = runs_.data();
    }

    std::size_t blocks() const override { return (geometry.outputs + kLookups - 1) / kLookups; }

    // As many pixels as have their tables in a near cache.
    Cut cut(const Image& result) const override {
        return {result.batch * result.height * result.width, strip()};
    }

    std::size_t scratch() const override { return strip() * view_.steps * kTable; }

    void run(const Call& call, Range pixels, Range blocks) const noexcept override {
        avx2::lookup(view_, call, pixels, blocks);
    }

private:
    std::size_t strip() const { return view_.steps <= 128 ? kStrip : kStrip / 2; }

    // The places of a block's outputs, and how long their sums fit 8 bits: a bound from the actual weights.
    void pack(const Codes& codes, std::size_t block) {
        cuts_.push_back(static_cast<std::uint32_t>(runs_.size()));
        std::uint8_t* step = places_.data() + block * view_.steps * 2 * kLookups;
        std::int16_t most[2 * kLookups] = {};
        std::uint32_t length = 0;
        const bool words = geometry.inputs % 4 == 0 && (geometry.taps() == 1 || geometry.taps() == 9);
        if (words) pack_words(codes, block, step);
        for (const Segment& segment : segments_) {
            for (std::size_t element = 0; element < segment.length; element += 4, step += 2 * kLookups) {
                if (!words) pack_step(codes, block, segment, element, step);
                if (!add(step, most)) {
                    runs_.push_back(length);
                    length = 0;
                    std::fill(std::begin(most), std::end(most), std::int16_t{0});
                    add(step, most);
                }
                ++length;
            }
        }
        runs_.push_back(length);
    }

    // All steps of a block, where none has weights of two taps: words of four codes, whose bits are moved together.
    void pack_words(const Codes& codes, std::size_t block, std::uint8_t* to) const {
        const std::size_t inputs = geometry.inputs, taps = geometry.taps(), first = block * kLookups;
        const std::size_t outputs = std::min(kLookups, geometry.outputs - first), apart = kLookups * 4;
        alignas(64) std::uint8_t words[9][kLookups * 4] = {};
        for (std::size_t input = 0; input < inputs; input += 4, to += 2 * kLookups) {
            const std::int8_t* from = codes.codes + (first * inputs + input) * taps;
            if (taps == 9) {
                gather_taps(from, inputs * taps, outputs, words[0], apart);
            } else {
                for (std::size_t output = 0; output < outputs; ++output) {
                    std::memcpy(words[0] + output * 4, from + output * inputs, 4);
                }
            }
            for (std::size_t tap = 0; tap < taps; ++tap) {
                std::uint8_t* step = to + tap * (inputs / 4) * 2 * kLookups;
                for (std::size_t place = 0; place < kLookups; ++place) {
                    std::uint32_t word;
                    std::memcpy(&word, words[tap] + output_of(place) * 4, sizeof(word));
                    step[place] = bits_of(word);
                    step[place + kLookups] = bits_of(word >> 1);
                }
            }
        }
    }

    // The lowest bit of each byte, from the first byte on: a product moves them to the highest byte.
    static std::uint8_t bits_of(std::uint32_t word) {
        return static_cast<std::uint8_t>((word & 0x01010101u) * 0x01020408u >> 24);
    }

    // Four elements of a segment, or fewer at its end.
    void pack_step(const Codes& codes, std::size_t block, const Segment& segment, std::size_t element,
                   std::uint8_t* step) const {
        const Geometry& g = geometry;
        const std::size_t y = segment.row / g.dilation_height;
        const std::size_t first_x = segment.column / (g.dilation_width * g.inputs);
        const std::size_t count = std::min<std::size_t>(segment.length - element, 4), all = g.inputs * g.taps();
        std::size_t offsets[4];
        for (std::size_t next = 0; next < count; ++next) {
            const std::size_t x = first_x + (element + next) / g.inputs, input = (element + next) % g.inputs;
            offsets[next] = (input * g.kernel_height + y) * g.kernel_width + x;
        }
        for (std::size_t place = 0; place < kLookups; ++place) {
            const std::size_t output = block * kLookups + output_of(place);
            if (output >= g.outputs) continue;
            const std::int8_t* of_output = codes.codes + output * all;
            for (std::size_t next = 0; next < count; ++next) {
                const int code = of_output[offsets[next]];
                step[place] = static_cast<std::uint8_t>(step[place] | (code & 1) << next);
                step[place + kLookups] = static_cast<std::uint8_t>(step[place + kLookups] | (code >> 1 & 1) << next);
            }
        }
    }

    // Adds what a step can add at most to each sum; false where that could leave 8 bits.
    static bool add(const std::uint8_t* step, std::int16_t (&most)[2 * kLookups]) {
        std::int16_t highest = 0;
        for (std::size_t place = 0; place < 2 * kLookups; ++place) {
            const std::int16_t bits = step[place];
            const int set = (bits & 1) + (bits >> 1 & 1) + (bits >> 2 & 1) + (bits >> 3);
            most[place] = static_cast<std::int16_t>(most[place] + kTop * set);
            highest = std::max(highest, most[place]);
        }
        return highest <= kMostByte;
    }

    std::vector<Segment> segments_;
    Aligned<std::int32_t> offsets_;
    Aligned<std::uint8_t> places_;
    std::vector<std::uint32_t> cuts_, runs_;
    LookupView view_{};
};

std::unique_ptr<Layer> prepare(const Geometry& g, const Coding& coding, const std::int8_t* codes) {
    return std::make_unique<LookupLayer>(g, coding, codes);
}

// Making tables must be little beside looking up in them: measured on the layers of ResNet-18, ResNet-50 and
// MobileNetV2.
bool worthwhile(const Geometry& g, const Coding&) {
    const std::size_t count = g.inputs * g.taps();
    return (g.outputs >= 96 && count >= 64) || (g.outputs >= 64 && count >= 256);
}

}  // namespace

#if defined(BITSTRATA_AVX2)
std::vector<QuantisedKernel> avx2_lookup_kernels() {
    return {{"avx2.lookup", "avx2", supported, prepare, worthwhile}};
}
#endif

}  // namespace bitstrata

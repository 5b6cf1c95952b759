// The epilogue of layers that add a residual or have several consumers, in one pass: a few pixels stay in registers
// from their sums to the floats and codes that are stored. It also asks for the memory of all that ahead.
#pragma once

#include <cstdint>

#include "finish_loops.h"

namespace bitstrata {
namespace {

class Stream {
public:
    explicit Stream(const Epilogue& epilogue) : epilogue_(epilogue) {
        const bool bound = epilogue.activation == Activation::none || epilogue.activation == Activation::relu;
        if (epilogue.accumulators || !epilogue.scale || !bound) return;
        const std::size_t channels = epilogue.channels;
        std::size_t floats = 0;
        usable_ = epilogue.residual || epilogue.output_count > 1 || !epilogue.outputs[0].buffer.codes;
        for (std::size_t index = 0; index < epilogue.output_count; ++index) {
            const Output& output = epilogue.outputs[index];
            const Buffer& buffer = output.buffer;
            const std::size_t row = buffer.shape.width * channels;
            if (buffer.row != row || buffer.image != buffer.shape.height * row) usable_ = false;
            if (!buffer.codes) {
                floats_ = reinterpret_cast<float*>(epilogue.arena + buffer.offset) + buffer.origin;
                if (++floats > 1) usable_ = false;
            } else if (coded_ < kMost) {
                codes_[coded_] = epilogue.arena + buffer.offset + buffer.origin;
                coders_[coded_++] = coder_of(output, Activation::none);
            } else {
                usable_ = false;
            }
        }
    }

    // Whether this epilogue is one for it; all else is for Finish.
    bool usable() const { return usable_; }

    // Asks for kLanes channels from `channel` on of some pixels: the floats of a pixel lie far from those of the next
    // one, where the processor sees no pattern, and often in a far cache. A line of codes is asked for with its first ones.
    void ask(std::size_t first, std::size_t pixels, std::size_t channel) const {
        const std::size_t step = epilogue_.channels, at = first * step + channel;
        if (epilogue_.residual && epilogue_.residual != floats_) ask_for(epilogue_.residual + at, step, pixels);
        if (floats_) ask_for(floats_ + at, step, pixels);
        if (channel % kLine != 0) return;
        for (std::size_t index = 0; index < coded_; ++index) ask_for(codes_[index] + at, step, pixels);
    }

    // As Finish: tile[p] is of pixel number first + p.
    void operator()(const std::int32_t (*tile)[kLanes], std::size_t first, std::size_t pixels,
                    std::size_t channel) const {
        const Table table = table_of(epilogue_.scale, epilogue_.bias, channel);
        const std::size_t at = first * epilogue_.channels + channel;
        const bool relu = epilogue_.activation == Activation::relu;
        if (epilogue_.residual) {
            relu ? store<true, true>(tile, table, at, pixels) : store<true, false>(tile, table, at, pixels);
        } else {
            relu ? store<false, true>(tile, table, at, pixels) : store<false, false>(tile, table, at, pixels);
        }
    }

private:
    static constexpr std::size_t kMost = 3;  // consumers that read codes
    static constexpr std::size_t kLine = 64;

    template <typename T>
    static void ask_for(const T* at, std::size_t step, std::size_t pixels) {
        // Also what is only read: it mostly is overwritten. Processors without the instruction skip it.
        for (std::size_t p = 0; p < pixels; ++p) asm volatile("prefetchw (%0)" ::"r"(at + p * step));
    }

    template <bool Residual, bool Relu>
    void store(const std::int32_t (*tile)[kLanes], const Table& table, std::size_t at, std::size_t pixels) const {
        const std::size_t step = epilogue_.channels;
        const Row<std::int32_t> row{tile, Residual ? epilogue_.residual + at : nullptr, pixels, kLanes, step};
        const auto store_pixels = [&](std::size_t p, std::size_t some) __attribute__((always_inline)) {
            Pixel group[kGroup];
#pragma GCC unroll 4
            for (std::size_t index = 0; index < kGroup; ++index) {
                group[index] = scaled_pixel<std::int32_t, Residual>(row, table, index < some ? p + index : p);
                if (!Relu) continue;
                for (Lanes& lanes : group[index].parts) lanes = relu(lanes);
            }
            if (floats_) {
#pragma GCC unroll 4
                for (std::size_t index = 0; index < some; ++index) {
                    store_floats(group[index], floats_ + at + (p + index) * step, kLanes);
                }
            }
            for (std::size_t output = 0; output < coded_; ++output) {
                const Coder& coder = coders_[output];
                Pixel scaled[kGroup];
#pragma GCC unroll 4
                for (std::size_t index = 0; index < kGroup; ++index) {
                    for (std::size_t part = 0; part < kParts; ++part) {
                        Lanes lanes = group[index].parts[part] * spread(coder.inverse_step);
                        if (!Relu) lanes = at_least(lanes, spread(coder.low));  // else it is zero or more already
                        scaled[index].parts[part] = at_most(lanes, spread(coder.high));
                    }
                }
                store_group<false>(scaled, coder, codes_[output] + at + p * step, step, some, kLanes);
            }
        };
        std::size_t p = 0;
        for (; p + kGroup <= pixels; p += kGroup) store_pixels(p, kGroup);
        if (p < pixels) store_pixels(p, pixels - p);
    }

    const Epilogue& epilogue_;
    bool usable_ = false;
    float* floats_ = nullptr;
    std::size_t coded_ = 0;
    unsigned char* codes_[kMost] = {};
    Coder coders_[kMost] = {};
};

}  // namespace
}  // namespace bitstrata

// Plain loops that compile anywhere, and the measure for the others.
#define BITSTRATA_PLAIN_LANES  // also where the compiler may use vectors everywhere
#include "finish_loops.h"
#include "kernels.h"

namespace bitstrata::portable {
namespace {

// Where the window of a pixel begins, in elements.
template <typename T>
std::size_t window(const PackedView<T>& layer, const Call& call, const Position& at) {
    return at.sample * call.image + at.y * layer.stride_height * call.row + at.x * layer.stride_width * layer.inputs;
}

// Any layer whose steps are single elements: Input is what the buffer holds, Sum what products are added up in.
template <typename Input, typename Sum, typename T>
void by_element(const PackedView<T>& layer, const Call& call, Range pixels, Range blocks) {
    Position positions[kStrip];
    locate(call.height, call.width, pixels.begin, pixels.end, positions);
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        for (std::size_t pixel = pixels.begin; pixel < pixels.end; ++pixel) {
            const Position& at = positions[pixel - pixels.begin];
            const Input* start = static_cast<const Input*>(call.input) + window(layer, call, at);
            const T* weights = layer.weights + block.weights;
            Sum sums[1][kLanes] = {};
            for (std::size_t run = block.first_run; run < block.last_run; ++run) {
                const Input* input = start + layer.runs[run].row * call.row + layer.runs[run].column;
                for (std::size_t step = 0; step < layer.runs[run].steps; ++step, weights += kLanes) {
                    const Sum value = static_cast<Sum>(input[step]);
                    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[0][lane] += value * weights[lane];
                }
            }
            for (std::size_t lane = 0; lane < block.channels; ++lane) {
                sums[0][lane] += static_cast<Sum>(layer.offsets[block.channel + lane]);
            }
            finish(call.epilogue, sums, &at, pixel, 1, block.channel, block.channels);
        }
    }
}

}  // namespace

void odd(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    by_element<std::uint8_t, std::int32_t>(layer, call, pixels, blocks);
}

void floats(const PackedView<float>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    by_element<float, float>(layer, call, pixels, blocks);
}

void depthwise(const PackedView<std::int16_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    Position positions[kStrip];
    locate(call.height, call.width, pixels.begin, pixels.end, positions);
    for (std::size_t index = blocks.begin; index < blocks.end; ++index) {
        const Block& block = layer.blocks[index];
        for (std::size_t pixel = pixels.begin; pixel < pixels.end; ++pixel) {
            const Position& at = positions[pixel - pixels.begin];
            const std::uint8_t* start =
                static_cast<const std::uint8_t*>(call.input) + window(layer, call, at) + block.channel;
            const std::int16_t* weights = layer.weights + block.weights;
            std::int32_t sums[1][kLanes] = {};
            for (std::size_t tap = 0; tap < layer.segment_count; ++tap, weights += kLanes) {
                const Segment& segment = layer.segments[tap];
                const std::uint8_t* input = start + segment.row * call.row + segment.column;
                // Lanes beyond the last channel read the next pixel or the buffer's slack, and are not stored.
                for (std::size_t lane = 0; lane < kLanes; ++lane) sums[0][lane] += weights[lane] * input[lane];
            }
            for (std::size_t lane = 0; lane < block.channels; ++lane) {
                sums[0][lane] += layer.offsets[block.channel + lane];
            }
            finish(call.epilogue, sums, &at, pixel, 1, block.channel, block.channels);
        }
    }
}

}  // namespace bitstrata::portable

#include "packing.h"

#include <cstdlib>
#include <utility>

#include "pair_bounds.h"

namespace bitstrata {
namespace {

constexpr int kHighest = 32767;

// Of a block's channels, both halves of a step.
using Bounds = PairBounds<2 * kLanes>;

}  // namespace

std::vector<Segment> segments_of(const Geometry& g) {
    const bool joined = g.groups == 1 && (g.dilation_width == 1 || g.kernel_width == 1);
    std::vector<Segment> segments;
    for (std::size_t y = 0; y < g.kernel_height; ++y) {
        const std::size_t row = y * g.dilation_height;
        if (joined) {
            segments.push_back({row, 0, g.kernel_width * g.inputs});
            continue;
        }
        for (std::size_t x = 0; x < g.kernel_width; ++x) {
            segments.push_back({row, x * g.dilation_width * g.inputs, g.group_inputs()});
        }
    }
    return segments;
}

std::int32_t Codes::offset(std::size_t output) const {
    if (coding.zero_point == 0) return 0;
    std::int64_t sum = 0;
    const std::size_t count = geometry.group_inputs() * geometry.taps();
    for (std::size_t index = 0; index < count; ++index) sum += codes[output * count + index];
    const int dropped = coding.dropped();
    const std::int64_t odd = sum * (2 << dropped) + static_cast<std::int64_t>(count) * ((1 << dropped) - 1);
    return static_cast<std::int32_t>(-coding.zero_point * odd);
}

bool pairs_fit(const Geometry& g, const Coding& coding, const std::int8_t* codes) {
    if (2 * coding.top() * (1 << (coding.bits - 1)) <= kHighest) return true;  // whatever the weights
    const Packed<std::int8_t> packed = pack<std::int8_t, 4>(g, codes, CodeBytes(coding, false));
    for (std::size_t step = 0; step < packed.weights.size(); step += kLanes * 4) {
        if (!Bounds(coding.top()).add(packed.weights.data() + step)) return false;
    }
    return true;
}

bool short_depthwise(const Geometry& g, const Coding& coding, const std::int8_t* values) {
    if (coding.source_bits >= 8) return false;
    const Codes codes{g, coding, values};
    for (std::size_t output = 0; output < g.outputs; ++output) {
        int most = 0;
        for (std::size_t y = 0; y < g.kernel_height; ++y) {
            for (std::size_t x = 0; x < g.kernel_width; ++x) most += std::abs(codes.odd(output, 0, y, x));
        }
        if (most * coding.top() > kHighest) return false;
    }
    return true;
}

void cut_runs(Packed<std::int8_t>& packed, int top) {
    std::vector<Run> cut;
    for (Block& block : packed.blocks) {
        const std::int8_t* step = packed.weights.data() + block.weights;
        const std::size_t first_run = cut.size();
        Bounds bounds(top);
        for (std::size_t index = block.first_run; index < block.last_run; ++index) {
            const Run& whole = packed.runs[index];
            Run part{whole.row, whole.column, 0, false};
            for (std::size_t done = 0; done < whole.steps; ++done, step += kLanes * 4) {
                if (!bounds.add(step)) {
                    bounds.clear();
                    bounds.add(step);
                    if (part.steps > 0) {
                        part.flush = true;
                        cut.push_back(part);
                    } else {
                        cut.back().flush = true;
                    }
                    part = {whole.row, whole.column + done * 4, 0, false};
                }
                ++part.steps;
            }
            cut.push_back(part);
        }
        cut.back().flush = true;
        block.first_run = first_run;
        block.last_run = cut.size();
    }
    cut.push_back({});  // kernels look at the run that follows, and make no use of it
    packed.runs = std::move(cut);
}

}  // namespace bitstrata

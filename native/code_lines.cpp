#include "code_lines.h"

#include <algorithm>
#include <cmath>

#include "finish_loops.h"

namespace bitstrata {
namespace {

constexpr std::int64_t kExact = 1 << 24;      // up to here every integer is a float
constexpr double kMostNumber = 1073741824.0;  // what is rounded must fit 32 bits
constexpr int kTries = 10;                    // offsets that are tried, in growing steps
constexpr int kNear = 16;                     // at most so far from where a code is expected to begin to where it does

// Half to even, of numbers that are bounds of codes or lie between them: beyond 1.5 * 2^23 a float has no fraction.
int rounded(float x) {
    constexpr float kShift = 12582912.0f;
    return static_cast<int>((x + kShift) - kShift);
}

// One channel: its codes as they are defined, and by a line. Accumulators are counted so that codes do not fall.
struct Channel {
    float scale, bias;
    const Coder& coder;
    float slope, offset;

    float number(std::int64_t count) const { return static_cast<float>(scale < 0.0f ? -count : count); }

    int defined(std::int64_t count) const {
        float y = number(count) * scale;
        y = y + bias;
        y = y * coder.inverse_step;
        const float bounded = std::min(std::max(y, coder.low), coder.high);
        return rounded(bounded) + coder.zero_point;
    }

    int by_line(std::int64_t count) const {
        const float y = std::fma(number(count), slope, offset);
        const auto first = static_cast<float>(coder.first), last = static_cast<float>(coder.last);
        return rounded(std::min(std::max(y, first), last));
    }
};

// The first accumulator from -most on whose code is at least that, or most + 1; nothing where it is not near where it
// should be.
std::optional<std::int64_t> begin_of(const Channel& channel, int code, std::int64_t most) {
    const double y = (code - channel.coder.zero_point - 0.5) / static_cast<double>(channel.coder.inverse_step);
    const double expected = (y - static_cast<double>(channel.bias)) / std::abs(static_cast<double>(channel.scale));
    std::int64_t begin = -most;
    if (expected > static_cast<double>(-most)) {
        begin = expected < static_cast<double>(most) ? static_cast<std::int64_t>(std::ceil(expected)) : most + 1;
    } else if (!(expected <= static_cast<double>(-most))) {  // no number: a constant
        begin = channel.defined(0) >= code ? -most : most + 1;
    }
    for (int step = 0; step < kNear; ++step) {
        if (begin > -most && channel.defined(begin - 1) >= code) {
            --begin;
        } else if (begin <= most && channel.defined(begin) < code) {
            ++begin;
        } else {
            return begin;
        }
    }
    return std::nullopt;
}

// Whether a line is too low somewhere, or too high; both or neither may be.
struct Verdict {
    bool low, high;
};

// Both ways to a code only rise, so they agree everywhere where they agree on the accumulators that each code begins
// with, and on the last ones before.
Verdict judge(const Channel& channel, const std::int64_t* begins, std::int64_t most) {
    Verdict verdict{false, false};
    for (int code = channel.coder.first + 1; code <= channel.coder.last; ++code) {
        const std::int64_t begin = *begins++;
        if (begin <= most && channel.by_line(begin) < code) verdict.low = true;
        if (begin > -most && channel.by_line(begin - 1) >= code) verdict.high = true;
    }
    return verdict;
}

// Finds the line of a channel: the plain one, or one a little beside it.
bool fit(Channel& channel, std::int64_t most) {
    const double inverse = static_cast<double>(channel.coder.inverse_step);
    const double offset = static_cast<double>(channel.bias) * inverse + channel.coder.zero_point;
    channel.slope = static_cast<float>(static_cast<double>(channel.scale) * inverse);
    channel.offset = static_cast<float>(offset);
    const double largest = std::abs(static_cast<double>(channel.slope)) * static_cast<double>(most) + std::abs(offset);
    if (!(largest < kMostNumber)) return false;
    std::int64_t begins[256];
    for (int code = channel.coder.first + 1; code <= channel.coder.last; ++code) {
        const std::optional<std::int64_t> begin = begin_of(channel, code, most);
        if (!begin) return false;
        begins[code - channel.coder.first - 1] = *begin;
    }
    const float unit = std::max(std::abs(channel.offset), static_cast<float>(channel.coder.last)) * 0x1p-24f;
    const Channel plain = channel;
    const float flatter = std::nextafter(plain.slope, 0.0f), steeper = std::nextafter(plain.slope, 2.0f * plain.slope);
    for (const float slope : {plain.slope, flatter, steeper}) {
        channel.slope = slope;
        channel.offset = plain.offset;
        for (int attempt = 0; attempt < kTries; ++attempt) {
            const Verdict verdict = judge(channel, begins, most);
            if (!verdict.low && !verdict.high) return true;
            if (verdict.low && verdict.high) break;
            channel.offset = channel.offset + std::ldexp(verdict.low ? unit : -unit, attempt / 2);
        }
    }
    return false;
}

}  // namespace

std::optional<CodeLines> code_lines(const float* scale, const float* bias, std::size_t channels, std::int64_t most,
                                    const Output& output, Activation activation) {
    if (most >= kExact || !bounds(activation) || !(output.inverse_step > 0.0f)) return std::nullopt;
    const Coder coder = coder_of(output, activation);
    CodeLines lines{Aligned<float>(channels + kLanes), Aligned<float>(channels + kLanes)};
    for (std::size_t index = 0; index < channels; ++index) {
        Channel channel{scale[index], bias[index], coder, 0.0f, 0.0f};
        if (!fit(channel, most)) return std::nullopt;
        lines.slope[index] = channel.slope;
        lines.offset[index] = channel.offset;
    }
    return lines;
}

}  // namespace bitstrata

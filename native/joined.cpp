// A float convolution and the pooling of its result, some rows at a time, so that what lies between them stays in the
// cache: the first layer of most networks makes more numbers than any later one.
#include <algorithm>
#include <cstring>

#include "program.h"
#include "scratches.h"
#include "thread_pool.h"

namespace bitstrata {
namespace {

// Rows of the pooled result that are made at once: many enough for whole strips of pixels, few enough for the cache.
constexpr std::size_t kBand = 4;

// A part's first rows are computed twice, so there are few of them.
constexpr std::size_t kPartsPerThread = 2;

bool overlap(const Buffer& a, const Buffer& b) {
    const auto end = [](const Buffer& one) { return one.offset + buffer_bytes(one.shape, one.border, one.codes); };
    return a.offset < end(b) && b.offset < end(a);
}

// From the first row to the last that so many rows of the pooled result are made of.
std::size_t rows_spanned(const Window& window, std::size_t rows) {
    return (rows - 1) * window.stride_height + window.dilation_height * (window.kernel_height - 1) + 1;
}

// The rows that rows of the pooled result are made of, of a source that has that many.
Range rows_under(const Window& window, Range rows, std::size_t height) {
    const std::size_t top = window.padding.top, start = rows.begin * window.stride_height;
    const std::size_t stop = start + rows_spanned(window, rows.end - rows.begin);
    const std::size_t begin = start > top ? start - top : 0, end = std::min(stop > top ? stop - top : 0, height);
    return {std::min(begin, end), end};
}

// The same, with all the rows that are computed together with them.
Range whole(Range rows, std::size_t together, std::size_t height) {
    return {rows.begin / together * together, std::min((rows.end + together - 1) / together * together, height)};
}

}  // namespace

bool Plan::can_join(const Step& first, const Step& second) {
    const bool pools = !second.convolves && (second.floats.kind == FloatKind::max_pool ||
                                             second.floats.kind == FloatKind::average_pool);
    if (!pools || !first.convolves || first.layer->quantised || first.has_residual || first.outputs.size() != 1) {
        return false;
    }
    const Buffer& between = first.outputs[0].buffer;
    if (!reads(second, between) || (second.has_residual && overlap(second.residual, between))) return false;
    // The pooling begins to write while the convolution still reads.
    return std::none_of(second.outputs.begin(), second.outputs.end(),
                        [&](const Output& output) { return overlap(output.buffer, first.inputs[0]); });
}

bool Plan::reads(const Step& step, const Buffer& buffer) {
    const auto same = [&](const Buffer& one) {
        return one.offset == buffer.offset && one.codes == buffer.codes && same_shape(one.shape, buffer.shape);
    };
    return std::any_of(step.inputs.begin(), step.inputs.end(), same) || (step.has_residual && same(step.residual));
}

void Plan::run_joined(const Step& first, const Step& second, unsigned char* arena, Scratches& scratches,
                      std::size_t threads) const {
    const Buffer& input = first.inputs[0];
    const Buffer& between = first.outputs[0].buffer;
    const Image& image = first.result;
    const Image& result = second.result;
    const Window& window = second.floats.window;
    const Layer& layer = *first.layer->layer;
    const Epilogue convolved = epilogue_of(first, arena), pooled = epilogue_of(second, arena);
    const std::size_t row_bytes = between.row * sizeof(float);
    const std::size_t wanted = threads > 1 ? (threads * kPartsPerThread + image.batch - 1) / image.batch : 1;
    // Each part keeps its rows in a stretch of the buffer that would hold the whole result in between.
    const std::size_t together = layer.rows_together();
    const std::size_t most_kept = rows_spanned(window, kBand) + 2 * (together - 1);
    const std::size_t parts = std::max<std::size_t>(1, std::min(wanted, image.height / most_kept));

    const auto body = [&](std::size_t piece) {
        const std::size_t sample = piece / parts, part = piece % parts;
        const std::size_t place = (threads > 1 ? sample * image.height : 0) + part * image.height / parts;
        unsigned char* kept = arena + between.offset + place * row_bytes;
        const Scratches::Taken taken(scratches);
        Range there{0, 0};  // rows that are kept
        const Range rows{part * result.height / parts, (part + 1) * result.height / parts};
        for (std::size_t row = rows.begin; row < rows.end; row += kBand) {
            const Range now{row, std::min(row + kBand, rows.end)};
            const Range needed = whole(rows_under(window, now, image.height), together, image.height);
            const std::size_t again = there.end > needed.begin ? there.end - needed.begin : 0;
            if (again > 0) std::memmove(kept, kept + (needed.begin - there.begin) * row_bytes, again * row_bytes);
            there = needed;

            Output output = first.outputs[0];
            output.buffer.offset += (place + again) * row_bytes;
            const std::size_t begin = needed.begin + again;
            const std::size_t from = sample * input.image + begin * layer.geometry.stride_height * input.row;
            Call call{arena + input.offset + from * sizeof(float), input.row, input.image, needed.end - begin,
                      image.width, nullptr, convolved, taken.memory};
            call.epilogue.outputs = &output;
            const Cut cut = layer.cut({1, needed.end - begin, image.width, image.channels});
            for (std::size_t unit = 0; unit < cut.units; unit += cut.at_most) {
                layer.run(call, {unit, std::min(unit + cut.at_most, cut.units)}, {0, first.blocks});
            }

            Buffer source = between;
            source.offset += place * row_bytes;
            FloatStep pool = second.floats;
            pool.sources = &source;
            pool.rows_before = sample * image.height + needed.begin;
            const std::size_t last = (sample * result.height + now.end) * result.width;
            for (std::size_t pixel = (sample * result.height + now.begin) * result.width; pixel < last;) {
                const std::size_t end = std::min(pixel + kStrip, last);
                program_.float_step_(pool, nullptr, pooled, {pixel, end}, {0, second.blocks});
                fill_borders(pooled, result, pixel, end);
                pixel = end;
            }
        }
    };
    parallel_for(image.batch * parts, threads, body);
}

}  // namespace bitstrata

// Runs a plan: step after step, each split over the threads.
#include <algorithm>
#include <utility>

#include "program.h"
#include "thread_pool.h"

namespace bitstrata {
namespace {

// Pieces of work per thread, so that one that is slow or comes late does not hold up the others.
constexpr std::size_t kPiecesPerThread = 4;

std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// How a step is cut: strips of pixels, times sets of blocks of channels where the strips alone are too few.
struct Pieces {
    std::size_t pixels, strips, blocks, sets;

    Pieces(std::size_t pixels, std::size_t blocks, std::size_t threads)
        : pixels(pixels), strips(divided_up(pixels, kStrip)), blocks(blocks), sets(1) {
        if (threads > 1) sets = std::clamp<std::size_t>(divided_up(threads * kPiecesPerThread, strips), 1, blocks);
    }
    std::size_t count() const { return strips * sets; }
    Range pixels_of(std::size_t piece) const {
        const std::size_t begin = piece / sets * kStrip;
        return {begin, std::min(begin + kStrip, pixels)};
    }
    Range blocks_of(std::size_t piece) const {
        const std::size_t set = piece % sets;
        return {set * blocks / sets, (set + 1) * blocks / sets};
    }
};

void write_result(const Buffer& buffer, const unsigned char* arena, float* to, std::size_t threads) {
    const auto* from = reinterpret_cast<const float*>(arena + buffer.offset);
    const std::size_t size = buffer.shape.height * buffer.shape.width, channels = buffer.shape.channels;
    if (size == 1) {
        std::copy_n(from, buffer.shape.batch * channels, to);
        return;
    }
    // Strip by strip, so that what is read channel after channel stays in the nearest cache.
    const std::size_t strips = divided_up(size, kStrip);
    const auto body = [&](std::size_t piece) {
        const std::size_t sample = piece / strips, begin = piece % strips * kStrip;
        const std::size_t end = std::min(begin + kStrip, size);
        for (std::size_t channel = 0; channel < channels; ++channel) {
            const float* first = from + sample * size * channels + channel;
            float* plane = to + (sample * channels + channel) * size;
            for (std::size_t pixel = begin; pixel < end; ++pixel) plane[pixel] = first[pixel * channels];
        }
    };
    parallel_for(buffer.shape.batch * strips, threads, body);
}

}  // namespace

void Plan::run_step(const Step& step, const float* x, unsigned char* arena, std::size_t threads) const {
    Epilogue epilogue{};
    epilogue.arena = arena;
    epilogue.outputs = step.outputs.data();
    epilogue.output_count = step.outputs.size();
    if (step.layer) {
        epilogue.scale = step.layer->scale.data();
        epilogue.bias = step.layer->bias.data();
    }
    if (step.has_residual) epilogue.residual = reinterpret_cast<const float*>(arena + step.residual.offset);
    epilogue.activation = step.activation;
    epilogue.channels = step.result.channels;

    const Pieces pieces(step.result.batch * step.result.height * step.result.width, step.blocks, threads);
    const auto finish_piece = [&](std::size_t piece) {
        if (piece % pieces.sets != 0) return;
        const Range pixels = pieces.pixels_of(piece);
        fill_borders(epilogue, step.result, pixels.begin, pixels.end);
    };
    if (step.convolves) {
        const Buffer& input = step.inputs[0];
        const Call call{arena + input.offset, input.row,         input.image,
                        step.result.height,   step.result.width, arena + step.workspace_offset,
                        epilogue};
        const auto body = [&](std::size_t piece) {
            step.layer->layer->run(call, pieces.pixels_of(piece), pieces.blocks_of(piece));
            finish_piece(piece);
        };
        parallel_for(pieces.count(), threads, body);
    } else {
        const auto body = [&](std::size_t piece) {
            program_.float_step_(step.floats, x, epilogue, pieces.pixels_of(piece), pieces.blocks_of(piece));
            finish_piece(piece);
        };
        parallel_for(pieces.count(), threads, body);
    }
}

void Plan::run(const float* x, float* const* results, std::size_t threads) const {
    Arenas::Arena arena = program_.arenas_.borrow(arena_bytes_);
    for (const Step& step : steps_) run_step(step, x, arena->data(), threads);
    for (std::size_t index = 0; index < results_.size(); ++index) {
        write_result(results_[index], arena->data(), results[index], threads);
    }
    program_.arenas_.give_back(std::move(arena));
}

}  // namespace bitstrata

// Runs a plan: step after step, each split over the threads.
#include <algorithm>
#include <chrono>
#include <utility>

#include "program.h"
#include "scratches.h"
#include "thread_pool.h"

namespace bitstrata {
namespace {

// Pieces of work per thread, so that one that is slow or comes late does not hold up the others.
constexpr std::size_t kPiecesPerThread = 4;

// No more than this many threads ever work on one call.
constexpr std::size_t kMostThreads = 256;

std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// How a step is cut: strips of units, times sets of blocks of channels where the strips alone are too few.
struct Pieces {
    Cut cut;
    std::size_t strips, blocks, sets;

    Pieces(Cut cut, std::size_t blocks, std::size_t threads)
        : cut(cut), strips(divided_up(cut.units, cut.at_most)), blocks(blocks), sets(1) {
        if (threads > 1) sets = std::clamp<std::size_t>(divided_up(threads * kPiecesPerThread, strips), 1, blocks);
    }
    std::size_t count() const { return strips * sets; }
    Range units_of(std::size_t piece) const {
        const std::size_t begin = piece / sets * cut.at_most;
        return {begin, std::min(begin + cut.at_most, cut.units)};
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

Epilogue Plan::epilogue_of(const Step& step, unsigned char* arena) {
    Epilogue epilogue{};
    epilogue.arena = arena;
    epilogue.outputs = step.outputs.data();
    epilogue.output_count = step.outputs.size();
    if (step.layer) {
        epilogue.scale = step.layer->scale.data();
        epilogue.bias = step.layer->bias.data();
    }
    if (step.lines) {
        epilogue.slope = step.lines->slope.data();
        epilogue.offset = step.lines->offset.data();
    }
    if (step.has_residual) epilogue.residual = reinterpret_cast<const float*>(arena + step.residual.offset);
    epilogue.activation = step.activation;
    epilogue.channels = step.result.channels;
    return epilogue;
}

void Plan::run_step(const Step& step, const float* x, unsigned char* arena, Scratches& scratches,
                    std::size_t threads) const {
    const Epilogue epilogue = epilogue_of(step, arena);
    const Pieces pieces(step.cut, step.blocks, threads);
    const std::size_t pixels = step.result.batch * step.result.height * step.result.width;
    const auto finish_piece = [&](std::size_t piece) {
        if (piece % pieces.sets != 0) return;
        const std::size_t strip = piece / pieces.sets;
        fill_borders(epilogue, step.result, strip * pixels / pieces.strips, (strip + 1) * pixels / pieces.strips);
    };
    if (step.convolves) {
        const Buffer& input = step.inputs[0];
        const Call call{arena + input.offset, input.row,         input.image,
                        step.result.height,   step.result.width, arena + step.workspace_offset,
                        epilogue};
        const auto body = [&](std::size_t piece) {
            if (step.layer->layer->scratch() == 0) {
                step.layer->layer->run(call, pieces.units_of(piece), pieces.blocks_of(piece));
            } else {
                const Scratches::Taken taken(scratches);
                Call own = call;
                own.scratch = taken.memory;
                step.layer->layer->run(own, pieces.units_of(piece), pieces.blocks_of(piece));
            }
            finish_piece(piece);
        };
        parallel_for(pieces.count(), threads, body);
    } else {
        const auto body = [&](std::size_t piece) {
            program_.float_step_(step.floats, x, epilogue, pieces.units_of(piece), pieces.blocks_of(piece));
            finish_piece(piece);
        };
        parallel_for(pieces.count(), threads, body);
    }
}

void Plan::run(const float* x, float* const* results, std::size_t threads, double* seconds) const {
    Arenas::Arena arena = program_.arenas_.borrow(arena_bytes_);
    const std::size_t count = std::min(std::max<std::size_t>(threads, 1), kMostThreads);
    Arenas::Arena scratch = program_.scratches_.borrow(scratch_bytes_ * count);
    Scratches scratches(scratch->data(), scratch_bytes_, count);
    auto started = std::chrono::steady_clock::now();
    const auto note = [&] {
        if (!seconds) return;
        const auto now = std::chrono::steady_clock::now();
        *seconds++ = std::chrono::duration<double>(now - started).count();
        started = now;
    };
    for (std::size_t index = 0; index < steps_.size(); ++index) {
        const Step& step = steps_[index];
        if (step.joined) {
            run_joined(step, steps_[++index], arena->data(), scratches, threads);
            note();  // of both; what is noted below is nothing
        } else {
            run_step(step, x, arena->data(), scratches, threads);
        }
        note();
    }
    for (std::size_t index = 0; index < results_.size(); ++index) {
        write_result(results_[index], arena->data(), results[index], threads);
    }
    note();
    program_.arenas_.give_back(std::move(arena));
    program_.scratches_.give_back(std::move(scratch));
}

}  // namespace bitstrata

// Whole networks by the executor, on one thread and on two: every instruction set must give the same bits.
#include <cstdlib>
#include <memory>
#include <utility>

#include "guarded.h"
#include "program.h"
#include "report.h"
#include "thread_pool.h"

namespace grid {
namespace {

using bitstrata::Border;
using bitstrata::Buffer;
using bitstrata::Coding;
using bitstrata::Geometry;
using bitstrata::Image;
using bitstrata::Output;

// A network of most kinds of layers, with weights from a seed; its float layer has small whole numbers, so that sums are
// exact in every order.
class Network {
public:
    Network(std::size_t side, int bits)
        : side_(side), bits_(bits), random_(side * 10 + static_cast<std::size_t>(bits)) {
        const std::size_t half = (side + 1) / 2, pooled = (half + 1) / 2;
        const Image input{kBatch, side, side, 3}, first{kBatch, side, side, 18}, strided{kBatch, half, half, 18};
        const Image wide{kBatch, half, half, 40}, small{kBatch, pooled, pooled, 40}, vector{kBatch, 1, 1, 40};
        const Border one{1, 1, 1, 1}, none{0, 0, 0, 0};

        const std::size_t stem = floats({3, 18, 1, 3, 3, 1, 1, 1, 1});
        const std::size_t square = quantised({18, 18, 1, 3, 3, 1, 1, 1, 1});
        const std::size_t depthwise = quantised({18, 18, 18, 3, 3, 2, 2, 1, 1});
        const std::size_t point = quantised({18, 40, 1, 1, 1, 1, 1, 1, 1});
        const std::size_t grouped = quantised({40, 40, 2, 3, 3, 1, 1, 1, 1});
        const std::size_t last = quantised({40, 10, 1, 1, 1, 1, 1, 1, 1});

        const Output x = place(input, one, false), stem_out = place(first, none, false);
        const Output codes = place(first, one, true), joined = place(first, none, false);
        const Output added = place(first, one, true), reduced = place(strided, none, true);
        const Output widened = place(wide, one, true), kept = place(wide, none, false);
        const Output grown = place(wide, none, false), pool = place(small, none, false);
        const Output mean = place(vector, none, true), result = place({kBatch, 1, 1, 10}, none, false);

        plan_ = std::make_unique<bitstrata::Plan>(program_, bytes_, input);
        plan_->add({"input", -1, "none", {}, 0.0f}, {}, nullptr, {x}, 0);
        convolve(stem, "relu", x, nullptr, {stem_out});
        pooling("max_pool", 1, stem_out, {codes, joined});  // at once, so that both run together
        convolve(square, "relu", codes, &joined, {added});
        convolve(depthwise, "relu6", added, nullptr, {reduced});
        convolve(point, "silu", reduced, nullptr, {widened, kept});
        convolve(grouped, "hard_swish", widened, &kept, {grown});
        pooling("average_pool", 2, grown, {pool});
        plan_->add({"adaptive_average_pool", -1, "none", {}, 0.0f}, {pool.buffer}, nullptr, {mean}, 0);
        convolve(last, "none", mean, nullptr, {result});
        plan_->add_result(result.buffer);
        plan_->add_result(pool.buffer);
    }

    std::vector<float> run(std::size_t threads) const {
        const Guarded input(kBatch * 3 * side_ * side_ * sizeof(float));
        Random random(7);
        for (std::size_t index = 0; index < input.size() / sizeof(float); ++index) {
            reinterpret_cast<float*>(input.data())[index] = static_cast<float>(random.between(-16, 16)) / 8.0f;
        }
        std::vector<float> all;
        std::vector<std::unique_ptr<Guarded>> results;
        std::vector<float*> places;
        for (const Buffer& buffer : plan_->results()) {
            results.push_back(std::make_unique<Guarded>(buffer.shape.batch * buffer.image * sizeof(float)));
            places.push_back(reinterpret_cast<float*>(results.back()->data()));
        }
        plan_->run(reinterpret_cast<const float*>(input.data()), places.data(), threads);
        for (const auto& one : results) {
            const auto* from = reinterpret_cast<const float*>(one->data());
            all.insert(all.end(), from, from + one->size() / sizeof(float));
        }
        return all;
    }

private:
    static constexpr std::size_t kBatch = 2;

    void convolve(std::size_t layer, const char* activation, const Output& from, const Output* residual,
                  std::vector<Output> to) {
        plan_->add({"convolution", static_cast<std::ptrdiff_t>(layer), activation, {}, 0.0f}, {from.buffer},
                   residual ? &residual->buffer : nullptr, std::move(to), 0);
    }
    // Windows of 3x3, padded by one; averages count the padding.
    void pooling(const char* kind, std::int64_t stride, const Output& from, std::vector<Output> to) {
        plan_->add({kind, -1, "none", {3, 3, stride, stride, 1, 1, 1, 1, 1, 1, 1}, 0.0f}, {from.buffer}, nullptr,
                   std::move(to), 0);
    }
    std::vector<float> table(std::size_t count, float size) {
        std::vector<float> values(count);
        for (float& one : values) one = random_.symmetric() * size;
        return values;
    }
    std::size_t floats(const Geometry& g) {
        std::vector<float> weights(g.outputs * g.group_inputs() * g.taps());
        for (float& one : weights) one = static_cast<float>(random_.between(-4, 4));
        const std::vector<float> scale = table(g.outputs, 0.2f), bias = table(g.outputs, 1.0f);
        return program_.add_float(g, weights.data(), scale.data(), bias.data());
    }
    std::size_t quantised(const Geometry& g) {
        std::vector<std::int8_t> codes(g.outputs * g.group_inputs() * g.taps());
        const int half = 1 << (bits_ - 1);
        for (auto& one : codes) one = static_cast<std::int8_t>(random_.between(-half, half - 1));
        const Coding coding{bits_, bits_ > 4 ? 8 : 4, 1};
        const std::vector<float> scale = table(g.outputs, 0.02f), bias = table(g.outputs, 1.0f);
        return program_.add_quantised(g, coding, codes.data(), scale.data(), bias.data());
    }
    // The next place in the arena, as an output: codes have zero point 1, as all layers do.
    Output place(const Image& shape, const Border& border, bool codes) {
        const std::size_t bytes = bitstrata::buffer_bytes(shape, border, codes);
        const Buffer buffer = bitstrata::make_buffer(bytes_, shape, border, codes, bytes_ + bytes);
        bytes_ += (bytes + 63) / 64 * 64;
        return {buffer, 3.0f, -1.0f, static_cast<float>((1 << bits_) - 2), 1};
    }

    std::size_t side_, bytes_ = 0;
    int bits_;
    Random random_;
    bitstrata::Program program_;
    std::unique_ptr<bitstrata::Plan> plan_;
};

}  // namespace

void check_networks(Report& report) {
    for (std::size_t side : {5, 8, 16, 31})
        for (int bits : {2, 3, 4, 8}) {
            const std::string name = "network" + std::to_string(side) + "x" + std::to_string(bits);
            std::vector<float> wanted;
            for (const char* set : {"portable", "neon", "dotprod", "avx2", "avx512"}) {
                setenv("BITSTRATA_KERNELS", set, 1);
                const Network network(side, bits);
                for (std::size_t threads : {1, 2}) {
                    const std::vector<float> found = network.run(threads);
                    if (wanted.empty()) wanted = found;
                    const std::size_t bytes = wanted.size() * sizeof(float);
                    if (std::memcmp(found.data(), wanted.data(), bytes) != 0) report.differs(set, name);
                    report.ran("networks");
                }
            }
            Digest digest;
            digest.add(wanted);
            report.result(name, digest);
        }
    unsetenv("BITSTRATA_KERNELS");
    bitstrata::stop_thread_pool();
}

}  // namespace grid

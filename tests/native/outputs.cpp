#include "outputs.h"

#include <algorithm>

namespace grid {
namespace {

using bitstrata::Buffer;
using bitstrata::kLanes;
using bitstrata::kSlack;

constexpr unsigned char kFilling = 0xA5;

struct Variant {
    const char* outputs;  // c: codes, f: floats; in capitals with a border
    Activation activation;
    bool residual;
    float size;  // of the scales
    float step;
    int bits, zero_point;
};

constexpr Variant kVariants[] = {
    {"c", Activation::none, false, 0.01f, 0.3f, 4, 5},
    {"C", Activation::relu, false, 0.02f, 0.21f, 3, 0},
    {"f", Activation::none, false, 1.0f, 1.0f, 2, 0},
    {"C", Activation::relu6, false, 0.1f, 0.5f, 8, 3},
    {"c", Activation::relu, true, 0.05f, 0.4f, 4, 0},
    {"Cfc", Activation::silu, false, 0.03f, 0.2f, 4, 7},
    {"F", Activation::relu, true, 0.5f, 1.0f, 2, 0},
    {"cC", Activation::hard_swish, true, 0.04f, 0.11f, 2, 1},
    {"C", Activation::none, true, 1e30f, 0.3f, 4, 8},
    {"fF", Activation::sigmoid, true, 0.02f, 1.0f, 2, 0},
    {"cf", Activation::hard_sigmoid, false, 0.02f, 0.07f, 4, 0},
    {"c", Activation::relu6, false, 3e3f, 0.5f, 2, 0},
    {"C", Activation::none, false, 1e30f, 0.25f, 7, 64},
};

std::size_t elements(const Image& image) { return image.batch * image.height * image.width * image.channels; }

// Floats that end at the forbidden page, with as much room behind them as the runtime promises.
std::unique_ptr<Guarded> floats(Random& random, std::size_t count, std::size_t beyond, float size) {
    auto memory = std::make_unique<Guarded>(count * sizeof(float) + beyond);
    std::memset(memory->data(), 0xff, memory->size());
    auto* values = reinterpret_cast<float*>(memory->data());
    for (std::size_t index = 0; index < count; ++index) values[index] = random.symmetric() * size;
    return memory;
}

}  // namespace

Outputs::Outputs(const Image& result, std::size_t variant, bool table) : result_(result) {
    const Variant& v = kVariants[variant % std::size(kVariants)];
    name_ = std::string("e") + std::to_string(variant % std::size(kVariants)) + v.outputs;
    activation_ = v.activation;
    Random random(variant + 77);
    for (const char* kind = v.outputs; *kind; ++kind) {
        const bool codes = *kind == 'c' || *kind == 'C', bordered = *kind == 'C' || *kind == 'F';
        const Border border = bordered ? Border{1, 2, 1, 3} : Border{0, 0, 0, 0};
        arena_bytes_ = (arena_bytes_ + 63) / 64 * 64;
        const std::size_t bytes = bitstrata::buffer_bytes(result, border, codes);
        const Buffer buffer = bitstrata::make_buffer(arena_bytes_, result, border, codes, arena_bytes_ + bytes);
        const int top = (1 << v.bits) - 1;
        outputs_.push_back({buffer, 1.0f / v.step, static_cast<float>(-v.zero_point),
                            static_cast<float>(top - v.zero_point), v.zero_point});
        arena_bytes_ += bytes;
    }
    arena_bytes_ = (arena_bytes_ + 3) / 4 * 4;  // so that floats lie at multiples of their size
    if (v.residual) residual_ = floats(random, elements(result), kSlack, 3.0f);
    if (table) {
        const std::size_t beyond = kLanes * sizeof(float) + kSlack;
        scale_ = floats(random, result.channels, beyond, v.size);
        bias_ = floats(random, result.channels, beyond, std::min(v.size * 10.0f, 1e3f));
    }
}

Buffer Outputs::hold(const Image& shape, std::vector<float> values) {
    arena_bytes_ = (arena_bytes_ + 63) / 64 * 64;
    const std::size_t bytes = bitstrata::buffer_bytes(shape, {}, false);
    const Buffer buffer = bitstrata::make_buffer(arena_bytes_, shape, {}, false, arena_bytes_ + bytes);
    sources_.emplace_back(buffer, std::move(values));
    arena_bytes_ += bytes;
    return buffer;
}

bitstrata::Epilogue Outputs::epilogue() {
    arena_ = std::make_unique<Guarded>(arena_bytes_);
    std::memset(arena_->data(), kFilling, arena_bytes_);
    for (const auto& [buffer, values] : sources_) {
        std::memcpy(arena_->data() + buffer.offset, values.data(), values.size() * sizeof(float));
    }
    bitstrata::Epilogue epilogue{};
    epilogue.arena = arena_->data();
    epilogue.outputs = outputs_.data();
    epilogue.output_count = outputs_.size();
    if (scale_) epilogue.scale = reinterpret_cast<const float*>(scale_->data());
    if (bias_) epilogue.bias = reinterpret_cast<const float*>(bias_->data());
    if (residual_) epilogue.residual = reinterpret_cast<const float*>(residual_->data());
    epilogue.activation = activation_;
    epilogue.channels = result_.channels;
    return epilogue;
}

std::vector<unsigned char> Outputs::wanted(const Output& output, const std::vector<float>& values) const {
    const Buffer& buffer = output.buffer;
    const std::size_t size = buffer.codes ? 1 : sizeof(float);
    std::vector<unsigned char> bytes(result_.batch * buffer.image * size,
                                     static_cast<unsigned char>(buffer.codes ? output.zero_point : 0));
    for (std::size_t index = 0; index < values.size(); ++index) {
        const std::size_t channel = index % result_.channels, pixel = index / result_.channels;
        const std::size_t x = pixel % result_.width, row = pixel / result_.width;
        const std::size_t place = buffer.origin + row / result_.height * buffer.image +
                                  row % result_.height * buffer.row + x * result_.channels + channel;
        if (buffer.codes) {
            bytes[place] = code_of(output, values[index]);
        } else {
            std::memcpy(bytes.data() + place * size, &values[index], size);
        }
    }
    return bytes;
}

bool Outputs::right_floats(const std::vector<float>& sums) {
    std::vector<float> values(sums.size());
    for (std::size_t index = 0; index < sums.size(); ++index) {
        const std::size_t channel = index % result_.channels;
        float y = sums[index];
        if (scale_) {
            y = y * reinterpret_cast<const float*>(scale_->data())[channel];
            y = y + reinterpret_cast<const float*>(bias_->data())[channel];
        }
        if (residual_) y = y + reinterpret_cast<const float*>(residual_->data())[index];
        values[index] = activated(activation_, y);
    }
    std::vector<unsigned char> all;
    for (const Output& output : outputs_) {
        const std::vector<unsigned char> one = wanted(output, values);
        all.insert(all.end(), one.begin(), one.end());
    }
    return all == bytes();
}

std::vector<unsigned char> Outputs::bytes() {
    bitstrata::Epilogue epilogue{};
    epilogue.arena = arena_->data();
    epilogue.outputs = outputs_.data();
    epilogue.output_count = outputs_.size();
    bitstrata::fill_borders(epilogue, result_, 0, result_.batch * result_.height * result_.width);
    std::vector<unsigned char> all;
    for (const Output& output : outputs_) {
        const unsigned char* from = arena_->data() + output.buffer.offset;
        const std::size_t size = output.buffer.codes ? 1 : sizeof(float);
        all.insert(all.end(), from, from + result_.batch * output.buffer.image * size);
    }
    return all;
}

bool Outputs::kept_inside() const {
    std::vector<bool> outside(arena_bytes_, true);
    for (const Output& output : outputs_) {
        const std::size_t bytes = result_.batch * output.buffer.image * (output.buffer.codes ? 1 : sizeof(float));
        std::fill_n(outside.begin() + static_cast<std::ptrdiff_t>(output.buffer.offset), bytes, false);
    }
    for (const auto& [buffer, values] : sources_) {
        const std::size_t bytes = values.size() * sizeof(float);
        if (std::memcmp(arena_->data() + buffer.offset, values.data(), bytes) != 0) return false;
        std::fill_n(outside.begin() + static_cast<std::ptrdiff_t>(buffer.offset), bytes, false);
    }
    for (std::size_t index = 0; index < arena_bytes_; ++index) {
        if (outside[index] && arena_->data()[index] != kFilling) return false;
    }
    return true;
}

}  // namespace grid

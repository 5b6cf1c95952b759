// Steps without weights: every instruction set must give the bits of the plain loops.
#include <algorithm>
#include <cstdlib>
#include <set>

#include "float_step.h"
#include "outputs.h"
#include "report.h"
#include "select.h"

namespace grid {
namespace {

using bitstrata::FloatKind;
using bitstrata::FloatStep;
using bitstrata::FloatStepLoops;
using bitstrata::kLanes;
using bitstrata::kStrip;
using bitstrata::PadMode;

struct Set {
    std::string name;
    FloatStepLoops loops;
};

// The plain loops first, then those of each other instruction set that this processor has.
std::vector<Set> sets() {
    std::vector<Set> found;
    std::set<FloatStepLoops> known;
    for (const char* name : {"portable", "neon", "avx2", "avx512"}) {
        setenv("BITSTRATA_KERNELS", name, 1);
        const FloatStepLoops loops = bitstrata::choose_float_steps();
        if (known.insert(loops).second) found.push_back({name, loops});
    }
    unsetenv("BITSTRATA_KERNELS");
    return found;
}

class Steps {
public:
    explicit Steps(Report& report) : report_(report), sets_(sets()) {}

    void check(const std::string& kind, FloatStep step, const std::vector<Image>& shapes) {
        Random random(++number_);
        const bool external = step.kind == FloatKind::input;
        Guarded input(external ? elements(step.result) * sizeof(float) : 0);  // the caller's memory: without slack
        for (std::size_t index = 0; index < input.size() / sizeof(float); ++index) {
            reinterpret_cast<float*>(input.data())[index] = value(random);
        }
        Outputs outputs(step.result, number_, number_ % 3 == 0);
        std::vector<bitstrata::Buffer> sources;
        for (const Image& shape : shapes) {
            std::vector<float> values(elements(shape));
            for (float& one : values) one = value(random);
            sources.push_back(outputs.hold(shape, std::move(values)));
        }
        step.sources = sources.data();
        step.source_count = sources.size();
        const std::string name = "step " + kind + std::to_string(number_) + outputs.name();
        const std::size_t pixels = step.result.batch * step.result.height * step.result.width;
        const std::size_t blocks = (step.result.channels + kLanes - 1) / kLanes;
        std::vector<unsigned char> wanted;
        for (const Set& set : sets_) {
            const bitstrata::Epilogue epilogue = outputs.epilogue();
            for (std::size_t pixel = 0; pixel < pixels; pixel += kStrip) {
                const bitstrata::Range strip{pixel, std::min(pixel + kStrip, pixels)};
                set.loops(step, reinterpret_cast<const float*>(input.data()), epilogue, strip, {0, blocks / 2});
                set.loops(step, reinterpret_cast<const float*>(input.data()), epilogue, strip, {blocks / 2, blocks});
            }
            const std::vector<unsigned char> found = outputs.bytes();
            if (wanted.empty()) wanted = found;
            if (found != wanted) report_.differs(set.name + " step", name);
            if (!outputs.kept_inside()) report_.differs(set.name + " step outside", name);
            report_.ran(set.name + ".steps");
        }
        Digest digest;
        digest.add(wanted);
        report_.result(name, digest);
    }

private:
    static std::size_t elements(const Image& image) {
        return image.batch * image.height * image.width * image.channels;
    }
    // Also zeros of either sign, halves, and numbers that are very large or small.
    static float value(Random& random) {
        constexpr float kSpecial[] = {0.0f, -0.0f, 0.5f, -1.5f, 2.5f, 1e30f, -1e30f, 1e-40f};
        return random.between(0, 9) == 0 ? kSpecial[random.between(0, 7)] : 4.0f * random.symmetric();
    }

    Report& report_;
    std::vector<Set> sets_;
    std::size_t number_ = 0;
};

FloatStep step_of(FloatKind kind, const Image& result) {
    FloatStep step{};
    step.kind = kind;
    step.result = result;
    return step;
}

void pools(Steps& steps, const Image& image) {
    for (FloatKind kind : {FloatKind::max_pool, FloatKind::average_pool}) {
        for (std::size_t kernel : {1, 2, 3}) {
            for (std::size_t stride : {1, 2}) {
                for (std::size_t padding = 0; padding <= kernel / 2; ++padding) {
                    const auto windows = [&](std::size_t size) { return (size + 2 * padding - kernel) / stride + 1; };
                    FloatStep step = step_of(kind, {image.batch, windows(image.height), windows(image.width),
                                                    image.channels});
                    step.window = {kernel, kernel,  stride,  stride,  1,
                                   1,      {padding, padding, padding, padding}, stride == 2};
                    steps.check("pool", step, {image});
                }
            }
        }
    }
    for (FloatKind kind : {FloatKind::adaptive_max_pool, FloatKind::adaptive_average_pool}) {
        steps.check("adaptive", step_of(kind, {image.batch, 1, 1, image.channels}), {image});
        steps.check("adaptive", step_of(kind, {image.batch, 2, 3, image.channels}), {image});
    }
}

}  // namespace

void check_steps(Report& report) {
    Steps steps(report);
    for (std::size_t channels : {1, 3, 4, 8, 15, 16, 17, 33, 64, 130}) {
        const Image image{2, 7, 9, channels}, vector{2, 1, 1, channels};
        for (int variant = 0; variant < 13; ++variant) {  // every epilogue
            steps.check("input", step_of(FloatKind::input, image), {});
            steps.check("copy", step_of(FloatKind::copy, image), {image});
            steps.check("add", step_of(FloatKind::add, image), {image, image});
        }
        steps.check("multiply", step_of(FloatKind::multiply, image), {image, image});
        steps.check("multiply", step_of(FloatKind::multiply, image), {vector, image});
        steps.check("multiply", step_of(FloatKind::multiply, image), {image, vector});
        steps.check("concatenate", step_of(FloatKind::concatenate, {2, 7, 9, channels + 21}),
                    {{2, 7, 9, 5}, image, {2, 7, 9, 16}});
        pools(steps, image);
        for (PadMode mode : {PadMode::constant, PadMode::reflect, PadMode::replicate, PadMode::circular}) {
            FloatStep step = step_of(FloatKind::pad, {2, 10, 14, channels + (mode == PadMode::constant ? 2 : 0)});
            step.mode = mode;
            step.before = mode == PadMode::constant ? 1 : 0;
            step.top = 1;
            step.left = 2;
            step.value = 1.25f;
            steps.check("pad", step, {image});
        }
        for (std::size_t axis : {1, 2, 3}) {
            Image result = image;
            (axis == 1 ? result.channels : axis == 2 ? result.height : result.width) =
                ((axis == 1 ? channels : axis == 2 ? 7 : 9) + 1) / 2;
            FloatStep step = step_of(FloatKind::slice, result);
            step.axis = axis;
            step.step = 2;
            steps.check("slice", step, {image});
        }
        steps.check("reshape", step_of(FloatKind::reshape, {2, 9, channels, 7}), {image});
        steps.check("reshape", step_of(FloatKind::reshape, {2, 1, 1, channels * 63}), {image});
    }
}

}  // namespace grid

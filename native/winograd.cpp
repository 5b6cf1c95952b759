#include "winograd.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "arena.h"
#include "packing.h"
#include "pair_bounds.h"
#include "winograd_weights_loops.h"

namespace bitstrata {
namespace {

constexpr std::size_t kMostLanes = 2 * kLanes;
constexpr std::int64_t kShortest = -32768, kLongest = 32767, kMaxSum = 0x7fffffff;

// V of the tiles of one run: what may lie in a near cache beside the weights.
constexpr std::size_t kMostCodes = 384 << 10;

std::size_t up_to(std::size_t count, std::size_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Per position: by how much V must be lifted, and the least and the most it then is. Centred, it fits signed bytes
// wherever it fits unsigned ones otherwise.
template <class T>
struct CodeRange {
    int lift[T::kPoints * T::kPoints], least[T::kPoints * T::kPoints], most[T::kPoints * T::kPoints];

    explicit CodeRange(int top, bool centred) {
        int below[T::kPoints] = {}, above[T::kPoints] = {};
        for (int point = 0; point < T::kPoints; ++point) {
            for (int factor : T::kCodes[point]) (factor < 0 ? below : above)[point] += std::abs(factor);
        }
        for (int p = 0; p < T::kPoints; ++p) {
            for (int q = 0; q < T::kPoints; ++q) {
                lift[p * T::kPoints + q] = top * (above[p] * below[q] + below[p] * above[q]);
                most[p * T::kPoints + q] = top * (above[p] + below[p]) * (above[q] + below[q]);
                const int centre = centred ? (most[p * T::kPoints + q] + 1) / 2 : 0;
                lift[p * T::kPoints + q] -= centre;
                least[p * T::kPoints + q] = -centre;
                most[p * T::kPoints + q] -= centre;
            }
        }
    }
};

// The largest factor that a weight can have in U, in its absolute value: the sum of a position's factors.
template <class T>
int largest_sum() {
    int largest = 0;
    for (const auto& row : T::kWeights) largest = std::max(largest, std::abs(row[0]) + std::abs(row[1]) + std::abs(row[2]));
    return largest * largest;
}

// The transformed weights of some outputs for four inputs at a time: u[position][input][output].
template <class T>
class WeightTransform {
public:
    using Step = std::int16_t[T::kPoints * T::kPoints][4][kMostLanes];

    WeightTransform(const Geometry& g, const std::int8_t* codes, std::size_t lanes)
        : geometry_(g), codes_(codes), lanes_(lanes) {}

    std::size_t groups() const { return (geometry_.outputs + lanes_ - 1) / lanes_; }
    std::size_t steps() const { return (geometry_.inputs + 3) / 4; }

    void operator()(std::size_t group, std::size_t step, Step& u) const {
        const std::size_t channel = group * lanes_, lanes = std::min(lanes_, geometry_.outputs - channel);
        for (std::size_t element = 0; element < 4; ++element) {
            const std::size_t input = step * 4 + element;
            std::int16_t weights[9][kMostLanes] = {};
            if (input < geometry_.inputs) {
                for (std::size_t lane = 0; lane < lanes; ++lane) {
                    const std::int8_t* from = codes_ + ((channel + lane) * geometry_.inputs + input) * 9;
                    for (int tap = 0; tap < 9; ++tap) weights[tap][lane] = from[tap];
                }
            }
            std::int16_t half[T::kPoints][3][kMostLanes];
            for (int point = 0; point < T::kPoints; ++point) {
                for (int x = 0; x < 3; ++x) {
                    combine(T::kWeights[point], weights[x], weights[3 + x], weights[6 + x], half[point][x]);
                }
            }
            for (int p = 0; p < T::kPoints; ++p) {
                for (int q = 0; q < T::kPoints; ++q) {
                    combine(T::kWeights[q], half[p][0], half[p][1], half[p][2], u[p * T::kPoints + q][element]);
                }
            }
        }
    }

private:
    static void combine(const int (&factors)[3], const std::int16_t* a, const std::int16_t* b, const std::int16_t* c,
                        std::int16_t* to) {
        const auto f = static_cast<std::int16_t>(factors[0]), g = static_cast<std::int16_t>(factors[1]),
                   h = static_cast<std::int16_t>(factors[2]);
        for (std::size_t lane = 0; lane < kMostLanes; ++lane) {
            to[lane] = static_cast<std::int16_t>(f * a[lane] + g * b[lane] + h * c[lane]);
        }
    }

    const Geometry& geometry_;
    const std::int8_t* codes_;
    std::size_t lanes_;
};

// The sums of the positive ones among some codes, and of the others without their sign.
struct SignedSums {
    std::int64_t above = 0, below = 0;

    SignedSums(const std::int8_t* codes, std::size_t count) {
#if defined(__SSE2__)
        const __m128i zero = _mm_setzero_si128();
        __m128i aboves = zero, belows = zero;
        for (; count >= 16; count -= 16, codes += 16) {
            const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
            const __m128i positive = _mm_and_si128(all, _mm_cmpgt_epi8(all, zero));
            aboves = _mm_add_epi64(aboves, _mm_sad_epu8(positive, zero));
            belows = _mm_add_epi64(belows, _mm_sad_epu8(_mm_sub_epi8(positive, all), zero));
        }
        above = _mm_cvtsi128_si64(aboves) + _mm_cvtsi128_si64(_mm_unpackhi_epi64(aboves, aboves));
        below = _mm_cvtsi128_si64(belows) + _mm_cvtsi128_si64(_mm_unpackhi_epi64(belows, belows));
#endif
        for (; count > 0; --count, ++codes) (*codes > 0 ? above : below) += std::abs(*codes);
    }
};

// Whether the sums of all outputs, times 2^shift, stay within the bounds whatever the input.
bool sums_within(const Geometry& g, const Coding& coding, const std::int8_t* codes, int shift, std::int64_t least,
                 std::int64_t most) {
    const std::size_t taps = g.inputs * 9;
    const std::int64_t factor = static_cast<std::int64_t>(coding.top()) << shift;
    const std::int64_t farthest = (static_cast<std::int64_t>(taps) << (coding.bits - 1)) * factor;
    if (-farthest >= least && farthest <= most) return true;  // whatever the weights
    for (std::size_t output = 0; output < g.outputs; ++output) {
        const SignedSums sums(codes + output * taps, taps);
        if (-sums.below * factor < least || sums.above * factor > most) return false;
    }
    return true;
}

// Whether U and V of a layer fit bytes, and its results 32 bits; with `pairs`, whether two products fit 16 bits. Where
// the width alone does not say so, the codes decide.
template <class T, bool Pairs, bool Centred = false>
bool certified(const Geometry& g, const Coding& coding, const std::int8_t* codes) {
    if (g.kernel_height != 3 || g.kernel_width != 3 || g.stride_height != 1 || g.stride_width != 1) return false;
    if (g.dilation_height != 1 || g.dilation_width != 1 || g.groups != 1 || g.inputs < kLanes) return false;
    if (g.inputs * static_cast<std::size_t>(coding.top()) > 0xffff) return false;  // of which window sums are made
    constexpr int kPositions = T::kPoints * T::kPoints;
    const CodeRange<T> range(coding.top(), Centred), plain(coding.top(), false);
    const int most = *std::max_element(plain.most, plain.most + kPositions);
    if (most > 255) return false;
    const int half = 1 << (coding.bits - 1), largest = largest_sum<T>() * half;
    const std::int64_t longest = static_cast<std::int64_t>(g.inputs) * 9 * half * coding.top() << T::kShift;
    if (longest > kMaxSum && !sums_within(g, coding, codes, T::kShift, -kMaxSum, kMaxSum)) return false;
    if (largest <= 127 && (!Pairs || 2 * largest * most <= kLongest)) return true;

    const WeightTransform<T> transform(g, codes, kMostLanes);
    typename WeightTransform<T>::Step u;
    for (std::size_t group = 0; group < transform.groups(); ++group) {
        for (std::size_t step = 0; step < transform.steps(); ++step) {
            transform(group, step, u);
            for (int position = 0; position < kPositions; ++position) {
                const auto& at = u[position];
                bool fits = true;
                for (std::size_t lane = 0; lane < kMostLanes; ++lane) {
                    for (int element = 0; element < 4; element += 2) {
                        const int one = at[element][lane], other = at[element + 1][lane];
                        fits &= one >= -128 && one <= 127 && other >= -128 && other <= 127;
                        const int above = std::max(one, 0) + std::max(other, 0);
                        const int below = std::min(one, 0) + std::min(other, 0);
                        const int lowest = range.least[position], highest = range.most[position];
                        fits &= !Pairs || (above * highest + below * lowest <= kLongest &&
                                           below * highest + above * lowest >= kShortest);
                    }
                }
                if (!fits) return false;
            }
        }
    }
    return true;
}

struct PackedWinograd {
    Aligned<std::int8_t> weights;
    Aligned<std::int32_t> starts, offsets;
    Aligned<std::uint32_t> lifts;
    std::vector<std::uint32_t> cuts, runs;
};

// Finds the longest runs of steps whose 16-bit sums provably fit, for one position of a group.
class RunCutter {
public:
    RunCutter(int least, int most, std::size_t lanes) : least_(least), most_(most), lanes_(lanes) {}

    // A step: by output, four elements.
    void add(const std::int8_t* u) {
        if (!fits_with(u)) {
            runs_.push_back(length_);
            length_ = 0;
            std::fill_n(above_, 2 * kMostLanes, 0);
            std::fill_n(below_, 2 * kMostLanes, 0);
            fits_with(u);
        }
        ++length_;
    }
    void end(std::vector<std::uint32_t>& runs) {
        runs_.push_back(length_);
        runs.insert(runs.end(), runs_.begin(), runs_.end());
    }

private:
    // Sums stay below 2^15 between two cuts, and one step adds less than 2^9: with `most` they stay far below 2^31.
    bool fits_with(const std::int8_t* u) {
        bool fits = true;
        for (std::size_t pair = 0; pair < lanes_ * 2; ++pair) {
            const int one = u[pair * 2], other = u[pair * 2 + 1];
            above_[pair] += std::max(one, 0) + std::max(other, 0);
            below_[pair] += std::min(one, 0) + std::min(other, 0);
            const int above = above_[pair], below = below_[pair];
            fits &= above * most_ + below * least_ <= kLongest && below * most_ + above * least_ >= kShortest;
        }
        return fits;
    }

    int least_, most_;  // that V can be
    std::size_t lanes_;
    std::uint32_t length_ = 0;
    std::vector<std::uint32_t> runs_;
    int above_[2 * kMostLanes] = {}, below_[2 * kMostLanes] = {};
};

template <class T>
class WinogradLayer final : public Layer {
public:
    using Loops = void (*)(const WinogradView&, const Call&, Range, Range) noexcept;
    using Weights = void (*)(const WeightGroup&) noexcept;

    WinogradLayer(const Geometry& g, const Coding& coding, const std::int8_t* codes, bool cuts, bool centred,
                  Loops loops, Weights weights)
        : Layer(g), loops_(loops), transform_(weights) {
        view_.inputs = g.inputs;
        view_.outputs = g.outputs;
        view_.lanes = g.outputs > kLanes ? kMostLanes : kLanes;
        view_.steps = (g.inputs + 3) / 4;
        view_.compensation = (1 << coding.dropped()) - 1;
        view_.narrow = view_.lanes == kMostLanes && sums_within(g, coding, codes, T::kShift, kShortest, kLongest);
        const int shift = T::kShift - (coding.dropped() + 1);
        view_.right = std::max(shift, 0);
        view_.left = std::max(-shift, 0);
        view_.plain = coding.zero_point == 0 && view_.compensation == 0 && view_.left == 0;
        pack(codes, coding, CodeRange<T>(coding.top(), centred), cuts && !view_.narrow);
        lay_out_scratch();
    }

    std::size_t blocks() const override { return (geometry.outputs + view_.lanes - 1) / view_.lanes; }

    Cut cut(const Image& result) const override {
        const std::size_t down = (result.height + T::kOutput - 1) / T::kOutput;
        const std::size_t across = (result.width + T::kOutput - 1) / T::kOutput;
        const std::size_t tiles = result.batch * down * across, strips = (tiles + most_tiles_ - 1) / most_tiles_;
        return {tiles, (tiles + strips - 1) / strips};
    }

    std::size_t scratch() const override { return scratch_; }

    void run(const Call& call, Range tiles, Range groups) const noexcept override {
        loops_(view_, call, tiles, groups);
    }

private:
    static constexpr int kPositions = T::kPoints * T::kPoints;

    // `cuts`: the kernel sums up in 16 bits, and must widen them in time.
    void pack(const std::int8_t* codes, const Coding& coding, const CodeRange<T>& range, bool cuts) {
        const std::size_t lanes = view_.lanes, places = blocks() * kPositions;
        packed_.weights = Aligned<std::int8_t>(places * view_.steps * lanes * 4, false);  // every byte of it is written
        packed_.starts = Aligned<std::int32_t>(places * lanes);
        packed_.offsets = Aligned<std::int32_t>(blocks() * lanes);
        packed_.lifts = Aligned<std::uint32_t>(kPositions);
        for (std::size_t group = 0; group < blocks(); ++group) {
            pack_group(range, codes, group);
            for (int position = 0; cuts && position < kPositions; ++position) {
                packed_.cuts.push_back(static_cast<std::uint32_t>(packed_.runs.size()));
                const std::size_t place = group * kPositions + position;
                const std::int8_t* u = packed_.weights.data() + place * view_.steps * lanes * 4;
                if (range.least[position] == 0) {
                    lanes == kLanes ? cut<kLanes>(u, range.most[position]) : cut<kMostLanes>(u, range.most[position]);
                    continue;
                }
                RunCutter cutter(range.least[position], range.most[position], lanes);
                for (std::size_t step = 0; step < view_.steps; ++step) cutter.add(u + step * lanes * 4);
                cutter.end(packed_.runs);
            }
        }
        packed_.cuts.push_back(static_cast<std::uint32_t>(packed_.runs.size()));
        const Codes all{geometry, coding, codes};
        for (std::size_t output = 0; output < geometry.outputs; ++output) packed_.offsets[output] = all.offset(output);
        for (int position = 0; position < kPositions; ++position) {
            packed_.lifts[position] = 0x01010101u * static_cast<std::uint8_t>(range.lift[position]);
        }
        view_.weights = packed_.weights.data();
        view_.starts = packed_.starts.data();
        view_.offsets = packed_.offsets.data();
        view_.lifts = packed_.lifts.data();
        view_.cuts = packed_.cuts.data();
        view_.runs = packed_.runs.data();
    }

    // What RunCutter does, where V is nowhere negative.
    template <std::size_t Lanes>
    void cut(const std::int8_t* u, int most) {
        PairBounds<2 * Lanes> bounds(most);
        std::uint32_t length = 0;
        for (std::size_t step = 0; step < view_.steps; ++step, u += Lanes * 4, ++length) {
            if (bounds.add(u)) continue;
            packed_.runs.push_back(length);
            length = 0;
            bounds.clear();
            bounds.add(u);
        }
        packed_.runs.push_back(length);
    }

    void pack_group(const CodeRange<T>& range, const std::int8_t* codes, std::size_t group) {
        const std::size_t lanes = view_.lanes, apart = view_.steps * lanes * 4, channel = group * lanes;
        std::int32_t* start = packed_.starts.data() + group * kPositions * lanes;
        transform_({codes + channel * geometry.inputs * 9, geometry.inputs, std::min(lanes, geometry.outputs - channel),
                    lanes, packed_.weights.data() + group * kPositions * apart, apart, start});
        for (int position = 0; position < kPositions; ++position) {
            for (std::size_t lane = 0; lane < lanes; ++lane) *start++ *= -range.lift[position];
        }
    }

    // Positions lie a cache line further apart than they need: at powers of two they would fight for the same sets.
    void lay_out_scratch() {
        view_.code_row = up_to(geometry.inputs, 64);
        const std::size_t fitting = kMostCodes / (kPositions * view_.code_row) / T::kInHand * T::kInHand;
        most_tiles_ = std::clamp(fitting, T::kInHand, kMostTiles);
        view_.code_position = (most_tiles_ + T::kInHand) * view_.code_row + 64;
        view_.products = kPositions * view_.code_position + 64;
        view_.product_position = T::kInHand * view_.lanes * 4 + 64;
        view_.window_sums = view_.products + kPositions * view_.product_position;
        view_.results = view_.window_sums + up_to(most_tiles_ * T::kOutput * T::kOutput * sizeof(std::int32_t), 64);
        scratch_ = view_.results + T::kInHand * T::kOutput * T::kOutput * view_.lanes * sizeof(std::int32_t);
    }

    Loops loops_;
    Weights transform_;
    PackedWinograd packed_;
    WinogradView view_{};
    std::size_t most_tiles_ = 0, scratch_ = 0;
};

template <class T>
void plain_weights(const WeightGroup& group) noexcept {
    transform_weights<T>(group);
}

template <class T, bool Pairs, typename WinogradLayer<T>::Loops Loops, bool Centred = false,
          typename WinogradLayer<T>::Weights Weights = plain_weights<T>>
std::unique_ptr<Layer> prepare(const Geometry& g, const Coding& coding, const std::int8_t* codes) {
    return std::make_unique<WinogradLayer<T>>(g, coding, codes, Pairs, Centred, Loops, Weights);
}

// Larger tiles save products but have more transformed weights, which must come from a near cache to pay. Kernels are
// listed in the order in which they are tried, and each is for layers whose transformed weights have at most so many
// bytes: measured on the layers of ResNet-18 and ResNet-20, one after the other as in a network. Three-by-three tiles
// need the least work per result, and exist for two and three bits.
//
// With few channels the transforms take longer than the products that they save, and direct kernels win: `Least` inputs.
template <class T, std::size_t Least, std::size_t Bytes>
bool worthwhile(const Geometry& g, const Coding&) {
    return g.inputs >= Least && T::kPoints * T::kPoints * g.inputs * g.outputs <= Bytes;
}

constexpr std::size_t kKilobyte = 1024, kAny = static_cast<std::size_t>(-1);

}  // namespace

#if defined(BITSTRATA_AVX2)
std::vector<QuantisedKernel> avx2_winograd_kernels() {
    return {
        {"avx2.winograd3", "avx2", certified<Tile3, true>, prepare<Tile3, true, avx2::winograd3, false, avx2::winograd_weights3>,
         worthwhile<Tile3, 17, 2048 * kKilobyte>},
        {"avx2.winograd4", "avx2", certified<Tile4, true>, prepare<Tile4, true, avx2::winograd4, false, avx2::winograd_weights4>,
         worthwhile<Tile4, 17, 1024 * kKilobyte>},
        {"avx2.winograd2", "avx2", certified<Tile2, true>, prepare<Tile2, true, avx2::winograd2, false, avx2::winograd_weights2>,
         worthwhile<Tile2, 17, kAny>},
    };
}
#endif

#if defined(BITSTRATA_AVX512)
// Products are cheap here beside what else there is to do, so smaller tiles win sooner.
std::vector<QuantisedKernel> avx512_winograd_kernels() {
    return {
        {"avx512.winograd3", "avx512", certified<Tile3, false>, prepare<Tile3, false, avx512::winograd3, false, avx512::winograd_weights3>,
         worthwhile<Tile3, 41, 512 * kKilobyte>},
        {"avx512.winograd4", "avx512", certified<Tile4, false>, prepare<Tile4, false, avx512::winograd4, false, avx512::winograd_weights4>,
         worthwhile<Tile4, 41, 256 * kKilobyte>},
        {"avx512.winograd2", "avx512", certified<Tile2, false>, prepare<Tile2, false, avx512::winograd2, false, avx512::winograd_weights2>,
         worthwhile<Tile2, 41, kAny>},
    };
}
#endif

#if defined(BITSTRATA_NEON)
// Limits as with AVX2: not measured here.
std::vector<QuantisedKernel> neon_winograd_kernels() {
    return {
        {"neon.winograd3", "neon", certified<Tile3, true, true>, prepare<Tile3, true, neon::winograd3, true>,
         worthwhile<Tile3, 17, 2048 * kKilobyte>},
        {"neon.winograd4", "neon", certified<Tile4, true, true>, prepare<Tile4, true, neon::winograd4, true>,
         worthwhile<Tile4, 17, 1024 * kKilobyte>},
        {"neon.winograd2", "neon", certified<Tile2, true, true>, prepare<Tile2, true, neon::winograd2, true>,
         worthwhile<Tile2, 17, kAny>},
    };
}

std::vector<QuantisedKernel> dotprod_winograd_kernels() {
    return {
        {"dotprod.winograd3", "dotprod", certified<Tile3, false, true>, prepare<Tile3, false, dotprod::winograd3, true>,
         worthwhile<Tile3, 17, 2048 * kKilobyte>},
        {"dotprod.winograd4", "dotprod", certified<Tile4, false, true>, prepare<Tile4, false, dotprod::winograd4, true>,
         worthwhile<Tile4, 17, 1024 * kKilobyte>},
        {"dotprod.winograd2", "dotprod", certified<Tile2, false, true>, prepare<Tile2, false, dotprod::winograd2, true>,
         worthwhile<Tile2, 17, kAny>},
    };
}
#endif

}  // namespace bitstrata

// What the parts of the test program share: numbers from a seed, digests of results, and what is printed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace grid {

// The same numbers on every machine.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
    std::uint32_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return static_cast<std::uint32_t>(state_ >> 32);
    }
    int between(int low, int high) {
        return low + static_cast<int>(next() % static_cast<std::uint32_t>(high - low + 1));
    }
    // From -1 to 1, in steps that floats can tell apart.
    float symmetric() { return static_cast<float>(between(-(1 << 20), 1 << 20)) / static_cast<float>(1 << 20); }

private:
    std::uint64_t state_;
};

// How numbers between two bounds are picked.
enum class Fill { any, lowest, highest, extremes };

inline int pick(Random& random, Fill fill, int low, int high) {
    switch (fill) {
        case Fill::lowest:
            return low;
        case Fill::highest:
            return high;
        case Fill::extremes:
            return random.next() % 2 ? low : high;
        case Fill::any:
            break;
    }
    return random.between(low, high);
}

class Digest {
public:
    void add(const void* data, std::size_t bytes) {
        const auto* from = static_cast<const unsigned char*>(data);
        for (std::size_t index = 0; index < bytes; ++index) hash_ = (hash_ ^ from[index]) * 0x100000001B3u;
    }
    template <typename T>
    void add(const std::vector<T>& values) {
        add(values.data(), values.size() * sizeof(T));
    }
    std::uint64_t value() const { return hash_; }

private:
    std::uint64_t hash_ = 0xCBF29CE484222325u;
};

// Lines for whoever runs the program: `case NAME DIGEST` is the same on every machine, `ran NAME COUNT` says how often
// a kernel or an instruction set's steps were run, and every `differs` line is a defect.
class Report {
public:
    void result(const std::string& name, const Digest& digest) {
        std::printf("case %s %016llx\n", name.c_str(), static_cast<unsigned long long>(digest.value()));
    }
    void ran(const std::string& what) { ++ran_[what]; }
    void differs(const std::string& what, const std::string& name) {
        std::printf("differs %s %s\n", what.c_str(), name.c_str());
        ++differences_;
    }
    // The program's exit status.
    int end() const {
        for (const auto& [what, count] : ran_) std::printf("ran %s %zu\n", what.c_str(), count);
        std::printf("end %zu differences\n", differences_);
        return differences_ == 0 ? 0 : 1;
    }

private:
    std::map<std::string, std::size_t> ran_;
    std::size_t differences_ = 0;
};

void check_layers(Report& report);
void check_steps(Report& report);
void check_networks(Report& report);

}  // namespace grid

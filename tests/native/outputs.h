// The epilogues that layers and steps are run with: outputs of several kinds in guarded memory.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "guarded.h"
#include "model.h"
#include "report.h"

namespace grid {

// Where results go, and what they must be.
class Outputs {
public:
    // Number `variant` of a few kinds of epilogue: one or several outputs, codes or floats, with or without borders,
    // residual and table, each activation.
    Outputs(const Image& result, std::size_t variant, bool table);

    // Puts a step's source into the memory, after all that is there: the last one ends at the forbidden page, but for
    // its slack.
    bitstrata::Buffer hold(const Image& shape, std::vector<float> values);

    // Fresh memory; everything that is not written keeps its filling.
    bitstrata::Epilogue epilogue();

    // Writes the borders, and compares all with what the sums give.
    template <typename T>
    bool right(const std::vector<T>& sums) {
        std::vector<float> values(sums.size());
        for (std::size_t index = 0; index < sums.size(); ++index) values[index] = static_cast<float>(sums[index]);
        return right_floats(values);
    }
    // All bytes of all outputs, borders included.
    std::vector<unsigned char> bytes();
    // Whether nothing was written beyond the outputs.
    bool kept_inside() const;

    std::string name() const { return name_; }

private:
    bool right_floats(const std::vector<float>& sums);
    std::vector<unsigned char> wanted(const Output& output, const std::vector<float>& values) const;

    Image result_;
    std::string name_;
    bitstrata::Activation activation_;
    std::vector<Output> outputs_;
    std::vector<std::pair<bitstrata::Buffer, std::vector<float>>> sources_;
    std::size_t arena_bytes_ = 0;
    std::unique_ptr<Guarded> arena_, residual_, scale_, bias_;
};

}  // namespace grid

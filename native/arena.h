// Aligned memory, and the arenas that calls borrow while they run.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "buffer.h"

namespace bitstrata {

// Asks the system for all pages of large memory at once, which is quicker than one by one as they are touched.
void expect_use(void* memory, std::size_t bytes) noexcept;

struct AlignedDelete {
    void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{kAlignment}); }
};

// Memory for plain numbers, aligned to a cache line; its end has slack for vector loads.
template <typename T>
class Aligned {
public:
    Aligned() = default;
    explicit Aligned(std::size_t count, bool zeroed = true) : count_(count) {
        if (count > (std::numeric_limits<std::size_t>::max() - kSlack) / sizeof(T)) throw std::bad_alloc();
        const std::size_t bytes = count * sizeof(T) + kSlack;
        memory_.reset(static_cast<T*>(::operator new(bytes, std::align_val_t{kAlignment})));
        expect_use(memory_.get(), bytes);
        if (zeroed) std::memset(static_cast<void*>(memory_.get()), 0, bytes);
    }
    T* data() { return memory_.get(); }
    const T* data() const { return memory_.get(); }
    std::size_t size() const { return count_; }
    T& operator[](std::size_t index) { return memory_.get()[index]; }
    const T& operator[](std::size_t index) const { return memory_.get()[index]; }

private:
    std::unique_ptr<T, AlignedDelete> memory_;
    std::size_t count_ = 0;
};

// The arenas that no call is using. Every call borrows one, so concurrent calls never share memory, and there are never
// more than there were calls at once.
class Arenas {
public:
    using Arena = std::unique_ptr<Aligned<unsigned char>>;

    // One of at least that many bytes; allocates only when none is free or the free one is too small.
    Arena borrow(std::size_t bytes);
    void give_back(Arena arena);

private:
    std::vector<Arena> free_;
};

}  // namespace bitstrata

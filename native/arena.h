// Aligned memory, and the arenas that calls borrow while they run.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "buffer.h"
#include "memory.h"

namespace bitstrata {

struct AlignedDelete {
    std::size_t bytes = 0;
    void operator()(void* memory) const noexcept { give_back_memory(memory, bytes); }
};

// Memory for plain numbers, aligned to a cache line; its end has slack for vector loads.
template <typename T>
class Aligned {
public:
    Aligned() = default;
    explicit Aligned(std::size_t count, bool zeroed = true, bool lean = false) : count_(count) {
        if (count > (std::numeric_limits<std::size_t>::max() - kSlack) / sizeof(T)) throw std::bad_alloc();
        const std::size_t bytes = count * sizeof(T) + kSlack;
        memory_ = {static_cast<T*>(take_memory(bytes, lean)), AlignedDelete{bytes}};
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

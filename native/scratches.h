// Scratch memory that pieces of a run take for themselves while they run.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

namespace bitstrata {

// Scratch memory for the pieces that run at the same time, of which there are never more than threads.
class Scratches {
public:
    Scratches(unsigned char* memory, std::size_t bytes, std::size_t count) : memory_(memory), bytes_(bytes), busy_(count) {}

    // One of them, until the end of a piece.
    class Taken {
    public:
        explicit Taken(Scratches& from) : from_(from) {
            while (from.busy_[place_].exchange(true, std::memory_order_acquire)) place_ = (place_ + 1) % from.busy_.size();
            memory = from.memory_ + place_ * from.bytes_;
        }
        ~Taken() { from_.busy_[place_].store(false, std::memory_order_release); }
        Taken(const Taken&) = delete;
        Taken& operator=(const Taken&) = delete;

        unsigned char* memory;

    private:
        Scratches& from_;
        std::size_t place_ = 0;
    };

private:
    unsigned char* memory_;
    std::size_t bytes_;
    std::vector<std::atomic<bool>> busy_;
};

}  // namespace bitstrata

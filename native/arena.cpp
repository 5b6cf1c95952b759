#include "arena.h"

#include <mutex>
#include <utility>

namespace bitstrata {

Arenas::Arena Arenas::borrow(std::size_t bytes) {
    Arena arena;
    {
        std::lock_guard<std::mutex> lock(memory_mutex());
        if (!free_.empty()) {
            arena = std::move(free_.back());
            free_.pop_back();
        }
    }
    if (!arena || arena->size() < bytes) {
        arena.reset();  // before the new one, so that both are never there at once
        arena = std::make_unique<Aligned<unsigned char>>(bytes, false, true);
    }
    return arena;
}

void Arenas::give_back(Arena arena) {
    std::lock_guard<std::mutex> lock(memory_mutex());
    free_.push_back(std::move(arena));
}

}  // namespace bitstrata

#include "arena.h"

#include <cstdint>
#include <mutex>
#include <utility>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace bitstrata {
namespace {

// One mutex for all lists, held for a few instructions, and never across a fork: a child would find it locked for ever.
std::mutex& lists() {
    static std::mutex mutex;
    static const bool registered = [] {
#if !defined(_WIN32)
        pthread_atfork([] { lists().lock(); }, [] { lists().unlock(); }, [] { lists().unlock(); });
#endif
        return true;
    }();
    (void)registered;
    return mutex;
}

}  // namespace

void expect_use([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_POPULATE_WRITE)
    constexpr std::uintptr_t kPage = 4096, kEnough = 64 * kPage;
    if (bytes < kEnough) return;
    const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + kPage - 1) / kPage * kPage;
    const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / kPage * kPage;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);  // an older system refuses, no harm done
#endif
}

Arenas::Arena Arenas::borrow(std::size_t bytes) {
    Arena arena;
    {
        std::lock_guard<std::mutex> lock(lists());
        if (!free_.empty()) {
            arena = std::move(free_.back());
            free_.pop_back();
        }
    }
    if (!arena || arena->size() < bytes) {
        arena.reset();  // before the new one, so that both are never there at once
        arena = std::make_unique<Aligned<unsigned char>>(bytes, false);
    }
    return arena;
}

void Arenas::give_back(Arena arena) {
    std::lock_guard<std::mutex> lock(lists());
    free_.push_back(std::move(arena));
}

}  // namespace bitstrata

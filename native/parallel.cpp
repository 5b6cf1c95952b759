#include "parallel.h"

#include <algorithm>
#include <atomic>

#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>

#include <cstring>
#elif defined(__APPLE__)
#include <dlfcn.h>
#endif

namespace bitstrata {
namespace {

// The entry point of GNU's OpenMP runtime, which LLVM's and Intel's also offer.
using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

#if defined(__linux__)
GompParallel find_in_loaded_libraries() {
    void* found = nullptr;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* result) -> int {
            const char* name = std::strrchr(info->dlpi_name, '/');
            name = name ? name + 1 : info->dlpi_name;
            const bool is_openmp = !std::strncmp(name, "libgomp", 7) || !std::strncmp(name, "libomp", 6) ||
                                   !std::strncmp(name, "libiomp5", 8);
            if (!is_openmp) return 0;
            void* handle = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
            if (!handle) return 0;
            *static_cast<void**>(result) = dlsym(handle, "GOMP_parallel");
            return *static_cast<void**>(result) != nullptr;
        },
        &found);
    return reinterpret_cast<GompParallel>(found);
}
#elif defined(__APPLE__)
GompParallel find_in_loaded_libraries() {
    return reinterpret_cast<GompParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}
#else
GompParallel find_in_loaded_libraries() { return nullptr; }
#endif

// Looked up again until found: the extension may be imported before torch brings its runtime.
GompParallel pool() {
    static std::atomic<GompParallel> found{nullptr};
    GompParallel entry = found.load(std::memory_order_acquire);
    if (!entry) {
        entry = find_in_loaded_libraries();
        found.store(entry, std::memory_order_release);
    }
    return entry;
}

struct Work {
    const std::function<void(std::size_t)>* body;
    std::size_t chunks;
    std::atomic<std::size_t> next{0};
};

void take_chunks(void* data) {
    auto& work = *static_cast<Work*>(data);
    for (std::size_t chunk = work.next++; chunk < work.chunks; chunk = work.next++) (*work.body)(chunk);
}

}  // namespace

bool has_thread_pool() { return pool() != nullptr; }

void parallel_chunks(std::size_t chunks, int threads, const std::function<void(std::size_t)>& body) {
    const auto team = static_cast<unsigned>(std::min<std::size_t>(chunks, static_cast<std::size_t>(std::max(threads, 1))));
    Work work{&body, chunks, {}};
    GompParallel run = team > 1 ? pool() : nullptr;
    if (run) {
        run(take_chunks, &work, team, 0);
    } else {
        take_chunks(&work);
    }
}

}  // namespace bitstrata

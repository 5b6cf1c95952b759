// The runtime's own threads: a device has no torch whose pool could be borrowed.
#pragma once

#include <cstddef>

namespace bitstrata {

// Calls body(context, item) for every item in [0, items), on at most `threads` threads, the calling one among them.
// When the pool is busy with another call, the calling thread does everything alone. `body` must not throw.
void parallel_for(std::size_t items, std::size_t threads, void (*body)(void* context, std::size_t item), void* context);

template <typename Body>
void parallel_for(std::size_t items, std::size_t threads, const Body& body) {
    parallel_for(
        items, threads, [](void* context, std::size_t item) { (*static_cast<const Body*>(context))(item); },
        const_cast<Body*>(&body));
}

// Ends and joins the threads; work that comes later runs on its calling thread.
void stop_thread_pool();

// How many workers are running, the calling threads not counted.
std::size_t worker_count();

}  // namespace bitstrata

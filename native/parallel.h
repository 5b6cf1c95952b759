// Splits work over threads, on the OpenMP pool that the process already has when there is one.
//
// Training runs inside a process where torch keeps an OpenMP pool whose idle threads spin for some milliseconds.
// A second pool would fight them for the cores, so this one is borrowed: the runtime is looked up among the
// libraries already loaded, and nothing is linked. Without one the work runs on the calling thread.
#pragma once

#include <cstddef>
#include <functional>

namespace bitstrata {

// Calls body(chunk) for every chunk in [0, chunks), on at most `threads`
// threads. What a chunk computes never depends on their number.
void parallel_chunks(std::size_t chunks, int threads, const std::function<void(std::size_t)>& body);

// True when a pool was found; `doctor` reports it.
bool has_thread_pool();

}  // namespace bitstrata

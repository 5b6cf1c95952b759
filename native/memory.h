// Where memory for weights and arenas comes from: large pieces share huge pages, of which the system makes few quickly.
#pragma once

#include <cstddef>
#include <mutex>

namespace bitstrata {

// Aligned to a cache line, not zeroed; throws std::bad_alloc. A lean piece takes no huge page that it does not fill.
void* take_memory(std::size_t bytes, bool lean);

// `bytes` as they were asked for. The system gets the memory back.
void give_back_memory(void* memory, std::size_t bytes) noexcept;

// One mutex for all lists of memory, held for a few instructions, and never across a fork: a child would find it locked
// for ever.
std::mutex& memory_mutex();

}  // namespace bitstrata

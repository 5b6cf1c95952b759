#include "unlocked.h"

#include <atomic>
#include <chrono>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace bitstrata {
namespace {

using namespace std::chrono_literals;

std::atomic<bool> ending{false};
std::atomic<std::thread::id> ending_thread{};
std::atomic<int> returning{0};  // threads that are about to get the lock back

#if !defined(_WIN32)
// In the child of a fork there are none of them.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { returning = 0; });
#endif

}  // namespace

Unlocked::Unlocked() : state_(PyEval_SaveThread()) {}

Unlocked::~Unlocked() {
    ++returning;
    if (ending && ending_thread.load() != std::this_thread::get_id()) {
        --returning;
        for (;;) std::this_thread::sleep_for(1h);
    }
    PyEval_RestoreThread(state_);
    --returning;
}

void park_other_threads() {
    ending_thread = std::this_thread::get_id();
    ending = true;
    // Those that were already on their way back get the lock while this thread does not hold it.
    for (int waited = 0; returning != 0 && waited < 1000; ++waited) std::this_thread::sleep_for(1ms);
}

}  // namespace bitstrata

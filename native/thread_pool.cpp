#include "thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace bitstrata {
namespace {

// More workers than this are never started, whatever is asked for.
constexpr std::size_t kMostWorkers = 255;

// How often a worker looks for new work before it sleeps: some tens of microseconds, the gap between two steps.
constexpr int kSpins = 2000;

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

class ThreadPool {
public:
    // False when the pool is busy or stopped, and nothing was done.
    bool run(std::size_t items, std::size_t threads, void (*body)(void*, std::size_t), void* context) {
        std::unique_lock<std::mutex> busy(busy_, std::try_to_lock);
        if (!busy.owns_lock()) return false;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (stopping_) return false;
            start_workers(std::min(threads - 1, kMostWorkers));
            body_ = body;
            context_ = context;
            items_ = items;
            next_.store(0, std::memory_order_relaxed);
            places_ = threads - 1;
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        take_items(body, context, items);
        {
            // Workers that slept through the job are not waited for: there is no place left for them to enter.
            std::lock_guard<std::mutex> lock(mutex_);
            places_ = 0;
        }
        for (int spins = 0; inside_.load(std::memory_order_acquire) != 0; ++spins) {
            if (spins < kSpins) relax(); else std::this_thread::yield();
        }
        return true;
    }

    void stop() {
        std::lock_guard<std::mutex> busy(busy_);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
        workers_.clear();
    }

    std::size_t workers() {
        std::lock_guard<std::mutex> lock(mutex_);
        return workers_.size();
    }

private:
    void start_workers(std::size_t count) {
        const std::uint64_t seen = generation_.load(std::memory_order_relaxed);
        try {
            while (workers_.size() < count) workers_.emplace_back([this, seen] { work(seen); });
        } catch (const std::system_error&) {
            // The system gives no more threads; those that are there do the work.
        }
    }

    void work(std::uint64_t seen) {
        for (;;) {
            for (int spins = 0; spins < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spins) relax();
            void (*body)(void*, std::size_t);
            void* context;
            std::size_t items;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
                seen = generation_.load(std::memory_order_relaxed);
                if (stopping_) return;
                if (places_ == 0) continue;
                --places_;
                inside_.fetch_add(1, std::memory_order_relaxed);
                body = body_;
                context = context_;
                items = items_;
            }
            take_items(body, context, items);
            inside_.fetch_sub(1, std::memory_order_release);
        }
    }

    void take_items(void (*body)(void*, std::size_t), void* context, std::size_t items) {
        for (;;) {
            const std::size_t item = next_.fetch_add(1, std::memory_order_relaxed);
            if (item >= items) return;
            body(context, item);
        }
    }

    std::mutex busy_;   // held by the call whose work this is
    std::mutex mutex_;  // guards what follows, up to the workers
    std::condition_variable wake_;
    void (*body_)(void*, std::size_t) = nullptr;
    void* context_ = nullptr;
    std::size_t items_ = 0;
    std::size_t places_ = 0;  // how many more workers may join the job
    bool stopping_ = false;
    std::vector<std::thread> workers_;
    std::atomic<std::uint64_t> generation_{0};
    std::atomic<std::size_t> next_{0};
    std::atomic<std::size_t> inside_{0};
};

// Never deleted: a thread may still be in a call when the process ends. After a fork the child has none of the workers
// and perhaps a locked mutex, so it forgets this pool and makes its own.
std::atomic<ThreadPool*> current{nullptr};

ThreadPool& pool() {
    static const bool registered = [] {
#if !defined(_WIN32)
        pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); });
#endif
        return true;
    }();
    (void)registered;
    ThreadPool* found = current.load(std::memory_order_acquire);
    if (!found) {
        auto* made = new ThreadPool;
        if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
        delete made;
    }
    return *found;
}

}  // namespace

void parallel_for(std::size_t items, std::size_t threads, void (*body)(void*, std::size_t), void* context) {
    threads = std::min(threads, items);
    if (threads > 1 && pool().run(items, threads, body, context)) return;
    for (std::size_t item = 0; item < items; ++item) body(context, item);
}

void stop_thread_pool() {
    if (ThreadPool* found = current.load()) found->stop();
}

std::size_t worker_count() {
    ThreadPool* found = current.load();
    return found ? found->workers() : 0;
}

}  // namespace bitstrata

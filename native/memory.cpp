#include "memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "buffer.h"

namespace bitstrata {
namespace {

#if defined(__linux__) && defined(MADV_HUGEPAGE) && !defined(__SANITIZE_ADDRESS__)  // which would not see their ends

constexpr std::size_t kHugePage = 2 << 20;

// From here on pieces are cut from stretches; smaller ones would keep a huge page for little.
constexpr std::size_t kLarge = 256 << 10;

// Of address space only: pages come when they are used.
constexpr std::size_t kStretch = 32 << 20;

std::size_t up_to(std::size_t count, std::size_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Address space that pieces are cut from, one behind the other, until it is used up. It lasts as long as one of them.
struct Stretch {
    unsigned char* begin;
    std::size_t size, used, pieces;
};

// The last one is cut from; the others are only waited for.
std::vector<Stretch>& stretches() {
    static auto* list = new std::vector<Stretch>;  // never destroyed: pieces may be given back after all else has ended
    return *list;
}

// Starts where a huge page may; null where the system has no room.
unsigned char* map_stretch(std::size_t size) {
    void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* first = static_cast<unsigned char*>(mapped);
    const auto address = reinterpret_cast<std::uintptr_t>(first);
    const std::size_t before = up_to(address, kHugePage) - address;
    if (before > 0) munmap(first, before);
    if (before < kHugePage) munmap(first + before + size, kHugePage - before);
    madvise(first + before, size, MADV_HUGEPAGE);  // a system without them gives small pages
    return first + before;
}

// The pages that lie in a piece, or outwards those that it lies in.
template <typename Do>
void of_pages(unsigned char* piece, std::size_t bytes, bool outwards, Do what) {
    static const auto kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(piece), end = begin + bytes;
    const std::uintptr_t first = outwards ? begin / kPage * kPage : up_to(begin, kPage);
    const std::uintptr_t last = outwards ? up_to(end, kPage) : end / kPage * kPage;
    if (first < last) what(reinterpret_cast<void*>(first), last - first);
}

// Whether the system makes huge pages for those who ask.
bool has_huge_pages() {
    static const bool found = [] {
        char setting[64] = {};  // the one in brackets holds
        const int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
        if (file < 0) return false;
        const bool known = read(file, setting, sizeof(setting) - 1) > 0;
        close(file);
        return known && std::strstr(setting, "[never]") == nullptr;
    }();
    return found;
}

// Asks for small pages at once, which is quicker than one by one as they are touched.
void populate([[maybe_unused]] unsigned char* first, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_POPULATE_WRITE)
    of_pages(first, bytes, true, [](void* begin, std::size_t count) {
        madvise(begin, count, MADV_POPULATE_WRITE);  // an older system refuses, no harm done
    });
#endif
}

// Huge pages come as they are touched, and are then still near. A lean piece gets small ones for what would fill its last
// huge page in part only, if nobody uses that yet.
void expect_use(unsigned char* piece, std::size_t bytes, bool lean) {
    if (!has_huge_pages()) return populate(piece, bytes);
    const auto begin = reinterpret_cast<std::uintptr_t>(piece), last = (begin + bytes) / kHugePage * kHugePage;
    if (!lean || last < begin || last == begin + bytes) return;
    madvise(reinterpret_cast<void*>(last), kHugePage, MADV_NOHUGEPAGE);
    populate(piece + (last - begin), begin + bytes - last);
}

void* cut_piece(std::size_t bytes, bool lean) {
    const std::size_t size = up_to(bytes, kAlignment);
    if (size < bytes || size > static_cast<std::size_t>(-1) / 2) throw std::bad_alloc();
    unsigned char* piece;
    {
        std::lock_guard<std::mutex> lock(memory_mutex());
        std::vector<Stretch>& list = stretches();
        if (list.empty() || list.back().size - list.back().used < size) {
            list.reserve(list.size() + 1);
            const std::size_t room = std::max(kStretch, up_to(size, kHugePage));
            unsigned char* begin = map_stretch(room);
            if (begin == nullptr) throw std::bad_alloc();
            list.push_back({begin, room, 0, 0});
        }
        Stretch& stretch = list.back();
        piece = stretch.begin + stretch.used;
        stretch.used += size;
        ++stretch.pieces;
    }
    expect_use(piece, size, lean);
    return piece;
}

void give_back_piece(unsigned char* piece, std::size_t bytes) noexcept {
    // Before anyone can know that the stretch is free: afterwards this may be someone else's memory.
    of_pages(piece, bytes, false, [](void* first, std::size_t count) { madvise(first, count, MADV_DONTNEED); });
    Stretch unused{};
    {
        std::lock_guard<std::mutex> lock(memory_mutex());
        std::vector<Stretch>& list = stretches();
        const auto found = std::find_if(list.begin(), list.end(), [&](const Stretch& stretch) {
            return piece >= stretch.begin && piece < stretch.begin + stretch.size;
        });
        if (--found->pieces == 0) {
            unused = *found;
            list.erase(found);
        }
    }
    if (unused.size > 0) munmap(unused.begin, unused.size);
}

#else

constexpr std::size_t kLarge = static_cast<std::size_t>(-1);
void* cut_piece(std::size_t, bool) { throw std::bad_alloc(); }
void give_back_piece(unsigned char*, std::size_t) noexcept {}

#endif

}  // namespace

std::mutex& memory_mutex() {
    static std::mutex mutex;
    static const bool registered = [] {
#if !defined(_WIN32)
        pthread_atfork([] { memory_mutex().lock(); }, [] { memory_mutex().unlock(); }, [] { memory_mutex().unlock(); });
#endif
        return true;
    }();
    (void)registered;
    return mutex;
}

void* take_memory(std::size_t bytes, bool lean) {
    return bytes < kLarge ? ::operator new(bytes, std::align_val_t{kAlignment}) : cut_piece(bytes, lean);
}

void give_back_memory(void* memory, std::size_t bytes) noexcept {
    if (memory == nullptr) return;
    if (bytes < kLarge) return ::operator delete(memory, std::align_val_t{kAlignment});
    give_back_piece(static_cast<unsigned char*>(memory), bytes);
}

}  // namespace bitstrata

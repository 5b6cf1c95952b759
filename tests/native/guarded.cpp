#include "guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace grid {
namespace {

std::size_t page() {
    static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return size;
}

// Some pages and a forbidden one after them.
unsigned char* map(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes + page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    if (mprotect(static_cast<unsigned char*>(memory) + bytes, page(), PROT_NONE) != 0) throw std::bad_alloc();
    return static_cast<unsigned char*>(memory);
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + page() - 1) / page() * page(); }

}  // namespace

Guarded::Guarded(std::size_t bytes) : mapped_bytes_(whole_pages(bytes)), size_(bytes) {
    unsigned char* memory = map(mapped_bytes_);
    mapped_ = memory;
    data_ = memory + mapped_bytes_ - bytes;
}

Guarded::~Guarded() { munmap(mapped_, mapped_bytes_ + page()); }

namespace {

// What stands before aligned memory, to find its pages again.
struct Header {
    void* mapped;
    std::size_t bytes;
};

void* allocate(std::size_t bytes, std::size_t alignment) {
    const std::size_t mapped_bytes = whole_pages(bytes + alignment + sizeof(Header));
    unsigned char* memory = map(mapped_bytes);
    const auto end = reinterpret_cast<std::uintptr_t>(memory + mapped_bytes);
    unsigned char* place = memory + mapped_bytes - (end - (end - bytes) / alignment * alignment);
    const Header header{memory, mapped_bytes + page()};
    std::memcpy(place - sizeof header, &header, sizeof header);
    return place;
}

void release(void* place) {
    if (!place) return;
    Header header;
    std::memcpy(&header, static_cast<unsigned char*>(place) - sizeof header, sizeof header);
    munmap(header.mapped, header.bytes);
}

}  // namespace
}  // namespace grid

// All aligned memory of the runtime, weights among it, ends less than one alignment before a forbidden page.
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return grid::allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* place, std::align_val_t) noexcept { grid::release(place); }
void operator delete(void* place, std::size_t, std::align_val_t) noexcept { grid::release(place); }

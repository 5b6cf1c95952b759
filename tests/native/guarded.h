// Memory that ends where a page begins that nobody may touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace grid {

class Guarded {
public:
    explicit Guarded(std::size_t bytes);
    ~Guarded();
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    // The byte after the last one is forbidden.
    unsigned char* data() const { return data_; }
    std::size_t size() const { return size_; }

private:
    void* mapped_;
    std::size_t mapped_bytes_, size_;
    unsigned char* data_;
};

}  // namespace grid

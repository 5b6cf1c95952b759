// What this processor can do at most on one thread, measured by loops that do nothing else.
#pragma once

#include <cstddef>

namespace bitstrata {

// Multiply-accumulates per second, of bytes or of floats, with the best instructions there are; operands in registers.
double multiply_rate(bool floats);

// Bytes per second that can be read, again and again, from a stretch of that many bytes.
double read_rate(std::size_t bytes);

}  // namespace bitstrata

// Computing without the interpreter's lock, in a way that survives its end.
//
// While the interpreter shuts down, a daemon thread that asks for the lock is ended by unwinding its stack, and C++
// code on that stack aborts the process. So threads that come back from a computation after the exit hook has run are
// parked: they would never run Python code again anyway.
#pragma once

#include <Python.h>

namespace bitstrata {

class Unlocked {
public:
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* state_;
};

// To be called when the interpreter is about to go, without its lock. Calls from the same thread still work afterwards.
void park_other_threads();

}  // namespace bitstrata

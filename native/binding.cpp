#include "binding.h"

NB_MODULE(_native, m) {
    m.doc() = "Native kernels of bitstrata.";
    // At exit a session may well be alive, in a global or in a daemon thread; that is no defect.
    nanobind::set_leak_warnings(false);
    bind_training(m);
    bind_runtime(m);
}

// The parts of the extension module.
#pragma once

#include <nanobind/nanobind.h>

void bind_training(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);

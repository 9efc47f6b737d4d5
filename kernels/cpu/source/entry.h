// The entry points of the scan for one precision of the activations, called through ctypes. Each precision has a file of its
// own: the compiler works on all of them at once.
#pragma once

#include "backward.h"

#define GEOMANO_ENTRY(name, IO, T)                                                                    \
  extern "C" void geo_scan_forward_##name(const geomano::Problem* p) { geomano::forward<IO, T>(*p); } \
  extern "C" void geo_scan_backward_##name(const geomano::Problem* p) { geomano::backward<IO, T>(*p); }

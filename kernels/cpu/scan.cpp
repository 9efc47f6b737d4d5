// The entry points, called through ctypes. The precision of the activations chooses the template.
#include "backward.h"
#include "floor.h"

#define GEOMANO_ENTRY(name, IO, T)                                                              \
  extern "C" void geo_scan_forward_##name(const geomano::Problem* p) { geomano::forward<IO, T>(*p); } \
  extern "C" void geo_scan_backward_##name(const geomano::Problem* p) { geomano::backward<IO, T>(*p); }

GEOMANO_ENTRY(float32, float, float)
GEOMANO_ENTRY(float64, double, double)
GEOMANO_ENTRY(bfloat16, c10::BFloat16, float)

extern "C" int64_t geo_scan_problem_bytes() { return sizeof(geomano::Problem); }

extern "C" float geo_scan_floor(int64_t updates, int64_t exponentials, int64_t fmas, int64_t threads) {
  return geomano::compute_floor(updates, exponentials, fmas, threads);
}

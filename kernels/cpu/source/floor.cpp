// What the Python side asks beside the scan: how large a problem is that it hands over, and the compute floor.
#include "floor.h"

extern "C" int64_t geo_scan_problem_bytes() { return sizeof(geomano::Problem); }

// What one update of one hidden state costs: exponentials and multiply-adds. The backward counts the states that it computes
// again, in 2D twice: once for the edges of the tiles, once inside them.
extern "C" void geo_scan_floor(int64_t two_d, int64_t backward, int64_t updates, int64_t threads) {
  static volatile float result;  // so that nothing is optimised away
  if (two_d)
    result = backward ? geomano::compute_floor<2, 17>(updates, threads) : geomano::compute_floor<1, 4>(updates, threads);
  else
    result = backward ? geomano::compute_floor<1, 10>(updates, threads) : geomano::compute_floor<1, 3>(updates, threads);
}

extern "C" void multiply_adds(int64_t count, int64_t threads) {
  static volatile float result;
  result = geomano::multiply_adds(count, threads);
}

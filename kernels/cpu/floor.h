// The compute floor: as many vectorised exponentials and multiply-adds as a scan needs, on data that never leaves the
// first-level cache. A kernel is judged by the fraction of this speed that it reaches.
#pragma once

#include "lanes.h"

namespace geomano {

// `updates` state updates of sixteen channels, each of `exponentials` and `fmas`, by each of the threads.
inline float compute_floor(int64_t updates, int64_t exponentials, int64_t fmas, int64_t threads) {
  float total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
  for (int64_t thread = 0; thread < threads; ++thread) {
    constexpr int64_t kStates = 16, kSums = 4;
    alignas(64) float A[kStates][kLanes], h[kStates][kLanes];
    for (int64_t s = 0; s < kStates; ++s)
      for (int64_t e = 0; e < kLanes; ++e) A[s][e] = -0.01f * static_cast<float>(s + e + 1), h[s][e] = 0.5f;
    const Lanes<float> delta = Lanes<float>::all(0.1f);
    Lanes<float> sums[kSums];
    for (auto& sum : sums) sum = Lanes<float>::all(0.0f);
    for (int64_t update = 0; update < updates; update += kStates) {
      for (int64_t s = 0; s < kStates; ++s) {
        Lanes<float> a = exp2_tame(delta, Lanes<float>::load(A[s]));
        for (int64_t more = 1; more < exponentials; ++more) a = exp2_tame(a, Lanes<float>::load(A[s]));
        const Lanes<float> h_s = fma(a, Lanes<float>::load(h[s]), delta);
        h_s.store(h[s]);
        for (int64_t f = 1; f < fmas; ++f) sums[f % kSums] = fma(a, h_s, sums[f % kSums]);
      }
    }
    float values[kLanes];
    (sums[0] + sums[1] + sums[2] + sums[3]).store(values);
    for (float value : values) total += value;
  }
  return total;
}

}  // namespace geomano

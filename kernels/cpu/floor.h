// The compute floor: as many vectorised exponentials and multiply-adds as a scan needs, on data that never leaves the
// first-level cache. A kernel is judged by the fraction of this speed that it reaches.
#pragma once

#include "exp2.h"

namespace geomano {

// `updates` state updates of sixteen channels by each of the threads.
template <int64_t exponentials, int64_t fmas>
float compute_floor(int64_t updates, int64_t threads) {
  float total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
  for (int64_t thread = 0; thread < threads; ++thread) {
    constexpr int64_t kStates = 16;
    alignas(64) float A[kStates][kLanes], h[kStates][kLanes];
    for (int64_t s = 0; s < kStates; ++s)
      for (int64_t e = 0; e < kLanes; ++e) A[s][e] = -0.01f * static_cast<float>(s + e + 1), h[s][e] = 0.5f;
    const Lanes<float> delta = Lanes<float>::all(0.1f);
    Lanes<float> even = Lanes<float>::all(0.0f), odd = even;
    for (int64_t update = 0; update < updates; update += kStates) {
      for (int64_t s = 0; s < kStates; ++s) {
        const Lanes<float> A_s = Lanes<float>::load(A[s]);
        Lanes<float> a = exp2_tame(delta, A_s);
        for (int64_t more = 1; more < exponentials; ++more) a = a + exp2_tame(Lanes<float>::load(h[s]), A_s);
        Lanes<float> h_s = fma(a, Lanes<float>::load(h[s]), delta);
#pragma GCC unroll 32
        for (int64_t f = 3; f < fmas; ++f) h_s = fma(a, A_s, h_s);
        h_s.store(h[s]);
        even = fma(a, h_s, even);
        odd = fma(A_s, h_s, odd);
      }
    }
    alignas(64) float values[kLanes];
    (even + odd).store(values);
    for (float value : values) total += value;
  }
  return total;
}

}  // namespace geomano

// The compute floor: as many vectorised exponentials and multiply-adds as a scan needs, on data that never leaves the
// first-level cache. A kernel is judged by the fraction of this speed that it reaches.
#pragma once

#include "exp2.h"
#include "problem.h"

namespace geomano {

// `updates` state updates of sixteen channels by each of the threads, kStates at a time in registers as in the scan. One
// update is `exponentials` times 2^(delta A) and `fmas` multiply-adds.
template <int64_t exponentials, int64_t fmas>
float compute_floor(int64_t updates, int64_t threads) {
  constexpr int64_t kPositions = 32;
  float total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
  for (int64_t thread = 0; thread < threads; ++thread) {
    alignas(64) float A[kStates][kLanes], delta[kPositions][kLanes], y[kPositions][kLanes] = {};
    for (int64_t e = 0; e < kLanes; ++e) {
      for (int64_t s = 0; s < kStates; ++s) A[s][e] = -0.01f * static_cast<float>(s + e + 1);
      for (int64_t m = 0; m < kPositions; ++m) delta[m][e] = 0.01f * static_cast<float>(m + 1);
    }
    Lanes<float> h[kStates];
    each_state([&](int64_t q) __attribute__((always_inline)) { h[q] = Lanes<float>::all(0.5f); });
    for (int64_t update = 0; update < updates; update += kPositions * kStates) {
      for (int64_t m = 0; m < kPositions; ++m) {
        const Lanes<float> delta_m = Lanes<float>::load(delta[m]);
        Lanes<float> y_m = Lanes<float>::load(y[m]);
        each_state([&](int64_t q) __attribute__((always_inline)) {
          const Lanes<float> A_q = Lanes<float>::load(A[q]);
          Lanes<float> a = exp2_product<true>(delta_m, A_q);
          for (int64_t more = 1; more < exponentials; ++more) a = a + exp2_product<true>(h[q], A_q);
          h[q] = fma(a, h[q], delta_m * A_q);
          Lanes<float> read = h[q];
#pragma GCC unroll 32
          for (int64_t f = 3; f < fmas; ++f) read = fma(a, A_q, read);
          y_m = fma(A_q, read, y_m);
        });
        y_m.store(y[m]);
      }
    }
    for (int64_t m = 0; m < kPositions; ++m) total += y[m][0];
  }
  return total;
}

// `count` multiply-adds of sixteen channels by each of the threads, twelve sums side by side: the machine's peak.
inline float multiply_adds(int64_t count, int64_t threads) {
  constexpr int64_t kSums = 12;
  float total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
  for (int64_t thread = 0; thread < threads; ++thread) {
    const Lanes<float> a = Lanes<float>::all(0.999f), b = Lanes<float>::all(0.001f);
    auto sums = row_of<kSums>([](int64_t n) __attribute__((always_inline)) { return Lanes<float>::all(0.1f * n); });
    for (int64_t done = 0; done < count; done += kSums)
      each<kSums>([&](int64_t n) __attribute__((always_inline)) { sums[n] = fma(sums[n], a, b); });
    alignas(64) float lanes[kLanes];
    each<kSums>([&](int64_t n) __attribute__((always_inline)) { sums[n].store(lanes), total += lanes[0]; });
  }
  return total;
}

}  // namespace geomano

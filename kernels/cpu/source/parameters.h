// The parameters of sixteen channels in one direction, prepared.
#pragma once

#include "problem.h"

namespace geomano {

// Channels innermost; channels beyond the last are zero.
template <typename T>
struct Parameters {
  Buffer<T> A, A_log2e, minus_R, weight;  // [N][16], weight [r][16]
  Buffer<T> A_down_log2e;               // for columns that have their own
  Buffer<T> A_hold_log2e, hold_length;  // for an exact hold: Bbar x = B (exp(hold delta A) - 1) / (hold A) x
  alignas(64) T D[kLanes], bias[kLanes], largest_A[kLanes];
  T down, hold;

  bool stretched() const { return down != 1; }

  void load(const Problem& p, int64_t k, int64_t first_channel) {
    const int64_t N = p.dstate, r = p.rank, count = std::min(kLanes, p.channels - first_channel);
    const int64_t row = k * p.channels + first_channel;
    const int64_t padded = p.padded_dstate();
    A.assign(padded * kLanes, -1);  // beyond the last any that decays, so that rings close there, too
    A_log2e.assign(padded * kLanes, 0);
    minus_R.assign(padded * kLanes, 0);
    weight.assign(r * kLanes, 0);
    for (int64_t e = 0; e < kLanes; ++e) D[e] = bias[e] = largest_A[e] = 0;
    down = static_cast<T>(p.down[k]);
    hold = static_cast<T>(p.hold[k]);
    const T farthest = std::max({T(1), down, hold});
    for (int64_t e = 0; e < count; ++e) {
      D[e] = static_cast<const T*>(p.D)[row + e];
      bias[e] = static_cast<const T*>(p.dt_bias)[row + e];
      for (int64_t s = 0; s < N; ++s) {
        T a = static_cast<const T*>(p.A)[(row + e) * N + s];
        if (hold != 0 && std::abs(a) < T(1e-20)) a = T(-1e-20);  // (exp(delta A) - 1) / A has no value at 0
        A[s * kLanes + e] = a;
        A_log2e[s * kLanes + e] = a * T(1.4426950408889634);
        const T size = std::abs(A_log2e[s * kLanes + e]) * farthest;
        if (!(size <= largest_A[e])) largest_A[e] = size;  // a NaN stays
        if (p.R != nullptr) minus_R[s * kLanes + e] = -static_cast<const T*>(p.R)[(row + e) * N + s];
      }
      for (int64_t i = 0; i < r; ++i) weight[i * kLanes + e] = static_cast<const T*>(p.dt_weight)[(row + e) * r + i];
    }
    if (!p.held(k) && !p.spaced(k)) return;
    A_down_log2e.assign(A_log2e.begin(), A_log2e.end());
    for (T& a : A_down_log2e) a *= down;
    A_hold_log2e.assign(A_log2e.begin(), A_log2e.end());
    for (T& a : A_hold_log2e) a *= hold;
    hold_length.assign(A.begin(), A.end());
    for (T& a : hold_length) a = 1 / (hold * a);
  }
};

}  // namespace geomano

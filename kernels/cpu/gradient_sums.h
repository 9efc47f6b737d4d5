// Where gradients are summed: over positions for the parameters, over groups of channel blocks for dB, dC and ddt.
#pragma once

#include "tile_backward.h"

namespace geomano {

// Sums over the positions for sixteen channels in one direction, beside the parameters that they are the gradients of.
template <typename T>
struct ParameterGradients {
  Parameters<T> parameters;
  Buffer<T> dA, dR, dW;
  alignas(64) T dD[kLanes], dbias[kLanes];

  void start(const Problem& p, int64_t k, int64_t first_channel, int64_t padded) {
    parameters.load(p, k, first_channel);
    dA.assign(padded * kLanes, T(0));
    dR.assign(padded * kLanes, T(0));
    dW.assign(p.rank * kLanes, T(0));
    std::fill(dD, dD + kLanes, T(0));
    std::fill(dbias, dbias + kLanes, T(0));
  }

  void write(const Problem& p, int64_t b, int64_t k, int64_t first_channel) const {
    const int64_t N = p.dstate, r = p.rank, count = std::min(kLanes, p.channels - first_channel);
    const int64_t row = (b * p.directions + k) * p.channels + first_channel;
    for (int64_t e = 0; e < count; ++e) {
      static_cast<T*>(p.dD)[row + e] = dD[e];
      static_cast<T*>(p.ddt_bias)[row + e] = dbias[e];
      for (int64_t s = 0; s < N; ++s) {
        static_cast<T*>(p.dA)[(row + e) * N + s] = dA[s * kLanes + e];
        if (p.needs_R) static_cast<T*>(p.dR)[(row + e) * N + s] = dR[s * kLanes + e];
      }
      for (int64_t i = 0; i < r; ++i) static_cast<T*>(p.ddt_weight)[(row + e) * r + i] = dW[i * kLanes + e];
    }
  }
};

template <typename T>
inline void add_to(T* sum, const Lanes<T>& value) {
  (Lanes<T>::load(sum) + value).store(sum);
}

// The partial sums of the groups, added in a fixed order.
template <typename IO, typename T>
void sum_groups(const Problem& p) {
  const int64_t N = p.dstate, r = p.rank, padded = p.padded_dstate(), width = 2 * padded + r;
  const int64_t points = p.height * p.width * p.directions;
#pragma omp parallel for num_threads(p.threads)
  for (int64_t point = 0; point < p.batch * points; ++point) {
    const T* partial = static_cast<const T*>(p.partial) + (point / points * p.groups * points + point % points) * width;
    const auto sum = [&](int64_t first, int64_t count, void* to) {
      for (int64_t i = 0; i < count; ++i) {
        T total = partial[first + i];
        for (int64_t group = 1; group < p.groups; ++group) total += partial[group * points * width + first + i];
        static_cast<IO*>(to)[point * count + i] = static_cast<IO>(total);
      }
    };
    sum(0, N, p.dB);
    sum(padded, N, p.dC);
    sum(2 * padded, r, p.ddt);
  }
}

}  // namespace geomano

// Activations of sixteen channels and their slopes. Each returns a NaN for a NaN.
#pragma once

#include "exp2.h"

namespace geomano {

constexpr float kLog2e = 1.44269504f;

// exp(-x) for x >= 0, with 0 for what is smaller than exp(-80).
inline Lanes<float> decay(const Lanes<float>& x) {
  using Vec = Lanes<float>::Vec;
  const Vec far(80.0f);
  Lanes<float> bounded;
  for (int64_t i = 0; i < Lanes<float>::kVectors; ++i) bounded.v[i] = at::vec::clamp_max(x.v[i], far);
  Lanes<float> out = exp2_product<true>(bounded, Lanes<float>::all(-kLog2e));
  for (int64_t i = 0; i < Lanes<float>::kVectors; ++i) out.v[i] = Vec::blendv(out.v[i], Vec(0.0f), x.v[i] > far);
  return out;
}

// 1 / (1 + exp(-x)), with 0 for what is far below: where exp(-x) is bounded, what x lies beyond makes it infinite. Blends
// would cost more than that.
inline Lanes<float> sigmoid(const Lanes<float>& x) {
  using Vec = Lanes<float>::Vec;
  const Vec near(-80.0f), far(80.0f), zero(0.0f);
  const Lanes<float> one = Lanes<float>::all(1.0f), huge = Lanes<float>::all(-3e38f);
  Lanes<float> bounded, beyond;
  for (int64_t i = 0; i < Lanes<float>::kVectors; ++i) {
    bounded.v[i] = at::vec::clamp(x.v[i], near, far);
    beyond.v[i] = at::vec::clamp_max(x.v[i] - near, zero);
  }
  return one / (one + fma(beyond, huge, exp2_product<true>(bounded, Lanes<float>::all(-kLog2e))));
}

// silu(x) = x sigmoid(x), and its slope sigmoid(x) (1 + x (1 - sigmoid(x))).
struct Silu {
  Lanes<float> value, slope;
};

inline Silu silu(const Lanes<float>& x) {
  const Lanes<float> one = Lanes<float>::all(1.0f), s = sigmoid(x);
  return {x * s, s * fma(x, one - s, one)};
}

// gelu(x) = x Phi(x), and its slope Phi(x) + x phi(x), with Phi the normal distribution and phi its density. The error
// function is Abramowitz and Stegun's 7.1.26, off by 1.5e-7 at most, about a rounding of the 1 that is added to it.
struct Gelu {
  Lanes<float> value, slope;
};

inline Gelu gelu(const Lanes<float>& x) {
  const auto all = [](float value) { return Lanes<float>::all(value); };
  const Lanes<float> zero = all(0.0f), half = all(0.5f), one = all(1.0f), size = magnitude(x);
  const Lanes<float> t = one / fma(all(0.231641888f), size, one);  // 0.3275911 / sqrt(2)
  const Lanes<float> density = decay(half * x * x);
  Lanes<float> p = fma(all(1.061405429f), t, all(-1.453152027f));
  p = fma(p, t, all(1.421413741f));
  p = fma(p, t, all(-0.284496736f));
  p = fma(p, t, all(0.254829592f));
  const Lanes<float> tail = half * p * t * density;  // Phi(-|x|)
  Lanes<float> phi;
  for (int64_t i = 0; i < Lanes<float>::kVectors; ++i)
    phi.v[i] = Lanes<float>::Vec::blendv(tail.v[i], (one - tail).v[i], x.v[i] > zero.v[i]);
  return {x * phi, fma(x * all(0.398942280f), density, phi)};
}

}  // namespace geomano

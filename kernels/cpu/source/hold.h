// The exact zero-order hold in the backward: phi(z) = (exp(z) - 1) / z, for which Bbar = delta B phi(hold delta A).
#pragma once

#include "lanes.h"

namespace geomano {

template <typename V>
struct Hold {
  V phi, slope;  // phi(z) and its derivative
};

// The derivative near 0, where the quotient would lose its digits: z^n / (n! (n + 2)) from the nth term on.
template <typename T, int64_t n = 0, typename V>
__attribute__((always_inline)) inline V hold_series(const V& z, double factorial = 1) {
  constexpr int64_t last = sizeof(T) == 4 ? 6 : 13;  // enough for |z| < 1/2
  const V term(static_cast<T>(1 / (factorial * (n + 2))));
  if constexpr (n < last) return at::vec::fmadd(hold_series<T, n + 1>(z, factorial * (n + 1)), z, term);
  return term;
}

// power is exp(z), and inverse 1 / z, which may be infinite at 0.
template <typename T, typename V>
__attribute__((always_inline)) inline Hold<V> hold_at(const V& z, const V& power, const V& inverse) {
  const V far = (power - (power - V(T(1))) * inverse) * inverse;
  const V slope = V::blendv(far, hold_series<T>(z), z.abs() < V(T(0.5)));
  return {power - z * slope, slope};
}

}  // namespace geomano

// The exact zero-order hold in the backward: phi(z) = (exp(z) - 1) / z, for which Bbar = delta B phi(hold delta A).
#pragma once

#include "lanes.h"

namespace geomano {

template <typename V>
struct Hold {
  V phi, slope;  // phi(z) and its derivative
};

// z^n / (n! (n + 2)), summed from the last: the derivative near 0, where the quotient would lose its digits.
template <typename T, int64_t n = 0>
inline typename Lanes<T>::Vec hold_series(const typename Lanes<T>::Vec& z, double factorial = 1) {
  constexpr int64_t last = sizeof(T) == 4 ? 6 : 13;  // for |z| < 1/2
  const typename Lanes<T>::Vec own(static_cast<T>(1 / (factorial * (n + 2))));
  if constexpr (n == last) return own;
  else return at::vec::fmadd(hold_series<T, n + 1>(z, factorial * (n + 1)), z, own);
}

// power is exp(z), and inverse 1 / z, which may be infinite at 0.
template <typename T>
inline Hold<typename Lanes<T>::Vec> hold_of(const typename Lanes<T>::Vec& z, const typename Lanes<T>::Vec& power,
                                            const typename Lanes<T>::Vec& inverse) {
  using Vec = typename Lanes<T>::Vec;
  const Vec far = (power - (power - Vec(T(1))) * inverse) * inverse;
  const Vec slope = Vec::blendv(far, hold_series<T>(z), z.abs() < Vec(T(0.5)));
  return {power - z * slope, slope};
}

}  // namespace geomano

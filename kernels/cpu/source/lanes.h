// Sixteen channels at a time: arithmetic on a cache line of float32, whatever the width of the machine's vectors.
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <cstdint>

namespace geomano {

constexpr int64_t kLanes = 16;

template <typename T>
struct Lanes {
  using Vec = at::vec::Vectorized<T>;
  static constexpr int64_t kVectors = kLanes / Vec::size();
  static_assert(kVectors * Vec::size() == kLanes);
  Vec v[kVectors];

  static inline Lanes load(const T* from) {
    Lanes out;
    for (int64_t i = 0; i < kVectors; ++i) out.v[i] = Vec::loadu(from + i * Vec::size());
    return out;
  }
  static inline Lanes all(T value) {
    Lanes out;
    for (int64_t i = 0; i < kVectors; ++i) out.v[i] = Vec(value);
    return out;
  }
  inline void store(T* to) const {
    for (int64_t i = 0; i < kVectors; ++i) v[i].store(to + i * Vec::size());
  }
};

#define GEOMANO_LANEWISE(expression)                                         \
  Lanes<T> out;                                                              \
  for (int64_t i = 0; i < Lanes<T>::kVectors; ++i) out.v[i] = (expression);  \
  return out;

template <typename T> inline Lanes<T> operator+(const Lanes<T>& a, const Lanes<T>& b) { GEOMANO_LANEWISE(a.v[i] + b.v[i]) }
template <typename T> inline Lanes<T> operator-(const Lanes<T>& a, const Lanes<T>& b) { GEOMANO_LANEWISE(a.v[i] - b.v[i]) }
template <typename T> inline Lanes<T> operator*(const Lanes<T>& a, const Lanes<T>& b) { GEOMANO_LANEWISE(a.v[i] * b.v[i]) }
template <typename T> inline Lanes<T> operator/(const Lanes<T>& a, const Lanes<T>& b) { GEOMANO_LANEWISE(a.v[i] / b.v[i]) }
template <typename T> inline Lanes<T> fma(const Lanes<T>& a, const Lanes<T>& b, const Lanes<T>& c) { GEOMANO_LANEWISE(at::vec::fmadd(a.v[i], b.v[i], c.v[i])) }
// at::vec::maximum returns NaN if either is NaN, unlike the bare instruction, which may lose it.
template <typename T> inline Lanes<T> maximum(const Lanes<T>& a, const Lanes<T>& b) { GEOMANO_LANEWISE(at::vec::maximum(a.v[i], b.v[i])) }
template <typename T> inline Lanes<T> magnitude(const Lanes<T>& a) { GEOMANO_LANEWISE(a.v[i].abs()) }

}  // namespace geomano

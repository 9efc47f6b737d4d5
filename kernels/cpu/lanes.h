// Sixteen channels at a time: arithmetic on a cache line of float32, whatever the width of the machine's vectors.
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <cstdint>
#include <limits>

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
  // The sixteen channels folded onto one vector; what is left is a sum over its lanes.
  inline Vec folded() const {
    Vec out = v[0];
    for (int64_t i = 1; i < kVectors; ++i) out = out + v[i];
    return out;
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

// 2^(a b) for |a b| <= kTame: no clamp per element, the caller has looked at the whole tile.
constexpr float kTame = 120.0f;

inline Lanes<float> exp2_tame(const Lanes<float>& a, const Lanes<float>& b) {
  using Vec = Lanes<float>::Vec;
  using Int = at::vec::Vectorized<int32_t>;
  const Vec round(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Vec one(1.0f), c1(0.693147004f), c2(0.240222424f), c3(0.0555073358f), c4(0.00967151299f), c5(0.00132647273f);
  const Int exponent_bits(23);
  Lanes<float> out;
  for (int64_t i = 0; i < Lanes<float>::kVectors; ++i) {
    const Vec shifted = at::vec::fmadd(a.v[i], b.v[i], round);
    const Vec f = at::vec::fmsub(a.v[i], b.v[i], shifted - round);
    Vec p = at::vec::fmadd(c5, f, c4);
    p = at::vec::fmadd(p, f, c3);
    p = at::vec::fmadd(p, f, c2);
    p = at::vec::fmadd(p, f, c1);
    p = at::vec::fmadd(p, f, one);
    const Int scaled = at::vec::cast<int32_t>(p) + (at::vec::cast<int32_t>(shifted) << exponent_bits);
    out.v[i] = at::vec::cast<float>(scaled);
  }
  return out;
}

// The same for any a b: clamped below, where nothing is left to tell from zero, infinite above, NaN for NaN.
inline Lanes<float> exp2_any(const Lanes<float>& a, const Lanes<float>& b) {
  using Vec = Lanes<float>::Vec;
  const Vec lowest(-126.0f), highest(127.0f), infinity(std::numeric_limits<float>::infinity());
  const Lanes<float> x = a * b;
  Lanes<float> clamped;
  for (int64_t i = 0; i < Lanes<float>::kVectors; ++i)
    clamped.v[i] = at::vec::minimum(at::vec::maximum(x.v[i], lowest), highest);
  Lanes<float> out = exp2_tame(clamped, Lanes<float>::all(1.0f));
  for (int64_t i = 0; i < Lanes<float>::kVectors; ++i) {
    out.v[i] = Vec::blendv(out.v[i], infinity, x.v[i] > highest);
    out.v[i] = Vec::blendv(out.v[i], x.v[i], x.v[i] != x.v[i]);
  }
  return out;
}

template <bool tame>
inline Lanes<float> exp2_product(const Lanes<float>& a, const Lanes<float>& b) {
  if constexpr (tame) return exp2_tame(a, b);
  return exp2_any(a, b);
}

template <bool tame>
inline Lanes<double> exp2_product(const Lanes<double>& a, const Lanes<double>& b) {
  Lanes<double> out;
  for (int64_t i = 0; i < Lanes<double>::kVectors; ++i) out.v[i] = (a.v[i] * b.v[i]).exp2();
  return out;
}

// softplus(v) = max(v, 0) + log1p(exp(-|v|)) and its derivative, the sigmoid.
template <typename T>
struct TimeStep {
  Lanes<T> delta, slope;
};

template <bool with_slope>
inline TimeStep<float> time_step(const Lanes<float>& raw) {
  using Vec = Lanes<float>::Vec;
  const Lanes<float> negative = Lanes<float>::all(0.0f) - magnitude(raw);
  const Lanes<float> bounded = maximum(negative, Lanes<float>::all(-80.0f));  // exp(-80) is nothing beside 1
  const Lanes<float> z = exp2_tame(bounded, Lanes<float>::all(1.44269504f));
  const Vec one(1.0f);
  TimeStep<float> out;
  for (int64_t i = 0; i < Lanes<float>::kVectors; ++i) {
    const Vec zi = z.v[i];
    Vec p = at::vec::fmadd(Vec(0.00536483899f), zi, Vec(-0.0300658476f));
    p = at::vec::fmadd(p, zi, Vec(0.0792046189f));
    p = at::vec::fmadd(p, zi, Vec(-0.13753809f));
    p = at::vec::fmadd(p, zi, Vec(0.191536576f));
    p = at::vec::fmadd(p, zi, Vec(-0.248571649f));
    p = at::vec::fmadd(p, zi, Vec(0.33321324f));
    p = at::vec::fmadd(p, zi, Vec(-0.499996483f));
    p = at::vec::fmadd(p, zi, one);
    // A NaN comes through by the maximum: the bits of exp2_tame may lose it.
    out.delta.v[i] = at::vec::fmadd(p, zi, at::vec::maximum(raw.v[i], Vec(0.0f)));
    if constexpr (with_slope) {
      const Vec small = zi / (one + zi);
      out.slope.v[i] = Vec::blendv(small, one - small, raw.v[i] > Vec(0.0f));
    }
  }
  return out;
}

template <bool with_slope>
inline TimeStep<double> time_step(const Lanes<double>& raw) {
  using Vec = Lanes<double>::Vec;
  TimeStep<double> out;
  for (int64_t i = 0; i < Lanes<double>::kVectors; ++i) {
    const Vec z = raw.v[i].abs().neg().exp();
    out.delta.v[i] = at::vec::maximum(raw.v[i], Vec(0.0)) + z.log1p();
    if constexpr (with_slope) {
      const Vec small = z / (Vec(1.0) + z);
      out.slope.v[i] = Vec::blendv(small, Vec(1.0) - small, raw.v[i] > Vec(0.0));
    }
  }
  return out;
}

// sums[i] = the sum over the sixteen channels of rows[i], for eight rows.
template <typename T>
inline void sum_channels(const typename Lanes<T>::Vec rows[8], T sums[8]) {
  using Vec = typename Lanes<T>::Vec;
  T lanes[Vec::size()];
  for (int row = 0; row < 8; ++row) {
    rows[row].store(lanes);
    T sum = 0;
    for (int64_t lane = 0; lane < Vec::size(); ++lane) sum += lanes[lane];
    sums[row] = sum;
  }
}

#if defined(CPU_CAPABILITY_AVX2) && !defined(CPU_CAPABILITY_AVX512)
// Sums of neighbouring lanes of two rows, in order: what hadd does in three slower steps.
inline __m256 sum_pairs(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

// Pairwise, eight rows at once.
template <>
inline void sum_channels<float>(const Lanes<float>::Vec rows[8], float sums[8]) {
  const __m256 ab = sum_pairs(rows[0], rows[1]), cd = sum_pairs(rows[2], rows[3]);
  const __m256 ef = sum_pairs(rows[4], rows[5]), gh = sum_pairs(rows[6], rows[7]);
  const __m256 abcd = sum_pairs(ab, cd), efgh = sum_pairs(ef, gh);
  const __m256 low = _mm256_permute2f128_ps(abcd, efgh, 0x20), high = _mm256_permute2f128_ps(abcd, efgh, 0x31);
  _mm256_storeu_ps(sums, _mm256_add_ps(low, high));
}
#endif

}  // namespace geomano

// Exponentials of sixteen channels, and the time step that is made of one.
#pragma once

#include <limits>

#include "lanes.h"

namespace geomano {

// 2^(a b) for |a b| <= kTame: no clamp per element, the caller has looked at the whole tile.
constexpr float kTame = 120.0f;

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
// x = a b in parts: the nearest multiple of 2^-kFractionBits, in the low bits of `shifted`, and the rest.
struct Parts {
  Lanes<float>::Vec shifted, rest;
};

#if defined(CPU_CAPABILITY_AVX512)
constexpr int kFractionBits = 4;
constexpr float kCubic[] = {0.693147181f, 0.240226507f, 0.0555041087f};
// 2^(j / 16), less j in the bits that the exponent is shifted through.
alignas(64) constexpr uint32_t kFractions[16] = {
    0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
    0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d,
};
inline Lanes<float>::Vec power(const Lanes<float>::Vec& shifted) {  // 2 to the nearest 16th
  const __m512i bits = _mm512_castps_si512(shifted);
  const __m512i fraction = _mm512_permutexvar_epi32(bits, _mm512_load_si512(kFractions));
  return _mm512_castsi512_ps(_mm512_add_epi32(fraction, _mm512_slli_epi32(bits, 23 - kFractionBits)));
}
#else
constexpr int kFractionBits = 3;
constexpr float kCubic[] = {0.69314721f, 0.24025763f, 0.05549622f};
// 2^(j / 8), less j in the bits that the exponent is shifted through.
alignas(32) constexpr uint32_t kFractions[8] = {0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                                                0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7};
inline Lanes<float>::Vec power(const Lanes<float>::Vec& shifted) {  // 2 to the nearest 8th
  const __m256i bits = _mm256_castps_si256(shifted);
  const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(kFractions));
  const __m256i fraction = _mm256_permutevar8x32_epi32(table, bits);
  return _mm256_castsi256_ps(_mm256_add_epi32(fraction, _mm256_slli_epi32(bits, 23 - kFractionBits)));
}
#endif

inline Parts split(const Lanes<float>::Vec& a, const Lanes<float>::Vec& b, const Lanes<float>::Vec& round) {
  const Lanes<float>::Vec shifted = at::vec::fmadd(a, b, round);
  return {shifted, at::vec::fmsub(a, b, shifted - round)};
}

// The 16th or 8th parts from a table in a register, the rest by a cubic: five or six multiplications, where a polynomial
// alone takes seven, and the scan is bound by them. A parabola on 32nd parts would do for 2^x but not for the decay over
// many steps: near x = 0 its slope is off by 1e-5.
//
// Less one: 2^x - 1. Near x = 0 the scale is 1 and nothing cancels; it is off by 1.1e-6 at most, where the next scale begins.
template <bool less_one = false>
__attribute__((always_inline)) inline Lanes<float>::Vec exp2_tame(const Lanes<float>::Vec& a, const Lanes<float>::Vec& b) {
  using Vec = Lanes<float>::Vec;
  const Vec round(static_cast<float>(3 << (22 - kFractionBits)));  // adding it leaves the nearest part in the low bits
  const Parts x = split(a, b, round);
  const Vec scale = power(x.shifted);
  const Vec p = at::vec::fmadd(at::vec::fmadd(Vec(kCubic[2]), x.rest, Vec(kCubic[1])), x.rest, Vec(kCubic[0]));
  return at::vec::fmadd(scale * x.rest, p, less_one ? scale - Vec(1.0f) : scale);
}
#else
// Less one: 2^x - 1. Near x = 0 the scale is 1 and nothing cancels; it is off by 7e-7 at most.
template <bool less_one = false>
inline Lanes<float>::Vec exp2_tame(const Lanes<float>::Vec& a, const Lanes<float>::Vec& b) {
  using Vec = Lanes<float>::Vec;
  using Int = at::vec::Vectorized<int32_t>;
  const Vec round(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Vec one(1.0f), c1(0.693147004f), c2(0.240222424f), c3(0.0555073358f), c4(0.00967151299f), c5(0.00132647273f);
  const Int exponent_bits(23);
  const Vec shifted = at::vec::fmadd(a, b, round);
  const Vec f = at::vec::fmsub(a, b, shifted - round);
  Vec p = at::vec::fmadd(c5, f, c4);
  p = at::vec::fmadd(p, f, c3);
  p = at::vec::fmadd(p, f, c2);
  p = at::vec::fmadd(p, f, c1);
  if constexpr (less_one) {
    const Vec scale = at::vec::cast<float>(at::vec::cast<int32_t>(one) + (at::vec::cast<int32_t>(shifted) << exponent_bits));
    return at::vec::fmadd(scale, p * f, scale - one);
  }
  p = at::vec::fmadd(p, f, one);
  const Int scaled = at::vec::cast<int32_t>(p) + (at::vec::cast<int32_t>(shifted) << exponent_bits);
  return at::vec::cast<float>(scaled);
}
#endif

// The same for any a b: clamped below, where nothing is left to tell from zero, infinite above, NaN for NaN.
template <bool less_one = false>
inline Lanes<float>::Vec exp2_any(const Lanes<float>::Vec& a, const Lanes<float>::Vec& b) {
  using Vec = Lanes<float>::Vec;
  const Vec lowest(-126.0f), highest(127.0f), infinity(std::numeric_limits<float>::infinity());
  const Vec x = a * b;
  const Vec out = exp2_tame<less_one>(at::vec::minimum(at::vec::maximum(x, lowest), highest), Vec(1.0f));
  return Vec::blendv(Vec::blendv(out, infinity, x > highest), x, x != x);
}

// 2^(a b), or that less one; `tame` promises |a b| <= kTame.
template <bool tame, bool less_one = false>
inline Lanes<float>::Vec exp2_product(const Lanes<float>::Vec& a, const Lanes<float>::Vec& b) {
  if constexpr (tame) return exp2_tame<less_one>(a, b);
  return exp2_any<less_one>(a, b);
}

template <bool tame, bool less_one = false>
inline Lanes<double>::Vec exp2_product(const Lanes<double>::Vec& a, const Lanes<double>::Vec& b) {
  if constexpr (less_one) return (a * b * Lanes<double>::Vec(0.6931471805599453)).expm1();
  return (a * b).exp2();
}

template <bool tame, bool less_one = false, typename T>
__attribute__((always_inline)) inline Lanes<T> exp2_product(const Lanes<T>& a, const Lanes<T>& b) {
  GEOMANO_LANEWISE((exp2_product<tame, less_one>(a.v[i], b.v[i])))
}

// softplus(v) = max(v, 0) + log1p(exp(-|v|)) and its derivative, the sigmoid.
template <typename T>
struct TimeStep {
  Lanes<T> delta, slope;
};

template <bool with_slope>
inline TimeStep<float> time_step(const Lanes<float>& raw) {
  using Vec = Lanes<float>::Vec;
  const Vec one(1.0f), zero(0.0f);
  Lanes<float> bounded;
  for (int64_t i = 0; i < Lanes<float>::kVectors; ++i)
    bounded.v[i] = at::vec::clamp_min(raw.v[i].abs().neg(), Vec(-80.0f));  // exp(-80) is nothing beside 1
  const Lanes<float> z = exp2_product<true>(bounded, Lanes<float>::all(1.44269504f));
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
    // A NaN comes through by clamp_min, which keeps it: the bits of exp2_tame may lose it.
    out.delta.v[i] = at::vec::fmadd(p, zi, at::vec::clamp_min(raw.v[i], zero));
    if constexpr (with_slope) {
      const Vec small = zi / (one + zi);
      out.slope.v[i] = Vec::blendv(small, one - small, raw.v[i] > zero);
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

}  // namespace geomano

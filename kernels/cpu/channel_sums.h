// Sums over sixteen channels, eight of them at once.
#pragma once

#include "lanes.h"

namespace geomano {

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
#elif defined(CPU_CAPABILITY_AVX512)
// Pairwise, eight rows at once. Blends cost less than shuffles, which have two ports only.
template <>
inline void sum_channels<float>(const Lanes<float>::Vec rows[8], float sums[8]) {
  const auto halves = [](__m512 a, __m512 b) {  // of each four lanes: a0 + a2, a1 + a3, b2 + b0, b3 + b1
    return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
  };
  const auto quarters = [](__m512 ab, __m512 cd) {  // of each four lanes: one sum of each row
    return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xdd));
  };
  const __m512 abcd = quarters(halves(rows[0], rows[1]), halves(rows[2], rows[3]));
  const __m512 efgh = quarters(halves(rows[4], rows[5]), halves(rows[6], rows[7]));
  const __m512 both = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, abcd, efgh), _mm512_shuffle_f32x4(abcd, efgh, 0x4e));
  const __m256 first = _mm512_castps512_ps256(both), last = _mm512_extractf32x8_ps(both, 1);
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(first), _mm256_extractf128_ps(first, 1)));
  _mm_storeu_ps(sums + 4, _mm_add_ps(_mm256_castps256_ps128(last), _mm256_extractf128_ps(last, 1)));
}
#endif

}  // namespace geomano

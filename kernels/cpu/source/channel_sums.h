// Sums over sixteen channels, for eight rows at once.
#pragma once

#include "lanes.h"

namespace geomano {

// Adds the sums over the sixteen channels of eight rows: of the first four to first[0..3], of the others to last[0..3].
template <typename T>
inline void add_channel_sums(const typename Lanes<T>::Vec rows[8], T* first, T* last) {
  using Vec = typename Lanes<T>::Vec;
  T lanes[Vec::size()];
  for (int row = 0; row < 8; ++row) {
    rows[row].store(lanes);
    T sum = 0;
    for (int64_t lane = 0; lane < Vec::size(); ++lane) sum += lanes[lane];
    (row < 4 ? first : last)[row % 4] += sum;
  }
}

#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
inline void add_four(float* to, __m128 values) { _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), values)); }
#endif

#if defined(CPU_CAPABILITY_AVX512)
// Pairwise, all eight rows at once. Blends cost less than shuffles, which have two ports only.
template <>
inline void add_channel_sums<float>(const Lanes<float>::Vec rows[8], float* first, float* last) {
  const auto halves = [](__m512 a, __m512 b) {  // of each four lanes: a0 + a2, a1 + a3, b2 + b0, b3 + b1
    return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
  };
  const auto quarters = [](__m512 ab, __m512 cd) {  // of each four lanes: one sum of each row
    return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xdd));
  };
  const __m512 abcd = quarters(halves(rows[0], rows[1]), halves(rows[2], rows[3]));
  const __m512 efgh = quarters(halves(rows[4], rows[5]), halves(rows[6], rows[7]));
  const __m512 both = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, abcd, efgh), _mm512_shuffle_f32x4(abcd, efgh, 0x4e));
  add_four(first, _mm_add_ps(_mm512_castps512_ps128(both), _mm512_extractf32x4_ps(both, 1)));
  add_four(last, _mm_add_ps(_mm512_extractf32x4_ps(both, 2), _mm512_extractf32x4_ps(both, 3)));
}
#elif defined(CPU_CAPABILITY_AVX2)
// Sums of neighbouring lanes of two rows, in order: what hadd does in three slower steps.
inline __m256 sum_pairs(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

// Pairwise, all eight rows at once.
template <>
inline void add_channel_sums<float>(const Lanes<float>::Vec rows[8], float* first, float* last) {
  const __m256 abcd = sum_pairs(sum_pairs(rows[0], rows[1]), sum_pairs(rows[2], rows[3]));
  const __m256 efgh = sum_pairs(sum_pairs(rows[4], rows[5]), sum_pairs(rows[6], rows[7]));
  add_four(first, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
  add_four(last, _mm_add_ps(_mm256_castps256_ps128(efgh), _mm256_extractf128_ps(efgh, 1)));
}
#endif

}  // namespace geomano

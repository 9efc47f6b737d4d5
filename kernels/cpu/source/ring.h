// Axes that are rings: a row, or a column, begins with the state with which it ends.
//
// From a zero start it ends at e. Its product of a is p = exp(A sum of delta), so it begins with e / (1 - p). The adjoints go
// the other way and begin alike.
#pragma once

#include "tile.h"

namespace geomano {

template <typename T>
inline Lanes<T> one_minus_exp(const Lanes<T>& a) {  // exact where little decays
  GEOMANO_LANEWISE(a.v[i].expm1().neg())
}

// Adds the time steps of a tile to those of the rows, or columns, that it crosses: [lines][16].
template <bool rows, typename T, int64_t kPositions>
inline void add_steps(const Tile<T, kPositions>& tile, const Steps<T, kPositions>& steps, int64_t columns, T* sums) {
  for (int64_t m = 0; m < tile.size; ++m) {
    T* sum = sums + (rows ? m / columns : m % columns) * kLanes;
    (Lanes<T>::load(sum) + Lanes<T>::load(steps.delta[m])).store(sum);
  }
}

// From the states at the ends of lines to those at their beginnings: [lines][N][16], N padded, of a range of dstates.
// steps: [lines][16], summed along them; the exponents are `factor` delta A.
template <typename T>
void close_lines(const Parameters<T>& parameters, T factor, const T* steps, int64_t lines, T* states, int64_t first_state,
                 int64_t last_state) {
  const int64_t N = parameters.A.size() / kLanes;
  for (int64_t line = 0; line < lines; ++line) {
    const Lanes<T> step = Lanes<T>::all(factor) * Lanes<T>::load(steps + line * kLanes);
    for (int64_t s = first_state; s < last_state; ++s) {
      T* at = states + (line * N + s) * kLanes;
      (Lanes<T>::load(at) / one_minus_exp(step * Lanes<T>::load(&parameters.A[s * kLanes]))).store(at);
    }
  }
}

template <typename T>
void close_lines(const Parameters<T>& parameters, T factor, const T* steps, int64_t lines, T* states) {
  close_lines(parameters, factor, steps, lines, states, 0, parameters.A.size() / kLanes);
}

// The states with which closed rows begin, kept for the backward, and behind them those of closed columns: [lines][N][16], N
// padded.
template <typename T>
T* row_starts(const Problem& p, const Walk& walk, int64_t b, int64_t block, int64_t k) {
  const int64_t lines = walk.rows_closed * walk.rows + walk.columns_closed * walk.columns;  // the same for every direction
  const int64_t index = (b * p.blocks() + block) * p.directions + k;
  return static_cast<T*>(p.carries) + index * lines * p.padded_dstate() * kLanes;
}

template <typename T>
T* column_starts(const Problem& p, const Walk& walk, int64_t b, int64_t block, int64_t k) {
  return row_starts<T>(p, walk, b, block, k) + walk.rows_closed * walk.rows * p.padded_dstate() * kLanes;
}

}  // namespace geomano

// A tile of grid points: the rows that all channels share, and the time steps and inputs of sixteen channels.
#pragma once

#include "exp2.h"
#include "parameters.h"

namespace geomano {

// What a point counts in h = (T + own_down) (S + own_along) u (ScanSettings.own_of). With bu = `entering` u, which is more
// where S along rows or T along columns begins, `along` and `down` as much less, and the t of the columns kept
//   g = a g[before] + bu,  o = g + along bu,  t = a_down t[before] + o,  h = t + down o
// and in 1D t = a t[before] + bu,  h = t + along bu.
template <typename T>
struct Counts {
  T entering, once, along, down;  // `once` is 1 / entering

  Counts() = default;
  Counts(const Walk& walk, bool first_row, bool first_column) {
    const double in_column = first_row ? 1 + walk.own_down : 1, in_row = first_column ? 1 + walk.own_along : 1;
    entering = static_cast<T>(in_column * in_row);
    once = static_cast<T>(1 / (in_column * in_row));
    along = static_cast<T>(walk.own_along / in_row);
    down = static_cast<T>(walk.own_down / in_column);
  }
};

// Up to kPositions grid points of one direction.
template <typename T, int64_t kPositions>
struct Tile {
  int64_t size;
  int64_t position[kPositions];
  const T *B[kPositions], *C[kPositions], *dt_low[kPositions];
  Buffer<T> rows;  // B, C, dt_low converted or padded, where the tensors cannot be read in place
  Counts<T> counts[kPositions];  // but for the plain form

  void take_sequence(const Walk& walk, int64_t first) {
    size = walk.sequence(first, kPositions, position);
    if (walk.plain) return;
    for (int64_t m = 0; m < size; ++m) counts[m] = Counts<T>(walk, false, first + m == 0);
  }

  void take_square(const Walk& walk, int64_t top, int64_t left, int64_t side) {
    size = walk.square(top, left, side, position);
    if (walk.plain) return;
    const int64_t columns = std::min(side, walk.columns - left);
    for (int64_t m = 0; m < size; ++m)
      counts[m] = Counts<T>(walk, top + m / columns == 0 && !walk.columns_closed,
                            left + m % columns == 0 && !walk.rows_closed);
  }
};

// B, C and a low-rank dt of the tile's positions, N padded. All channel blocks of a bundle read them.
template <typename IO, typename T, int64_t kPositions>
void read_rows(const Problem& p, int64_t b, int64_t k, Tile<T, kPositions>& tile) {
  const int64_t N = p.dstate, padded = p.padded_dstate(), r = p.rank;
  const auto base = [&](const Activation& a) {
    return static_cast<const IO*>(a.data) + b * a.batch_stride + k * a.direction_stride;
  };
  const IO *B = base(p.B), *C = base(p.C), *dt = base(p.dt);
  const int64_t B_stride = p.B.position_stride, C_stride = p.C.position_stride, dt_stride = p.dt.position_stride;
  if constexpr (std::is_same_v<IO, T>) {
    if (N == padded) {
      for (int64_t m = 0; m < tile.size; ++m) {
        tile.B[m] = B + tile.position[m] * B_stride;
        tile.C[m] = C + tile.position[m] * C_stride;
        tile.dt_low[m] = dt + tile.position[m] * dt_stride;
        __builtin_prefetch(tile.B[m]);  // read by the scan, after the time steps are ready
        __builtin_prefetch(tile.C[m]);
      }
      return;
    }
  }
  tile.rows.resize(kPositions * (2 * padded + r));
  for (int64_t m = 0; m < tile.size; ++m) {
    const int64_t position = tile.position[m];
    T* row = tile.rows.data() + m * (2 * padded + r);
    for (int64_t s = 0; s < padded; ++s) row[s] = s < N ? static_cast<T>(B[position * B_stride + s]) : T(0);
    for (int64_t s = 0; s < padded; ++s) row[padded + s] = s < N ? static_cast<T>(C[position * C_stride + s]) : T(0);
    for (int64_t i = 0; i < r; ++i) row[2 * padded + i] = static_cast<T>(dt[position * dt_stride + i]);
    tile.B[m] = row;
    tile.C[m] = row + padded;
    tile.dt_low[m] = row + 2 * padded;
  }
}

// What the dstates of sixteen channels share in a tile.
template <typename T, int64_t kPositions>
struct Steps {
  alignas(64) T delta[kPositions][kLanes];
  alignas(64) T u[kPositions][kLanes];      // delta x
  alignas(64) T slope[kPositions][kLanes];  // of the softplus, for the backward
  alignas(64) T x[kPositions][kLanes];      // a copy: the lines of a grid with many channels share few sets of the cache
  alignas(64) T y[kPositions][kLanes];      // summed over the dstates so far
  bool tame;  // no exponent of the tile leaves the range of exp2_tame
};

// f(std::bool_constant<tame>()). The exponential of doubles takes any exponent.
template <typename T, int64_t kPositions, typename F>
inline void with_tame(const Steps<T, kPositions>& steps, const F& f) {
  if constexpr (std::is_same_v<T, double>)
    f(std::true_type());
  else
    steps.tame ? f(std::true_type()) : f(std::false_type());
}

// dt = bias + weight dt_low, four positions at a time: they share the loads of the weight.
template <typename T, int64_t kPositions>
inline void expand_time_steps(const Parameters<T>& parameters, int64_t r, const Tile<T, kPositions>& tile,
                              T (*raw)[kLanes]) {
  const Lanes<T> bias = Lanes<T>::load(parameters.bias);
  int64_t m = 0;
  for (; m + 4 <= tile.size; m += 4) {
    const T *low0 = tile.dt_low[m], *low1 = tile.dt_low[m + 1], *low2 = tile.dt_low[m + 2], *low3 = tile.dt_low[m + 3];
    Lanes<T> raw0 = bias, raw1 = bias, raw2 = bias, raw3 = bias;
    for (int64_t i = 0; i < r; ++i) {
      const Lanes<T> weight = Lanes<T>::load(&parameters.weight[i * kLanes]);
      raw0 = fma(Lanes<T>::all(low0[i]), weight, raw0);
      raw1 = fma(Lanes<T>::all(low1[i]), weight, raw1);
      raw2 = fma(Lanes<T>::all(low2[i]), weight, raw2);
      raw3 = fma(Lanes<T>::all(low3[i]), weight, raw3);
    }
    raw0.store(raw[m]);
    raw1.store(raw[m + 1]);
    raw2.store(raw[m + 2]);
    raw3.store(raw[m + 3]);
  }
  for (; m < tile.size; ++m) {
    Lanes<T> sum = bias;
    for (int64_t i = 0; i < r; ++i)
      sum = fma(Lanes<T>::all(tile.dt_low[m][i]), Lanes<T>::load(&parameters.weight[i * kLanes]), sum);
    sum.store(raw[m]);
  }
}

// Time steps (softplus of dt + bias, dt expanded from its low-rank factors) and inputs of a tile's positions.
template <typename IO, typename T, bool with_slope, int64_t kPositions>
void prepare(const Problem& p, const Parameters<T>& parameters, const Source<IO, T>& x, const Source<IO, T>& dt,
             const Tile<T, kPositions>& tile, Steps<T, kPositions>& steps) {
  for (int64_t m = 0; m < tile.size; ++m) __builtin_prefetch(x.data + tile.position[m] * x.stride);
  if (p.rank == 0) {
    alignas(64) T scratch[kLanes];
    const Lanes<T> bias = Lanes<T>::load(parameters.bias);
    for (int64_t m = 0; m < tile.size; ++m)
      (bias + Lanes<T>::load(dt.line(tile.position[m], scratch))).store(steps.delta[m]);
  } else {
    expand_time_steps(parameters, p.rank, tile, steps.delta);
  }
  Lanes<T> largest = Lanes<T>::all(0);
  for (int64_t m = 0; m < tile.size; ++m) {
    const TimeStep<T> step = time_step<with_slope>(Lanes<T>::load(steps.delta[m]));
    const Lanes<T> x_m = Lanes<T>::load(x.line(tile.position[m], steps.x[m]));
    step.delta.store(steps.delta[m]);
    x_m.store(steps.x[m]);
    (step.delta * x_m).store(steps.u[m]);
    if constexpr (with_slope) step.slope.store(steps.slope[m]);
    largest = maximum(largest, step.delta);
  }
  alignas(64) T exponents[kLanes];
  (largest * Lanes<T>::load(parameters.largest_A)).store(exponents);
  steps.tame = std::all_of(exponents, exponents + kLanes, [](T size) { return size <= T(kTame); });
}

}  // namespace geomano

// The forward scans of a bundle of channel blocks: Eq. (1D GeoMamba-SSM) and Eq. (2D GeoMamba-SSM).
#pragma once

#include "ring.h"

namespace geomano {

enum class Correction { none, equation, state };

// y + C h - R Bbar x, or y + C (h - R Bbar x).
template <typename T, Correction correction>
inline Lanes<T> read_out(const Lanes<T>& y, const Lanes<T>& c, const Lanes<T>& h, const Lanes<T>& bu, const T* minus_R) {
  if constexpr (correction == Correction::none) return fma(c, h, y);
  const Lanes<T> minus_r = Lanes<T>::load(minus_R);
  if constexpr (correction == Correction::equation) return fma(minus_r, bu, fma(c, h, y));
  return fma(c, fma(minus_r, bu, h), y);
}

constexpr int64_t kTile1d = 32;
constexpr int64_t kSide = 8;  // of a tile in 2D

// Where a tile's y goes: the first direction writes it, the others add to it.
template <typename IO, typename T>
struct Output {
  static constexpr bool kWanted = true, kColumns = true;
  const Column<IO, T>& y;
  bool first;

  inline Lanes<T> start(const Parameters<T>& parameters, const T* x, int64_t position) const {
    const Lanes<T> skip = Lanes<T>::load(parameters.D) * Lanes<T>::load(x);
    return first ? skip : skip + Lanes<T>::load(y.at(position));
  }
  inline void store(const Lanes<T>& value, int64_t position) const { value.store(y.at(position)); }
};

// A sweep for the states alone: y is not computed.
struct NoOutput {
  static constexpr bool kWanted = false, kColumns = true;
};

// A sweep for the states along the rows alone: neither y nor h is computed.
struct NoColumns {
  static constexpr bool kWanted = false, kColumns = false;
};

// h[t] = a[t] h[t-1] + B u over a tile of the sequence. h: [N][16], carried on; N padded. y is summed over the groups of
// dstates in steps.y.
template <typename T, Correction correction, bool tame, typename Out>
void scan_tile_1d(const Parameters<T>& parameters, const Tile<T, kTile1d>& tile, Steps<T, kTile1d>& steps, int64_t N, T* h,
                  const Out& out) {
  for (int64_t s0 = 0; s0 < N; s0 += kStates) {
    const T *A = &parameters.A_log2e[s0 * kLanes], *minus_R = &parameters.minus_R[s0 * kLanes];
    Lanes<T> h_s[kStates];
    each_state([&](int64_t q) __attribute__((always_inline)) { h_s[q] = Lanes<T>::load(h + (s0 + q) * kLanes); });
    for (int64_t m = 0; m < tile.size; ++m) {
      const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = Lanes<T>::load(steps.u[m]);
      const T *B = tile.B[m] + s0, *C = tile.C[m] + s0;
      Lanes<T> y;
      if constexpr (Out::kWanted)
        y = s0 == 0 ? out.start(parameters, steps.x[m], tile.position[m]) : Lanes<T>::load(steps.y[m]);
      each_state([&](int64_t q) __attribute__((always_inline)) {
        const Lanes<T> a = exp2_product<tame>(delta, Lanes<T>::load(A + q * kLanes));
        const Lanes<T> bu = Lanes<T>::all(B[q]) * u;
        h_s[q] = fma(a, h_s[q], bu);
        if constexpr (Out::kWanted)
          y = read_out<T, correction>(y, Lanes<T>::all(C[q]), h_s[q], bu, minus_R + q * kLanes);
      });
      if constexpr (Out::kWanted) s0 + kStates < N ? y.store(steps.y[m]) : out.store(y, tile.position[m]);
    }
    each_state([&](int64_t q) __attribute__((always_inline)) { h_s[q].store(h + (s0 + q) * kLanes); });
  }
}

// Algorithm 2 on a tile of rows x columns points: g along the row, h along the column, the same a in both unless stretched.
// g: [rows][N][16] enters at the left edge, h: [columns][N][16] at the top edge; both are carried on.
template <typename T, Correction correction, bool stretched, bool tame, typename Out>
void scan_tile_2d(const Parameters<T>& parameters, const Tile<T, kSide * kSide>& tile, Steps<T, kSide * kSide>& steps,
                  int64_t columns, int64_t N, T* g, T* h, const Out& out) {
  for (int64_t s0 = 0; s0 < N; s0 += kStates) {
    const T *A = &parameters.A_log2e[s0 * kLanes], *minus_R = &parameters.minus_R[s0 * kLanes];
    const T* A_down = parameters.A_down_log2e.data() + s0 * kLanes;
    T* g_row = g + s0 * kLanes;
    for (int64_t m = 0; m < tile.size; g_row += N * kLanes) {
      T* h_column = h + s0 * kLanes;
      Lanes<T> g_s[kStates];
      each_state([&](int64_t q) __attribute__((always_inline)) { g_s[q] = Lanes<T>::load(g_row + q * kLanes); });
      for (int64_t j = 0; j < columns; ++j, ++m, h_column += N * kLanes) {
        const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = Lanes<T>::load(steps.u[m]);
        const T *B = tile.B[m] + s0, *C = tile.C[m] + s0;
        Lanes<T> y;
        if constexpr (Out::kWanted)
          y = s0 == 0 ? out.start(parameters, steps.x[m], tile.position[m]) : Lanes<T>::load(steps.y[m]);
        each_state([&](int64_t q) __attribute__((always_inline)) {
          const Lanes<T> a = exp2_product<tame>(delta, Lanes<T>::load(A + q * kLanes));
          const Lanes<T> bu = Lanes<T>::all(B[q]) * u;
          g_s[q] = fma(a, g_s[q], bu);
          if constexpr (Out::kColumns) {
            const Lanes<T> a_down = stretched ? exp2_product<tame>(delta, Lanes<T>::load(A_down + q * kLanes)) : a;
            const Lanes<T> h_s = fma(a_down, Lanes<T>::load(h_column + q * kLanes), g_s[q]);
            h_s.store(h_column + q * kLanes);
            if constexpr (Out::kWanted)
              y = read_out<T, correction>(y, Lanes<T>::all(C[q]), h_s, bu, minus_R + q * kLanes);
          }
        });
        if constexpr (Out::kWanted) s0 + kStates < N ? y.store(steps.y[m]) : out.store(y, tile.position[m]);
      }
      each_state([&](int64_t q) __attribute__((always_inline)) { g_s[q].store(g_row + q * kLanes); });
    }
  }
}

// Whether any R of a direction differs from 0. By direction, so that it does not depend on how channels are bundled.
template <typename T>
bool corrected(const Problem& p, int64_t k) {
  if (p.R == nullptr) return false;
  const T* R = static_cast<const T*>(p.R) + k * p.channels * p.dstate;
  return p.needs_R || std::any_of(R, R + p.channels * p.dstate, [](T r) { return r != 0; });
}

template <typename T, typename F>
void with_correction(const Problem& p, int64_t k, F f) {
  if (!corrected<T>(p, k)) return f(std::integral_constant<Correction, Correction::none>());
  if (p.state_form) return f(std::integral_constant<Correction, Correction::state>());
  return f(std::integral_constant<Correction, Correction::equation>());
}

// The state [N][16] that enters an interval of the sequence, kept for the backward.
template <typename T>
T* carry(const Problem& p, int64_t b, int64_t block, int64_t k, int64_t interval) {
  const int64_t intervals = (p.height * p.width + p.interval - 1) / p.interval;
  return static_cast<T*>(p.carries) +
         (((b * p.blocks() + block) * p.directions + k) * intervals + interval) * p.dstate * kLanes;
}

// Channel blocks that walk the grid together, tile by tile, so that a tile's rows of B, C and dt and the lines of its
// positions come to the cache once for all of them.
template <typename IO, typename T>
struct Forward {
  const Problem& p;
  int64_t b, first_block, blocks;
  std::vector<Column<IO, T>> y;
  std::vector<Parameters<T>> parameters;

  Forward(const Problem& p, int64_t b, int64_t first_block, int64_t blocks)
      : p(p), b(b), first_block(first_block), blocks(blocks), parameters(blocks) {
    const int64_t positions = p.height * p.width;
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t channel = first_channel(i);
      y.emplace_back(static_cast<IO*>(p.y) + b * positions * p.channels + channel, p.channels, positions,
                     std::min(kLanes, p.channels - channel));
    }
  }

  int64_t first_channel(int64_t i) const { return (first_block + i) * kLanes; }

  void run() {
    for (int64_t k = 0; k < p.directions; ++k) {
      for (int64_t i = 0; i < blocks; ++i) parameters[i].load(p, k, first_channel(i));
      with_correction<T>(p, k, [&](auto correction) {
        constexpr Correction form = decltype(correction)::value;
        if (p.two_d)
          parameters[0].stretched() ? direction_2d<form, true>(k) : direction_2d<form, false>(k);
        else
          direction_1d<form>(k);
      });
    }
    for (const Column<IO, T>& column : y) column.write();
  }

  template <Correction correction>
  void direction_1d(int64_t k) {
    const Walk walk(p, k);
    const int64_t N = p.padded_dstate(), length = p.height * p.width, state = N * kLanes;
    Buffer<T> h(blocks * state, T(0));
    Tile<T, kTile1d> tile;
    Steps<T, kTile1d> steps;
    for (int64_t first = 0; first < length; first += kTile1d) {
      tile.size = walk.sequence(first, kTile1d, tile.position);
      read_rows<IO>(p, b, k, tile);
      for (int64_t i = 0; i < blocks; ++i) {
        T* h_block = &h[i * state];
        if (p.carries != nullptr && first % p.interval == 0)
          std::memcpy(carry<T>(p, b, first_block + i, k, first / p.interval), h_block, p.dstate * kLanes * sizeof(T));
        start_tile<Output<IO, T>>(k, i, tile, steps);
        const Output<IO, T> out{y[i], k == 0};
        with_tame(steps.tame, [&](auto tame) {
          scan_tile_1d<T, correction, tame>(parameters[i], tile, steps, N, h_block, out);
        });
      }
    }
  }

  template <Correction correction, bool stretched>
  void direction_2d(int64_t k) {
    const Walk walk(p, k);
    if (walk.columns_closed) sweep_2d<Correction::none, stretched, NoOutput>(walk, k, true);
    sweep_2d<correction, stretched, Output<IO, T>>(walk, k, !walk.columns_closed);
  }

  // From the top left to the bottom right. The first sweep finds where closed rows begin, the one without y where closed
  // columns do.
  template <Correction correction, bool stretched, typename Out>
  void sweep_2d(const Walk& walk, int64_t k, bool first) {
    const int64_t N = p.padded_dstate(), state = N * kLanes;
    Buffer<T> h(blocks * walk.columns * state, T(0)), g(blocks * kSide * state);
    Buffer<T> column_steps(Out::kWanted ? 0 : blocks * walk.columns * kLanes, T(0));
    if (Out::kWanted && walk.columns_closed)
      for (int64_t i = 0; i < blocks; ++i)
        std::memcpy(&h[i * walk.columns * state], column_starts<T>(p, walk, b, first_block + i, k),
                    walk.columns * state * sizeof(T));
    Tile<T, kSide * kSide> tile;
    Steps<T, kSide * kSide> steps;
    for (int64_t top = 0; top < walk.rows; top += kSide) {
      if (walk.rows_closed && first) close_rows(walk, k, top, tile, steps);
      start_rows(walk, k, top, g);
      for (int64_t left = 0; left < walk.columns; left += kSide) {
        const int64_t columns = std::min(kSide, walk.columns - left);
        tile.size = walk.square(top, left, kSide, tile.position);
        read_rows<IO>(p, b, k, tile);
        for (int64_t i = 0; i < blocks; ++i) {
          T *g_block = &g[i * kSide * state], *h_block = &h[(i * walk.columns + left) * state];
          start_tile<Out>(k, i, tile, steps);
          const auto out = [&] {
            if constexpr (Out::kWanted) return Out{y[i], k == 0};
            else return Out();
          }();
          with_tame(steps.tame, [&](auto tame) {
            scan_tile_2d<T, correction, stretched, tame>(parameters[i], tile, steps, columns, N, g_block, h_block, out);
          });
          if constexpr (!Out::kWanted) add_steps<false>(tile, steps, columns, &column_steps[(i * walk.columns + left) * kLanes]);
        }
      }
    }
    if constexpr (!Out::kWanted)
      for (int64_t i = 0; i < blocks; ++i) {
        T* starts = column_starts<T>(p, walk, b, first_block + i, k);
        std::memcpy(starts, &h[i * walk.columns * state], walk.columns * state * sizeof(T));
        close_lines(parameters[i], parameters[i].down, &column_steps[i * walk.columns * kLanes], walk.columns, N, starts);
      }
  }

  // The states [blocks][kSide][N][16] with which the rows of a band begin.
  void start_rows(const Walk& walk, int64_t k, int64_t top, Buffer<T>& g) const {
    std::fill(g.begin(), g.end(), T(0));
    if (!walk.rows_closed) return;
    const int64_t state = p.padded_dstate() * kLanes, size = std::min(kSide, walk.rows - top) * state;
    for (int64_t i = 0; i < blocks; ++i)
      std::memcpy(&g[i * kSide * state], row_starts<T>(p, walk, b, first_block + i, k) + top * state, size * sizeof(T));
  }

  // Finds them, by a sweep of the band from zero.
  void close_rows(const Walk& walk, int64_t k, int64_t top, Tile<T, kSide * kSide>& tile, Steps<T, kSide * kSide>& steps) {
    const int64_t N = p.padded_dstate(), state = N * kLanes, rows = std::min(kSide, walk.rows - top);
    Buffer<T> row_steps(blocks * kSide * kLanes, T(0));
    const auto starts = [&](int64_t i) { return row_starts<T>(p, walk, b, first_block + i, k) + top * state; };
    for (int64_t i = 0; i < blocks; ++i) std::fill(starts(i), starts(i) + rows * state, T(0));
    for (int64_t left = 0; left < walk.columns; left += kSide) {
      const int64_t columns = std::min(kSide, walk.columns - left);
      tile.size = walk.square(top, left, kSide, tile.position);
      read_rows<IO>(p, b, k, tile);
      for (int64_t i = 0; i < blocks; ++i) {
        start_tile<NoColumns>(k, i, tile, steps);
        with_tame(steps.tame, [&](auto tame) {
          scan_tile_2d<T, Correction::none, false, tame>(parameters[i], tile, steps, columns, N, starts(i), nullptr, NoColumns());
        });
        add_steps<true>(tile, steps, columns, &row_steps[i * kSide * kLanes]);
      }
    }
    for (int64_t i = 0; i < blocks; ++i)
      close_lines(parameters[i], T(1), &row_steps[i * kSide * kLanes], rows, N, starts(i));
  }

  template <typename Out, int64_t kPositions>
  void start_tile(int64_t k, int64_t i, const Tile<T, kPositions>& tile, Steps<T, kPositions>& steps) const {
    if (Out::kWanted && k > 0)
      for (int64_t m = 0; m < tile.size; ++m) __builtin_prefetch(y[i].at(tile.position[m]), 1);
    prepare<IO, T, false>(p, parameters[i], Source<IO, T>(p.x, b, 0, first_channel(i), p.channels),
                          Source<IO, T>(p.dt, b, k, first_channel(i), p.channels), tile, steps);
  }
};

// Channel blocks to a bundle: every thread gets one, and in 2D their states between rows stay in the second-level cache.
// No sum crosses channel blocks, so the result does not depend on it.
template <typename T>
int64_t forward_bundle(const Problem& p) {
  const int64_t blocks = p.blocks();
  int64_t most = std::min<int64_t>(8, p.batch * blocks / std::max<int64_t>(1, p.threads));
  const int64_t state_bytes = std::max(p.height, p.width) * p.dstate * kLanes * static_cast<int64_t>(sizeof(T));
  if (p.two_d) most = std::min(most, (int64_t(1) << 17) / state_bytes);
  return std::clamp<int64_t>(most, 1, blocks);
}

template <typename IO, typename T>
void forward(const Problem& p) {
  const int64_t blocks = p.blocks(), bundle = forward_bundle<T>(p);
  const int64_t bundles = (blocks + bundle - 1) / bundle;
#pragma omp parallel for schedule(dynamic, 1) num_threads(p.threads)
  for (int64_t task = 0; task < p.batch * bundles; ++task) {
    const FlushDenormals flush;
    const int64_t first_block = task % bundles * bundle;
    Forward<IO, T>(p, task / bundles, first_block, std::min(bundle, blocks - first_block)).run();
  }
}

}  // namespace geomano

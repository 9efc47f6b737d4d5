// The forward scans of one block of sixteen channels: Eq. (1D GeoMamba-SSM) and Eq. (2D GeoMamba-SSM).
#pragma once

#include "problem.h"

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

// h[t] = a[t] h[t-1] + B u over a tile of the sequence. h: [N][16], carried on.
template <typename T, Correction correction, bool tame, typename Next>
void scan_tile_1d(const Parameters<T>& parameters, const Tile<T, kTile1d>& tile, int64_t N, T* h, T (*y)[kLanes],
                  const Next& next) {
  for (int64_t m = 0; m < tile.size; ++m) {
    next.fetch(m);
    const Lanes<T> delta = Lanes<T>::load(tile.delta[m]), u = Lanes<T>::load(tile.u[m]);
    const T *B = tile.B[m], *C = tile.C[m];
    Lanes<T> y_m = Lanes<T>::load(y[m]);
    for (int64_t s = 0; s < N; ++s) {
      const Lanes<T> a = exp2_product<tame>(delta, Lanes<T>::load(&parameters.A_log2e[s * kLanes]));
      const Lanes<T> bu = Lanes<T>::all(B[s]) * u;
      const Lanes<T> h_s = fma(a, Lanes<T>::load(h + s * kLanes), bu);
      h_s.store(h + s * kLanes);
      y_m = read_out<T, correction>(y_m, Lanes<T>::all(C[s]), h_s, bu, &parameters.minus_R[s * kLanes]);
    }
    y_m.store(y[m]);
  }
}

// Algorithm 2 on a tile of rows x columns points: g along the row, h along the column, the same a in both.
// g: [rows][N][16] enters at the left edge, h: [columns][N][16] at the top edge; both are carried on.
template <typename T, Correction correction, bool tame, bool with_y, typename Next>
void scan_tile_2d(const Parameters<T>& parameters, const Tile<T, kSide * kSide>& tile, int64_t columns, int64_t N, T* g,
                  T* h, T (*y)[kLanes], const Next& next) {
  for (int64_t m = 0; m < tile.size; ++m) {
    next.fetch(m);
    T *g_row = g + m / columns * N * kLanes, *h_column = h + m % columns * N * kLanes;
    const Lanes<T> delta = Lanes<T>::load(tile.delta[m]), u = Lanes<T>::load(tile.u[m]);
    const T *B = tile.B[m], *C = tile.C[m];
    Lanes<T> y_m;
    if constexpr (with_y) y_m = Lanes<T>::load(y[m]);
    for (int64_t s = 0; s < N; ++s) {
      const Lanes<T> a = exp2_product<tame>(delta, Lanes<T>::load(&parameters.A_log2e[s * kLanes]));
      const Lanes<T> bu = Lanes<T>::all(B[s]) * u;
      const Lanes<T> g_s = fma(a, Lanes<T>::load(g_row + s * kLanes), bu);
      g_s.store(g_row + s * kLanes);
      const Lanes<T> h_s = fma(a, Lanes<T>::load(h_column + s * kLanes), g_s);
      h_s.store(h_column + s * kLanes);
      if constexpr (with_y)
        y_m = read_out<T, correction>(y_m, Lanes<T>::all(C[s]), h_s, bu, &parameters.minus_R[s * kLanes]);
    }
    if constexpr (with_y) y_m.store(y[m]);
  }
}

// y of a tile starts from what the directions before left there, plus D x.
template <typename IO, typename T, int64_t kPositions>
void start_y(const Tile<T, kPositions>& tile, const Column<IO, T>& x, const Column<IO, T>& y, const Parameters<T>& parameters,
             bool first, T (*y_tile)[kLanes]) {
  const Lanes<T> D = Lanes<T>::load(parameters.D);
  for (int64_t m = 0; m < tile.size; ++m) {
    const Lanes<T> before = first ? Lanes<T>::all(0) : Lanes<T>::load(y.at(tile.position[m]));
    fma(D, Lanes<T>::load(x.at(tile.position[m])), before).store(y_tile[m]);
  }
}

template <typename IO, typename T>
struct Forward {
  const Problem& p;
  int64_t b, first_channel, block, blocks;
  Column<IO, T>&x, &y;
  Parameters<T> parameters;

  template <typename F>
  static void with_correction(const Problem& p, const Parameters<T>& parameters, F f) {
    if (!parameters.corrected) return f(std::integral_constant<Correction, Correction::none>());
    if (p.state_form) return f(std::integral_constant<Correction, Correction::state>());
    return f(std::integral_constant<Correction, Correction::equation>());
  }

  void direction(int64_t k) {
    parameters.load(p, k, first_channel);
    with_correction(p, parameters, [&](auto correction) {
      if (p.two_d)
        direction_2d<decltype(correction)::value>(k);
      else
        direction_1d<decltype(correction)::value>(k);
    });
  }

  template <Correction correction>
  void direction_1d(int64_t k) {
    const Walk walk(p, p.orders[k]);
    const int64_t N = p.dstate, length = p.height * p.width;
    Buffer<T> h(N * kLanes, T(0));
    Tile<T, kTile1d> tile;
    alignas(64) T y_tile[kTile1d][kLanes];
    Ahead<IO, T, kTile1d> next{p, b, k, first_channel, x, y};
    for (int64_t first = 0; first < length; first += kTile1d) {
      if (p.carries != nullptr && first % p.interval == 0)
        std::memcpy(carry(k, first / p.interval), h.data(), N * kLanes * sizeof(T));
      tile.size = walk.sequence(first, kTile1d, tile.position);
      next.size = walk.sequence(first + kTile1d, kTile1d, next.position);
      prepare<IO, T, false>(p, b, k, first_channel, parameters, x, tile);
      start_y(tile, x, y, parameters, k == 0, y_tile);
      if (tile.tame)
        scan_tile_1d<T, correction, true>(parameters, tile, N, h.data(), y_tile, next);
      else
        scan_tile_1d<T, correction, false>(parameters, tile, N, h.data(), y_tile, next);
      for (int64_t m = 0; m < tile.size; ++m) Lanes<T>::load(y_tile[m]).store(y.at(tile.position[m]));
    }
  }

  template <Correction correction>
  void direction_2d(int64_t k) {
    const Walk walk(p, p.orders[k]);
    const int64_t N = p.dstate, state = N * kLanes;
    Buffer<T> h(walk.columns * state, T(0)), g(kSide * state);
    Tile<T, kSide * kSide> tile;
    alignas(64) T y_tile[kSide * kSide][kLanes];
    Ahead<IO, T, kSide * kSide> next{p, b, k, first_channel, x, y};
    for (int64_t top = 0; top < walk.rows; top += kSide) {
      std::fill(g.begin(), g.end(), T(0));
      for (int64_t left = 0; left < walk.columns; left += kSide) {
        tile.size = walk.square(top, left, kSide, tile.position);
        next.size = walk.square(top, left + kSide, kSide, next.position);
        if (next.size == 0) next.size = walk.square(top + kSide, 0, kSide, next.position);
        const int64_t columns = std::min(kSide, walk.columns - left);
        prepare<IO, T, false>(p, b, k, first_channel, parameters, x, tile);
        start_y(tile, x, y, parameters, k == 0, y_tile);
        if (tile.tame)
          scan_tile_2d<T, correction, true, true>(parameters, tile, columns, N, g.data(), &h[left * state], y_tile, next);
        else
          scan_tile_2d<T, correction, false, true>(parameters, tile, columns, N, g.data(), &h[left * state], y_tile, next);
        for (int64_t m = 0; m < tile.size; ++m) Lanes<T>::load(y_tile[m]).store(y.at(tile.position[m]));
      }
    }
  }

  T* carry(int64_t k, int64_t index) const {
    const int64_t per_direction = (p.height * p.width + p.interval - 1) / p.interval;
    return static_cast<T*>(p.carries) +
           (((b * blocks + block) * p.directions + k) * per_direction + index) * p.dstate * kLanes;
  }
};

template <typename IO, typename T>
void forward(const Problem& p) {
  const int64_t blocks = (p.channels + kLanes - 1) / kLanes, positions = p.height * p.width;
#pragma omp parallel for schedule(dynamic, 1) num_threads(p.threads)
  for (int64_t task = 0; task < p.batch * blocks; ++task) {
    const FlushDenormals flush;
    const int64_t b = task / blocks, block = task % blocks, first_channel = block * kLanes;
    const int64_t count = std::min(kLanes, p.channels - first_channel);
    Column<IO, T> x(static_cast<IO*>(p.x.data) + b * p.x.batch_stride + first_channel, p.x.position_stride, positions, count);
    Column<IO, T> y(static_cast<IO*>(p.y) + b * positions * p.channels + first_channel, p.channels, positions, count);
    x.read();
    Forward<IO, T> scan{p, b, first_channel, block, blocks, x, y, {}};
    for (int64_t k = 0; k < p.directions; ++k) scan.direction(k);
    y.write();
  }
}

}  // namespace geomano

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

// Where a tile's y goes: the first direction writes it, the others add to it.
template <typename IO, typename T>
struct Output {
  const Column<IO, T>& y;
  bool first;

  inline Lanes<T> start(const Parameters<T>& parameters, const T* x, int64_t position) const {
    const Lanes<T> skip = Lanes<T>::load(parameters.D) * Lanes<T>::load(x);
    return first ? skip : skip + Lanes<T>::load(y.at(position));
  }
  inline void store(const Lanes<T>& value, int64_t position) const { value.store(y.at(position)); }
};

// A sweep for the states alone.
template <typename T>
struct NoOutput {
  inline Lanes<T> start(const Parameters<T>&, const T*, int64_t) const { return Lanes<T>::all(0); }
  inline void store(const Lanes<T>&, int64_t) const {}
};

// h[t] = a[t] h[t-1] + B u over a tile of the sequence. h: [N][16], carried on.
template <typename T, Correction correction, bool tame, typename Out>
void scan_tile_1d(const Parameters<T>& parameters, const Tile<T, kTile1d>& tile, int64_t N, T* h, const Out& out) {
  const T *A = parameters.A_log2e.data(), *minus_R = parameters.minus_R.data();
  for (int64_t m = 0; m < tile.size; ++m) {
    const Lanes<T> delta = Lanes<T>::load(tile.delta[m]), u = Lanes<T>::load(tile.u[m]);
    const T *B = tile.B[m], *C = tile.C[m];
    Lanes<T> y = out.start(parameters, tile.x[m], tile.position[m]);
    for (int64_t s = 0; s < N; ++s) {
      const Lanes<T> a = exp2_product<tame>(delta, Lanes<T>::load(A + s * kLanes));
      const Lanes<T> bu = Lanes<T>::all(B[s]) * u;
      const Lanes<T> h_s = fma(a, Lanes<T>::load(h + s * kLanes), bu);
      h_s.store(h + s * kLanes);
      y = read_out<T, correction>(y, Lanes<T>::all(C[s]), h_s, bu, minus_R + s * kLanes);
    }
    out.store(y, tile.position[m]);
  }
}

// Algorithm 2 on a tile of rows x columns points: g along the row, h along the column, the same a in both.
// g: [rows][N][16] enters at the left edge, h: [columns][N][16] at the top edge; both are carried on.
template <typename T, Correction correction, bool tame, typename Out>
void scan_tile_2d(const Parameters<T>& parameters, const Tile<T, kSide * kSide>& tile, int64_t columns, int64_t N, T* g,
                  T* h, const Out& out) {
  const T *A = parameters.A_log2e.data(), *minus_R = parameters.minus_R.data();
  for (int64_t m = 0; m < tile.size; g += N * kLanes) {
    T* h_column = h;
    for (int64_t j = 0; j < columns; ++j, ++m, h_column += N * kLanes) {
      const Lanes<T> delta = Lanes<T>::load(tile.delta[m]), u = Lanes<T>::load(tile.u[m]);
      const T *B = tile.B[m], *C = tile.C[m];
      Lanes<T> y = out.start(parameters, tile.x[m], tile.position[m]);
      for (int64_t s = 0; s < N; ++s) {
        const Lanes<T> a = exp2_product<tame>(delta, Lanes<T>::load(A + s * kLanes));
        const Lanes<T> bu = Lanes<T>::all(B[s]) * u;
        const Lanes<T> g_s = fma(a, Lanes<T>::load(g + s * kLanes), bu);
        g_s.store(g + s * kLanes);
        const Lanes<T> h_s = fma(a, Lanes<T>::load(h_column + s * kLanes), g_s);
        h_s.store(h_column + s * kLanes);
        y = read_out<T, correction>(y, Lanes<T>::all(C[s]), h_s, bu, minus_R + s * kLanes);
      }
      out.store(y, tile.position[m]);
    }
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
    const Output<IO, T> out{y, k == 0};
    Buffer<T> h(N * kLanes, T(0));
    Tile<T, kTile1d> tile;
    for (int64_t first = 0; first < length; first += kTile1d) {
      if (p.carries != nullptr && first % p.interval == 0)
        std::memcpy(carry(k, first / p.interval), h.data(), N * kLanes * sizeof(T));
      tile.size = walk.sequence(first, kTile1d, tile.position);
      prepare<IO, T, false>(p, b, k, first_channel, parameters, x, tile);
      if (tile.tame)
        scan_tile_1d<T, correction, true>(parameters, tile, N, h.data(), out);
      else
        scan_tile_1d<T, correction, false>(parameters, tile, N, h.data(), out);
    }
  }

  template <Correction correction>
  void direction_2d(int64_t k) {
    const Walk walk(p, p.orders[k]);
    const int64_t N = p.dstate, state = N * kLanes;
    const Output<IO, T> out{y, k == 0};
    Buffer<T> h(walk.columns * state, T(0)), g(kSide * state);
    Tile<T, kSide * kSide> tile;
    for (int64_t top = 0; top < walk.rows; top += kSide) {
      std::fill(g.begin(), g.end(), T(0));
      for (int64_t left = 0; left < walk.columns; left += kSide) {
        const int64_t columns = std::min(kSide, walk.columns - left);
        tile.size = walk.square(top, left, kSide, tile.position);
        prepare<IO, T, false>(p, b, k, first_channel, parameters, x, tile);
        if (tile.tame)
          scan_tile_2d<T, correction, true>(parameters, tile, columns, N, g.data(), &h[left * state], out);
        else
          scan_tile_2d<T, correction, false>(parameters, tile, columns, N, g.data(), &h[left * state], out);
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

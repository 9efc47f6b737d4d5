// The gradients of one tile. Its hidden states are computed again.
//
// With dy given, and lambda, mu the gradients of h, g:
//   1D  lambda[t] = C dy + a[t+1] lambda[t+1]
//   2D  lambda[i,j] = C dy + a[i+1,j] lambda[i+1,j],   mu[i,j] = lambda[i,j] + a[i,j+1] mu[i,j+1]
// In 1D mu = lambda. Then d(B u) = mu - R dy (equation) or mu - C R dy (state), and the gradient of the exponent
// delta A is a (lambda h[before] + mu g[before]).
#pragma once

#include "channel_sums.h"
#include "forward.h"

namespace geomano {

template <typename T>
inline typename Lanes<T>::Vec folded_product(const Lanes<T>& a, const Lanes<T>& b) {
  typename Lanes<T>::Vec out = a.v[0] * b.v[0];
  for (int64_t i = 1; i < Lanes<T>::kVectors; ++i) out = at::vec::fmadd(a.v[i], b.v[i], out);
  return out;
}

template <typename T, int64_t kPositions>
struct TileGradients {
  alignas(64) T dy[kPositions][kLanes];
  alignas(64) T du[kPositions][kLanes];
  alignas(64) T ddelta[kPositions][kLanes];  // by way of the exponents only
  alignas(64) T a[kPositions][kStates][kLanes];
  alignas(64) T h[kPositions][kStates][kLanes];
  alignas(64) T g[kPositions][kStates][kLanes];
  alignas(64) T dA[kStates][kLanes];
  alignas(64) T dR[kStates][kLanes];
};

// What one point of one group of kStates dstates adds to the gradients, once lambda and mu are known.
template <typename T, Correction correction, bool needs_R>
struct PointGradients {
  const Lanes<T>&delta, &u, &dy;
  Lanes<T>&du, &ddelta;

  __attribute__((always_inline)) void add(const Parameters<T>& parameters, int64_t s, T b, T c, const Lanes<T>& h, const Lanes<T>& mu,
                  const Lanes<T>& exponent, Lanes<T>& dA, T* dR, typename Lanes<T>::Vec& dB,
                  typename Lanes<T>::Vec& dC) const {
    ddelta = fma(exponent, Lanes<T>::load(&parameters.A[s * kLanes]), ddelta);
    dA = fma(exponent, delta, dA);
    Lanes<T> dbu = mu, read = h;
    if constexpr (correction != Correction::none) {
      const Lanes<T> minus_r = Lanes<T>::load(&parameters.minus_R[s * kLanes]);
      const Lanes<T> bu = Lanes<T>::all(b) * u;  // unused, and left out, in the equation form with a fixed R
      const Lanes<T> corrected_dy = correction == Correction::state ? Lanes<T>::all(c) * dy : dy;
      dbu = fma(minus_r, corrected_dy, mu);
      if constexpr (correction == Correction::state) read = fma(minus_r, bu, h);
      if constexpr (needs_R) (Lanes<T>::load(dR) - bu * corrected_dy).store(dR);
    }
    du = fma(Lanes<T>::all(b), dbu, du);
    dB = folded_product(u, dbu);
    dC = folded_product(dy, read);
  }
};

template <typename T, Correction correction, bool needs_R, bool tame>
void tile_backward_1d(const Parameters<T>& parameters, const Tile<T, kTile1d>& tile,
                      const Steps<T, kTile1d>& steps, int64_t padded, int64_t row_size,
                      int64_t s0, const T* start, T* lambda, TileGradients<T, kTile1d>& grad, T* rows) {
  Lanes<T> h_s[kStates], lambda_s[kStates], dA[kStates];
  each_state([&](int64_t q) __attribute__((always_inline)) { h_s[q] = Lanes<T>::load(start + (s0 + q) * kLanes); });
  for (int64_t m = 0; m < tile.size; ++m) {
    const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = Lanes<T>::load(steps.u[m]);
    each_state([&](int64_t q) __attribute__((always_inline)) {
      const Lanes<T> a = exp2_product<tame>(delta, Lanes<T>::load(&parameters.A_log2e[(s0 + q) * kLanes]));
      a.store(grad.a[m][q]);
      h_s[q] = fma(a, h_s[q], Lanes<T>::all(tile.B[m][s0 + q]) * u);
      h_s[q].store(grad.h[m][q]);
    });
  }
  each_state([&](int64_t q) __attribute__((always_inline)) {
    lambda_s[q] = Lanes<T>::load(lambda + (s0 + q) * kLanes);
    dA[q] = Lanes<T>::all(0);
  });
  for (int64_t m = tile.size - 1; m >= 0; --m) {
    const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = Lanes<T>::load(steps.u[m]), dy = Lanes<T>::load(grad.dy[m]);
    Lanes<T> du = Lanes<T>::load(grad.du[m]), ddelta = Lanes<T>::load(grad.ddelta[m]);
    const PointGradients<T, correction, needs_R> point{delta, u, dy, du, ddelta};
    const T* before = m == 0 ? start + s0 * kLanes : grad.h[m - 1][0];
    typename Lanes<T>::Vec sums[2 * kStates];  // dB, then dC
    each_state([&](int64_t q) __attribute__((always_inline)) {
      const int64_t s = s0 + q;
      const T b = tile.B[m][s], c = tile.C[m][s];
      const Lanes<T> mu = fma(Lanes<T>::all(c), dy, lambda_s[q]);
      lambda_s[q] = Lanes<T>::load(grad.a[m][q]) * mu;
      const Lanes<T> exponent = lambda_s[q] * Lanes<T>::load(before + q * kLanes);
      point.add(parameters, s, b, c, Lanes<T>::load(grad.h[m][q]), mu, exponent, dA[q], grad.dR[q], sums[q],
                sums[kStates + q]);
    });
    du.store(grad.du[m]);
    ddelta.store(grad.ddelta[m]);
    T* row = rows + m * row_size + s0;
    add_channel_sums<T>(sums, row, row + padded);
  }
  each_state([&](int64_t q) __attribute__((always_inline)) {
    lambda_s[q].store(lambda + (s0 + q) * kLanes);
    dA[q].store(grad.dA[q]);
  });
}

// left: [rows][N][16], top: [columns][N][16] are the states that enter the tile; lambda: [columns][N][16] and
// mu: [rows][N][16] come from below and from the right and are carried on.
template <typename T, Correction correction, bool needs_R, bool tame>
void tile_backward_2d(const Parameters<T>& parameters, const Tile<T, kSide * kSide>& tile,
                      const Steps<T, kSide * kSide>& steps, int64_t columns, int64_t padded,
                      int64_t row_size, int64_t s0, const T* left, const T* top, T* lambda, T* mu,
                      TileGradients<T, kSide * kSide>& grad, T* rows) {
  const int64_t state = padded * kLanes;
  for (int64_t m = 0, i = 0, j = 0; m < tile.size; ++m) {
    const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = Lanes<T>::load(steps.u[m]);
    const T* g_before = j == 0 ? left + i * state + s0 * kLanes : grad.g[m - 1][0];
    const T* h_before = i == 0 ? top + j * state + s0 * kLanes : grad.h[m - columns][0];
    each_state([&](int64_t q) __attribute__((always_inline)) {
      const Lanes<T> a = exp2_product<tame>(delta, Lanes<T>::load(&parameters.A_log2e[(s0 + q) * kLanes]));
      a.store(grad.a[m][q]);
      const Lanes<T> g = fma(a, Lanes<T>::load(g_before + q * kLanes), Lanes<T>::all(tile.B[m][s0 + q]) * u);
      g.store(grad.g[m][q]);
      fma(a, Lanes<T>::load(h_before + q * kLanes), g).store(grad.h[m][q]);
    });
    if (++j == columns) j = 0, ++i;
  }
  Lanes<T> dA[kStates];
  each_state([&](int64_t q) __attribute__((always_inline)) { dA[q] = Lanes<T>::all(0); });
  for (int64_t m = tile.size - 1, i = m / columns, j = columns - 1; m >= 0; --m) {
    const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = Lanes<T>::load(steps.u[m]), dy = Lanes<T>::load(grad.dy[m]);
    Lanes<T> du = Lanes<T>::load(grad.du[m]), ddelta = Lanes<T>::load(grad.ddelta[m]);
    const PointGradients<T, correction, needs_R> point{delta, u, dy, du, ddelta};
    const T* g_before = j == 0 ? left + i * state + s0 * kLanes : grad.g[m - 1][0];
    const T* h_before = i == 0 ? top + j * state + s0 * kLanes : grad.h[m - columns][0];
    T *lambda_j = lambda + j * state + s0 * kLanes, *mu_i = mu + i * state + s0 * kLanes;
    typename Lanes<T>::Vec sums[2 * kStates];  // dB, then dC
    each_state([&](int64_t q) __attribute__((always_inline)) {
      const int64_t s = s0 + q;
      const T b = tile.B[m][s], c = tile.C[m][s];
      const Lanes<T> a = Lanes<T>::load(grad.a[m][q]);
      const Lanes<T> lambda_s = fma(Lanes<T>::all(c), dy, Lanes<T>::load(lambda_j + q * kLanes));
      const Lanes<T> mu_s = lambda_s + Lanes<T>::load(mu_i + q * kLanes);
      const Lanes<T> up = a * lambda_s, back = a * mu_s;
      up.store(lambda_j + q * kLanes);
      back.store(mu_i + q * kLanes);
      const Lanes<T> exponent =
          fma(up, Lanes<T>::load(h_before + q * kLanes), back * Lanes<T>::load(g_before + q * kLanes));
      point.add(parameters, s, b, c, Lanes<T>::load(grad.h[m][q]), mu_s, exponent, dA[q], grad.dR[q], sums[q],
                sums[kStates + q]);
    });
    du.store(grad.du[m]);
    ddelta.store(grad.ddelta[m]);
    T* row = rows + m * row_size + s0;
    add_channel_sums<T>(sums, row, row + padded);
    if (--j < 0) j = columns - 1, --i;
  }
  each_state([&](int64_t q) __attribute__((always_inline)) { dA[q].store(grad.dA[q]); });
}

}  // namespace geomano

// The gradients of one tile. Its hidden states are computed again.
//
// With dy given, and lambda, mu the gradients of h, g:
//   1D  lambda[t] = C dy + a[t+1] lambda[t+1]
//   2D  lambda[i,j] = C dy + a[i+1,j] lambda[i+1,j],   mu[i,j] = lambda[i,j] + a[i,j+1] mu[i,j+1]
// In 1D mu = lambda. Then d(B u) = mu - R dy (equation) or mu - C R dy (state), and the gradient of the exponent
// delta A is a (lambda h[before] + mu g[before]).
//
// At another spacing, with the factors of Counts: in 2D do = lambda + down C dy, which is lambda's part of mu, and
// d(entering B u) = mu + along do; in 1D d(entering B u) = mu + along C dy. The a of the columns is exp(down delta A), and its
// part of the exponent's gradient counts `down` times. With an exact hold B u has the factor phi(hold delta A), whose slope
// adds to the exponent's gradient.
#pragma once

#include "channel_sums.h"
#include "forward.h"
#include "hold.h"

namespace geomano {

template <typename T>
using Vec = typename Lanes<T>::Vec;

template <typename T>
inline Vec<T> load(const T* from) {
  return Vec<T>::loadu(from);
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
  alignas(64) T a_down[kPositions][kStates][kLanes];  // where they are not a
};

// The gradients of one dstate at one point, of d(B u) before the correction and of the exponents of the decays; and what is
// read of it.
template <typename T>
struct StateGradients {
  Vec<T> dbu, exponent, read;
};

// What point m of kStates dstates from s0 on adds to the gradients. Vector by vector of the sixteen channels: loads are what
// bounds it, and what one vector needs stays in the registers. f(lane, c, dy) gives the gradients of the dstate and the
// channels that start at the lane, counted from the first channel of dstate s0.
template <typename T, Correction correction, bool needs_R, Form form, bool tame, int64_t kPositions, typename F>
__attribute__((always_inline)) inline void add_point(const Parameters<T>& parameters, const Tile<T, kPositions>& tile,
                                                     const Steps<T, kPositions>& steps, int64_t m, int64_t s0, int64_t padded,
                                                     TileGradients<T, kPositions>& grad, T* row, const F& f) {
  const T *A = &parameters.A[s0 * kLanes], *minus_R = &parameters.minus_R[s0 * kLanes];
  const T *A_hold = parameters.A_hold_log2e.data() + s0 * kLanes, *length = parameters.hold_length.data() + s0 * kLanes;
  T *dA = grad.dA[0], *dR = grad.dR[0];
  constexpr bool held = form == Form::held;
  const bool held_as_decays = parameters.hold == 1;
  Vec<T> sums[2 * kStates];  // dB, then dC
  each<Lanes<T>::kVectors>([&](int64_t v) __attribute__((always_inline)) {
    const int64_t first = v * Vec<T>::size();
    const Vec<T> delta = load(steps.delta[m] + first), u = load(steps.u[m] + first), dy = load(grad.dy[m] + first);
    Vec<T> du = load(grad.du[m] + first), ddelta = load(grad.ddelta[m] + first);
    Vec<T> held_delta = delta, inverse_delta = delta;
    if constexpr (held) held_delta = delta * Vec<T>(parameters.hold), inverse_delta = Vec<T>(T(1)) / delta;
    each_state([&](int64_t q) __attribute__((always_inline)) {
      const int64_t lane = q * kLanes + first;
      const Vec<T> b(tile.B[m][s0 + q]), c(tile.C[m][s0 + q]);
      Vec<T> bu = b * u;  // unused, and left out, in the equation form with a fixed R
      Hold<Vec<T>> hold;
      if constexpr (held) {
        const Vec<T> z = held_delta * load(A + lane);
        const Vec<T> power = held_as_decays ? load(grad.a[m][0] + lane) : exp2_product<tame>(delta, load(A_hold + lane));
        hold = hold_at<T>(z, power, inverse_delta * load(length + lane));
        hold.slope = hold.slope * bu;
        bu = bu * hold.phi;
      }
      const StateGradients<T> state = f(lane, c, dy, bu);
      Vec<T> dbu = state.dbu, read = state.read, exponent = state.exponent;
      if constexpr (!held) {
        ddelta = at::vec::fmadd(exponent, load(A + lane), ddelta);
        at::vec::fmadd(exponent, delta, load(dA + lane)).store(dA + lane);
      }
      if constexpr (correction != Correction::none) {
        const Vec<T> minus_r = load(minus_R + lane);
        const Vec<T> corrected_dy = correction == Correction::state ? c * dy : dy;
        dbu = at::vec::fmadd(minus_r, corrected_dy, dbu);
        if constexpr (correction == Correction::state) read = at::vec::fmadd(minus_r, bu, read);
        if constexpr (needs_R) (load(dR + lane) - bu * corrected_dy).store(dR + lane);
      }
      if constexpr (held) {
        exponent = at::vec::fmadd(dbu, hold.slope * Vec<T>(parameters.hold), exponent);
        dbu = dbu * hold.phi;
        ddelta = at::vec::fmadd(exponent, load(A + lane), ddelta);
        at::vec::fmadd(exponent, delta, load(dA + lane)).store(dA + lane);
      }
      du = at::vec::fmadd(b, dbu, du);
      sums[q] = v == 0 ? u * dbu : at::vec::fmadd(u, dbu, sums[q]);
      sums[kStates + q] = v == 0 ? dy * read : at::vec::fmadd(dy, read, sums[kStates + q]);
    });
    du.store(grad.du[m] + first);
    ddelta.store(grad.ddelta[m] + first);
  });
  add_channel_sums<T>(sums, row, row + padded);
}

template <typename T, Correction correction, bool needs_R, Form form, bool tame>
void tile_backward_1d(const Parameters<T>& parameters, const Tile<T, kTile1d>& tile,
                      const Steps<T, kTile1d>& steps, int64_t padded, int64_t row_size,
                      int64_t s0, const T* start, T* lambda, TileGradients<T, kTile1d>& grad, T* rows) {
  const StateParameters<T> states(parameters, s0);
  Lanes<T> h_s[kStates];
  each_state([&](int64_t q) __attribute__((always_inline)) { h_s[q] = Lanes<T>::load(start + (s0 + q) * kLanes); });
  for (int64_t m = 0; m < tile.size; ++m) {
    const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = fed<T, form>(tile, steps, m);
    each_state([&](int64_t q) __attribute__((always_inline)) {
      const Lanes<T> less_one = less_one_of<T, form, tame>(states, q, delta);
      const Lanes<T> a = decay_of<T, form, tame>(states, q, delta, less_one);
      a.store(grad.a[m][q]);
      const Lanes<T> bu = input_of<T, form>(states, q, tile.B[m][s0 + q], u, less_one);
      h_s[q] = fma(a, h_s[q], bu);
      h_s[q].store(grad.h[m][q]);
    });
  }
  lambda += s0 * kLanes;
  for (int64_t m = tile.size - 1; m >= 0; --m) {
    const T *a = grad.a[m][0], *h_before = m == 0 ? start + s0 * kLanes : grad.h[m - 1][0];
    const Counts<T>& counts = tile.counts[m];
    add_point<T, correction, needs_R, form, tame>(
        parameters, tile, steps, m, s0, padded, grad, rows + m * row_size + s0,
        [&](int64_t lane, const Vec<T>& c, const Vec<T>& dy, const Vec<T>& bu) __attribute__((always_inline)) {
          const Vec<T> mu = at::vec::fmadd(c, dy, load(lambda + lane)), back = load(a + lane) * mu;
          back.store(lambda + lane);
          const Vec<T> exponent = back * load(h_before + lane), h = load(grad.h[m][0] + lane);
          if constexpr (form == Form::plain) return StateGradients<T>{mu, exponent, h};
          const Vec<T> entering(counts.entering), along(counts.along * counts.entering);
          return StateGradients<T>{at::vec::fmadd(along, c * dy, entering * mu), exponent, at::vec::fmadd(along, bu, h)};
        });
  }
}

// left: [rows][N][16], top: [columns][N][16] are the states that enter the tile; lambda: [columns][N][16] and
// mu: [rows][N][16] come from below and from the right and are carried on.
template <typename T, Correction correction, bool needs_R, Form form, bool tame>
void tile_backward_2d(const Parameters<T>& parameters, const Tile<T, kSide * kSide>& tile,
                      const Steps<T, kSide * kSide>& steps, int64_t columns, int64_t padded,
                      int64_t row_size, int64_t s0, const T* left, const T* top, T* lambda, T* mu,
                      TileGradients<T, kSide * kSide>& grad, T* rows) {
  const int64_t state = padded * kLanes;
  const StateParameters<T> states(parameters, s0);
  for (int64_t m = 0, i = 0, j = 0; m < tile.size; ++m) {
    const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = fed<T, form>(tile, steps, m);
    const T* g_before = j == 0 ? left + i * state + s0 * kLanes : grad.g[m - 1][0];
    const T* h_before = i == 0 ? top + j * state + s0 * kLanes : grad.h[m - columns][0];
    each_state([&](int64_t q) __attribute__((always_inline)) {
      const Lanes<T> less_one = less_one_of<T, form, tame>(states, q, delta);
      const Lanes<T> a = decay_of<T, form, tame>(states, q, delta, less_one);
      a.store(grad.a[m][q]);
      const Lanes<T> bu = input_of<T, form>(states, q, tile.B[m][s0 + q], u, less_one);
      const Lanes<T> g = fma(a, Lanes<T>::load(g_before + q * kLanes), bu);
      g.store(grad.g[m][q]);
      Lanes<T> a_down = a, o = g;
      if constexpr (form != Form::plain) {
        if (states.stretched) {
          a_down = exp2_product<tame>(delta, Lanes<T>::load(states.A_down_log2e + q * kLanes));
          a_down.store(grad.a_down[m][q]);
        }
        o = fma(Lanes<T>::all(tile.counts[m].along), bu, g);
      }
      fma(a_down, Lanes<T>::load(h_before + q * kLanes), o).store(grad.h[m][q]);
    });
    if (++j == columns) j = 0, ++i;
  }
  for (int64_t m = tile.size - 1, i = m / columns, j = columns - 1; m >= 0; --m) {
    const T* g_before = j == 0 ? left + i * state + s0 * kLanes : grad.g[m - 1][0];
    const T* h_before = i == 0 ? top + j * state + s0 * kLanes : grad.h[m - columns][0];
    const T *a = grad.a[m][0], *a_down = form != Form::plain && states.stretched ? grad.a_down[m][0] : a;
    const Counts<T>& counts = tile.counts[m];
    T *lambda_j = lambda + j * state + s0 * kLanes, *mu_i = mu + i * state + s0 * kLanes;
    add_point<T, correction, needs_R, form, tame>(
        parameters, tile, steps, m, s0, padded, grad, rows + m * row_size + s0,
        [&](int64_t lane, const Vec<T>& c, const Vec<T>& dy, const Vec<T>& bu) __attribute__((always_inline)) {
          const Vec<T> lambda_s = at::vec::fmadd(c, dy, load(lambda_j + lane));
          const Vec<T> d_o = form != Form::plain ? at::vec::fmadd(Vec<T>(counts.down), c * dy, lambda_s) : lambda_s;
          const Vec<T> mu_s = d_o + load(mu_i + lane);
          const Vec<T> up = load(a_down + lane) * lambda_s, back = load(a + lane) * mu_s;
          up.store(lambda_j + lane);
          back.store(mu_i + lane);
          const Vec<T> up_exponent = form != Form::plain ? up * Vec<T>(parameters.down) : up, h = load(grad.h[m][0] + lane);
          const Vec<T> exponent = at::vec::fmadd(up_exponent, load(h_before + lane), back * load(g_before + lane));
          if constexpr (form == Form::plain) return StateGradients<T>{mu_s, exponent, h};
          const Vec<T> entering(counts.entering), along(counts.along * counts.entering);
          const Vec<T> o = at::vec::fmadd(along, bu, load(grad.g[m][0] + lane));
          return StateGradients<T>{at::vec::fmadd(along, d_o, entering * mu_s), exponent,
                                   at::vec::fmadd(Vec<T>(counts.down), o, h)};
        });
    if (--j < 0) j = columns - 1, --i;
  }
}

// The adjoints alone, from below and from the right to above and to the left: lambda of the columns, and mu where rows are
// wanted. dy: [positions][16].
template <typename T, Form form, bool rows, bool tame>
void adjoint_tile_2d(const Parameters<T>& parameters, const Tile<T, kSide * kSide>& tile,
                     const Steps<T, kSide * kSide>& steps, int64_t columns, int64_t padded, const T (*dy)[kLanes], T* lambda,
                     T* mu) {
  for (int64_t s0 = 0; s0 < padded; s0 += kStates) {
    const StateParameters<T> states(parameters, s0);
    const bool stretched = form != Form::plain && states.stretched;
    const T *A = states.A_log2e, *A_down = stretched ? states.A_down_log2e : A;
    for (int64_t i = tile.size / columns - 1; i >= 0; --i) {
      T* mu_i = mu + (i * padded + s0) * kLanes;
      Lanes<T> mu_s[kStates];
      if constexpr (rows)
        each_state([&](int64_t q) __attribute__((always_inline)) { mu_s[q] = Lanes<T>::load(mu_i + q * kLanes); });
      for (int64_t j = columns - 1; j >= 0; --j) {
        const int64_t m = i * columns + j;
        const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), dy_m = Lanes<T>::load(dy[m]);
        T* lambda_j = lambda + (j * padded + s0) * kLanes;
        each_state([&](int64_t q) __attribute__((always_inline)) {
          const Lanes<T> a_down = exp2_product<tame>(delta, Lanes<T>::load(A_down + q * kLanes));
          const Lanes<T> c = Lanes<T>::all(tile.C[m][s0 + q]);
          const Lanes<T> lambda_s = fma(c, dy_m, Lanes<T>::load(lambda_j + q * kLanes));
          (a_down * lambda_s).store(lambda_j + q * kLanes);
          if constexpr (rows) {
            const Lanes<T> a = stretched ? exp2_product<tame>(delta, Lanes<T>::load(A + q * kLanes)) : a_down;
            const Lanes<T> d_o = form != Form::plain ? fma(Lanes<T>::all(tile.counts[m].down), c * dy_m, lambda_s) : lambda_s;
            mu_s[q] = a * (d_o + mu_s[q]);
          }
        });
      }
      if constexpr (rows)
        each_state([&](int64_t q) __attribute__((always_inline)) { mu_s[q].store(mu_i + q * kLanes); });
    }
  }
}

}  // namespace geomano

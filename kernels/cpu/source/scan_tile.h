// The forward scans of one tile: Eq. (1D GeoMamba-SSM) and Eq. (2D GeoMamba-SSM).
#pragma once

#include "tile.h"

namespace geomano {

enum class Correction { none, equation, state };

// Points at the distance of the training, those at another one, and an exact hold at any distance.
enum class Form { plain, spaced, held };

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

// The parameters of kStates dstates from s0 on.
template <typename T>
struct StateParameters {
  const T *A_log2e, *A_down_log2e, *A_hold_log2e, *hold_length, *minus_R;
  bool stretched, held_as_decays;  // the exponents of an exact hold are those of a

  StateParameters(const Parameters<T>& parameters, int64_t s0)
      : A_log2e(&parameters.A_log2e[s0 * kLanes]), A_down_log2e(parameters.A_down_log2e.data() + s0 * kLanes),
        A_hold_log2e(parameters.A_hold_log2e.data() + s0 * kLanes), hold_length(parameters.hold_length.data() + s0 * kLanes),
        minus_R(&parameters.minus_R[s0 * kLanes]), stretched(parameters.stretched()), held_as_decays(parameters.hold == 1) {}
};

// What a point feeds the dstates with, before B and their hold: delta x, or x for an exact hold, times what it counts.
template <typename T, Form form, int64_t kPositions>
__attribute__((always_inline)) inline Lanes<T> fed(const Tile<T, kPositions>& tile, const Steps<T, kPositions>& steps,
                                                   int64_t m) {
  if constexpr (form == Form::plain) return Lanes<T>::load(steps.u[m]);
  return Lanes<T>::load(form == Form::held ? steps.x[m] : steps.u[m]) * Lanes<T>::all(tile.counts[m].entering);
}

// exp(hold delta A) - 1 of dstate q; of the held form only.
template <typename T, Form form, bool tame>
__attribute__((always_inline)) inline Lanes<T> less_one_of(const StateParameters<T>& states, int64_t q, const Lanes<T>& delta) {
  if constexpr (form != Form::held) return {};
  return exp2_product<tame, true>(delta, Lanes<T>::load(states.A_hold_log2e + q * kLanes));
}

// Its decay along the row.
template <typename T, Form form, bool tame>
__attribute__((always_inline)) inline Lanes<T> decay_of(const StateParameters<T>& states, int64_t q, const Lanes<T>& delta,
                                                        const Lanes<T>& less_one) {
  if constexpr (form == Form::held)
    if (states.held_as_decays) return less_one + Lanes<T>::all(1);
  return exp2_product<tame>(delta, Lanes<T>::load(states.A_log2e + q * kLanes));
}

// B times what it is fed.
template <typename T, Form form>
__attribute__((always_inline)) inline Lanes<T> input_of(const StateParameters<T>& states, int64_t q, const T& b,
                                                        const Lanes<T>& fed, const Lanes<T>& less_one) {
  if constexpr (form != Form::held) return Lanes<T>::all(b) * fed;
  return Lanes<T>::all(b) * (fed * Lanes<T>::load(states.hold_length + q * kLanes)) * less_one;
}

// h[t] = a[t] h[t-1] + B u over a tile of the sequence. h: [N][16], carried on; N padded. y is summed over the groups of
// dstates in steps.y.
template <typename T, Correction correction, Form form, bool tame, typename Out>
void scan_tile_1d(const Parameters<T>& parameters, const Tile<T, kTile1d>& tile, Steps<T, kTile1d>& steps, int64_t N, T* h,
                  const Out& out) {
  for (int64_t s0 = 0; s0 < N; s0 += kStates) {
    const StateParameters<T> states(parameters, s0);
    Lanes<T> h_s[kStates];
    each_state([&](int64_t q) __attribute__((always_inline)) { h_s[q] = Lanes<T>::load(h + (s0 + q) * kLanes); });
    for (int64_t m = 0; m < tile.size; ++m) {
      const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = fed<T, form>(tile, steps, m);
      const T *B = tile.B[m] + s0, *C = tile.C[m] + s0;
      Lanes<T> y;
      if constexpr (Out::kWanted)
        y = s0 == 0 ? out.start(parameters, steps.x[m], tile.position[m]) : Lanes<T>::load(steps.y[m]);
      each_state([&](int64_t q) __attribute__((always_inline)) {
        const Lanes<T> less_one = less_one_of<T, form, tame>(states, q, delta);
        const Lanes<T> a = decay_of<T, form, tame>(states, q, delta, less_one);
        const Lanes<T> bu = input_of<T, form>(states, q, B[q], u, less_one);
        h_s[q] = fma(a, h_s[q], bu);
        if constexpr (Out::kWanted) {
          Lanes<T> read = h_s[q], once = bu;
          if constexpr (form != Form::plain) {
            read = fma(Lanes<T>::all(tile.counts[m].along), bu, read);
            once = bu * Lanes<T>::all(tile.counts[m].once);
          }
          y = read_out<T, correction>(y, Lanes<T>::all(C[q]), read, once, states.minus_R + q * kLanes);
        }
      });
      if constexpr (Out::kWanted) s0 + kStates < N ? y.store(steps.y[m]) : out.store(y, tile.position[m]);
    }
    each_state([&](int64_t q) __attribute__((always_inline)) { h_s[q].store(h + (s0 + q) * kLanes); });
  }
}

// Whether the a of a row are kept for another sweep of it, or taken from there.
enum class Decay { computed, kept, taken };

// Algorithm 2 for kStates dstates from s0 on in a row of a tile, from point m on: g along the row, h along the columns, the
// same a in both unless stretched; for what another spacing adds see Counts. g: [kStates][16] enters from the left,
// h (or t): [columns][N][16] from the top; both are carried on. a: [columns][kStates][16].
template <typename T, Correction correction, Form form, bool tame, Decay decay, typename Out>
__attribute__((always_inline)) inline void scan_row_2d(const Parameters<T>& parameters, const StateParameters<T> states,
                                                       const Tile<T, kSide * kSide>& tile, Steps<T, kSide * kSide>& steps,
                                                       int64_t m, int64_t columns, int64_t N, int64_t s0, T* g, T* h,
                                                       T* a_kept, const Out& out) {
  T* h_column = h + s0 * kLanes;
  Lanes<T> g_s[kStates];
  each_state([&](int64_t q) __attribute__((always_inline)) { g_s[q] = Lanes<T>::load(g + q * kLanes); });
  for (int64_t j = 0; j < columns; ++j, ++m, h_column += N * kLanes) {
    const Lanes<T> delta = Lanes<T>::load(steps.delta[m]), u = fed<T, form>(tile, steps, m);
    const T *B = tile.B[m] + s0, *C = tile.C[m] + s0;
    Lanes<T> y;
    if constexpr (Out::kWanted)
      y = s0 == 0 ? out.start(parameters, steps.x[m], tile.position[m]) : Lanes<T>::load(steps.y[m]);
    each_state([&](int64_t q) __attribute__((always_inline)) {
      const Lanes<T> less_one = less_one_of<T, form, tame>(states, q, delta);
      Lanes<T> a;
      if constexpr (decay == Decay::taken)
        a = Lanes<T>::load(a_kept + (j * kStates + q) * kLanes);
      else
        a = decay_of<T, form, tame>(states, q, delta, less_one);
      if constexpr (decay == Decay::kept) a.store(a_kept + (j * kStates + q) * kLanes);
      const Lanes<T> bu = input_of<T, form>(states, q, B[q], u, less_one);
      g_s[q] = fma(a, g_s[q], bu);
      if constexpr (Out::kColumns && form == Form::plain) {
        const Lanes<T> h_s = fma(a, Lanes<T>::load(h_column + q * kLanes), g_s[q]);
        h_s.store(h_column + q * kLanes);
        if constexpr (Out::kWanted)
          y = read_out<T, correction>(y, Lanes<T>::all(C[q]), h_s, bu, states.minus_R + q * kLanes);
      } else if constexpr (Out::kColumns) {
        const Counts<T>& counts = tile.counts[m];
        Lanes<T> a_down = a;
        if (states.stretched) a_down = exp2_product<tame>(delta, Lanes<T>::load(states.A_down_log2e + q * kLanes));
        const Lanes<T> o = fma(Lanes<T>::all(counts.along), bu, g_s[q]);
        const Lanes<T> t = fma(a_down, Lanes<T>::load(h_column + q * kLanes), o);
        t.store(h_column + q * kLanes);
        if constexpr (Out::kWanted)
          y = read_out<T, correction>(y, Lanes<T>::all(C[q]), fma(Lanes<T>::all(counts.down), o, t),
                                      bu * Lanes<T>::all(counts.once), states.minus_R + q * kLanes);
      }
    });
    if constexpr (Out::kWanted) s0 + kStates < N ? y.store(steps.y[m]) : out.store(y, tile.position[m]);
  }
  each_state([&](int64_t q) __attribute__((always_inline)) { g_s[q].store(g + q * kLanes); });
}

// All dstates of a tile of rows x columns points. g: [rows][N][16], h: [columns][N][16].
template <typename T, Correction correction, Form form, bool tame, typename Out>
void scan_tile_2d(const Parameters<T>& parameters, const Tile<T, kSide * kSide>& tile, Steps<T, kSide * kSide>& steps,
                  int64_t columns, int64_t N, T* g, T* h, const Out& out) {
  for (int64_t s0 = 0; s0 < N; s0 += kStates) {
    const StateParameters<T> states(parameters, s0);
    T* g_row = g + s0 * kLanes;
    for (int64_t m = 0; m < tile.size; m += columns, g_row += N * kLanes)
      scan_row_2d<T, correction, form, tame, Decay::computed>(parameters, states, tile, steps, m, columns, N, s0, g_row, h,
                                                                   nullptr, out);
  }
}

}  // namespace geomano

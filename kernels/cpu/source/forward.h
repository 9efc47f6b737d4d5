// The forward scans of a bundle of channel blocks: Eq. (1D GeoMamba-SSM) and Eq. (2D GeoMamba-SSM).
#pragma once

#include "ring.h"
#include "scan_tile.h"

namespace geomano {

// Whether any R of a direction differs from 0. By direction, so that it does not depend on how channels are bundled.
template <typename T>
bool corrected(const Problem& p, int64_t k) {
  if (p.R == nullptr) return false;
  const T* R = static_cast<const T*>(p.R) + k * p.channels * p.dstate;
  return p.needs_R || std::any_of(R, R + p.channels * p.dstate, [](T r) { return r != 0; });
}

template <Correction correction>
using CorrectionConstant = std::integral_constant<Correction, correction>;

template <typename F>
void with_form(const Problem& p, int64_t k, const F& f) {
  if (p.held(k)) return f(std::integral_constant<Form, Form::held>());
  if (p.spaced(k)) return f(std::integral_constant<Form, Form::spaced>());
  f(std::integral_constant<Form, Form::plain>());
}

// f(correction, form) as constants. Compiling takes its time for each pair: but for the plain form an R of zeros is one.
template <typename T, typename F>
void with_loops(const Problem& p, int64_t k, const F& f) {
  with_form(p, k, [&](auto form) {
    if constexpr (form == Form::plain)
      if (!corrected<T>(p, k)) return f(CorrectionConstant<Correction::none>(), form);
    p.state_form ? f(CorrectionConstant<Correction::state>(), form) : f(CorrectionConstant<Correction::equation>(), form);
  });
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
      with_loops<T>(p, k, [&](auto correction, auto form) {
        p.two_d ? direction_2d<correction, form>(k) : direction_1d<correction, form>(k);
      });
    }
    for (const Column<IO, T>& column : y) column.write();
  }

  template <Correction correction, Form form>
  void direction_1d(int64_t k) {
    const Walk walk(p, k);
    const int64_t N = p.padded_dstate(), length = p.height * p.width, state = N * kLanes;
    Buffer<T> h(blocks * state, T(0));
    Tile<T, kTile1d> tile;
    Steps<T, kTile1d> steps;
    for (int64_t first = 0; first < length; first += kTile1d) {
      tile.take_sequence(walk, first);
      read_rows<IO>(p, b, k, tile);
      for (int64_t i = 0; i < blocks; ++i) {
        T* h_block = &h[i * state];
        if (p.carries != nullptr && first % p.interval == 0)
          std::memcpy(carry<T>(p, b, first_block + i, k, first / p.interval), h_block, p.dstate * kLanes * sizeof(T));
        start_tile<Output<IO, T>>(k, i, tile, steps);
        const Output<IO, T> out{y[i], k == 0};
        with_tame(steps, [&](auto tame) {
          scan_tile_1d<T, correction, form, tame>(parameters[i], tile, steps, N, h_block, out);
        });
      }
    }
  }

  template <Correction correction, Form form>
  void direction_2d(int64_t k) {
    const Walk walk(p, k);
    if (walk.columns_closed) sweep_2d<Correction::none, form, NoOutput>(walk, k, true);
    sweep_2d<correction, form, Output<IO, T>>(walk, k, !walk.columns_closed);
  }

  // From the top left to the bottom right. The first sweep finds the states with which closed rows begin, the one without y
  // those with which closed columns do.
  template <Correction correction, Form form, typename Out>
  void sweep_2d(const Walk& walk, int64_t k, bool first) {
    const int64_t N = p.padded_dstate(), state = N * kLanes, columns_of_blocks = blocks * walk.columns;
    Buffer<T> h(columns_of_blocks * state, T(0)), column_steps(Out::kWanted ? 0 : columns_of_blocks * kLanes, T(0));
    if (Out::kWanted && walk.columns_closed)
      for (int64_t i = 0; i < blocks; ++i)
        std::copy_n(column_starts<T>(p, walk, b, first_block + i, k), walk.columns * state, &h[i * walk.columns * state]);
    Buffer<T> g(blocks * kSide * state);
    Tile<T, kSide * kSide> tile;
    Steps<T, kSide * kSide> steps;
    Band band(walk.rows_closed && first ? (walk.columns + kSide - 1) / kSide : 0);
    for (int64_t top = 0; top < walk.rows; top += kSide) {
      if (walk.rows_closed && first) {
        closed_band<correction, form, Out>(walk, k, top, band, h, column_steps);
        continue;
      }
      start_rows(walk, k, top, g);
      for (int64_t left = 0; left < walk.columns; left += kSide) {
        const int64_t columns = std::min(kSide, walk.columns - left);
        tile.take_square(walk, top, left, kSide);
        read_rows<IO>(p, b, k, tile);
        for (int64_t i = 0; i < blocks; ++i) {
          T *g_block = &g[i * kSide * state], *h_block = &h[(i * walk.columns + left) * state];
          start_tile<Out>(k, i, tile, steps);
          const Out out = output<Out>(k, i);
          with_tame(steps, [&](auto tame) {
            scan_tile_2d<T, correction, form, tame>(parameters[i], tile, steps, columns, N, g_block, h_block, out);
          });
          if constexpr (!Out::kWanted)
            add_steps<false>(tile, steps, columns, &column_steps[(i * walk.columns + left) * kLanes]);
        }
      }
    }
    if constexpr (!Out::kWanted)
      for (int64_t i = 0; i < blocks; ++i) {
        T* starts = column_starts<T>(p, walk, b, first_block + i, k);
        std::copy_n(&h[i * walk.columns * state], walk.columns * state, starts);
        close_lines(parameters[i], parameters[i].down, &column_steps[i * walk.columns * kLanes], walk.columns, starts);
      }
  }

  // The g [blocks][kSide][N][16] with which the rows of a band begin: zero, or of closed rows what the first sweep found.
  void start_rows(const Walk& walk, int64_t k, int64_t top, Buffer<T>& g) const {
    std::fill(g.begin(), g.end(), T(0));
    if (!walk.rows_closed) return;
    const int64_t state = p.padded_dstate() * kLanes, size = std::min(kSide, walk.rows - top) * state;
    for (int64_t i = 0; i < blocks; ++i)
      std::copy_n(row_starts<T>(p, walk, b, first_block + i, k) + top * state, size, &g[i * kSide * state]);
  }

  struct Band {
    std::vector<Tile<T, kSide * kSide>> tiles;
    std::vector<Steps<T, kSide * kSide>> steps;

    explicit Band(int64_t count) : tiles(count), steps(count) {}
  };

  // A band whose rows are rings. Row by row, kStates dstates at a time: a sweep from zero, which keeps the a in the first-level
  // cache, and then the scan from the states with which the row begins.
  template <Correction correction, Form form, typename Out>
  void closed_band(const Walk& walk, int64_t k, int64_t top, Band& band, Buffer<T>& h, Buffer<T>& column_steps) {
    const int64_t N = p.padded_dstate(), state = N * kLanes, rows = std::min(kSide, walk.rows - top);
    const int64_t count = band.tiles.size(), row_states = kSide * kStates * kLanes;
    const auto columns = [&](int64_t t) { return std::min(kSide, walk.columns - t * kSide); };
    for (int64_t t = 0; t < count; ++t) {
      band.tiles[t].take_square(walk, top, t * kSide, kSide);
      read_rows<IO>(p, b, k, band.tiles[t]);
    }
    const auto each_tile = [&](const auto& f) {
      for (int64_t t = 0; t < count; ++t) with_tame(band.steps[t], [&](auto tame) { f(t, tame); });
    };
    Buffer<T> a(count * row_states), g(kStates * kLanes), row_steps(kSide * kLanes);
    for (int64_t i = 0; i < blocks; ++i) {
      std::fill(row_steps.begin(), row_steps.end(), T(0));
      for (int64_t t = 0; t < count; ++t) {
        start_tile<Out>(k, i, band.tiles[t], band.steps[t]);
        add_steps<true>(band.tiles[t], band.steps[t], columns(t), row_steps.data());
        if constexpr (!Out::kWanted)
          add_steps<false>(band.tiles[t], band.steps[t], columns(t), &column_steps[(i * walk.columns + t * kSide) * kLanes]);
      }
      T* starts = row_starts<T>(p, walk, b, first_block + i, k) + top * state;
      std::fill_n(starts, rows * state, T(0));
      const Out out = output<Out>(k, i);
      for (int64_t s0 = 0; s0 < N; s0 += kStates) {
        const StateParameters<T> states(parameters[i], s0);
        for (int64_t row = 0; row < rows; ++row) {
          T *start = starts + row * state, *start_s = start + s0 * kLanes;
          each_tile([&](int64_t t, auto tame) {
            scan_row_2d<T, Correction::none, form, tame, Decay::kept>(parameters[i], states, band.tiles[t], band.steps[t],
                                                                       row * columns(t), columns(t), N, s0, start_s, nullptr,
                                                                       &a[t * row_states], NoColumns());
          });
          close_lines(parameters[i], T(1), &row_steps[row * kLanes], 1, start, s0, s0 + kStates);
          std::copy_n(start_s, kStates * kLanes, g.data());
          each_tile([&](int64_t t, auto tame) {
            scan_row_2d<T, correction, form, tame, Decay::taken>(
                parameters[i], states, band.tiles[t], band.steps[t], row * columns(t), columns(t), N, s0, g.data(),
                &h[(i * walk.columns + t * kSide) * state], &a[t * row_states], out);
          });
        }
      }
    }
  }

  template <typename Out>
  Out output(int64_t k, int64_t i) const {
    if constexpr (Out::kWanted)
      return {y[i], k == 0};
    else
      return {};
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

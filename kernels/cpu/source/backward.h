// The gradients of a bundle of channel blocks: its directions tile by tile, backwards, and what the tiles add up to.
#pragma once

#include "gradient_sums.h"

namespace geomano {

template <typename IO, typename T>
struct Backward {
  const Problem& p;
  int64_t b, first_block, blocks;
  const int64_t N = p.dstate, padded = p.padded_dstate(), state = padded * kLanes;
  std::vector<Column<IO, T>> dx;
  std::vector<ParameterGradients<T>> sums;
  ChannelSums<IO, T> rows;  // dB, dC and ddt_low of a tile
  Buffer<T> left, top;  // 2D: the states that enter the tiles of a direction

  Backward(const Problem& p, int64_t b, int64_t slot, int64_t first_block, int64_t blocks, bool first_of_slot)
      : p(p), b(b), first_block(first_block), blocks(blocks), sums(blocks),
        rows(p, b, slot, first_block, blocks, first_of_slot) {
    const int64_t positions = p.height * p.width;
    for (int64_t i = 0; i < blocks; ++i)
      dx.emplace_back(static_cast<IO*>(p.dx) + b * positions * p.channels + first_channel(i), p.channels, positions,
                      std::min(kLanes, p.channels - first_channel(i)));
  }

  int64_t first_channel(int64_t i) const { return (first_block + i) * kLanes; }
  Source<IO, T> source(const Activation& a, int64_t k, int64_t i) const {
    return Source<IO, T>(a, b, k, first_channel(i), p.channels);
  }

  void run() {
    for (int64_t k = 0; k < p.directions; ++k) {
      for (int64_t i = 0; i < blocks; ++i) sums[i].start(p, k, first_channel(i), padded);
      with_loops<T>(p, k, [&](auto correction, auto form) {
        const auto with = [&](auto needs_R) {
          p.two_d ? direction_2d<correction, needs_R, form>(k) : direction_1d<correction, needs_R, form>(k);
        };
        if constexpr (form != Form::plain && correction == Correction::state) return with(std::true_type());
        p.needs_R ? with(std::bool_constant<correction != Correction::none>()) : with(std::false_type());
      });
      for (int64_t i = 0; i < blocks; ++i) sums[i].write(p, b, k, first_channel(i));
    }
    for (const Column<IO, T>& column : dx) column.write();
  }

  template <Correction correction, bool needs_R, Form form>
  void direction_1d(int64_t k) {
    const Walk walk(p, k);
    const int64_t length = p.height * p.width, tiles_per_carry = p.interval / kTile1d;
    Buffer<T> lambda(blocks * state, T(0)), starts(blocks * tiles_per_carry * state);
    Tile<T, kTile1d> tile;
    Steps<T, kTile1d> steps;
    TileGradients<T, kTile1d> grad;
    for (int64_t interval = (length - 1) / p.interval; interval >= 0; --interval) {
      const int64_t begin = interval * p.interval, end = std::min(begin + p.interval, length);
      const int64_t tiles = (end - begin + kTile1d - 1) / kTile1d;
      for (int64_t i = 0; i < blocks; ++i) {
        T* start = &starts[i * tiles_per_carry * state];
        std::memcpy(start, carry<T>(p, b, first_block + i, k, interval), N * kLanes * sizeof(T));
        std::fill(start + N * kLanes, start + state, T(0));
      }
      for (int64_t index = 1; index < tiles; ++index) {  // the states at which the other tiles of this interval start
        tile.take_sequence(walk, begin + (index - 1) * kTile1d);
        read_rows<IO>(p, b, k, tile);
        for (int64_t i = 0; i < blocks; ++i) {
          T* start = &starts[(i * tiles_per_carry + index) * state];
          std::memcpy(start, start - state, state * sizeof(T));
          prepare<IO, T, false>(p, sums[i].parameters, source(p.x, 0, i), source(p.dt, k, i), tile, steps);
          with_tame(steps, [&](auto tame) {
            scan_tile_1d<T, Correction::none, form, tame>(sums[i].parameters, tile, steps, padded, start, NoOutput());
          });
        }
      }
      for (int64_t index = tiles - 1; index >= 0; --index) {
        tile.take_sequence(walk, begin + index * kTile1d);
        each_block(k, tile, steps, grad, [&](int64_t i, int64_t s0, auto tame) {
          if (s0 == 0 && index == 0 && interval > 0) {  // for the next interval, while this one is at work
            const T* next = carry<T>(p, b, first_block + i, k, interval - 1);
            for (int64_t s = 0; s < N; ++s) __builtin_prefetch(next + s * kLanes);
          }
          tile_backward_1d<T, correction, needs_R, form, tame>(sums[i].parameters, tile, steps, padded, rows.row_size, s0,
                                                         &starts[(i * tiles_per_carry + index) * state],
                                                         &lambda[i * state], grad, rows.of_block(first_block + i));
        });
      }
    }
  }

  // The tiles of a direction in 2D, one of them at work. The states at their edges: [rows][columns][blocks][kSide][N][16].
  struct Tiles {
    const Walk& walk;
    int64_t blocks, side, rows = (walk.rows + kSide - 1) / kSide, columns = (walk.columns + kSide - 1) / kSide;
    Tile<T, kSide * kSide> tile;
    Steps<T, kSide * kSide> steps;
    TileGradients<T, kSide * kSide> grad;

    Tiles(const Walk& walk, int64_t blocks, int64_t side) : walk(walk), blocks(blocks), side(side) {}
    int64_t edge(int64_t i, int64_t j, int64_t block) const { return ((i * columns + j) * blocks + block) * side; }
    int64_t rows_of(int64_t i) const { return std::min(kSide, walk.rows - i * kSide); }
    int64_t columns_of(int64_t j) const { return std::min(kSide, walk.columns - j * kSide); }
    void go_to(int64_t i, int64_t j) { tile.take_square(walk, i * kSide, j * kSide, kSide); }
  };

  template <Correction correction, bool needs_R, Form form>
  void direction_2d(int64_t k) {
    const Walk walk(p, k);
    Tiles tiles(walk, blocks, kSide * state);
    find_edges<form>(k, tiles);
    Buffer<T> lambda(tiles.edge(1, 0, 0), T(0)), mu(blocks * tiles.side);
    if (walk.columns_closed) close_columns<form>(k, tiles, lambda);
    for (int64_t i = tiles.rows - 1; i >= 0; --i) {
      std::fill(mu.begin(), mu.end(), T(0));
      if (walk.rows_closed) close_rows<form>(k, i, tiles, lambda, mu);
      for (int64_t j = tiles.columns - 1; j >= 0; --j) {
        const int64_t columns = tiles.columns_of(j);
        tiles.go_to(i, j);
        each_block(k, tiles.tile, tiles.steps, tiles.grad, [&](int64_t block, int64_t s0, auto tame) {
          prefetch_edges<false>(block + 1 < blocks ? tiles.edge(i, j, block + 1) : tiles.edge(i, j - 1, 0), s0, s0 + kStates);
          tile_backward_2d<T, correction, needs_R, form, tame>(
              sums[block].parameters, tiles.tile, tiles.steps, columns, padded, rows.row_size, s0,
              &left[tiles.edge(i, j, block)], &top[tiles.edge(i, j, block)], &lambda[tiles.edge(0, j, block)],
              &mu[block * tiles.side], tiles.grad, rows.of_block(first_block + block));
        });
      }
    }
  }

  // The states that enter each tile from the left (P_hor) and from the top (P_ver): a sweep without y. Closed rows and columns
  // begin as in the forward.
  template <Form form>
  void find_edges(int64_t k, Tiles& tiles) {
    const Walk& walk = tiles.walk;
    left.resize(tiles.edge(tiles.rows, 0, 0));
    top.resize(tiles.edge(tiles.rows, 0, 0));
    Buffer<T> g(blocks * tiles.side), h(tiles.edge(1, 0, 0), T(0));
    if (walk.columns_closed)
      for (int64_t j = 0; j < tiles.columns; ++j)
        for (int64_t block = 0; block < blocks; ++block)
          std::copy_n(column_starts<T>(p, walk, b, first_block + block, k) + j * tiles.side, tiles.columns_of(j) * state,
                      &h[tiles.edge(0, j, block)]);
    for (int64_t i = 0; i < tiles.rows; ++i) {
      std::fill(g.begin(), g.end(), T(0));
      if (walk.rows_closed)
        for (int64_t block = 0; block < blocks; ++block)
          std::copy_n(row_starts<T>(p, walk, b, first_block + block, k) + i * tiles.side, tiles.rows_of(i) * state,
                      &g[block * tiles.side]);
      for (int64_t j = 0; j < tiles.columns; ++j) {
        std::memcpy(&left[tiles.edge(i, j, 0)], g.data(), blocks * tiles.side * sizeof(T));
        std::memcpy(&top[tiles.edge(i, j, 0)], &h[tiles.edge(0, j, 0)], blocks * tiles.side * sizeof(T));
        if (i + 1 == tiles.rows && j + 1 == tiles.columns) break;
        tiles.go_to(i, j);
        read_rows<IO>(p, b, k, tiles.tile);
        for (int64_t block = 0; block < blocks; ++block) {
          const Parameters<T>& parameters = sums[block].parameters;
          prefetch_edges<true>(tiles.edge(i, j + 1, block), 0, padded);  // of the next tile, while this one is at work
          prepare<IO, T, false>(p, parameters, source(p.x, 0, block), source(p.dt, k, block), tiles.tile, tiles.steps);
          with_tame(tiles.steps, [&](auto tame) {
            scan_tile_2d<T, Correction::none, form, tame>(parameters, tiles.tile, tiles.steps, tiles.columns_of(j), padded,
                                                               &g[block * tiles.side], &h[tiles.edge(0, j, block)], NoOutput());
          });
        }
      }
    }
  }

  // The lambda with which closed columns begin, at the bottom: a sweep of the grid from zero.
  template <Form form>
  void close_columns(int64_t k, Tiles& tiles, Buffer<T>& lambda) {
    Buffer<T> line_steps(tiles.columns * blocks * kSide * kLanes, T(0));
    for (int64_t i = tiles.rows - 1; i >= 0; --i)
      sweep_band<form, false>(k, i, tiles, lambda.data(), nullptr, line_steps.data());
    for (int64_t j = 0; j < tiles.columns; ++j)
      for (int64_t block = 0; block < blocks; ++block) {
        const Parameters<T>& parameters = sums[block].parameters;
        close_lines(parameters, parameters.down, &line_steps[(j * blocks + block) * kSide * kLanes], tiles.columns_of(j),
                    &lambda[tiles.edge(0, j, block)]);
      }
  }

  // The mu with which the closed rows of a band begin, at the right: a sweep of the band from zero.
  template <Form form>
  void close_rows(int64_t k, int64_t i, Tiles& tiles, const Buffer<T>& lambda, Buffer<T>& mu) {
    Buffer<T> lambda_ahead(lambda), line_steps(blocks * kSide * kLanes, T(0));
    sweep_band<form, true>(k, i, tiles, lambda_ahead.data(), mu.data(), line_steps.data());
    for (int64_t block = 0; block < blocks; ++block)
      close_lines(sums[block].parameters, T(1), &line_steps[block * kSide * kLanes], tiles.rows_of(i), &mu[block * tiles.side]);
  }

  // The adjoints of a band, carried from below to above, and from the right to the left where rows are wanted.
  template <Form form, bool rows_wanted>
  void sweep_band(int64_t k, int64_t i, Tiles& tiles, T* lambda, T* mu, T* line_steps) {
    auto& tile = tiles.tile;
    auto& steps = tiles.steps;
    auto& grad = tiles.grad;
    for (int64_t j = tiles.columns - 1; j >= 0; --j) {
      const int64_t columns = tiles.columns_of(j);
      tiles.go_to(i, j);
      read_rows<IO>(p, b, k, tile);
      for (int64_t block = 0; block < blocks; ++block) {
        const Parameters<T>& parameters = sums[block].parameters;
        const Source<IO, T> dy = source(p.dy, 0, block);
        prepare<IO, T, false>(p, parameters, source(p.x, 0, block), source(p.dt, k, block), tile, steps);
        for (int64_t m = 0; m < tile.size; ++m) Lanes<T>::load(dy.line(tile.position[m], grad.dy[m])).store(grad.dy[m]);
        with_tame(steps, [&](auto tame) {
          adjoint_tile_2d<T, form, rows_wanted, tame>(parameters, tile, steps, columns, padded, grad.dy,
                                                           lambda + tiles.edge(0, j, block),
                                                           rows_wanted ? mu + block * tiles.side : nullptr);
        });
        add_steps<rows_wanted>(tile, steps, columns, line_steps + (rows_wanted ? block : j * blocks + block) * kSide * kLanes);
      }
    }
  }

  // Brings a share of the edges that start at `at` to the cache, the share of a range of dstates in all of them: the edges of
  // a grid are larger than the caches next to the processor. Nothing where there is no such tile.
  template <bool to_write>
  void prefetch_edges(int64_t at, int64_t first_state, int64_t last_state) const {
    if (at < 0 || at >= static_cast<int64_t>(left.size())) return;
    for (int64_t line = first_state * kSide; line < last_state * kSide; ++line) {
      __builtin_prefetch(&left[at + line * kLanes], to_write);
      __builtin_prefetch(&top[at + line * kLanes], to_write);
    }
  }

  // The frame of a tile's gradients: f(block, s0, tame) for each block of the bundle and each group of dstates.
  template <int64_t kPositions, typename F>
  void each_block(int64_t k, Tile<T, kPositions>& tile, Steps<T, kPositions>& steps, TileGradients<T, kPositions>& grad,
                  const F& f) {
    read_rows<IO>(p, b, k, tile);
    rows.start(k, tile);
    for (int64_t i = 0; i < blocks; ++i) {
      start_tile(k, i, tile, steps, grad);
      with_tame(steps, [&](auto tame) {
        for (int64_t s0 = 0; s0 < N; s0 += kStates) {
          std::memset(grad.dA, 0, sizeof(grad.dA));
          std::memset(grad.dR, 0, sizeof(grad.dR));
          f(i, s0, tame);
          finish_states(i, s0, grad);
        }
      });
      finish_tile(k, i, tile, steps, grad);
    }
    rows.write(k, tile);
  }

  template <int64_t kPositions>
  void start_tile(int64_t k, int64_t i, const Tile<T, kPositions>& tile, Steps<T, kPositions>& steps,
                  TileGradients<T, kPositions>& grad) const {
    const Source<IO, T> dy = source(p.dy, 0, i);
    for (int64_t m = 0; m < tile.size; ++m) __builtin_prefetch(dy.data + tile.position[m] * dy.stride);
    prepare<IO, T, true>(p, sums[i].parameters, source(p.x, 0, i), source(p.dt, k, i), tile, steps);
    for (int64_t m = 0; m < tile.size; ++m) {
      Lanes<T>::load(dy.line(tile.position[m], grad.dy[m])).store(grad.dy[m]);
      Lanes<T>::all(0).store(grad.du[m]);
      Lanes<T>::all(0).store(grad.ddelta[m]);
      __builtin_prefetch(dx[i].at(tile.position[m]), 1);  // for finish_tile
    }
  }

  // Sums of sums: one accumulator over a long grid would lose digits.
  template <int64_t kPositions>
  void finish_states(int64_t i, int64_t s0, const TileGradients<T, kPositions>& grad) {
    for (int64_t q = 0; q < kStates; ++q) {
      add_to(&sums[i].dA[(s0 + q) * kLanes], Lanes<T>::load(grad.dA[q]));
      if (p.needs_R) add_to(&sums[i].dR[(s0 + q) * kLanes], Lanes<T>::load(grad.dR[q]));
    }
  }

  template <int64_t kPositions>
  void finish_tile(int64_t k, int64_t i, const Tile<T, kPositions>& tile, const Steps<T, kPositions>& steps,
                   TileGradients<T, kPositions>& grad) {
    ParameterGradients<T>& sum = sums[i];
    const int64_t count = std::min(kLanes, p.channels - first_channel(i)), positions = p.height * p.width;
    const Lanes<T> D = Lanes<T>::load(sum.parameters.D);
    Lanes<T> dD_tile = Lanes<T>::all(0), dbias_tile = Lanes<T>::all(0);
    for (int64_t m = 0; m < tile.size; ++m) {
      const int64_t position = tile.position[m];
      const Lanes<T> x_m = Lanes<T>::load(steps.x[m]), dy_m = Lanes<T>::load(grad.dy[m]);
      const Lanes<T> du = Lanes<T>::load(grad.du[m]);
      const Lanes<T> draw = fma(du, x_m, Lanes<T>::load(grad.ddelta[m])) * Lanes<T>::load(steps.slope[m]);
      draw.store(grad.ddelta[m]);
      const Lanes<T> before = k == 0 ? Lanes<T>::all(0) : Lanes<T>::load(dx[i].at(position));
      fma(du, Lanes<T>::load(steps.delta[m]), fma(D, dy_m, before)).store(dx[i].at(position));
      dD_tile = fma(x_m, dy_m, dD_tile);
      dbias_tile = dbias_tile + draw;
      if (p.rank == 0) {
        IO* to = static_cast<IO*>(p.ddt) + ((b * positions + position) * p.directions + k) * p.channels + first_channel(i);
        for (int64_t e = 0; e < count; ++e) to[e] = static_cast<IO>(grad.ddelta[m][e]);
      }
    }
    add_to(sum.dD, dD_tile);
    add_to(sum.dbias, dbias_tile);
    if (p.rank > 0) low_rank_gradients(sum, tile, grad.ddelta, rows.of_block(first_block + i) + 2 * padded, rows.row_size);
  }
};

template <typename IO, typename T>
void backward(const Problem& p) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(p.threads)
  for (int64_t task = 0; task < p.batch * p.slots; ++task) {
    const FlushDenormals flush;
    const int64_t b = task / p.slots, slot = task % p.slots, groups = p.groups / p.slots;
    const int64_t first = first_block_of(p, slot * groups), last = first_block_of(p, (slot + 1) * groups);
    for (int64_t block = first; block < last; block += p.bundle)
      Backward<IO, T>(p, b, slot, block, std::min(p.bundle, last - block), block == first).run();
  }
  if (p.partial != nullptr) sum_slots<IO, T>(p);
}

}  // namespace geomano

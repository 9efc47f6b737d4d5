// The gradients of a bundle of channel blocks: its directions tile by tile, backwards, and what the tiles add up to.
#pragma once

#include "gradient_sums.h"

namespace geomano {

template <typename IO, typename T>
struct Backward {
  const Problem& p;
  int64_t b, group, first_block, blocks;
  bool first_of_group;
  const int64_t N = p.dstate, padded = p.padded_dstate(), row_size = 2 * padded + p.rank;
  const int64_t state = padded * kLanes;
  std::vector<Column<IO, T>> dx;
  std::vector<ParameterGradients<T>> sums;
  Buffer<T> rows;  // of a tile: [positions][dB, dC: N padded each, ddt_low: r], summed over the bundle

  Backward(const Problem& p, int64_t b, int64_t group, int64_t first_block, int64_t blocks, bool first_of_group)
      : p(p), b(b), group(group), first_block(first_block), blocks(blocks), first_of_group(first_of_group), sums(blocks) {
    const int64_t positions = p.height * p.width;
    for (int64_t i = 0; i < blocks; ++i)
      dx.emplace_back(static_cast<IO*>(p.dx) + b * positions * p.channels + first_channel(i), p.channels, positions,
                      std::min(kLanes, p.channels - first_channel(i)));
    rows.resize(std::max(kTile1d, kSide * kSide) * row_size);
  }

  int64_t first_channel(int64_t i) const { return (first_block + i) * kLanes; }
  Source<IO, T> source(const Activation& a, int64_t k, int64_t i) const {
    return Source<IO, T>(a, b, k, first_channel(i), p.channels);
  }

  void run() {
    for (int64_t k = 0; k < p.directions; ++k) {
      for (int64_t i = 0; i < blocks; ++i) sums[i].start(p, k, first_channel(i), padded);
      with_correction<T>(p, k, [&](auto correction) {
        constexpr Correction form = decltype(correction)::value;
        if (p.two_d)
          p.needs_R ? direction_2d<form, form != Correction::none>(k) : direction_2d<form, false>(k);
        else
          p.needs_R ? direction_1d<form, form != Correction::none>(k) : direction_1d<form, false>(k);
      });
      for (int64_t i = 0; i < blocks; ++i) sums[i].write(p, b, k, first_channel(i));
    }
    for (const Column<IO, T>& column : dx) column.write();
  }

  template <Correction correction, bool needs_R>
  void direction_1d(int64_t k) {
    const Walk walk(p, p.orders[k]);
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
        std::fill(start, start + state, T(0));
        std::memcpy(start, carry<T>(p, b, first_block + i, k, interval), N * kLanes * sizeof(T));
      }
      for (int64_t index = 1; index < tiles; ++index) {  // the states at which the other tiles of this interval start
        tile.size = walk.sequence(begin + (index - 1) * kTile1d, kTile1d, tile.position);
        read_rows<IO>(p, b, k, tile);
        for (int64_t i = 0; i < blocks; ++i) {
          T* start = &starts[(i * tiles_per_carry + index) * state];
          std::memcpy(start, start - state, state * sizeof(T));
          prepare<IO, T, false>(p, sums[i].parameters, source(p.x, 0, i), source(p.dt, k, i), tile, steps);
          if (steps.tame)
            scan_tile_1d<T, Correction::none, true>(sums[i].parameters, tile, steps, padded, start, NoOutput<T>());
          else
            scan_tile_1d<T, Correction::none, false>(sums[i].parameters, tile, steps, padded, start, NoOutput<T>());
        }
      }
      for (int64_t index = tiles - 1; index >= 0; --index) {
        tile.size = walk.sequence(begin + index * kTile1d, kTile1d, tile.position);
        read_rows<IO>(p, b, k, tile);
        start_rows(k, tile);
        for (int64_t i = 0; i < blocks; ++i) {
          const T* start = &starts[(i * tiles_per_carry + index) * state];
          start_tile(k, i, tile, steps, grad);
          if (index == 0 && interval > 0) {  // for the next interval, while this one is at work
            const T* next = carry<T>(p, b, first_block + i, k, interval - 1);
            for (int64_t s = 0; s < N; ++s) __builtin_prefetch(next + s * kLanes);
          }
          for (int64_t s0 = 0; s0 < N; s0 += kStates) {
            start_states(grad);
            if (steps.tame)
              tile_backward_1d<T, correction, needs_R, true>(sums[i].parameters, tile, steps, padded, row_size, s0, start,
                                                             &lambda[i * state], grad, rows.data());
            else
              tile_backward_1d<T, correction, needs_R, false>(sums[i].parameters, tile, steps, padded, row_size, s0, start,
                                                              &lambda[i * state], grad, rows.data());
            finish_states(i, s0, grad);
          }
          finish_tile(k, i, tile, steps, grad);
        }
        write_rows(k, tile);
      }
    }
  }

  // One block at a time: the states that enter the tiles of one direction are many.
  template <Correction correction, bool needs_R>
  void direction_2d(int64_t k) {
    const Walk walk(p, p.orders[k]);
    const Parameters<T>& parameters = sums[0].parameters;
    const int64_t side = kSide * state;
    const int64_t tile_rows = (walk.rows + kSide - 1) / kSide, tile_columns = (walk.columns + kSide - 1) / kSide;
    Tile<T, kSide * kSide> tile;
    Steps<T, kSide * kSide> steps;
    // The states that enter each tile from the left (P_hor) and from the top (P_ver): a sweep without y.
    Buffer<T> left(tile_rows * tile_columns * side, T(0)), top(tile_rows * tile_columns * side, T(0));
    Buffer<T> g(side), h(tile_columns * side, T(0));
    for (int64_t i = 0; i < tile_rows; ++i) {
      std::fill(g.begin(), g.end(), T(0));
      for (int64_t j = 0; j < tile_columns; ++j) {
        std::memcpy(&left[(i * tile_columns + j) * side], g.data(), side * sizeof(T));
        std::memcpy(&top[(i * tile_columns + j) * side], &h[j * side], side * sizeof(T));
        if (i + 1 == tile_rows && j + 1 == tile_columns) break;
        const int64_t columns = std::min(kSide, walk.columns - j * kSide);
        tile.size = walk.square(i * kSide, j * kSide, kSide, tile.position);
        read_rows<IO>(p, b, k, tile);
        prepare<IO, T, false>(p, parameters, source(p.x, 0, 0), source(p.dt, k, 0), tile, steps);
        if (steps.tame)
          scan_tile_2d<T, Correction::none, true>(parameters, tile, steps, columns, padded, g.data(), &h[j * side], NoOutput<T>());
        else
          scan_tile_2d<T, Correction::none, false>(parameters, tile, steps, columns, padded, g.data(), &h[j * side], NoOutput<T>());
      }
    }
    Buffer<T> lambda(tile_columns * side, T(0)), mu(side);
    TileGradients<T, kSide * kSide> grad;
    for (int64_t i = tile_rows - 1; i >= 0; --i) {
      std::fill(mu.begin(), mu.end(), T(0));
      for (int64_t j = tile_columns - 1; j >= 0; --j) {
        const int64_t columns = std::min(kSide, walk.columns - j * kSide);
        tile.size = walk.square(i * kSide, j * kSide, kSide, tile.position);
        const T *left_edge = &left[(i * tile_columns + j) * side], *top_edge = &top[(i * tile_columns + j) * side];
        read_rows<IO>(p, b, k, tile);
        start_rows(k, tile);
        start_tile(k, 0, tile, steps, grad);
        for (int64_t s0 = 0; s0 < N; s0 += kStates) {
          start_states(grad);
          if (steps.tame)
            tile_backward_2d<T, correction, needs_R, true>(parameters, tile, steps, columns, padded, row_size, s0, left_edge,
                                                           top_edge, &lambda[j * side], mu.data(), grad, rows.data());
          else
            tile_backward_2d<T, correction, needs_R, false>(parameters, tile, steps, columns, padded, row_size, s0, left_edge,
                                                            top_edge, &lambda[j * side], mu.data(), grad, rows.data());
          finish_states(0, s0, grad);
        }
        finish_tile(k, 0, tile, steps, grad);
        write_rows(k, tile);
      }
    }
  }

  // dB, dC and ddt_low of a tile are sums over all channels: the bundle's share goes to its group's partial sums.
  template <int64_t kPositions>
  void start_rows(int64_t k, const Tile<T, kPositions>& tile) {
    std::memset(rows.data(), 0, tile.size * row_size * sizeof(T));
    for (int64_t m = 0; m < tile.size; ++m) {
      const char* row = reinterpret_cast<const char*>(partial_row(k, tile.position[m]));
      for (int64_t byte = 0; byte < row_size * static_cast<int64_t>(sizeof(T)); byte += 64) __builtin_prefetch(row + byte, 1);
    }
  }

  template <int64_t kPositions>
  void write_rows(int64_t k, const Tile<T, kPositions>& tile) const {
    for (int64_t m = 0; m < tile.size; ++m) {
      const T* row = rows.data() + m * row_size;
      T* to = partial_row(k, tile.position[m]);
      if (first_of_group)
        std::memcpy(to, row, row_size * sizeof(T));
      else
        for (int64_t i = 0; i < row_size; ++i) to[i] += row[i];
    }
  }

  T* partial_row(int64_t k, int64_t position) const {
    const int64_t row = ((b * p.groups + group) * p.height * p.width + position) * p.directions + k;
    return static_cast<T*>(p.partial) + row * row_size;
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

  template <int64_t kPositions>
  static void start_states(TileGradients<T, kPositions>& grad) {
    std::memset(grad.dR, 0, sizeof(grad.dR));
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
      } else {
        low_rank_gradients(sum.parameters, draw, rows.data() + m * row_size + 2 * padded);
      }
    }
    add_to(sum.dD, dD_tile);
    add_to(sum.dbias, dbias_tile);
    for (int64_t i0 = 0; i0 < p.rank; ++i0) {
      Lanes<T> dW = Lanes<T>::all(0);
      for (int64_t m = 0; m < tile.size; ++m)
        dW = fma(Lanes<T>::all(tile.dt_low[m][i0]), Lanes<T>::load(grad.ddelta[m]), dW);
      add_to(&sum.dW[i0 * kLanes], dW);
    }
  }

  // ddt_low += draw weight, eight factors at a time.
  void low_rank_gradients(const Parameters<T>& parameters, const Lanes<T>& draw, T* row) const {
    for (int64_t i0 = 0; i0 < p.rank; i0 += 8) {
      typename Lanes<T>::Vec products[8];
      for (int64_t i = 0; i < 8; ++i)
        products[i] = i0 + i < p.rank ? folded_product(draw, Lanes<T>::load(&parameters.weight[(i0 + i) * kLanes]))
                                      : typename Lanes<T>::Vec(0);
      if (i0 + 8 <= p.rank) {
        add_channel_sums<T>(products, row + i0, row + i0 + 4);
      } else {
        T rest[8] = {};
        add_channel_sums<T>(products, rest, rest + 4);
        for (int64_t i = i0; i < p.rank; ++i) row[i] += rest[i - i0];
      }
    }
  }
};

template <typename IO, typename T>
void backward(const Problem& p) {
  const int64_t blocks = (p.channels + kLanes - 1) / kLanes;
#pragma omp parallel for schedule(dynamic, 1) num_threads(p.threads)
  for (int64_t task = 0; task < p.batch * p.groups; ++task) {
    const FlushDenormals flush;
    const int64_t b = task / p.groups, group = task % p.groups;
    const int64_t first = group * blocks / p.groups, last = (group + 1) * blocks / p.groups;
    const int64_t bundle = p.two_d ? 1 : 8;  // from the shapes alone, like the groups: sums have a fixed order
    for (int64_t block = first; block < last; block += bundle)
      Backward<IO, T>(p, b, group, block, std::min(bundle, last - block), block == first).run();
  }
  sum_groups<IO, T>(p);
}

}  // namespace geomano

// The gradients of one block of sixteen channels: its directions tile by tile, backwards, and what the tiles add up to.
#pragma once

#include "tile_backward.h"

namespace geomano {

template <typename IO, typename T>
struct Backward {
  const Problem& p;
  int64_t b, group, first_channel, block, blocks;
  bool first_of_group;
  Column<IO, T>&x, &dx, &dy;
  Parameters<T> parameters;
  // Sums over the positions, of this direction.
  Buffer<T> dA, dR, dW;
  alignas(64) T dD[kLanes], dbias[kLanes];

  int64_t padded() const { return (p.dstate + kStates - 1) / kStates * kStates; }
  int64_t row_size() const { return 2 * padded() + p.rank; }

  void direction(int64_t k) {
    parameters.load(p, k, first_channel);
    dA.assign(padded() * kLanes, T(0));
    dR.assign(padded() * kLanes, T(0));
    dW.assign(p.rank * kLanes, T(0));
    std::fill(dD, dD + kLanes, T(0));
    std::fill(dbias, dbias + kLanes, T(0));
    Forward<IO, T>::with_correction(p, parameters, [&](auto correction) {
      constexpr Correction form = decltype(correction)::value;
      if (p.two_d)
        p.needs_R ? direction_2d<form, form != Correction::none>(k) : direction_2d<form, false>(k);
      else
        p.needs_R ? direction_1d<form, form != Correction::none>(k) : direction_1d<form, false>(k);
    });
    write_parameter_gradients(k);
  }

  template <Correction correction, bool needs_R>
  void direction_1d(int64_t k) {
    const Walk walk(p, p.orders[k]);
    const int64_t N = p.dstate, length = p.height * p.width, state = padded() * kLanes;
    const int64_t tiles_per_carry = p.interval / kTile1d;
    Buffer<T> lambda(state, T(0)), starts(tiles_per_carry * state), h(state);
    Tile<T, kTile1d> tile;
    TileGradients<T, kTile1d> grad;
    grad.rows.resize(kTile1d * row_size());
    const Forward<IO, T> forward{p, b, first_channel, block, blocks, x, dx, {}};
    for (int64_t interval = (length - 1) / p.interval; interval >= 0; --interval) {
      const int64_t begin = interval * p.interval, end = std::min(begin + p.interval, length);
      std::fill(h.begin(), h.end(), T(0));
      std::memcpy(h.data(), forward.carry(k, interval), N * kLanes * sizeof(T));
      const int64_t tiles = (end - begin + kTile1d - 1) / kTile1d;
      for (int64_t index = 0; index < tiles; ++index) {  // the states at which the tiles of this interval start
        std::memcpy(&starts[index * state], h.data(), state * sizeof(T));
        if (index + 1 == tiles) break;
        tile.size = walk.sequence(begin + index * kTile1d, kTile1d, tile.position);
        prepare<IO, T, false>(p, b, k, first_channel, parameters, x, tile);
        if (tile.tame)
          scan_tile_1d<T, Correction::none, true>(parameters, tile, N, h.data(), NoOutput<T>());
        else
          scan_tile_1d<T, Correction::none, false>(parameters, tile, N, h.data(), NoOutput<T>());
      }
      for (int64_t index = tiles - 1; index >= 0; --index) {
        const int64_t first = begin + index * kTile1d;
        tile.size = walk.sequence(first, kTile1d, tile.position);
        start_tile(k, tile, grad);
        for (int64_t s0 = 0; s0 < N; s0 += kStates) {
          start_states(grad);
          if (tile.tame)
            tile_backward_1d<T, correction, needs_R, true>(parameters, tile, padded(), row_size(), s0, &starts[index * state],
                                                  lambda.data(), grad);
          else
            tile_backward_1d<T, correction, needs_R, false>(parameters, tile, padded(), row_size(), s0, &starts[index * state],
                                                   lambda.data(), grad);
          finish_states(s0, grad);
        }
        finish_tile(k, tile, grad);
      }
    }
  }

  template <Correction correction, bool needs_R>
  void direction_2d(int64_t k) {
    const Walk walk(p, p.orders[k]);
    const int64_t N = p.dstate, state = padded() * kLanes, side = kSide * state;
    const int64_t tile_rows = (walk.rows + kSide - 1) / kSide, tile_columns = (walk.columns + kSide - 1) / kSide;
    Tile<T, kSide * kSide> tile;
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
        prepare<IO, T, false>(p, b, k, first_channel, parameters, x, tile);
        if (tile.tame)
          scan_tile_2d<T, Correction::none, true>(parameters, tile, columns, padded(), g.data(), &h[j * side], NoOutput<T>());
        else
          scan_tile_2d<T, Correction::none, false>(parameters, tile, columns, padded(), g.data(), &h[j * side], NoOutput<T>());
      }
    }
    Buffer<T> lambda(tile_columns * side, T(0)), mu(side);
    TileGradients<T, kSide * kSide> grad;
    grad.rows.resize(kSide * kSide * row_size());
    for (int64_t i = tile_rows - 1; i >= 0; --i) {
      std::fill(mu.begin(), mu.end(), T(0));
      for (int64_t j = tile_columns - 1; j >= 0; --j) {
        const int64_t columns = std::min(kSide, walk.columns - j * kSide);
        tile.size = walk.square(i * kSide, j * kSide, kSide, tile.position);
        const T *left_edge = &left[(i * tile_columns + j) * side], *top_edge = &top[(i * tile_columns + j) * side];
        start_tile(k, tile, grad);
        for (int64_t s0 = 0; s0 < N; s0 += kStates) {
          start_states(grad);
          if (tile.tame)
            tile_backward_2d<T, correction, needs_R, true>(parameters, tile, columns, padded(), row_size(), s0, left_edge, top_edge,
                                                  &lambda[j * side], mu.data(), grad);
          else
            tile_backward_2d<T, correction, needs_R, false>(parameters, tile, columns, padded(), row_size(), s0, left_edge, top_edge,
                                                   &lambda[j * side], mu.data(), grad);
          finish_states(s0, grad);
        }
        finish_tile(k, tile, grad);
      }
    }
  }

  template <int64_t kPositions>
  void start_tile(int64_t k, Tile<T, kPositions>& tile, TileGradients<T, kPositions>& grad) {
    prepare<IO, T, true>(p, b, k, first_channel, parameters, x, tile);
    for (int64_t m = 0; m < tile.size; ++m) {
      Lanes<T>::load(dy.at(tile.position[m])).store(grad.dy[m]);
      Lanes<T>::all(0).store(grad.du[m]);
      Lanes<T>::all(0).store(grad.ddelta[m]);
      __builtin_prefetch(dx.at(tile.position[m]), 1);  // for finish_tile
      const char* sums = reinterpret_cast<const char*>(partial_row(k, tile.position[m]));
      for (int64_t byte = 0; byte < row_size() * static_cast<int64_t>(sizeof(T)); byte += 64)
        __builtin_prefetch(sums + byte, 1);
    }
  }

  T* partial_row(int64_t k, int64_t position) const {
    const int64_t row = ((b * p.groups + group) * p.height * p.width + position) * p.directions + k;
    return static_cast<T*>(p.partial) + row * row_size();
  }

  template <int64_t kPositions>
  static void start_states(TileGradients<T, kPositions>& grad) {
    std::memset(grad.dA, 0, sizeof(grad.dA));
    std::memset(grad.dR, 0, sizeof(grad.dR));
  }

  // Sums of sums: one accumulator over a long grid would lose digits.
  template <int64_t kPositions>
  void finish_states(int64_t s0, const TileGradients<T, kPositions>& grad) {
    for (int64_t q = 0; q < kStates; ++q) {
      add_to(&dA[(s0 + q) * kLanes], Lanes<T>::load(grad.dA[q]));
      if (p.needs_R) add_to(&dR[(s0 + q) * kLanes], Lanes<T>::load(grad.dR[q]));
    }
  }

  static void add_to(T* sum, const Lanes<T>& value) { (Lanes<T>::load(sum) + value).store(sum); }

  template <int64_t kPositions>
  void finish_tile(int64_t k, const Tile<T, kPositions>& tile, TileGradients<T, kPositions>& grad) {
    const int64_t N = p.dstate, r = p.rank, count = std::min(kLanes, p.channels - first_channel);
    const int64_t positions = p.height * p.width;
    const Lanes<T> D = Lanes<T>::load(parameters.D);
    Lanes<T> dD_tile = Lanes<T>::all(0), dbias_tile = Lanes<T>::all(0);
    for (int64_t m = 0; m < tile.size; ++m) {
      const int64_t position = tile.position[m];
      const Lanes<T> x_m = Lanes<T>::load(tile.x[m]), dy_m = Lanes<T>::load(grad.dy[m]);
      const Lanes<T> du = Lanes<T>::load(grad.du[m]);
      const Lanes<T> draw = fma(du, x_m, Lanes<T>::load(grad.ddelta[m])) * Lanes<T>::load(tile.slope[m]);
      draw.store(grad.ddelta[m]);
      const Lanes<T> before = k == 0 ? Lanes<T>::all(0) : Lanes<T>::load(dx.at(position));
      fma(du, Lanes<T>::load(tile.delta[m]), fma(D, dy_m, before)).store(dx.at(position));
      dD_tile = fma(x_m, dy_m, dD_tile);
      dbias_tile = dbias_tile + draw;
      if (r == 0) {
        IO* to = static_cast<IO*>(p.ddt) + ((b * positions + position) * p.directions + k) * p.channels + first_channel;
        T values[kLanes];
        draw.store(values);
        for (int64_t e = 0; e < count; ++e) to[e] = static_cast<IO>(values[e]);
      } else {
        T* row = grad.rows.data() + m * row_size() + 2 * padded();
        for (int64_t i0 = 0; i0 < r; i0 += 8) {
          typename Lanes<T>::Vec sums[8];
          for (int64_t i = 0; i < 8; ++i)
            sums[i] = i0 + i < r ? folded_product(draw, Lanes<T>::load(&parameters.weight[(i0 + i) * kLanes]))
                                 : typename Lanes<T>::Vec(0);
          T sum[8];
          sum_channels<T>(sums, sum);
          std::memcpy(row + i0, sum, std::min<int64_t>(8, r - i0) * sizeof(T));
        }
      }
    }
    add_to(dD, dD_tile);
    add_to(dbias, dbias_tile);
    for (int64_t i = 0; i < r; ++i) {
      Lanes<T> sum = Lanes<T>::all(0);
      for (int64_t m = 0; m < tile.size; ++m)
        sum = fma(Lanes<T>::all(tile.dt_low[m][i]), Lanes<T>::load(grad.ddelta[m]), sum);
      add_to(&dW[i * kLanes], sum);
    }
    // dB, dC and ddt_low are sums over all channels: this block's share goes to its group's partial sums.
    const int64_t width = row_size();
    for (int64_t m = 0; m < tile.size; ++m) {
      const T* row = grad.rows.data() + m * width;
      T* to = partial_row(k, tile.position[m]);
      if (first_of_group)
        std::memcpy(to, row, width * sizeof(T));
      else
        for (int64_t i = 0; i < width; ++i) to[i] += row[i];
    }
  }

  void write_parameter_gradients(int64_t k) const {
    const int64_t N = p.dstate, r = p.rank, count = std::min(kLanes, p.channels - first_channel);
    const int64_t row = (b * p.directions + k) * p.channels + first_channel;
    for (int64_t e = 0; e < count; ++e) {
      static_cast<T*>(p.dD)[row + e] = dD[e];
      static_cast<T*>(p.ddt_bias)[row + e] = dbias[e];
      for (int64_t s = 0; s < N; ++s) {
        static_cast<T*>(p.dA)[(row + e) * N + s] = dA[s * kLanes + e];
        if (p.needs_R) static_cast<T*>(p.dR)[(row + e) * N + s] = dR[s * kLanes + e];
      }
      for (int64_t i = 0; i < r; ++i) static_cast<T*>(p.ddt_weight)[(row + e) * r + i] = dW[i * kLanes + e];
    }
  }
};

// The partial sums of the groups, added in a fixed order.
template <typename IO, typename T>
void sum_groups(const Problem& p) {
  const int64_t N = p.dstate, r = p.rank, padded = (N + kStates - 1) / kStates * kStates, width = 2 * padded + r;
  const int64_t points = p.height * p.width * p.directions;
#pragma omp parallel for num_threads(p.threads)
  for (int64_t point = 0; point < p.batch * points; ++point) {
    const T* partial = static_cast<const T*>(p.partial) + (point / points * p.groups * points + point % points) * width;
    const auto sum = [&](int64_t first, int64_t count, void* to) {
      for (int64_t i = 0; i < count; ++i) {
        T total = partial[first + i];
        for (int64_t group = 1; group < p.groups; ++group) total += partial[group * points * width + first + i];
        static_cast<IO*>(to)[point * count + i] = static_cast<IO>(total);
      }
    };
    sum(0, N, p.dB);
    sum(padded, N, p.dC);
    sum(2 * padded, r, p.ddt);
  }
}

template <typename IO, typename T>
void backward(const Problem& p) {
  const int64_t blocks = (p.channels + kLanes - 1) / kLanes, positions = p.height * p.width;
#pragma omp parallel for schedule(dynamic, 1) num_threads(p.threads)
  for (int64_t task = 0; task < p.batch * p.groups; ++task) {
    const FlushDenormals flush;
    const int64_t b = task / p.groups, group = task % p.groups;
    const int64_t first_block = group * blocks / p.groups, last_block = (group + 1) * blocks / p.groups;
    for (int64_t block = first_block; block < last_block; ++block) {
      const int64_t first_channel = block * kLanes, count = std::min(kLanes, p.channels - first_channel);
      Column<IO, T> x(static_cast<IO*>(p.x.data) + b * p.x.batch_stride + first_channel, p.x.position_stride, positions, count);
      Column<IO, T> dy(static_cast<IO*>(p.dy.data) + b * p.dy.batch_stride + first_channel, p.dy.position_stride, positions, count);
      Column<IO, T> dx(static_cast<IO*>(p.dx) + b * positions * p.channels + first_channel, p.channels, positions, count);
      x.read();
      dy.read();
      Backward<IO, T> scan{p, b, group, first_channel, block, blocks, block == first_block, x, dx, dy, {}, {}, {}, {}, {}, {}};
      for (int64_t k = 0; k < p.directions; ++k) scan.direction(k);
      dx.write();
    }
  }
  sum_groups<IO, T>(p);
}

}  // namespace geomano

// Where gradients are summed: over positions for the parameters, over groups of channel blocks for dB, dC and ddt.
#pragma once

#include "tile_backward.h"

namespace geomano {

// The rank of the time step, padded to whole vectors.
template <typename T>
int64_t factor_stride(const Problem& p) {
  constexpr int64_t size = Lanes<T>::Vec::size();
  return (p.rank + size - 1) / size * size;
}

// Sums over the positions for sixteen channels in one direction, beside the parameters that they are the gradients of.
template <typename T>
struct ParameterGradients {
  Parameters<T> parameters;
  Buffer<T> dA, dR, dW, factors;  // factors: the weight of the time step, [16][r padded]
  alignas(64) T dD[kLanes], dbias[kLanes];

  void start(const Problem& p, int64_t k, int64_t first_channel, int64_t padded) {
    parameters.load(p, k, first_channel);
    dA.assign(padded * kLanes, T(0));
    dR.assign(padded * kLanes, T(0));
    dW.assign(p.rank * kLanes, T(0));
    const int64_t stride = factor_stride<T>(p);
    factors.assign(kLanes * stride, T(0));
    for (int64_t e = 0; e < kLanes; ++e)
      for (int64_t i = 0; i < p.rank; ++i) factors[e * stride + i] = parameters.weight[i * kLanes + e];
    std::fill(dD, dD + kLanes, T(0));
    std::fill(dbias, dbias + kLanes, T(0));
  }

  void write(const Problem& p, int64_t b, int64_t k, int64_t first_channel) const {
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

template <typename T>
inline void add_to(T* sum, const Lanes<T>& value) {
  (Lanes<T>::load(sum) + value).store(sum);
}

// ddt_low += draw weight for `count` positions that share the loads of the weight: lanes over its factors.
template <int64_t count, typename T>
inline void add_factor_sums(const T (*draw)[kLanes], const Buffer<T>& factors, T* sums, int64_t row_size) {
  using Vec = typename Lanes<T>::Vec;
  const int64_t stride = factors.size() / kLanes;
  for (int64_t i = 0; i < stride; i += Vec::size()) {
    Vec sum[count];
    each<count>([&](int64_t q) __attribute__((always_inline)) { sum[q] = Vec::loadu(sums + q * row_size + i); });
    for (int64_t e = 0; e < kLanes; ++e) {
      const Vec factor = Vec::loadu(&factors[e * stride + i]);
      each<count>([&](int64_t q) __attribute__((always_inline)) { sum[q] = at::vec::fmadd(Vec(draw[q][e]), factor, sum[q]); });
    }
    each<count>([&](int64_t q) __attribute__((always_inline)) { sum[q].store(sums + q * row_size + i); });
  }
}

// dweight += dt_low draw for `count` factors from the ith on, which share the loads of draw: lanes over the channels.
template <int64_t count, typename T, int64_t kPositions>
inline void add_weight_gradients(const Tile<T, kPositions>& tile, const T (*draw)[kLanes], int64_t i, T* dW) {
  Lanes<T> sum[count];
  each<count>([&](int64_t q) __attribute__((always_inline)) { sum[q] = Lanes<T>::all(0); });
  for (int64_t m = 0; m < tile.size; ++m) {
    const Lanes<T> draw_m = Lanes<T>::load(draw[m]);
    each<count>([&](int64_t q) __attribute__((always_inline)) {
      sum[q] = fma(Lanes<T>::all(tile.dt_low[m][i + q]), draw_m, sum[q]);
    });
  }
  each<count>([&](int64_t q) __attribute__((always_inline)) { add_to(dW + (i + q) * kLanes, sum[q]); });
}

// The gradients of both factors of a low-rank time step, of which draw is the gradient before the softplus.
template <typename T, int64_t kPositions>
void low_rank_gradients(ParameterGradients<T>& sum, const Tile<T, kPositions>& tile, const T (*draw)[kLanes], T* rows,
                        int64_t row_size) {
  int64_t m = 0, i = 0;
  for (; m + 4 <= tile.size; m += 4) add_factor_sums<4>(draw + m, sum.factors, rows + m * row_size, row_size);
  for (; m < tile.size; ++m) add_factor_sums<1>(draw + m, sum.factors, rows + m * row_size, row_size);
  const int64_t r = sum.dW.size() / kLanes;
  for (; i + 4 <= r; i += 4) add_weight_gradients<4>(tile, draw, i, sum.dW.data());
  for (; i < r; ++i) add_weight_gradients<1>(tile, draw, i, sum.dW.data());
}

// Channel blocks are divided into groups of (nearly) one size.
inline int64_t first_block_of(const Problem& p, int64_t group) { return group * p.blocks() / p.groups; }
inline int64_t group_of(const Problem& p, int64_t block) { return ((block + 1) * p.groups - 1) / p.blocks(); }

// Adds `count` (a power of two) arrays into the first: in pairs, then pairs of pairs, so that any aligned part of them
// may be added beforehand without changing a bit.
template <typename T>
inline void sum_pairwise(T* arrays, int64_t count, int64_t stride, int64_t size) {
  for (int64_t step = 1; step < count; step *= 2)
    for (int64_t first = 0; first < count; first += 2 * step) {
      T* to = arrays + first * stride;
      const T* from = to + step * stride;
      for (int64_t i = 0; i < size; ++i) to[i] += from[i];
    }
}

// One row of dB, dC and the low-rank ddt.
template <typename IO, typename T>
inline void write_row(const Problem& p, int64_t point, const T* row) {
  const auto write = [&](const T* from, int64_t count, void* to) {
    for (int64_t i = 0; i < count; ++i) static_cast<IO*>(to)[point * count + i] = static_cast<IO>(from[i]);
  };
  write(row, p.dstate, p.dB);
  write(row + p.padded_dstate(), p.dstate, p.dC);
  write(row + 2 * p.padded_dstate(), p.rank, p.ddt);
}

// dB, dC and ddt_low of a tile, which are sums over all channels. Each group of channel blocks adds up its own; then the
// groups are added in pairs, pairs of pairs and so on, here those of a task and in sum_slots those of all.
template <typename IO, typename T>
class ChannelSums {
  const Problem& p;
  int64_t b_, slot_, first_group_, groups_;
  bool first_of_slot_;
  const int64_t width_ = 2 * p.padded_dstate() + p.rank;
  Buffer<T> rows_;  // [groups][positions][dB, dC: N padded each, ddt_low: r padded], each summed over its group

  T* partial_row(int64_t k, int64_t position) const {
    const int64_t row = ((b_ * p.slots + slot_) * p.height * p.width + position) * p.directions + k;
    return static_cast<T*>(p.partial) + row * width_;
  }

 public:
  const int64_t row_size = 2 * p.padded_dstate() + factor_stride<T>(p);
  const int64_t group_size = std::max(kTile1d, kSide * kSide) * row_size;

  ChannelSums(const Problem& p, int64_t b, int64_t slot, int64_t first_block, int64_t blocks, bool first_of_slot)
      : p(p), b_(b), slot_(slot), first_group_(group_of(p, first_block)),
        groups_(group_of(p, first_block + blocks - 1) + 1 - first_group_), first_of_slot_(first_of_slot) {
    rows_.resize(groups_ * group_size);
  }

  T* of_block(int64_t block) { return rows_.data() + (group_of(p, block) - first_group_) * group_size; }

  template <int64_t kPositions>
  void start(int64_t k, const Tile<T, kPositions>& tile) {
    for (int64_t group = 0; group < groups_; ++group)
      std::memset(rows_.data() + group * group_size, 0, tile.size * row_size * sizeof(T));
    if (p.partial == nullptr) return;
    for (int64_t m = 0; m < tile.size; ++m) {
      const char* row = reinterpret_cast<const char*>(partial_row(k, tile.position[m]));
      for (int64_t byte = 0; byte < width_ * static_cast<int64_t>(sizeof(T)); byte += 64) __builtin_prefetch(row + byte, 1);
    }
  }

  template <int64_t kPositions>
  void write(int64_t k, const Tile<T, kPositions>& tile) {
    sum_pairwise(rows_.data(), groups_, group_size, tile.size * row_size);
    for (int64_t m = 0; m < tile.size; ++m) {
      const T* row = rows_.data() + m * row_size;
      if (p.partial == nullptr) {
        write_row<IO>(p, (b_ * p.height * p.width + tile.position[m]) * p.directions + k, row);
      } else if (first_of_slot_) {
        std::memcpy(partial_row(k, tile.position[m]), row, width_ * sizeof(T));
      } else {
        T* to = partial_row(k, tile.position[m]);
        for (int64_t i = 0; i < width_; ++i) to[i] += row[i];
      }
    }
  }
};

// The partial sums of the slots, added in a fixed order.
template <typename IO, typename T>
void sum_slots(const Problem& p) {
  const int64_t width = 2 * p.padded_dstate() + p.rank, points = p.height * p.width * p.directions;
#pragma omp parallel num_threads(p.threads)
  {
    Buffer<T> rows(p.slots * width);
#pragma omp for
    for (int64_t point = 0; point < p.batch * points; ++point) {
      const T* partial = static_cast<const T*>(p.partial) + (point / points * p.slots * points + point % points) * width;
      for (int64_t slot = 0; slot < p.slots; ++slot)
        std::memcpy(&rows[slot * width], partial + slot * points * width, width * sizeof(T));
      sum_pairwise(rows.data(), p.slots, width, width);
      write_row<IO>(p, point, rows.data());
    }
  }
}

}  // namespace geomano

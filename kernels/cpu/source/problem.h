// What the Python side hands over, and how a grid and its tensors are walked.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__SSE__)
#include <immintrin.h>
#endif

#include <c10/util/BFloat16.h>

#include "lanes.h"

namespace geomano {

// An activation: [batch][position][direction][values], the values side by side.
struct Activation {
  void* data;
  int64_t batch_stride, position_stride, direction_stride;
};

// Dstates are taken so many at a time: their hidden states stay in registers, and their a, g and h of a tile in the
// first-level cache. Those beyond the last have A = B = C = 0.
constexpr int64_t kStates = 4;

// f(0), ..., f(count - 1) with indices known to the compiler, which else keeps arrays of registers in memory.
template <int64_t count, typename F>
__attribute__((always_inline)) inline void each(const F& f) {
  [&]<int64_t... q>(std::integer_sequence<int64_t, q...>) __attribute__((always_inline)) { (f(q), ...); }
  (std::make_integer_sequence<int64_t, count>());
}

template <typename F>
__attribute__((always_inline)) inline void each_state(const F& f) {
  each<kStates>(f);
}

// f(0), ..., f(count - 1) side by side. An array that is given its values like this stays in registers; one that is
// constructed first and filled later may not.
template <typename T, int64_t count>
struct Row {
  T values[count];
  __attribute__((always_inline)) T& operator[](int64_t n) { return values[n]; }
};

template <int64_t count, typename F>
__attribute__((always_inline)) inline auto row_of(const F& f) {
  return [&]<int64_t... n>(std::integer_sequence<int64_t, n...>) __attribute__((always_inline)) {
    return Row<decltype(f(0)), count>{{f(n)...}};
  }
  (std::make_integer_sequence<int64_t, count>());
}

// f with the number, of 1 to `most`, as a constant.
template <int64_t most, typename F>
inline void with_constant(int64_t number, const F& f) {
  if (number == most) return f(std::integral_constant<int64_t, most>());
  if constexpr (most > 1) with_constant<most - 1>(number, f);
}

// Mirrored field by field in scan.py.
struct Problem {
  int64_t batch, height, width, channels, dstate, rank, directions;
  int64_t orders[8];
  double down[8];     // 2D, of each direction: the exponents of its columns are those of its rows times this
  int64_t closed[8];  // 2D, of each direction: 1 if its columns are rings, 2 if its rows are, 3 if both
  // Of each direction: what a point counts more for itself in its column (2D) and in its row (or sequence), and the exact
  // zero-order hold, 0 for none: see ScanSettings in inputs.py.
  double own_down[8], own_along[8], hold[8];
  int64_t two_d, state_form, interval, groups, slots, bundle, needs_R, threads;
  Activation x, dt, B, C, dy;
  const void *A, *D, *R, *dt_bias, *dt_weight;  // [K][E][N] or [K][E] or [K][E][r], contiguous, of the state's precision
  void *y, *carries;
  void *dx, *ddt, *dB, *dC;                         // contiguous
  void *dA, *dR, *dD, *ddt_bias, *ddt_weight;       // one per batch element, contiguous
  void* partial;  // [batch][slots][positions][K][2 N + r], N padded; none where one task has all channels of a sample

  int64_t blocks() const { return (channels + kLanes - 1) / kLanes; }
  int64_t padded_dstate() const { return (dstate + kStates - 1) / kStates * kStates; }
  bool held(int64_t k) const { return hold[k] != 0; }
  bool spaced(int64_t k) const { return down[k] != 1 || own_down[k] != 0 || own_along[k] != 0; }
};

// The traversal of a grid in one order: the position of turned point (i, j) is start + i * down + j * along.
struct Walk {
  int64_t rows, columns, start, down, along;
  bool columns_closed, rows_closed, plain;
  double own_down, own_along;

  Walk(const Problem& p, int64_t k)
      : columns_closed(p.closed[k] & 1), rows_closed(p.closed[k] & 2), plain(!p.held(k) && !p.spaced(k)),
        own_down(p.own_down[k]), own_along(p.own_along[k]) {
    const int64_t order = p.orders[k];
    const bool column_major = order & 1, rows_backwards = order & 2, columns_backwards = order & 4;
    const int64_t row_step = rows_backwards ? -p.width : p.width, column_step = columns_backwards ? -1 : 1;
    start = (rows_backwards ? (p.height - 1) * p.width : 0) + (columns_backwards ? p.width - 1 : 0);
    rows = column_major ? p.width : p.height;
    columns = column_major ? p.height : p.width;
    down = column_major ? column_step : row_step;
    along = column_major ? row_step : column_step;
  }
  int64_t at(int64_t i, int64_t j) const { return start + i * down + j * along; }

  // The positions of up to `count` points of the sequence, row after row. Returns how many there are.
  int64_t sequence(int64_t first, int64_t count, int64_t* positions) const {
    int64_t size = 0;
    for (int64_t i = first / columns, j = first % columns; size < count && i < rows; ++size) {
      positions[size] = at(i, j);
      if (++j == columns) j = 0, ++i;
    }
    return size;
  }

  // The positions of a square of points, cut off at the edge of the grid. Returns how many there are.
  int64_t square(int64_t top, int64_t left, int64_t side, int64_t* positions) const {
    int64_t size = 0;
    for (int64_t i = top; i < std::min(top + side, rows); ++i)
      for (int64_t j = left; j < std::min(left + side, columns); ++j) positions[size++] = at(i, j);
    return size;
  }
};

// Hidden states decay through the denormal numbers; flushing them keeps that fast. Restored when the task ends.
class FlushDenormals {
#if defined(__SSE__)
  unsigned before_ = _mm_getcsr();

 public:
  FlushDenormals() { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }
#else
 public:
  FlushDenormals() {}
#endif
};

// Buffers start on a cache line, sixteen channels that straddle two lines cost twice, and hold nothing until they are given a
// value: clearing them would cost as much as some of them are worth.
template <typename T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <typename U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64))); }
  template <typename U, typename... Value>
  void construct(U* at, Value&&... value) {
    if constexpr (sizeof...(Value) == 0)
      ::new (static_cast<void*>(at)) U;
    else
      ::new (static_cast<void*>(at)) U(std::forward<Value>(value)...);
  }
  void deallocate(T* data, std::size_t) { ::operator delete(data, std::align_val_t(64)); }
  bool operator==(const LineAllocator&) const { return true; }
  bool operator!=(const LineAllocator&) const { return false; }
};

template <typename T>
using Buffer = std::vector<T, LineAllocator<T>>;

// A sixteen-channel column of y or dx, to which every direction adds, with one line per position: the tensor itself where
// its lines are whole and of the state's precision, otherwise a copy that is written out at the end.
template <typename IO, typename T>
class Column {
  Buffer<T> copy_;
  IO* tensor_;
  int64_t tensor_stride_, positions_, count_;

 public:
  T* data;
  int64_t stride;

  Column(void* tensor, int64_t tensor_stride, int64_t positions, int64_t count)
      : tensor_(static_cast<IO*>(tensor)), tensor_stride_(tensor_stride), positions_(positions), count_(count) {
    if constexpr (std::is_same_v<IO, T>) {
      if (count == kLanes) {
        data = tensor_;
        stride = tensor_stride;
        return;
      }
    }
    copy_.assign(positions * kLanes, T(0));
    data = copy_.data();
    stride = kLanes;
  }
  void write() const {
    if (copy_.empty()) return;
    for (int64_t p = 0; p < positions_; ++p)
      for (int64_t e = 0; e < count_; ++e) tensor_[p * tensor_stride_ + e] = static_cast<IO>(data[p * kLanes + e]);
  }
  T* at(int64_t position) const { return data + position * stride; }
};

// Sixteen channels of x, dy or a full dt: read in place, or converted and padded with zeros into a line of the caller's.
template <typename IO, typename T>
struct Source {
  const IO* data;
  int64_t stride, count;

  Source(const Activation& a, int64_t b, int64_t k, int64_t first_channel, int64_t channels)
      : data(static_cast<const IO*>(a.data) + b * a.batch_stride + k * a.direction_stride + first_channel),
        stride(a.position_stride),
        count(std::min(kLanes, channels - first_channel)) {}

  const T* line(int64_t position, T* scratch) const {
    const IO* from = data + position * stride;
    if constexpr (std::is_same_v<IO, T>) {
      if (count == kLanes) return from;
    }
    for (int64_t e = 0; e < kLanes; ++e) scratch[e] = e < count ? static_cast<T>(from[e]) : T(0);
    return scratch;
  }
};

}  // namespace geomano

// activation(depthwise convolution of z + bias) in one pass over memory (Algorithm 1): any odd height of taps and Q along a
// row, SiLU or GELU, and along each axis zeros around the grid or the grid's other end.
//
// Activations are [batch][height][width][E], E a multiple of sixteen, contiguous. Sums over points (gradients of weight and
// bias) are partial sums of a fixed number of points, added in order: the same bits for any number of threads.
#pragma once

#include "activations.h"
#include "problem.h"

namespace geomano {

using Floats = Lanes<float>;

// total[i] = the sum of part[p][i] over the parts p, in order.
inline void sum_parts(const Buffer<float>& parts, int64_t count, int64_t size, float* total, int64_t threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t first = 0; first < size; first += kLanes) {
    const int64_t end = std::min(size, first + kLanes);
    std::memcpy(total + first, &parts[first], (end - first) * sizeof(float));
    for (int64_t part = 1; part < count; ++part)
      for (int64_t i = first; i < end; ++i) total[i] += parts[part * size + i];
  }
}

constexpr int64_t kMostTaps = 13;  // along an axis

struct ConvolutionProblem {
  int64_t batch, height, width, channels, down, along;  // taps
  bool is_gelu, wraps_down, wraps_along;
  const float *z, *weight, *bias;  // weight [E][down][along]
  int64_t threads;
};

// The point of a ring of `size`; for a few rounds.
inline int64_t on_ring(int64_t point, int64_t size) {
  while (point < 0) point += size;
  while (point >= size) point -= size;
  return point;
}

template <int64_t Q>
struct Convolution : ConvolutionProblem {
  using Vec = Floats::Vec;
  static constexpr int64_t kReach = Q / 2;
  static constexpr int64_t kSegment = 128, kRowsOfTask = 16, kGroup = 64;
#if defined(CPU_CAPABILITY_AVX512)
  static constexpr int64_t kRegisters = 32, kPoints = 12;
#else
  static constexpr int64_t kRegisters = 16, kPoints = 8;
#endif

  Buffer<float> taps, mirrored;  // [E / 16][down][Q][16], and as the gradient of z takes them

  explicit Convolution(const ConvolutionProblem& problem)
      : ConvolutionProblem(problem), taps(down * Q * channels), mirrored(taps.size()) {
    const int64_t size = down * Q;
    for (int64_t e = 0; e < channels; ++e)
      for (int64_t tap = 0; tap < size; ++tap) {
        const int64_t block = e / kLanes * size * kLanes + e % kLanes;
        mirrored[block + (size - 1 - tap) * kLanes] = taps[block + tap * kLanes] = weight[e * size + tap];
      }
  }

  int64_t at(int64_t b, int64_t i, int64_t j, int64_t e) const { return ((b * height + i) * width + j) * channels + e; }

  // Up to kSegment points of one row. A part of the sums for the weights stands for so many that it is small beside them,
  // and a task is of whole parts, and of so many that the rows above and below it cost little.
  struct Segment {
    int64_t b, i, first, end;
    bool is_below(const Segment& other) const { return b == other.b && i == other.i + 1 && first == other.first; }
  };
  int64_t segments_of_row() const { return (width + kSegment - 1) / kSegment; }
  int64_t segments() const { return batch * height * segments_of_row(); }
  int64_t segments_of_part() const { return std::max<int64_t>(1, 64 * down * Q / 9 / std::min(width, kSegment)); }
  int64_t parts() const { return (segments() + segments_of_part() - 1) / segments_of_part(); }
  int64_t groups() const { return (channels + kGroup - 1) / kGroup; }
  int64_t segments_of_task() const {
    const int64_t wanted = (down == 1 ? 1 : kRowsOfTask * segments_of_row()) / segments_of_part();
    return segments_of_part() * std::max<int64_t>(1, std::min(wanted, parts() * groups() / (4 * threads)));
  }

  Segment segment(int64_t number) const {
    const int64_t row = number / segments_of_row(), first = number % segments_of_row() * kSegment;
    return {row / height, row % height, first, std::min(width, first + kSegment)};
  }

  // The rows under the taps of a segment, of sixteen channels: each with what its taps meet at both ends. Those outside of
  // the grid are left out.
  struct Window {
    Buffer<float> values;  // [down][kSegment + Q - 1][16]
    const float* rows[kMostTaps];
    int64_t top, bottom;
  };

  // `before` is the segment that the window was of, or null.
  void move(Window& window, const Segment* before, const Segment& s, const float* from, int64_t e) const {
    const int64_t above = s.i - down / 2;  // the row under the first tap
    window.top = wraps_down ? 0 : std::max<int64_t>(0, -above);
    window.bottom = wraps_down ? down : std::min(down, height - above);
    const bool goes_on = before != nullptr && s.is_below(*before);
    for (int64_t a = window.top; a < window.bottom; ++a) {
      float* row = &window.values[(above + a + down) % down * (kSegment + Q - 1) * kLanes];
      window.rows[a] = row;
      if (!goes_on || a == down - 1)
        copy(from + at(s.b, wraps_down ? on_ring(above + a, height) : above + a, 0, e), s, row);
    }
  }

  void copy(const float* from, const Segment& s, float* to) const {
    for (int64_t j = s.first - kReach; j < s.end + kReach; ++j, to += kLanes) {
      if (j >= 0 && j < width) {
        Floats::load(from + j * channels).store(to);
        prefetch_below(from + j * channels);
      } else {
        (wraps_along ? Floats::load(from + on_ring(j, width) * channels) : Floats::all(0)).store(to);
      }
    }
  }

  // What the next segment takes: channels of neighbouring points are not side by side, so the machine does not foresee it.
  void prefetch_below(const float* value) const { __builtin_prefetch(value + width * channels); }

  // The sums over the taps from `start` on, of `count` points beside each other: a value of z is loaded once for all taps
  // of a row that meet it.
  template <int64_t count>
  void sum_points(const float* weights, const float* start, const Window& window, int64_t j, Floats* sums) const {
    for (int64_t v = 0; v < Floats::kVectors; ++v) {
      const int64_t lane = v * Vec::size();
      const Vec first = start == nullptr ? Vec(0.0f) : Vec::loadu(start + lane);
      auto sum = row_of<count>([&](int64_t) __attribute__((always_inline)) { return first; });
      for (int64_t a = window.top; a < window.bottom; ++a) {
        const float *row = window.rows[a] + j * kLanes + lane, *from = weights + a * Q * kLanes + lane;
        auto w = row_of<Q>([&](int64_t c) __attribute__((always_inline)) { return Vec::loadu(from + c * kLanes); });
        each<count + Q - 1>([&](int64_t k) __attribute__((always_inline)) {
          const Vec value = Vec::loadu(row + k * kLanes);
          each<count>([&](int64_t n) __attribute__((always_inline)) {
            if (k >= n && k - n < Q) sum[n] = at::vec::fmadd(w[k - n], value, sum[n]);
          });
        });
      }
      each<count>([&](int64_t n) __attribute__((always_inline)) { sums[n].v[v] = sum[n]; });
    }
  }

  // The same of all points of a segment, finish(point, sum), in pieces of about the same size.
  template <typename Finish>
  void convolve(const float* weights, const float* start, const Window& window, int64_t size, const Finish& finish) const {
    const int64_t pieces = (size + kPoints - 1) / kPoints;
    Floats sums[kPoints];
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t j = size * piece / pieces, count = size * (piece + 1) / pieces - j;
      with_constant<kPoints>(count, [&](auto n) { sum_points<n.value>(weights, start, window, j, sums); });
      for (int64_t n = 0; n < count; ++n) finish(j + n, sums[n]);
    }
  }

  // visit(segment, its number, its window of `from`, e) for sixteen channels at a time, down the rows of a task.
  template <typename Visit>
  void walk(const float* from, const Visit& visit) const {
    const int64_t size = segments_of_task(), tasks = (segments() + size - 1) / size;
#pragma omp parallel num_threads(threads)
    {
      std::vector<Window> windows(std::min(kGroup, channels) / kLanes);
      for (Window& window : windows) window.values.resize(down * (kSegment + Q - 1) * kLanes);
#pragma omp for
      for (int64_t task = 0; task < tasks * groups(); ++task) {
        const int64_t begin = task % groups() * kGroup, end = std::min(channels, begin + kGroup);
        const int64_t first = task / groups() * size, last = std::min(segments(), first + size);
        for (int64_t top = first; top < std::min(last, first + segments_of_row()); ++top) {
          Segment before{};
          for (int64_t number = top; number < last; number += segments_of_row()) {
            const Segment s = segment(number);
            for (int64_t e = begin; e < end; e += kLanes) {
              Window& window = windows[(e - begin) / kLanes];
              move(window, number == top ? nullptr : &before, s, from, e);
              visit(s, number, window, e);
            }
            before = s;
          }
        }
      }
    }
  }

  void forward(float* x) const {
    is_gelu ? forward(x, [](const Floats& u) { return gelu(u); }) : forward(x, [](const Floats& u) { return silu(u); });
  }

  template <typename Activation>
  void forward(float* x, const Activation& activation) const {
    walk(z, [&](const Segment& s, int64_t, const Window& window, int64_t e) {
      float* to = x + at(s.b, s.i, s.first, e);
      convolve(&taps[e * down * Q], bias + e, window, s.end - s.first,
               [&](int64_t j, const Floats& u) { activation(u).value.store(to + j * channels); });
    });
  }

  // dz, and the gradients of weight [E][down][Q] and bias, from dx. du is room for the gradient of the convolution.
  void backward(const float* dx, float* du, float* dz, float* dweight, float* dbias) const {
    is_gelu ? backward(dx, du, dz, dweight, dbias, [](const Floats& u) { return gelu(u); })
            : backward(dx, du, dz, dweight, dbias, [](const Floats& u) { return silu(u); });
  }

  template <typename Activation>
  void backward(const float* dx, float* du, float* dz, float* dweight, float* dbias, const Activation& activation) const {
    const int64_t tap_count = down * Q, size = (tap_count + 1) * channels;  // of the taps and the bias
    Buffer<float> sums(parts() * size, 0.0f), total(size);
    walk(z, [&](const Segment& s, int64_t number, const Window& window, int64_t e) {
      alignas(64) float row[kSegment * kLanes];
      const int64_t where = at(s.b, s.i, s.first, e);
      for (int64_t j = 0; j < s.end - s.first; ++j) prefetch_below(dx + where + j * channels);
      convolve(&taps[e * tap_count], bias + e, window, s.end - s.first, [&](int64_t j, const Floats& u) {
        const Floats value = Floats::load(dx + where + j * channels) * activation(u).slope;
        value.store(row + j * kLanes);
        value.store(du + where + j * channels);
      });
      add_weight_gradients(window, row, s.end - s.first, &sums[number / segments_of_part() * size + e]);
    });
    walk(du, [&](const Segment& s, int64_t, const Window& window, int64_t e) {
      float* to = dz + at(s.b, s.i, s.first, e);
      convolve(&mirrored[e * tap_count], nullptr, window, s.end - s.first,
               [&](int64_t j, const Floats& sum) { sum.store(to + j * channels); });
    });
    sum_parts(sums, parts(), size, total.data(), threads);
    for (int64_t tap = 0; tap < tap_count; ++tap)
      for (int64_t e = 0; e < channels; ++e) dweight[e * tap_count + tap] = total[tap * channels + e];
    std::memcpy(dbias, &total[tap_count * channels], channels * sizeof(float));
  }

  // Rows of taps whose sums are in registers together, and points beside them.
  static constexpr int64_t kRows = std::max<int64_t>(1, std::min<int64_t>(3, (kRegisters - 6) / Q));
  static constexpr int64_t kTogether = kRows * Q + 5 <= kRegisters ? 4 : 2;

  void add_weight_gradients(const Window& window, const float* du, int64_t size, float* part) const {
    for (int64_t lane = 0; lane < kLanes; lane += Vec::size())
      for (int64_t a = window.top; a < window.bottom;) {
        const int64_t rows = std::min(kRows, window.bottom - a);
        with_constant<kRows>(
            rows, [&](auto n) { add_rows<n.value>(window, du + lane, a, lane, size, part + lane); });
        a += rows;
      }
  }

  // Of `rows` rows of taps from a on; that of the bias with the first of them.
  template <int64_t rows>
  void add_rows(const Window& window, const float* du, int64_t a, int64_t lane, int64_t size, float* part) const {
    auto sum = row_of<rows * Q>([](int64_t) __attribute__((always_inline)) { return Vec(0.0f); });
    Vec alone(0.0f);
    const auto add_points = [&](int64_t j, auto together) __attribute__((always_inline)) {
      constexpr int64_t count = decltype(together)::value;
      auto d = row_of<count>(
          [&](int64_t n) __attribute__((always_inline)) { return Vec::loadu(du + (j + n) * kLanes); });
      each<count>([&](int64_t n) __attribute__((always_inline)) { alone = alone + d[n]; });
      each<rows>([&](int64_t r) __attribute__((always_inline)) {
        const float* values = window.rows[a + r] + j * kLanes + lane;
        each<count + Q - 1>([&](int64_t k) __attribute__((always_inline)) {
          const Vec value = Vec::loadu(values + k * kLanes);
          each<count>([&](int64_t n) __attribute__((always_inline)) {
            if (k >= n && k - n < Q) sum[r * Q + k - n] = at::vec::fmadd(d[n], value, sum[r * Q + k - n]);
          });
        });
      });
    };
    int64_t j = 0;
    for (; j + kTogether <= size; j += kTogether) add_points(j, std::integral_constant<int64_t, kTogether>());
    for (; j < size; ++j) add_points(j, std::integral_constant<int64_t, 1>());
    const auto add = [](float* to, const Vec& value) { (Vec::loadu(to) + value).store(to); };
    each<rows * Q>(
        [&](int64_t n) __attribute__((always_inline)) { add(part + (a * Q + n) * channels, sum[n]); });
    if (a == window.top) add(part + down * Q * channels, alone);
  }
};

// f(Convolution<Q>) with Q as the problem has it.
template <int64_t Q = kMostTaps, typename F>
void convolution_of(const ConvolutionProblem& problem, const F& f) {
  if (problem.along == Q) return f(Convolution<Q>(problem));
  if constexpr (Q > 1) convolution_of<Q - 2>(problem, f);
}

}  // namespace geomano

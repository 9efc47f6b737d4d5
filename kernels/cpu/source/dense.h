// What stands between the matrix products of a GeoMaNO layer, each in one pass over memory: the depthwise convolution with
// its SiLU, the norm and gate after the scan, and GELU. Activations are [rows][E], E a multiple of sixteen, contiguous.
//
// Sums over rows (gradients of weights) are partial sums of a fixed number of rows, added in order: the same bits for any
// number of threads.
#pragma once

#include "activations.h"
#include "problem.h"

namespace geomano {

using Floats = Lanes<float>;

inline float sum_of(const Floats& x) {
  alignas(64) float lanes[kLanes];
  x.store(lanes);
  float sums[4] = {0, 0, 0, 0};
  for (int64_t i = 0; i < kLanes; ++i) sums[i % 4] += lanes[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// total[i] = the sum of part[p][i] over the parts p, in order.
inline void sum_parts(const Buffer<float>& parts, int64_t count, int64_t size, float* total) {
  std::memcpy(total, parts.data(), size * sizeof(float));
  for (int64_t part = 1; part < count; ++part)
    for (int64_t i = 0; i < size; ++i) total[i] += parts[part * size + i];
}

// x = SiLU(convolution of z with a 3 x 3 kernel per channel + bias), zeros around the grid (Algorithm 1).
struct Convolution {
  int64_t batch, height, width, channels, threads;
  const float *z, *bias;
  Buffer<float> weight;  // [3][3][E]

  Convolution(int64_t batch, int64_t height, int64_t width, int64_t channels, const float* z, const float* weight_E33,
              const float* bias, int64_t threads)
      : batch(batch), height(height), width(width), channels(channels), threads(threads), z(z), bias(bias),
        weight(9 * channels) {
    for (int64_t tap = 0; tap < 9; ++tap)
      for (int64_t e = 0; e < channels; ++e) weight[tap * channels + e] = weight_E33[e * 9 + tap];
  }

  int64_t at(int64_t b, int64_t i, int64_t j, int64_t e) const { return ((b * height + i) * width + j) * channels + e; }

  // The sum over the taps of `count` neighbouring points from (i, j) on; `mirrored` takes them in the backward's direction.
  template <int64_t count, bool mirrored>
  inline void taps(const float* from, int64_t b, int64_t i, int64_t j, int64_t e, Floats* sum) const {
    for (int64_t down = std::max<int64_t>(0, 1 - i); down < 3 && i + down - 1 < height; ++down)
      for (int64_t along = 0; along < 3; ++along) {
        const int64_t tap = mirrored ? 8 - 3 * down - along : 3 * down + along;
        const Floats w = Floats::load(&weight[tap * channels + e]);
        const float* row = from + at(b, i + down - 1, j + along - 1, e);
        each<count>([&](int64_t q) __attribute__((always_inline)) {
          if (count == 1 && (j + along - 1 < 0 || j + along - 1 >= width)) return;
          sum[q] = fma(w, Floats::load(row + q * channels), sum[q]);
        });
      }
  }

  // Up to kSegment points of one row.
  struct Segment {
    int64_t b, i, first, end;
  };
  static constexpr int64_t kSegment = 128;

  // Short segments are taken together, so that a part of the gradients of the weights stands for 64 points or more.
  int64_t segments_of_row() const { return (width + kSegment - 1) / kSegment; }
  int64_t segments() const { return batch * height * segments_of_row(); }
  int64_t segments_of_part() const { return std::max<int64_t>(1, 64 / std::min(width, kSegment)); }
  int64_t parts() const { return (segments() + segments_of_part() - 1) / segments_of_part(); }

  Segment segment(int64_t number) const {
    const int64_t row = number / segments_of_row(), first = number % segments_of_row() * kSegment;
    return {row / height, row % height, first, std::min(width, first + kSegment)};
  }

  // finish(where, sum over the taps) for sixteen channels of every point, then done(part, segment).
  template <bool mirrored, typename Finish, typename Done>
  void convolve(const float* from, const Finish& finish, const Done& done) const {
    const auto points = [&](const Segment& s, int64_t j, auto count) {
      for (int64_t e = 0; e < channels; e += kLanes) {
        Floats sum[count.value];
        for (Floats& one : sum) one = mirrored ? Floats::all(0) : Floats::load(bias + e);
        taps<count.value, mirrored>(from, s.b, s.i, j, e, sum);
        for (int64_t q = 0; q < count.value; ++q) finish(at(s.b, s.i, j + q, e), sum[q]);
      }
    };
#pragma omp parallel for num_threads(threads)
    for (int64_t part = 0; part < parts(); ++part) {
      const int64_t first = part * segments_of_part();
      for (int64_t number = first; number < std::min(segments(), first + segments_of_part()); ++number) {
        const Segment s = segment(number);
        for (int64_t j = s.first; j < s.end;) {
          const bool four = j > 0 && j + 4 <= s.end && j + 4 < width;  // none of them on the edge of the grid
          four ? points(s, j, std::integral_constant<int64_t, 4>()) : points(s, j, std::integral_constant<int64_t, 1>());
          j += four ? 4 : 1;
        }
        done(part, s);
      }
    }
  }

  void forward(float* x) const {
    convolve<false>(
        z, [&](int64_t where, const Floats& sum) { silu(sum).value.store(x + where); }, [](int64_t, const Segment&) {});
  }

  // dz, and the gradients of weight (E, 3, 3) and bias, from dx.
  void backward(const float* dx, float* dz, float* dweight_E33, float* dbias) const {
    const int64_t size = 10 * channels;  // nine taps and the bias
    Buffer<float> dsum(batch * height * width * channels), sums(parts() * size, 0.0f), total(size);
    convolve<false>(
        z, [&](int64_t where, const Floats& sum) { (Floats::load(dx + where) * silu(sum).slope).store(&dsum[where]); },
        [&](int64_t part, const Segment& s) { add_weight_gradients(dsum.data(), s, &sums[part * size]); });
    convolve<true>(
        dsum.data(), [&](int64_t where, const Floats& sum) { sum.store(dz + where); }, [](int64_t, const Segment&) {});
    sum_parts(sums, parts(), size, total.data());
    for (int64_t tap = 0; tap < 9; ++tap)
      for (int64_t e = 0; e < channels; ++e) dweight_E33[e * 9 + tap] = total[tap * channels + e];
    std::memcpy(dbias, &total[9 * channels], channels * sizeof(float));
  }

  // Of one segment, three taps at a time, whose sums stay in registers.
  void add_weight_gradients(const float* dsum, const Segment& s, float* part) const {
    const auto add = [](float* to, const Floats& value) { (Floats::load(to) + value).store(to); };
    for (int64_t e = 0; e < channels; e += kLanes) {
      for (int64_t down = 0; down < 3; ++down) {
        Floats left = Floats::all(0), middle = left, right = left, alone = left;
        const bool inside = s.i + down >= 1 && s.i + down - 1 < height;
        for (int64_t j = s.first; j < s.end; ++j) {
          const Floats d = Floats::load(dsum + at(s.b, s.i, j, e));
          if (down == 1) alone = alone + d;
          if (!inside) continue;
          const float* z_row = z + at(s.b, s.i + down - 1, j, e);
          if (j > 0) left = fma(d, Floats::load(z_row - channels), left);
          middle = fma(d, Floats::load(z_row), middle);
          if (j + 1 < width) right = fma(d, Floats::load(z_row + channels), right);
        }
        add(part + 3 * down * channels + e, left);
        add(part + (3 * down + 1) * channels + e, middle);
        add(part + (3 * down + 2) * channels + e, right);
        if (down == 1) add(part + 9 * channels + e, alone);
      }
    }
  }
};

// SiLU(LayerNorm(y)) * SiLU(z) (Algorithm 1).
struct NormGate {
  int64_t rows, channels;
  const float *y, *z, *weight, *bias;
  float epsilon;
  int64_t threads;

  struct Moments {
    float mean, scale;  // scale = 1 / standard deviation
  };

  Moments moments(const float* row) const {
    Floats sum = Floats::all(0), squares = sum;
    for (int64_t e = 0; e < channels; e += kLanes) sum = sum + Floats::load(row + e);
    const float mean = sum_of(sum) / static_cast<float>(channels);
    for (int64_t e = 0; e < channels; e += kLanes) {
      const Floats centred = Floats::load(row + e) - Floats::all(mean);
      squares = fma(centred, centred, squares);
    }
    return {mean, 1 / std::sqrt(sum_of(squares) / static_cast<float>(channels) + epsilon)};
  }

  Floats normal(const Moments& m, int64_t row, int64_t e) const {
    return (Floats::load(y + row * channels + e) - Floats::all(m.mean)) * Floats::all(m.scale);
  }

  void forward(float* out) const {
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; ++row) {
      const Moments m = moments(y + row * channels);
      for (int64_t e = 0; e < channels; e += kLanes) {
        const Floats n = fma(normal(m, row, e), Floats::load(weight + e), Floats::load(bias + e));
        const Floats gate = silu(Floats::load(z + row * channels + e)).value;
        (silu(n).value * gate).store(out + row * channels + e);
      }
    }
  }

  void backward(const float* dout, float* dy, float* dz, float* dweight, float* dbias) const {
    constexpr int64_t kRows = 64;  // of a part
    const int64_t count = (rows + kRows - 1) / kRows, size = 2 * channels;
    Buffer<float> parts(count * size, 0.0f), total(size);
#pragma omp parallel for num_threads(threads)
    for (int64_t part = 0; part < count; ++part) {
      float *dweight_part = &parts[part * size], *dbias_part = dweight_part + channels;
      for (int64_t row = part * kRows; row < std::min(rows, (part + 1) * kRows); ++row) {
        const Moments m = moments(y + row * channels);
        Floats sum = Floats::all(0), product = sum;  // of the gradient of the normal value, and of it times that value
        for (int64_t e = 0; e < channels; e += kLanes) {
          const int64_t at = row * channels + e;
          const Floats xhat = normal(m, row, e), w = Floats::load(weight + e);
          const Silu value = silu(fma(xhat, w, Floats::load(bias + e))), gate = silu(Floats::load(z + at));
          const Floats d = Floats::load(dout + at), dn = d * gate.value * value.slope;
          (d * value.value * gate.slope).store(dz + at);
          fma(dn, xhat, Floats::load(dweight_part + e)).store(dweight_part + e);
          (Floats::load(dbias_part + e) + dn).store(dbias_part + e);
          const Floats dxhat = dn * w;
          dxhat.store(dy + at);
          sum = sum + dxhat;
          product = fma(dxhat, xhat, product);
        }
        const Floats mean = Floats::all(sum_of(sum) / static_cast<float>(channels));
        const Floats along = Floats::all(sum_of(product) / static_cast<float>(channels)), zero = Floats::all(0);
        for (int64_t e = 0; e < channels; e += kLanes) {
          const Floats rest = Floats::load(dy + row * channels + e) - mean;
          (fma(zero - along, normal(m, row, e), rest) * Floats::all(m.scale)).store(dy + row * channels + e);
        }
      }
    }
    sum_parts(parts, count, size, total.data());
    std::memcpy(dweight, total.data(), channels * sizeof(float));
    std::memcpy(dbias, &total[channels], channels * sizeof(float));
  }
};

// to[i] = gelu(x[i]), or its slope times d[i].
inline void gelu_forward(int64_t size, const float* x, float* to, int64_t threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < size; i += kLanes) gelu(Floats::load(x + i)).value.store(to + i);
}

inline void gelu_backward(int64_t size, const float* x, const float* d, float* to, int64_t threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < size; i += kLanes) (gelu(Floats::load(x + i)).slope * Floats::load(d + i)).store(to + i);
}

}  // namespace geomano

// What else stands between the matrix products of a GeoMaNO layer, each in one pass over memory: the norm and gate, or the
// gate alone, after the scan, and GELU. Activations are [rows][E], E a multiple of sixteen, contiguous.
//
// Sums over rows (gradients of weights) are partial sums of a fixed number of rows, added in order: the same bits for any
// number of threads.
#pragma once

#include "convolution.h"

namespace geomano {

inline float sum_of(const Floats& x) {
  alignas(64) float lanes[kLanes];
  x.store(lanes);
  float sums[4] = {0, 0, 0, 0};
  for (int64_t i = 0; i < kLanes; ++i) sums[i % 4] += lanes[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

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
    sum_parts(parts, count, size, total.data(), threads);
    std::memcpy(dweight, total.data(), channels * sizeof(float));
    std::memcpy(dbias, &total[channels], channels * sizeof(float));
  }
};

// out[i] = y[i] silu(z[i]), and its gradients for d[i].
inline void gate_forward(int64_t size, const float* y, const float* z, float* out, int64_t threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < size; i += kLanes) (Floats::load(y + i) * silu(Floats::load(z + i)).value).store(out + i);
}

inline void gate_backward(int64_t size, const float* y, const float* z, const float* d, float* dy, float* dz,
                          int64_t threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < size; i += kLanes) {
    const Silu of_z = silu(Floats::load(z + i));
    const Floats di = Floats::load(d + i);
    (di * of_z.value).store(dy + i);
    (di * Floats::load(y + i) * of_z.slope).store(dz + i);
  }
}

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

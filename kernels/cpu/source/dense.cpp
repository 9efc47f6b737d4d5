// The entry points of the dense parts, called through ctypes.
#include "dense.h"

using geomano::Convolution;
using geomano::NormGate;

extern "C" void conv_silu_forward(int64_t batch, int64_t height, int64_t width, int64_t channels, const float* z,
                                  const float* weight, const float* bias, float* x, int64_t threads) {
  Convolution(batch, height, width, channels, z, weight, bias, threads).forward(x);
}

extern "C" void conv_silu_backward(int64_t batch, int64_t height, int64_t width, int64_t channels, const float* z,
                                   const float* weight, const float* bias, const float* dx, float* dz, float* dweight,
                                   float* dbias, int64_t threads) {
  Convolution(batch, height, width, channels, z, weight, bias, threads).backward(dx, dz, dweight, dbias);
}

extern "C" void norm_gate_forward(int64_t rows, int64_t channels, const float* y, const float* z, const float* weight,
                                  const float* bias, float epsilon, float* out, int64_t threads) {
  NormGate{rows, channels, y, z, weight, bias, epsilon, threads}.forward(out);
}

extern "C" void norm_gate_backward(int64_t rows, int64_t channels, const float* y, const float* z, const float* weight,
                                   const float* bias, float epsilon, const float* dout, float* dy, float* dz,
                                   float* dweight, float* dbias, int64_t threads) {
  NormGate{rows, channels, y, z, weight, bias, epsilon, threads}.backward(dout, dy, dz, dweight, dbias);
}

extern "C" void gelu_forward(int64_t size, const float* x, float* to, int64_t threads) {
  geomano::gelu_forward(size, x, to, threads);
}

extern "C" void gelu_backward(int64_t size, const float* x, const float* d, float* to, int64_t threads) {
  geomano::gelu_backward(size, x, d, to, threads);
}

// The entry points of the dense parts, called through ctypes.
#include "dense.h"

using geomano::ConvolutionProblem;
using geomano::NormGate;

extern "C" void depthwise_conv_forward(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t down,
                                       int64_t along, int64_t is_gelu, int64_t wraps_down, int64_t wraps_along,
                                       const float* z, const float* weight, const float* bias, float* x,
                                       int64_t threads) {
  const ConvolutionProblem problem{batch,          height,          width, channels, down, along,  is_gelu != 0,
                                   wraps_down != 0, wraps_along != 0, z,     weight,   bias, threads};
  geomano::convolution_of(problem, [&](const auto& convolution) { convolution.forward(x); });
}

extern "C" void depthwise_conv_backward(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t down,
                                        int64_t along, int64_t is_gelu, int64_t wraps_down, int64_t wraps_along,
                                        const float* z, const float* weight, const float* bias, const float* dx,
                                        float* du, float* dz, float* dweight, float* dbias, int64_t threads) {
  const ConvolutionProblem problem{batch,          height,          width, channels, down, along,  is_gelu != 0,
                                   wraps_down != 0, wraps_along != 0, z,     weight,   bias, threads};
  geomano::convolution_of(problem, [&](const auto& convolution) { convolution.backward(dx, du, dz, dweight, dbias); });
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

extern "C" void gate_forward(int64_t size, const float* y, const float* z, float* out, int64_t threads) {
  geomano::gate_forward(size, y, z, out, threads);
}

extern "C" void gate_backward(int64_t size, const float* y, const float* z, const float* dout, float* dy, float* dz,
                              int64_t threads) {
  geomano::gate_backward(size, y, z, dout, dy, dz, threads);
}

extern "C" void gelu_forward(int64_t size, const float* x, float* to, int64_t threads) {
  geomano::gelu_forward(size, x, to, threads);
}

extern "C" void gelu_backward(int64_t size, const float* x, const float* d, float* to, int64_t threads) {
  geomano::gelu_backward(size, x, d, to, threads);
}

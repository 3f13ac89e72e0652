// The nonlinearities of a recurrent layer, and their derivative from h = phi(z) alone.
#pragma once
#include "tile.h"

namespace {

typedef int32_t I __attribute__((vector_size(64), aligned(4)));

enum Phi { TANH = 0, RELU = 1, LEAKY = 2 };

// exp(x) for |x| <= 20, by x = n log 2 + r
inline V exponential(V x) {
  const V half = x < 0.f ? all(-0.5f) : all(0.5f);
  const I n = __builtin_convertvector(x * 1.44269504f + half, I);
  const V whole = __builtin_convertvector(n, V);
  const V r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  V p = all(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = p * r + c;
  const I scale = (n + 127) << 23;  // the bits of 2^n
  return (p * r * r + r + 1.f) * (V)scale;
}

inline V hyperbolic_tangent(V x) {
  const V z = x * x;
  V p = all(-5.70498872745e-3f);
  for (float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) p = p * z + c;
  const V near = p * z * x + x;
  const V most = x > 9.1f ? all(9.1f) : x;  // where it is 1 to the last bit
  const V far = 1.f - 2.f / (exponential(2.f * (most < -9.1f ? all(-9.1f) : most)) + 1.f);
  return z < 0.390625f ? near : far;
}

template <int PHI>
inline V apply(V z, float slope) {
  if (PHI == TANH) return hyperbolic_tangent(z);
  if (PHI == RELU) return z < 0.f ? all(0.f) : z;
  return z > 0.f ? z : z * slope;
}

// grad phi'(z), from h = phi(z)
template <int PHI>
inline V through(V grad, V h, float slope) {
  if (PHI == TANH) return grad * (1.f - h * h);
  if (PHI == RELU) return h <= 0.f ? all(0.f) : grad;
  return h > 0.f ? grad : grad * slope;
}

}  // namespace

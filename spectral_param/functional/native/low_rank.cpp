// W = Σ - L Rᵀ and its gradients (Note [Low rank] in low_rank.py), float32, for weights so small that each operation
// of a library costs more to call than to do; sides a multiple of 16.
//
// Thin matrices lie transposed, a row for each reflector, so that all loops run along the long side. Where a product
// wants a thin matrix as its right factor, it lies untransposed, its columns filled up to a multiple of 16 by zeros.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "tile.h"

namespace {

inline int64_t filled(int64_t m) { return (m + LANES - 1) / LANES * LANES; }

inline int64_t packed(int64_t n, int64_t m) { return n * m - m * (m - 1) / 2; }

struct Sizes {
  int64_t p, q, m1, m2;
  int64_t k() const { return std::min(p, q); }
  int64_t m() const { return m1 + m2; }
};

// (rows, columns) to (columns, line), with zeros after the rows
void transpose(float* out, int64_t line, const float* in, int64_t rows, int64_t columns) {
  for (int64_t low = 0; low < line; low += LANES)  // a line of the cache of out at a time
    for (int64_t j = 0; j < columns; j++)
      for (int64_t i = low; i < std::min(low + LANES, line); i++)
        out[j * line + i] = i < rows ? in[i * columns + j] : 0.f;
}

// the rows of a transposed thin matrix X, (m, n), times S⁻ᵀ, or S⁻¹, from the Gram matrix
void solve(float* x, int64_t m, int64_t n, const float* gram, bool transposed) {
  for (int64_t step = 0; step < m; step++) {
    const int64_t j = transposed ? m - 1 - step : step;
    for (int64_t l = transposed ? j + 1 : 0; l < (transposed ? m : j); l++) {
      const float s = transposed ? gram[j * filled(m) + l] : gram[l * filled(m) + j];
      for (int64_t i = 0; i < n; i++) x[j * n + i] -= s * x[l * n + i];
    }
  }
}

// out[j, i] += sign σ_i x[j, i] for i < k
void add_scaled(float* out, int64_t line, float sign, const float* sigma, const float* x, int64_t x_line, int64_t m,
                int64_t k) {
  for (int64_t j = 0; j < m; j++)
    for (int64_t i = 0; i < k; i++) out[j * line + i] += sign * sigma[i] * x[j * x_line + i];
}

// what the backward needs of the forward, one after the other in one stretch of memory
struct Kept {
  float *left, *right, *scale, *gram_u, *gram_v, *cross;
  Kept(float* at, const Sizes& s) {
    left = at, at += s.m() * s.p;
    right = at, at += s.m() * s.q;
    scale = at, at += s.m();
    gram_u = at, at += s.m1 * filled(s.m1);
    gram_v = at, at += s.m2 * filled(s.m2);
    cross = at;
  }
};

// z, (m, n) transposed and (n, filled(m)) not, and the scale √2 / ‖u‖ of each reflector, from its packed numbers
void directions(const float* numbers, int64_t n, int64_t m, float* z, float* rows, float* scale) {
  const int64_t line = filled(m);
  std::vector<double> squares(m, 0.0);
  const float* at = numbers;
  for (int64_t i = 0; i < n; i++) {
    const int64_t some = std::min(i + 1, m);
    for (int64_t j = 0; j < some; j++) squares[j] += double(at[j]) * at[j], rows[i * line + j] = at[j];
    for (int64_t j = some; j < line; j++) rows[i * line + j] = 0.f;
    at += some;
  }
  for (int64_t j = 0; j < m; j++) {
    const double length = std::sqrt(squares[j]);
    scale[j] = length > FLT_MIN ? float(1.4142135623730951 / length) : 0.f;
  }
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < m; j++) rows[i * line + j] *= scale[j];
  for (int64_t j = 0; j < m; j++)
    for (int64_t i = 0; i < n; i++) z[j * n + i] = rows[i * line + j];
}

void forward(const float* u, const float* sigma, const float* v, float* w, float* kept_at, const Sizes& s) {
  const auto [p, q, m1, m2] = s;
  const int64_t k = s.k(), f1 = filled(m1), f2 = filled(m2);
  const Kept kept(kept_at, s);
  float *z_u = kept.left, *left_v = kept.left + m1 * p, *right_u = kept.right, *z_v = kept.right + m1 * q;
  std::vector<float> scratch(p * f1 + q * f2);
  float *rows_u = scratch.data(), *rows_v = rows_u + p * f1;
  directions(u, p, m1, z_u, rows_u, kept.scale);
  directions(v, q, m2, z_v, rows_v, kept.scale + m1);
  product(kept.gram_u, m1, f1, 1.f, false, {z_u, p, 1}, rows_u, p);
  product(kept.gram_v, m2, f2, 1.f, false, {z_v, q, 1}, rows_v, q);
  std::memset(right_u, 0, m1 * q * sizeof(float));
  add_scaled(right_u, q, 1.f, sigma, z_u, p, m1, k);
  solve(right_u, m1, q, kept.gram_u, true);
  product(kept.cross, m1, f2, 1.f, false, {right_u, q, 1}, rows_v, k);
  product(left_v, m2, p, -1.f, false, {kept.cross, 1, f2}, z_u, m1);
  add_scaled(left_v, p, 1.f, sigma, z_v, q, m2, k);
  solve(left_v, m2, p, kept.gram_v, true);
  product(w, p, q, -1.f, false, {kept.left, 1, p}, kept.right, s.m());
  for (int64_t i = 0; i < k; i++) w[i * q + i] += sigma[i];
}

// dz of one side, (m, n), to the gradient of its packed reflectors
void pack_gradient(float* numbers, float* dz, const float* z, const float* scale, int64_t n, int64_t m) {
  for (int64_t j = 0; j < m; j++) {
    float along = 0.f;
    for (int64_t i = 0; i < n; i++) along += dz[j * n + i] * z[j * n + i];
    for (int64_t i = 0; i < n; i++) dz[j * n + i] = scale[j] * (dz[j * n + i] - 0.5f * along * z[j * n + i]);
  }
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < std::min(i + 1, m); j++) *numbers++ = dz[j * n + i];
}

// dz += Z sym(Xᵀ Y), sym(K) = striu(K) + striu(K)ᵀ; dz and z (m, n), x and y (m, depth);
// scratch for (depth + m) filled(m)
void add_turned(float* dz, const float* z, int64_t n, const float* x, const float* y, int64_t depth, int64_t m,
                float* scratch) {
  const int64_t line = filled(m);
  float* symmetric = scratch + depth * line;
  transpose(scratch, line, y, m, depth);
  product(symmetric, m, line, 1.f, false, {x, depth, 1}, scratch, depth);
  for (int64_t i = 0; i < m; i++) {
    symmetric[i * line + i] = 0.f;
    for (int64_t j = 0; j < i; j++) symmetric[i * line + j] = symmetric[j * line + i];
  }
  product(dz, m, n, 1.f, true, {symmetric, line, 1}, z, m);
}

void backward(const float* grad, const float* sigma, float* kept_at, float* d_u, float* d_sigma, float* d_v,
              const Sizes& s) {
  const auto [p, q, m1, m2] = s;
  const int64_t k = s.k(), f1 = filled(m1), f2 = filled(m2), f = std::max(f1, f2), both = filled(s.m());
  const Kept kept(kept_at, s);
  const float *z_u = kept.left, *left_v = kept.left + m1 * p, *right_u = kept.right, *z_v = kept.right + m1 * q;
  std::vector<float> scratch(both * p + s.m() * q + m2 * f1 + std::max((p + q) * both, std::max(p, q) * f + f * f));
  float *a = scratch.data(), *b = a + both * p, *d_cross = b + s.m() * q, *other = d_cross + m2 * f1;
  transpose(other, both, kept.right, s.m(), q);
  product(other + q * both, p, both, 1.f, false, {grad, q, 1}, other, q);
  transpose(a, p, other + q * both, p, both);                    // -dL
  product(b, s.m(), q, 1.f, false, {kept.left, p, 1}, grad, p);  // -dR
  float *a_u = a, *e = a + m1 * p, *x = b, *b_v = b + m1 * q;
  solve(e, m2, p, kept.gram_v, false);
  transpose(other, f1, z_u, m1, p);
  product(d_cross, m2, f1, 1.f, false, {e, p, 1}, other, p);
  product(x, m1, q, -1.f, true, {d_cross, 1, f1}, z_v, m2);
  solve(x, m1, q, kept.gram_u, false);

  for (int64_t i = 0; i < m1 * p; i++) a_u[i] = -a_u[i];
  product(a_u, m1, p, 1.f, true, {kept.cross, f2, 1}, e, m2);
  add_scaled(a_u, p, -1.f, sigma, x, q, m1, k);
  for (int64_t i = 0; i < m2 * q; i++) b_v[i] = -b_v[i];
  product(b_v, m2, q, 1.f, true, {d_cross, f1, 1}, right_u, m1);
  add_scaled(b_v, q, -1.f, sigma, e, p, m2, k);

  add_turned(a_u, z_u, p, x, right_u, q, m1, other);
  add_turned(b_v, z_v, q, e, left_v, p, m2, other);
  pack_gradient(d_u, a_u, z_u, kept.scale, p, m1);
  pack_gradient(d_v, b_v, z_v, kept.scale + m1, q, m2);

  for (int64_t i = 0; i < k; i++) d_sigma[i] = grad[i * q + i];
  for (int64_t j = 0; j < m1; j++)
    for (int64_t i = 0; i < k; i++) d_sigma[i] -= x[j * q + i] * z_u[j * p + i];
  for (int64_t j = 0; j < m2; j++)
    for (int64_t i = 0; i < k; i++) d_sigma[i] -= e[j * p + i] * z_v[j * q + i];
}

}  // namespace

extern "C" {

// how many floats the forward keeps for the backward
int64_t low_rank_kept(int64_t p, int64_t q, int64_t m1, int64_t m2) {
  return (m1 + m2) * (p + q + 1) + m1 * filled(m1) + m2 * filled(m2) + m1 * filled(m2);
}

// each argument a stack of count: u, v packed, sigma (k), w (p, q), kept as above
void low_rank_forward(const float* u, const float* sigma, const float* v, float* w, float* kept, int64_t count,
                      int64_t p, int64_t q, int64_t m1, int64_t m2) {
  const Sizes s{p, q, m1, m2};
  const int64_t size = low_rank_kept(p, q, m1, m2);
  for (int64_t i = 0; i < count; i++)
    forward(u + i * packed(p, m1), sigma + i * s.k(), v + i * packed(q, m2), w + i * p * q, kept + i * size, s);
}

void low_rank_backward(const float* grad, const float* sigma, float* kept, float* d_u, float* d_sigma, float* d_v,
                       int64_t count, int64_t p, int64_t q, int64_t m1, int64_t m2) {
  const Sizes s{p, q, m1, m2};
  const int64_t size = low_rank_kept(p, q, m1, m2);
  for (int64_t i = 0; i < count; i++)
    backward(grad + i * p * q, sigma + i * s.k(), kept + i * size, d_u + i * packed(p, m1), d_sigma + i * s.k(),
             d_v + i * packed(q, m2), s);
}
}

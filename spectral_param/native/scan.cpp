// The recurrence h_t = phi(W h_{t-1} + p_t) over a whole sequence, float32, features a multiple of 16.
//
// Each thread owns some rows of the batch for all steps, so that no step waits for another thread. W lies in panels of
// up to 64 columns; a tile of 6 rows by one panel stays in registers while it is summed up.
#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "tile.h"

namespace {

typedef int32_t I __attribute__((vector_size(64), aligned(4)));

enum Phi { TANH = 0, RELU = 1, LEAKY = 2 };

// exp(x) for |x| <= 18, by x = n log 2 + r
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
  const V most = x > 9.f ? all(9.f) : x;
  const V far = 1.f - 2.f / (exponential(2.f * (most < -9.f ? all(-9.f) : most)) + 1.f);
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

struct Step {
  const float* from;   // rows to multiply with W
  float* to;           // forward: W's input projected, then h; backward: the gradient before phi
  const float* h;      // backward: h at the step of `to`
  const float* extra;  // backward: gradient that comes to h from outside, or null
};

template <int R, int C, int PHI, bool FORWARD>
inline void tile(const Step& s, int64_t at, const float* panel, int64_t n, float slope) {
  V t[R][C];
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) {
      const int64_t o = at + i * n + LANES * j;
      t[i][j] = FORWARD ? load(s.to + o) : (s.extra ? load(s.extra + o) : all(0.f));
    }
  multiply<R, C>(t, s.from + at / n * n, n, 1, panel, LANES * C, n);
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) {
      const int64_t o = at + i * n + LANES * j;
      store(s.to + o, FORWARD ? apply<PHI>(t[i][j], slope) : through<PHI>(t[i][j], load(s.h + o), slope));
    }
}

template <int C, int PHI, bool FORWARD>
void panel_of_rows(const Step& s, int64_t low, int64_t high, int64_t column, const float* panel, int64_t n,
                   float slope) {
  int64_t i = low;
  for (; i + 6 <= high; i += 6) tile<6, C, PHI, FORWARD>(s, i * n + column, panel, n, slope);
  for (; i + 2 <= high; i += 2) tile<2, C, PHI, FORWARD>(s, i * n + column, panel, n, slope);
  for (; i < high; i++) tile<1, C, PHI, FORWARD>(s, i * n + column, panel, n, slope);
}

template <int PHI, bool FORWARD>
void step(const Step& s, int64_t low, int64_t high, const float* panels, int64_t n, float slope) {
  for (int64_t column = 0; column < n;) {
    const int64_t wide = std::min(WIDE, (n - column) / LANES);
    const float* panel = panels + column * n;
    if (wide == 4) panel_of_rows<4, PHI, FORWARD>(s, low, high, column, panel, n, slope);
    else if (wide == 3) panel_of_rows<3, PHI, FORWARD>(s, low, high, column, panel, n, slope);
    else if (wide == 2) panel_of_rows<2, PHI, FORWARD>(s, low, high, column, panel, n, slope);
    else panel_of_rows<1, PHI, FORWARD>(s, low, high, column, panel, n, slope);
    column += wide * LANES;
  }
}

// W (or its transpose) in panels of up to 64 columns, one after the other
std::vector<float> in_panels(const float* w, int64_t n, bool transposed) {
  std::vector<float> panels(n * n);
  float* out = panels.data();
  for (int64_t column = 0; column < n;) {
    const int64_t width = LANES * std::min(WIDE, (n - column) / LANES);
    for (int64_t k = 0; k < n; k++)
      for (int64_t j = column; j < column + width; j++) *out++ = transposed ? w[j * n + k] : w[k * n + j];
    column += width;
  }
  return panels;
}

template <class Work>
void in_parallel(int64_t size, int64_t threads, Work work) {
  threads = std::max<int64_t>(1, std::min(threads, size));
  std::vector<std::thread> others;
  for (int64_t i = 1; i < threads; i++) others.emplace_back(work, i, size * i / threads, size * (i + 1) / threads);
  work(0, 0, size / threads);
  for (auto& other : others) other.join();
}

template <int R, int C>
inline void outer_tile(const float* d, const float* h, float* out, int64_t n, int64_t rows) {
  V t[R][C];
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) t[i][j] = load(out + i * n + LANES * j);
  multiply<R, C>(t, d, 1, n, h, n, rows);
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) store(out + i * n + LANES * j, t[i][j]);
}

template <int C>
void outer_panel(const float* d, const float* h, float* out, int64_t n, int64_t rows) {
  int64_t i = 0;
  for (; i + 6 <= n; i += 6) outer_tile<6, C>(d + i, h, out + i * n, n, rows);
  for (; i < n; i += 2) outer_tile<2, C>(d + i, h, out + i * n, n, rows);
}

template <int PHI>
void forward(float* states, const float* panels, int64_t steps, int64_t batch, int64_t n, float slope,
             int64_t threads) {
  in_parallel(batch, threads, [=](int64_t, int64_t low, int64_t high) {
    for (int64_t t = 0; t < steps; t++)
      step<PHI, true>({states + t * batch * n, states + (t + 1) * batch * n, nullptr, nullptr}, low, high, panels, n,
                      slope);
  });
}

template <int PHI>
void backward(const float* states, float* deltas, const float* extra, const float* panels, int64_t steps, int64_t batch,
              int64_t n, float slope, int64_t threads) {
  const int64_t size = batch * n;
  in_parallel(batch, threads, [=](int64_t, int64_t low, int64_t high) {
    for (int64_t t = steps - 2; t >= 0; t--)
      step<PHI, false>({deltas + (t + 1) * size, deltas + t * size, states + (t + 1) * size,
                        extra ? extra + t * size : nullptr},
                       low, high, panels, n, slope);
  });
}

}  // namespace

extern "C" {

// states (steps + 1, batch, n): h_0, then the projected inputs on entry, the states on exit
void scan_forward(const float* w, float* states, int64_t steps, int64_t batch, int64_t n, int64_t phi, float slope,
                  int64_t threads) {
  const std::vector<float> panels = in_panels(w, n, true);
  (phi == TANH ? forward<TANH> : phi == RELU ? forward<RELU> : forward<LEAKY>)(states, panels.data(), steps, batch, n,
                                                                               slope, threads);
}

// deltas (steps, batch, n): the last step's gradient before phi on entry, all of them on exit; extra as deltas, or null
void scan_backward(const float* w, const float* states, float* deltas, const float* extra, int64_t steps, int64_t batch,
                   int64_t n, int64_t phi, float slope, int64_t threads) {
  const std::vector<float> panels = in_panels(w, n, false);
  (phi == TANH ? backward<TANH> : phi == RELU ? backward<RELU> : backward<LEAKY>)(
      states, deltas, extra, panels.data(), steps, batch, n, slope, threads);
}

// out (threads, n, n), zero on entry: parts of the sum over rows of d hᵀ
void scan_outer(const float* d, const float* h, float* out, int64_t rows, int64_t n, int64_t threads) {
  constexpr int64_t CHUNK = 256;
  in_parallel(rows, threads, [=](int64_t thread, int64_t low, int64_t high) {
    float* mine = out + thread * n * n;
    for (int64_t r = low; r < high; r += CHUNK) {
      const int64_t some = std::min(CHUNK, high - r);
      for (int64_t column = 0; column < n;) {
        const int64_t wide = std::min(WIDE, (n - column) / LANES);
        const float *dr = d + r * n, *hr = h + r * n + column;
        if (wide == 4) outer_panel<4>(dr, hr, mine + column, n, some);
        else if (wide == 3) outer_panel<3>(dr, hr, mine + column, n, some);
        else if (wide == 2) outer_panel<2>(dr, hr, mine + column, n, some);
        else outer_panel<1>(dr, hr, mine + column, n, some);
        column += wide * LANES;
      }
    }
  });
}
}

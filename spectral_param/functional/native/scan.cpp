// The recurrence h_t = phi(W h_{t-1} + M x_t + b) over a whole sequence and back, float32, features a multiple of 16.
//
// W is a matrix, or diag(sigma) - L R^T with thin L and R. Both are one form here: a step adds
//   sigma h + (h thin) across,  or without sigma and thin  h across,
// where the rows of h are states, and going back those of the gradient. Each thread owns some rows of the batch for all
// steps, so that no step waits for another thread. `across` lies in panels of up to 64 columns; a tile of 6 rows by one
// panel stays in registers while it is summed up. Gradients of weights are summed while what they need is in the cache.
#include <algorithm>
#include <cstdint>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "activation.h"
#include "flushed.h"
#include "tile.h"

extern "C" {
// row-major; null pointers say what is not there
struct Scan {
  int64_t steps, batch, n, inputs, rank, line, phi, threads;  // rank: of thin, or n; line: rank up to a multiple of 16
  float slope;
  const float *x, *input_weight;       // (steps, batch, inputs), M transposed: (inputs, n)
  const float *bias;                   // (n), or null
  const float *sigma, *thin, *across;  // (n) or null, (n, line) or null, (rank, n)
  float* states;                       // (steps + 1, batch, n): h_0, …
  float* inner;                        // (steps, batch, line): h_{t-1} thin, or null

  // backward alone, with thin and across of the way back
  const float *last, *extra;                               // (batch, n), (steps, batch, n) or null: gradients by states
  float *deltas, *first;                                   // gradients before phi: of all steps or null, of step 0
  float *d_across, *d_thin, *d_sigma, *d_input, *d_bias;   // a part for each thread, zero on entry, with the shape of
};                                                         // (n, line), (n, line), (n), (inputs, n), (n)
}

namespace {

// rows of one step, and all that is added up to give the rows of the next
struct Step {
  const Scan& scan;
  const float* panels;  // across
  const float* whole;   // (rows, n): what sigma scales
  const float* from;    // (rows, line): what is multiplied with across
  const float* x;       // forward: (rows, inputs)
  const float* h;       // backward: states where the gradient passes phi
  const float* extra;   // backward: gradient from outside, or null
  float* to;
};

// not summed up in one with what it is added to: where it is infinite, an infinite sum of the other sign is no number
inline V rounded(V x) {
  asm("" : "+m"(x));
  return x;
}

template <int R, int C, int PHI, bool FORWARD>
inline void tile(const Step& s, int64_t row, int64_t column, const float* panel) {
  const Scan& a = s.scan;
  V t[R][C] = {};
  multiply<R, C>(t, s.from + row * a.line, a.line, 1, panel, LANES * C, a.rank);  // not the rest: 0 inf is no number
  if (FORWARD) multiply<R, C>(t, s.x + row * a.inputs, a.inputs, 1, a.input_weight + column, a.n, a.inputs);
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) {
      const int64_t c = column + LANES * j, o = (row + i) * a.n + c;
      const float *given = FORWARD ? a.bias : s.extra;
      if (given) t[i][j] += load(given + (FORWARD ? c : o));
      if (a.sigma) t[i][j] += rounded(load(a.sigma + c) * load(s.whole + o));
    }
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) {
      const int64_t o = (row + i) * a.n + column + LANES * j;
      store(s.to + o, FORWARD ? apply<PHI>(t[i][j], a.slope) : through<PHI>(t[i][j], load(s.h + o), a.slope));
    }
}

template <int C, int PHI, bool FORWARD>
void panel_of_rows(const Step& s, int64_t low, int64_t high, int64_t column, const float* panel) {
  int64_t i = low;
  for (; i + 6 <= high; i += 6) tile<6, C, PHI, FORWARD>(s, i, column, panel);
  for (; i + 2 <= high; i += 2) tile<2, C, PHI, FORWARD>(s, i, column, panel);
  for (; i < high; i++) tile<1, C, PHI, FORWARD>(s, i, column, panel);
}

template <int PHI, bool FORWARD>
void step(const Step& s, int64_t low, int64_t high) {
  in_wide_columns(s.scan.n, [&](auto wide, int64_t column) {
    panel_of_rows<wide, PHI, FORWARD>(s, low, high, column, s.panels + column * s.scan.rank);
  });
}

// (rank, n) in panels of up to 64 columns, one after the other
std::vector<float> in_panels(const float* across, int64_t rank, int64_t n) {
  std::vector<float> panels(rank * n);
  float* out = panels.data();
  in_wide_columns(n, [&](auto wide, int64_t column) {
    for (int64_t k = 0; k < rank; k++)
      for (int64_t j = 0; j < wide * LANES; j++) *out++ = across[k * n + column + j];
  });
  return panels;
}

// to (rows, line) = from (rows, n) thin
void narrow(const Scan& a, const float* from, float* to, int64_t low, int64_t high) {
  product(to + low * a.line, high - low, a.line, 1.f, false, {from + low * a.n, a.n, 1}, a.thin, a.n);
}

template <class Work>
void in_parallel(int64_t size, int64_t threads, Work run) {
  const auto work = [&](int64_t thread, int64_t low, int64_t high) {
    const Flushed flushed;
    run(thread, low, high);
  };
  threads = std::max<int64_t>(1, std::min(threads, size));
  std::vector<std::thread> others;
  int64_t i = 1;
  try {
    for (; i < threads; i++) others.emplace_back(work, i, size * i / threads, size * (i + 1) / threads);
  } catch (const std::system_error&) {  // no more threads to be had: the rest is done here
    for (; i < threads; i++) work(i, size * i / threads, size * (i + 1) / threads);
  }
  work(0, 0, size / threads);
  for (auto& other : others) other.join();
}

constexpr int64_t DEPTH = 128;  // rows that are summed up in registers before a gradient is written

template <int PHI>
void forward(const Scan& a) {
  const std::vector<float> panels = in_panels(a.across, a.rank, a.n);
  in_parallel(a.batch, a.threads, [&](int64_t, int64_t low, int64_t high) {
    for (int64_t t = 0; t < a.steps; t++) {
      const float *h = a.states + t * a.batch * a.n, *from = h;
      if (a.thin) {
        float* inner = a.inner + t * a.batch * a.line;
        narrow(a, h, inner, low, high);
        from = inner;
      }
      step<PHI, true>({a, panels.data(), h, from, a.x + t * a.batch * a.inputs, nullptr, nullptr,
                       a.states + (t + 1) * a.batch * a.n}, low, high);
    }
  });
}

// The gradients before phi of the last steps, and those times thin, in a ring of slots
struct Ring {
  const Scan& scan;
  int64_t slots;
  float *deltas, *narrowed;
  float* delta(int64_t t) const { return deltas + t % slots * scan.batch * scan.n; }
  float* thin(int64_t t) const { return narrowed + t % slots * scan.batch * scan.line; }
};

// adds what some rows of `count` steps from t on give to the gradients of the weights
void add_gradients(const Scan& a, const Ring& ring, int64_t t, int64_t count, int64_t thread, int64_t low,
                   int64_t high) {
  const int64_t n = a.n, line = a.line, rows = high - low;
  std::vector<const float*> d(count), before(count), from(count), thin(count), x(count);
  for (int64_t i = 0; i < count; i++) {
    d[i] = ring.delta(t + i) + low * n;
    before[i] = a.states + ((t + i) * a.batch + low) * n;
    from[i] = a.thin ? a.inner + ((t + i) * a.batch + low) * line : before[i];
    thin[i] = a.thin ? ring.thin(t + i) + low * line : nullptr;
    x[i] = a.x + ((t + i) * a.batch + low) * a.inputs;
  }
  add_outer(a.d_across + thread * n * line, n, line, d, from, rows);
  add_outer(a.d_input + thread * a.inputs * n, a.inputs, n, x, d, rows);
  if (a.thin) add_outer(a.d_thin + thread * n * line, n, line, before, thin, rows);
  float *d_bias = a.d_bias + thread * n, *d_sigma = a.d_sigma + thread * n;
  for (int64_t c = 0; c < n; c += LANES) {
    V bias = all(0.f), sigma = all(0.f);
    for (int64_t i = 0; i < count; i++)
      for (int64_t r = 0; r < rows; r++) {
        const V delta = load(d[i] + r * n + c);
        bias += delta;
        sigma += delta * load(before[i] + r * n + c);
      }
    store(d_bias + c, load(d_bias + c) + bias);
    if (a.sigma) store(d_sigma + c, load(d_sigma + c) + sigma);
  }
}

template <int PHI>
void backward(const Scan& a) {
  const std::vector<float> panels = in_panels(a.across, a.rank, a.n);
  const int64_t rows = std::max<int64_t>(1, a.batch / std::max<int64_t>(1, a.threads));
  const int64_t group = std::min(a.steps, (DEPTH + rows - 1) / rows), size = a.batch * a.n;
  const int64_t slots = a.deltas ? a.steps : std::min(a.steps, group + 1);
  std::vector<float> own(a.deltas ? 0 : slots * size), narrowed(a.thin ? slots * a.batch * a.line : 0);
  const Ring ring{a, slots, a.deltas ? a.deltas : own.data(), narrowed.data()};
  in_parallel(a.batch, a.threads, [&](int64_t thread, int64_t low, int64_t high) {
    for (int64_t o = low * a.n; o < high * a.n; o += LANES)
      store(ring.delta(a.steps - 1) + o, through<PHI>(load(a.last + o), load(a.states + a.steps * size + o), a.slope));
    int64_t waiting = 0;
    for (int64_t t = a.steps - 1; t >= 0; t--) {
      const float *d = ring.delta(t), *from = d;
      if (a.thin) {
        narrow(a, d, ring.thin(t), low, high);
        from = ring.thin(t);
      }
      if (t)
        step<PHI, false>({a, panels.data(), d, from, nullptr, a.states + t * size,
                          a.extra ? a.extra + (t - 1) * size : nullptr, ring.delta(t - 1)}, low, high);
      if (++waiting == group || !t) {
        for (int64_t row = low; row < high; row += DEPTH)
          add_gradients(a, ring, t, waiting, thread, row, std::min(row + DEPTH, high));
        waiting = 0;
      }
    }
    std::copy(ring.delta(0) + low * a.n, ring.delta(0) + high * a.n, a.first + low * a.n);
  });
}

// calls work with phi as a constant; answers whether there was memory enough
template <class Work>
bool done(const Scan& a, Work work) {
  try {
    if (a.phi == TANH) work(std::integral_constant<int, TANH>());
    else if (a.phi == RELU) work(std::integral_constant<int, RELU>());
    else work(std::integral_constant<int, LEAKY>());
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace

extern "C" {

// fills states and inner, from h_0
bool scan_forward(const Scan* a) {
  return done(*a, [&](auto phi) { forward<decltype(phi)::value>(*a); });
}

// fills deltas and first, and adds to the parts
bool scan_backward(const Scan* a) {
  return done(*a, [&](auto phi) { backward<decltype(phi)::value>(*a); });
}
}

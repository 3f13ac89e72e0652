// Vectors of 16 floats, and the product that stays in registers while it is summed up.
#pragma once
#include <cstdint>

namespace {

typedef float V __attribute__((vector_size(64), aligned(4)));
constexpr int64_t LANES = 16, WIDE = 4;

inline V load(const float* p) { return *reinterpret_cast<const V*>(p); }
inline void store(float* p, V x) { *reinterpret_cast<V*>(p) = x; }
inline V all(float x) { return V{} + x; }

// tile[i][j] += sum over k of a[i * row + k * step] b[k * line + 16 j]
template <int R, int C>
inline void multiply(V (&tile)[R][C], const float* a, int64_t row, int64_t step, const float* b, int64_t line,
                     int64_t depth) {
  for (int64_t k = 0; k < depth; k++) {
    V right[C];
    for (int j = 0; j < C; j++) right[j] = load(b + k * line + LANES * j);
    for (int i = 0; i < R; i++) {
      const V left = all(a[i * row + k * step]);
      for (int j = 0; j < C; j++) tile[i][j] += left * right[j];
    }
  }
}

}  // namespace

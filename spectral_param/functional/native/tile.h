// Vectors of 16 floats, and products that stay in registers while they are summed up.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

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

// calls work(wide, column) for each panel of 16 wide columns, wide a constant from 4 down to 1
template <class Work>
void in_wide_columns(int64_t columns, Work work) {
  int64_t at = 0;
  for (; columns - at >= WIDE * LANES; at += WIDE * LANES) work(std::integral_constant<int, WIDE>(), at);
  const int64_t rest = (columns - at) / LANES;
  if (rest == 3) work(std::integral_constant<int, 3>(), at);
  else if (rest == 2) work(std::integral_constant<int, 2>(), at);
  else if (rest == 1) work(std::integral_constant<int, 1>(), at);
}

struct Left {  // entry (i, k) at data[i * row + k * step]
  const float* data;
  int64_t row, step;
};

template <int R, int C>
inline void product_tile(float* out, int64_t line, float alpha, bool add, Left a, const float* b, int64_t depth) {
  V t[R][C] = {};
  multiply<R, C>(t, a.data, a.row, a.step, b, line, depth);
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) {
      float* at = out + i * line + LANES * j;
      store(at, add ? load(at) + alpha * t[i][j] : alpha * t[i][j]);
    }
}

// out = alpha a b, or out += alpha a b, with (rows, columns) and columns a multiple of 16
inline void product(float* out, int64_t rows, int64_t columns, float alpha, bool add, Left a, const float* b,
                    int64_t depth) {
  in_wide_columns(columns, [&](auto wide, int64_t column) {
    constexpr int C = decltype(wide)::value;
    int64_t i = 0;
    auto from = [&] { return Left{a.data + i * a.row, a.row, a.step}; };
    auto to = [&] { return out + i * columns + column; };
    for (; i + 6 <= rows; i += 6) product_tile<6, C>(to(), columns, alpha, add, from(), b + column, depth);
    for (; i + 2 <= rows; i += 2) product_tile<2, C>(to(), columns, alpha, add, from(), b + column, depth);
    for (; i < rows; i++) product_tile<1, C>(to(), columns, alpha, add, from(), b + column, depth);
  });
}

template <int R, int C>
inline void outer_tile(float* out, int64_t line, const std::vector<const float*>& left, int64_t left_line, int64_t row,
                       const std::vector<const float*>& right, int64_t column, int64_t depth) {
  V t[R][C] = {};  // from zero: one long sum would lose digits
  for (size_t g = 0; g < left.size(); g++)
    multiply<R, C>(t, left[g] + row, 1, left_line, right[g] + column, line, depth);
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) {
      float* at = out + i * line + LANES * j;
      store(at, load(at) + t[i][j]);
    }
}

// out (rows, columns) += sum over pairs of left^T right, (depth, rows) and (depth, columns), columns a multiple of 16
inline void add_outer(float* out, int64_t rows, int64_t columns, const std::vector<const float*>& left,
                      const std::vector<const float*>& right, int64_t depth) {
  in_wide_columns(columns, [&](auto wide, int64_t column) {
    constexpr int C = decltype(wide)::value;
    auto to = [&](int64_t i) { return out + i * columns + column; };
    int64_t i = 0;
    for (; i + 6 <= rows; i += 6) outer_tile<6, C>(to(i), columns, left, rows, i, right, column, depth);
    for (; i + 2 <= rows; i += 2) outer_tile<2, C>(to(i), columns, left, rows, i, right, column, depth);
    for (; i < rows; i++) outer_tile<1, C>(to(i), columns, left, rows, i, right, column, depth);
  });
}

}  // namespace

// What the tests of matrix instructions share: random operands in matrices of plain numbers.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace atlas::test {

struct Matrix {
  uint32_t rows, columns;
  std::vector<uint32_t> codes;
  Matrix(uint32_t r, uint32_t c) : rows(r), columns(c), codes(size_t{r} * c) {}
  uint32_t& at(uint32_t r, uint32_t c) { return codes[size_t{r} * columns + c]; }
  uint32_t at(uint32_t r, uint32_t c) const { return codes[size_t{r} * columns + c]; }
};

inline Matrix random_codes(uint32_t rows, uint32_t columns, uint32_t bits, uint32_t seed,
                           uint32_t keep = ~0u) {
  Matrix matrix(rows, columns);
  std::mt19937 random(seed);
  for (uint32_t& code : matrix.codes)
    code = static_cast<uint32_t>(random()) & ((1u << bits) - 1) & keep;
  return matrix;
}

/// sum over k of value(a[row, k]) * value(b[column, k]), for one cell.
template <typename Value>
double dot(const Matrix& a, uint32_t row, const Matrix& b, uint32_t column, const Value& value) {
  double sum = 0;
  for (uint32_t k = 0; k < a.columns; ++k) sum += value(a.at(row, k)) * value(b.at(column, k));
  return sum;
}

}  // namespace atlas::test

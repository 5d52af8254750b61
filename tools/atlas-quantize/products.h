// The few sums of products that the work's time goes into beside the search, vectorized.
#pragma once

#include <cstdint>
#include <span>

#include "tools/atlas-quantize/tensors.h"

namespace atlas::quantize {

/// Sum of a[i] * b[i], in float32 with several running sums.
float dot(const float* a, const float* b, uint64_t count);
/// y[i] += factor * x[i].
void add_scaled(float factor, const float* x, float* y, uint64_t count);
/// sums += x^T x for x [rows, k], lower triangle; k = sums.rows.
void add_outer_products(std::span<const float> x, Matrix& sums, uint32_t threads);
/// x [m, k] times w^T [n, k]: [m, n].
Matrix multiply(const Matrix& x, const Matrix& w, uint32_t threads);

}  // namespace atlas::quantize

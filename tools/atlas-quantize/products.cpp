#include "tools/atlas-quantize/products.h"

#include <algorithm>

#include "kernels/cpu/targets.h"
#include "tools/atlas-quantize/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/atlas-quantize/products.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atlas::quantize::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

float dot_product(const float* a, const float* b, uint64_t count) {
  const hn::ScalableTag<float> d;
  const uint64_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  uint64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
    s1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), s1);
    s2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), s2);
    s3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), s3);
  }
  for (; i + lanes <= count; i += lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled_row(float factor, const float* x, float* y, uint64_t count) {
  const hn::ScalableTag<float> d;
  const uint64_t lanes = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::MulAdd(f, hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  }
  for (; i < count; ++i) y[i] += factor * x[i];
}

/// Rows [first, first + 4) of the sums, columns up to first + 4.
void outer_rows(const float* x, uint64_t rows, uint64_t k, uint64_t first, float* sums) {
  const hn::ScalableTag<float> d;
  const uint64_t lanes = hn::Lanes(d), end = first + 4;
  uint64_t j = 0;
  for (; j < end && j + 2 * lanes <= k; j += 2 * lanes) {
    hn::Vec<decltype(d)> s[4][2];
    for (uint64_t i = 0; i < 4; ++i) {
      s[i][0] = hn::LoadU(d, sums + (first + i) * k + j);
      s[i][1] = hn::LoadU(d, sums + (first + i) * k + j + lanes);
    }
    for (uint64_t r = 0; r < rows; ++r) {
      const float* row = x + r * k;
      const auto a = hn::LoadU(d, row + j), b = hn::LoadU(d, row + j + lanes);
      for (uint64_t i = 0; i < 4; ++i) {
        const auto f = hn::Set(d, row[first + i]);
        s[i][0] = hn::MulAdd(f, a, s[i][0]);
        s[i][1] = hn::MulAdd(f, b, s[i][1]);
      }
    }
    for (uint64_t i = 0; i < 4; ++i) {
      hn::StoreU(s[i][0], d, sums + (first + i) * k + j);
      hn::StoreU(s[i][1], d, sums + (first + i) * k + j + lanes);
    }
  }
  for (; j < end; ++j) {
    for (uint64_t i = 0; i < 4; ++i) {
      float sum = sums[(first + i) * k + j];
      for (uint64_t r = 0; r < rows; ++r) sum += x[r * k + first + i] * x[r * k + j];
      sums[(first + i) * k + j] = sum;
    }
  }
}

}  // namespace atlas::quantize::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::quantize {

HWY_EXPORT(dot_product);
HWY_EXPORT(add_scaled_row);
HWY_EXPORT(outer_rows);

float dot(const float* a, const float* b, uint64_t count) {
  return HWY_DYNAMIC_DISPATCH(dot_product)(a, b, count);
}

void add_scaled(float factor, const float* x, float* y, uint64_t count) {
  HWY_DYNAMIC_DISPATCH(add_scaled_row)(factor, x, y, count);
}

void add_outer_products(std::span<const float> x, Matrix& sums, uint32_t threads) {
  const uint64_t k = sums.rows, rows = x.size() / k;
  constexpr uint64_t kAtOnce = 4, kRows = 64;  // rows of x that stay in the second-level cache
  for_each_piece(k / kAtOnce, threads, [&](uint64_t piece) {
    for (uint64_t begin = 0; begin < rows; begin += kRows) {
      HWY_DYNAMIC_DISPATCH(outer_rows)
      (x.data() + begin * k, std::min(kRows, rows - begin), k, piece * kAtOnce, sums.values.data());
    }
  });
  for (uint64_t i = k / kAtOnce * kAtOnce; i < k; ++i) {
    for (uint64_t r = 0; r < rows; ++r) {
      add_scaled(x[r * k + i], &x[r * k], sums.row(i).data(), i + 1);
    }
  }
}

Matrix multiply(const Matrix& x, const Matrix& w, uint32_t threads) {
  Matrix y(x.rows, w.rows);
  for_each_piece(x.rows, threads, [&](uint64_t r) {
    for (uint64_t n = 0; n < w.rows; ++n) {
      y.at(r, n) = dot(x.row(r).data(), w.row(n).data(), w.columns);
    }
  });
  return y;
}

}  // namespace atlas::quantize
#endif

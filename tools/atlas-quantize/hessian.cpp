#include "tools/atlas-quantize/hessian.h"

#include <algorithm>
#include <cmath>

#include "tools/atlas-quantize/products.h"
#include "tools/atlas-quantize/trellis.h"

namespace atlas::quantize {

void Hessian::add(std::span<const float> inputs, uint32_t threads) {
  const uint64_t k = size();
  std::vector<float> finite;
  finite.reserve(inputs.size());
  for (size_t begin = 0; begin + k <= inputs.size(); begin += k) {
    const auto row = inputs.subspan(begin, k);
    if (!std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); })) continue;
    finite.insert(finite.end(), row.begin(), row.end());
    ++rows_;
  }
  add_outer_products(finite, sums_, threads);
}

Matrix Hessian::mean() const {
  Matrix out(size(), size());
  const float scale = rows_ == 0 ? 0.0f : 1.0f / static_cast<float>(rows_);
  for (uint64_t i = 0; i < size(); ++i) {
    for (uint64_t j = 0; j <= i; ++j) out.at(i, j) = out.at(j, i) = sums_.at(i, j) * scale;
  }
  return out;
}

Moments mix_moments(const Hessian& own, const Hessian& all) {
  if (all.rows() == 0) return {};
  if (own.rows() >= 4 * own.size()) {
    return {std::make_shared<const Matrix>(own.mean()), "full", own.rows()};
  }
  Matrix mixed = all.mean();
  const Matrix mine = own.mean();
  const double rows = static_cast<double>(own.rows());
  const auto weight = static_cast<float>(rows / (rows + static_cast<double>(own.size())));
  for (size_t i = 0; i < mixed.values.size(); ++i) {
    mixed.values[i] += weight * (mine.values[i] - mixed.values[i]);
  }
  return {std::make_shared<const Matrix>(std::move(mixed)), "mixed", own.rows()};
}

namespace {

/// Lower triangle of C with H = C C^T, in place; false if H is not positive.
bool cholesky(Matrix& h) {
  for (uint64_t i = 0; i < h.rows; ++i) {
    float* row = h.row(i).data();
    for (uint64_t j = 0; j <= i; ++j) {
      const double rest = double{row[j]} - dot(row, h.row(j).data(), j);
      if (i == j) {
        if (!(rest > 0) || !std::isfinite(rest)) return false;
        row[i] = static_cast<float>(std::sqrt(rest));
      } else {
        row[j] = static_cast<float>(rest / h.at(j, j));
      }
    }
  }
  return true;
}

/// Each column block of C times the inverse of its diagonal block, which then becomes zero.
void divide_by_diagonal_blocks(Matrix& c) {
  constexpr uint64_t kBlock = kTileSide;
  for (uint64_t begin = 0; begin < c.rows; begin += kBlock) {
    for (uint64_t r = begin + kBlock; r < c.rows; ++r) {
      float* x = c.row(r).data() + begin;  // solves x B = its old value, B lower triangular
      for (uint64_t j = kBlock; j-- > 0;) {
        double rest = x[j];
        for (uint64_t i = j + 1; i < kBlock; ++i) rest -= double{x[i]} * c.at(begin + i, begin + j);
        x[j] = static_cast<float>(rest / c.at(begin + j, begin + j));
      }
    }
    for (uint64_t r = begin; r < begin + kBlock; ++r) {
      std::fill(c.row(r).begin() + static_cast<ptrdiff_t>(begin), c.row(r).end(), 0.0f);
    }
  }
}

}  // namespace

Result<Matrix> block_ldl(Matrix h, double damping) {
  double diagonal = 0;
  for (uint64_t i = 0; i < h.rows; ++i) diagonal += h.at(i, i);
  diagonal /= static_cast<double>(h.rows);
  if (!std::isfinite(diagonal) || diagonal < 1e-20) {
    return data_loss("the mean of the Hessian's diagonal is {}", diagonal);
  }
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    const double added = damping * diagonal * (i == 0 ? 1 : 2);
    for (uint64_t d = 0; d < h.rows; ++d) h.at(d, d) += static_cast<float>(added);
    Matrix factor = h;
    if (!cholesky(factor)) continue;
    divide_by_diagonal_blocks(factor);
    return factor;
  }
  return data_loss("the Hessian is not positive");
}

double proxy_error(const Matrix& weight, const Matrix& decoded, const Matrix& mean,
                   uint32_t threads) {
  Matrix errors = weight;
  for (size_t i = 0; i < errors.values.size(); ++i) errors.values[i] -= decoded.values[i];
  const Matrix eh = multiply(errors, mean, threads), wh = multiply(weight, mean, threads);
  double lost = 0, all = 0;
  for (size_t i = 0; i < errors.values.size(); ++i) {
    lost += double{eh.values[i]} * errors.values[i];
    all += double{wh.values[i]} * weight.values[i];
  }
  return all > 0 ? lost / all : 0;
}

}  // namespace atlas::quantize

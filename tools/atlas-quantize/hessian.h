// What a linear's inputs look like: the second moments by which errors of its weights are weighed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "daemon/base/status.h"
#include "tools/atlas-quantize/tensors.h"

namespace atlas::quantize {

/// H = mean of x^T x over calibration rows, [k, k]. Only the lower triangle is summed up.
class Hessian {
 public:
  explicit Hessian(uint64_t k) : sums_(k, k) {}
  uint64_t size() const { return sums_.rows; }
  uint64_t rows() const { return rows_; }
  /// Adds rows [rows, k]; a row with a value that is not finite is left out.
  void add(std::span<const float> inputs, uint32_t threads);
  /// Means, both triangles.
  Matrix mean() const;

 private:
  Matrix sums_;
  uint64_t rows_ = 0;
};

/// What an encoder gets: means [k, k], and where they come from.
struct Moments {
  std::shared_ptr<const Matrix> mean;  // null: unknown, the identity stands for it
  std::string kind = "identity";       // "full", "mixed", "diagonal", "identity"
  uint64_t rows = 0;
};

/// The moments of an expert that saw few rows: `own` of them, mixed with those of all rows of its
/// layer as if `own.size()` rows more had those. "mixed" below 4 k rows, "full" above, where the
/// own rows stand alone.
Moments mix_moments(const Hessian& own, const Hessian& all);

/// Of a mean of squares, added to the diagonal before it is factored: exllamav3's sigma_reg.
inline constexpr double kDamping = 0.025;

/// H = L D L^T in blocks of 16: L [k, k], its diagonal blocks zero instead of the identity.
/// `damping` times the mean of the diagonal is added to it, more if H is not positive even so.
/// Errors: kDataLoss if it is not finite, or all of it is zero.
Result<Matrix> block_ldl(Matrix h, double damping);

/// What the outputs lose: tr(E H E^T) over tr(W H W^T), E = weight - decoded, rows of both [n, k].
double proxy_error(const Matrix& weight, const Matrix& decoded, const Matrix& mean,
                   uint32_t threads);

}  // namespace atlas::quantize

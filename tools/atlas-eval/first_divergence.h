// Where two configurations part: their steps side by side, tensor by tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/atlas-eval/trace.h"

namespace atlas::eval {

/// How one tensor differs in two runs.
struct TensorDifference {
  std::string operation, activation;
  uint32_t rows = 0;
  uint64_t columns = 0;
  uint64_t different = 0;  // values
  /// The first value that differs, row by row; columns count from the tensor's first.
  uint32_t row = 0;
  uint64_t column = 0;
  float value = 0, against = 0;
  /// Where they are furthest apart. Infinite if a value is finite in one of them only.
  double largest = 0;
  uint32_t largest_row = 0;
  uint64_t largest_column = 0;
  double relative = 0;  // root mean square of the differences over that of the first's values
};

/// Compares two tensors of one shape. Values differ if they are further apart than `tolerance`;
/// with 0, if their bits differ.
TensorDifference compare_tensors(const Tensor& first, const Tensor& second, double tolerance);

/// How the tensors of one part of the model ("layers.3") differ.
struct PartDifference {
  std::string part;
  uint64_t tensors = 0, different = 0;
  double largest = 0;        // of all of its tensors
  double last_relative = 0;  // of the last one: what the part hands on
  std::string last_activation;
};

struct FirstDivergence {
  uint64_t compared = 0, different = 0;  // tensors
  std::optional<TensorDifference> first;
  std::vector<PartDifference> parts;         // in the order of the data
  uint64_t first_only = 0, second_only = 0;  // tensors at the end that only one of them has
  double tolerance = 0;

  std::string text() const;
  std::string json(const tools::LocalModel& first, const tools::LocalModel& second) const;
};

/// Runs `ids` through both, side by side. Errors: kInvalidArgument, with the place, if the models'
/// steps are not made of the same operations on the same shapes.
Result<FirstDivergence> first_divergence(Tracer& first, Tracer& second,
                                         const std::vector<engine::TokenId>& ids, double tolerance);

}  // namespace atlas::eval

#include "tools/atlas-eval/first_divergence.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tools/common/json.h"

namespace atlas::eval {

using tools::Json;

namespace {

/// How far apart two values are; no number against a number is infinitely far.
double distance(float a, float b) {
  if (std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || a == b) return 0;
  if (std::isnan(a) && std::isnan(b)) return 0;
  const double apart = std::abs(static_cast<double>(a) - b);
  return std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
}

bool differ(float a, float b, double tolerance) {
  if (tolerance == 0) return std::bit_cast<uint32_t>(a) != std::bit_cast<uint32_t>(b);
  return distance(a, b) > tolerance;
}

std::string value_text(float value) {
  return fmt::format("{} (0x{:08x})", value, std::bit_cast<uint32_t>(value));
}

std::string shape_text(const Tensor& tensor) {
  return fmt::format("{} -> {} [{}, {}]", tensor.operation, tensor.activation, tensor.rows,
                     tensor.columns);
}

/// JSON has no infinity: null stands for it.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

TensorDifference compare_tensors(const Tensor& first, const Tensor& second, double tolerance) {
  TensorDifference result;
  result.operation = first.operation;
  result.activation = first.activation;
  result.rows = first.rows;
  result.columns = first.columns;
  double squares = 0, difference_squares = 0;
  for (size_t i = 0; i < first.values.size(); ++i) {
    const float a = first.values[i], b = second.values[i];
    const double apart = distance(a, b);
    squares += static_cast<double>(a) * a;
    difference_squares += apart * apart;
    const auto row = static_cast<uint32_t>(i / first.columns);
    const uint64_t column = i % first.columns;
    if (differ(a, b, tolerance) && result.different++ == 0) {
      result.row = row;
      result.column = column;
      result.value = a;
      result.against = b;
    }
    if (apart <= result.largest) continue;
    result.largest = apart;
    result.largest_row = row;
    result.largest_column = column;
  }
  if (difference_squares > 0) result.relative = std::sqrt(difference_squares / squares);
  return result;
}

std::string FirstDivergence::text() const {
  std::string rest;
  if (first_only + second_only > 0) {
    rest = fmt::format("{} tensors at the end are only in {} and were not compared\n",
                       first_only + second_only, first_only > 0 ? "the first" : "the second");
  }
  if (!first) {
    return fmt::format("identical{}: {} tensors compared\n{}",
                       tolerance == 0 ? "" : fmt::format(" within {}", tolerance), compared, rest);
  }
  std::string text = fmt::format(
      "first difference: {}, activation '{}' [{}, {}]\n"
      "  row {}, column {}: {}\n"
      "  against: {}\n"
      "  largest difference {:.4g}, row {}, column {}; relative {:.3e}; {} of {} values differ\n"
      "{} of {} tensors differ\n\n"
      "{:<14}{:>10}{:>14}{:>16}  {}\n",
      first->operation, first->activation, first->rows, first->columns, first->row, first->column,
      value_text(first->value), value_text(first->against), first->largest, first->largest_row,
      first->largest_column, first->relative, first->different, first->rows * first->columns,
      different, compared, "part", "differ", "largest", "last, relative", "last activation");
  for (const PartDifference& part : parts) {
    text += fmt::format("{:<14}{:>10}{:>14.4g}{:>16.3e}  {}\n", part.part,
                        fmt::format("{}/{}", part.different, part.tensors), part.largest,
                        part.last_relative, part.last_activation);
  }
  return text + rest;
}

std::string FirstDivergence::json(const tools::LocalModel& first_model,
                                  const tools::LocalModel& second_model) const {
  Json json = {{"model", first_model.info().id},
               {"against", second_model.info().id},
               {"identical", !first},
               {"tolerance", tolerance},
               {"tensors_compared", compared},
               {"tensors_different", different},
               {"only_in_model", first_only},
               {"only_in_against", second_only},
               {"first_difference", Json()},
               {"parts", Json::array()}};
  if (first) {
    json["first_difference"] = {
        {"operation", first->operation},
        {"activation", first->activation},
        {"rows", first->rows},
        {"columns", first->columns},
        {"row", first->row},
        {"column", first->column},
        {"value", number(first->value)},
        {"value_bits", fmt::format("0x{:08x}", std::bit_cast<uint32_t>(first->value))},
        {"against", number(first->against)},
        {"against_bits", fmt::format("0x{:08x}", std::bit_cast<uint32_t>(first->against))},
        {"values_different", first->different},
        {"largest", number(first->largest)},
        {"largest_row", first->largest_row},
        {"largest_column", first->largest_column},
        {"relative", number(first->relative)}};
  }
  for (const PartDifference& part : parts) {
    json["parts"].push_back({{"part", part.part},
                             {"tensors", part.tensors},
                             {"different", part.different},
                             {"largest", number(part.largest)},
                             {"last_activation", part.last_activation},
                             {"last_relative", number(part.last_relative)}});
  }
  return tools::json_text(json);
}

namespace {

void add(FirstDivergence& result, const TensorDifference& difference) {
  const std::string part = part_of(difference.operation);
  if (result.parts.empty() || result.parts.back().part != part) {
    result.parts.push_back({.part = part, .last_activation = {}});
  }
  PartDifference& one = result.parts.back();
  ++result.compared;
  ++one.tensors;
  one.largest = std::max(one.largest, difference.largest);
  one.last_relative = difference.relative;
  one.last_activation = difference.activation;
  if (difference.different == 0) return;
  ++result.different;
  ++one.different;
  if (!result.first) result.first = difference;
}

Status compare(Trace& first, Trace& second, FirstDivergence& result) {
  for (;;) {
    ATLAS_ASSIGN_OR_RETURN(const std::optional<Tensor> a, first.next());
    ATLAS_ASSIGN_OR_RETURN(const std::optional<Tensor> b, second.next());
    if (!a && !b) return {};
    if (!a || !b) {  // the longer one's step goes on to its end
      ++(a ? result.first_only : result.second_only);
      continue;
    }
    if (a->operation != b->operation || a->activation != b->activation ||
        a->columns != b->columns || a->first_column != b->first_column) {
      return invalid_argument(
          "the steps are not made of the same operations: {} stands in one where {} stands in the "
          "other, after {} tensors that could be compared",
          shape_text(*a), shape_text(*b), result.compared);
    }
    add(result, compare_tensors(*a, *b, result.tolerance));
  }
}

}  // namespace

Result<FirstDivergence> first_divergence(Tracer& first, Tracer& second,
                                         const std::vector<engine::TokenId>& ids,
                                         double tolerance) {
  FirstDivergence result;
  result.tolerance = tolerance;
  // The second's step runs inside of the first's, so that neither has to be kept.
  const Status status = first.run(ids, [&](Trace& a) {
    return second.run(ids, [&](Trace& b) { return compare(a, b, result); });
  });
  if (!status.ok()) return status;
  return result;
}

}  // namespace atlas::eval

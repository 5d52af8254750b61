// Tracer: one prefill step of a list of ids, operation by operation, with what each one wrote.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/local_model.h"

namespace atlas::eval {

/// What an operation wrote: float32 columns of an activation, row after row.
struct Tensor {
  uint32_t index = 0;      // of the operation in the step's program
  std::string operation;   // "layers.3.mixer.linear"
  std::string activation;  // "projected"
  uint64_t first_column = 0;
  uint32_t rows = 0;
  uint64_t columns = 0;
  std::vector<float> values;  // [rows, columns]
};

/// The part of the model that an operation belongs to: "layers.3", "draft.0", "head", "input".
std::string part_of(const std::string& operation);

/// A step on its way. Whoever is given one takes all of its tensors.
class Trace {
 public:
  virtual ~Trace() = default;
  /// Runs on to the next operation that writes an activation; nothing at the end of the step.
  /// Rows of the draft head's later passes are not shown: a prefill step without sampling has none.
  virtual Result<std::optional<Tensor>> next() = 0;
};

class Tracer {
 public:
  /// `settings` as tool_settings() makes them from needs().
  static Result<std::unique_ptr<Tracer>> open(settings::Settings settings, uint32_t tokens);
  static tools::EngineNeeds needs(uint32_t tokens);

  const tools::LocalModel& model() const { return *model_; }
  /// Runs all ids as one step from an empty state, with logits for every row, and gives it to
  /// `look`. Errors: ids beyond the vocabulary or the context; what `look` returns.
  Status run(const std::vector<engine::TokenId>& ids, const std::function<Status(Trace&)>& look);

 private:
  Tracer() = default;
  std::unique_ptr<tools::LocalModel> model_;
  std::unique_ptr<engine::Stepper> stepper_;
};

}  // namespace atlas::eval

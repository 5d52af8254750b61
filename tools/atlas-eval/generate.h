// Greedy ids, through the engine that the daemon runs.
#pragma once

#include <string>
#include <vector>

#include "tools/common/local_model.h"

namespace atlas::eval {

struct Generated {
  std::vector<engine::TokenId> prompt, ids;
  std::string text;  // empty without a tokenizer
  engine::Finish finish;

  /// One JSON object.
  std::string json(const tools::LocalModel& model) const;
};

/// Completes `prompt` greedily. The end-of-generation token is not among the ids.
/// Errors: what the engine refuses, or what ended the request early.
Result<Generated> generate(const tools::LocalModel& model,
                           const std::vector<engine::TokenId>& prompt, uint32_t max_tokens,
                           bool ignore_end_of_generation);

}  // namespace atlas::eval

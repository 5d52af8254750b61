// Perplexity of a text in consecutive windows, from raw logits in float64.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/common/local_model.h"

namespace atlas::eval {

struct Perplexity {
  uint64_t text_tokens = 0;  // of the whole text
  uint64_t windows = 0, window = 0;
  uint64_t predicted = 0;  // tokens that were predicted: all but the first of each window
  uint64_t bytes = 0;      // text of the windows' tokens
  double nats = 0;         // sum over the predicted tokens
  double seconds = 0;

  double nats_per_token() const;
  double perplexity() const;
  double bits_per_byte() const;
  double tokens_per_second() const;
  std::string text() const;
  std::string json(const tools::LocalModel& model) const;
};

/// Minus the log-probability of `target`, in nats, where a row of logits is [vocab].
/// Errors: kDataLoss names a logit that is not finite.
Result<double> surprise(std::span<const float> logits, engine::TokenId target);

/// Consecutive windows of `window` tokens, each from an empty state; every token after the first of
/// a window is predicted. Tokens that fill no window are left out, unless there is no full window
/// at all: then they are one. Errors: kInvalidArgument for a window below 2 or beyond the context,
/// or a text of fewer than two tokens.
Result<Perplexity> perplexity(const tools::LocalModel& model, const std::string& text,
                              uint32_t window);

}  // namespace atlas::eval

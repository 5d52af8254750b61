// How far two models' predictions lie apart over a text: KL divergence and top-1 agreement.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/common/local_model.h"

namespace atlas::eval {

/// Two rows of logits [vocab] of one position.
struct RowDivergence {
  double kl = 0;  // sum of p log(p / q) in nats, in float64: p the first row's softmax
  uint32_t top = 0, against_top = 0;   // the likeliest token of each
  float share = 0, against_share = 0;  // and its probability
  bool same_top() const { return top == against_top; }
};
/// Errors: kDataLoss names a logit that is not finite.
Result<RowDivergence> row_divergence(std::span<const float> p, std::span<const float> q);

struct Divergence {
  uint64_t text_tokens = 0;  // of the whole text
  uint64_t windows = 0, window = 0;
  uint64_t predicted = 0;  // tokens that were predicted: all but the first of each window
  double nats = 0, against_nats = 0;  // sums over the predicted tokens
  std::vector<RowDivergence> rows;    // of every position of every window, in order
  double seconds = 0;

  double mean() const;
  /// The divergence that so many percent of the positions stay below.
  double percentile(uint32_t percent) const;
  /// Positions whose likeliest token is the same.
  uint64_t same_top() const;
  /// Where it is largest: up to `count` indices of `rows`, the largest first.
  std::vector<size_t> worst(size_t count) const;
  /// Both with the `listed` worst positions.
  std::string text(uint32_t listed) const;
  std::string json(const tools::LocalModel& first, const tools::LocalModel& second,
                   uint32_t listed) const;
};

/// Compares both over consecutive windows of `window` tokens, each from an empty state; tokens that
/// fill no window are left out, unless there is no full one. `tokens` bounds what is taken of the
/// text; 0: all. Errors: kInvalidArgument if the models' vocabularies or tokenizers differ, and as
/// `perplexity` has them.
Result<Divergence> divergence(const tools::LocalModel& first, const tools::LocalModel& second,
                              const std::string& text, uint32_t window, uint64_t tokens);

}  // namespace atlas::eval

// Walks token sequences through the steps of a model, cut as a test wants them, and keeps what the
// steps computed for each position.
#pragma once

#include <vector>

#include "daemon/engine/stepper.h"

namespace atlas::testing {

/// How sequences are brought to a model.
struct Cutting {
  std::vector<uint32_t> rows;  // of its steps, again and again; 0: all that is left
  plan::StepKind kind = plan::StepKind::kPrefill;
  bool together = false;  // all sequences in each step, not one after another
};

/// What a walk computed; rows of all sequences one after another.
struct Walked {
  std::vector<float> logits;        // [tokens, vocab]
  std::vector<float> draft_logits;  // [tokens less one a sequence, vocab]; NaN: not computed, since
                                    // a draft head's logits are those of a step's last row
};

/// `drafts`: read the draft head's logits too; the plan has 1 draft. Ends the test with a message
/// if a step fails.
Walked walk(engine::Stepper& stepper, const std::vector<std::vector<engine::TokenId>>& sequences,
            const Cutting& cutting, bool drafts = false);

/// Rows of two walks that differ in a bit. Rows with a NaN in either are not compared.
size_t rows_that_differ(const std::vector<float>& a, const std::vector<float>& b, uint32_t vocab);
/// Largest distance of two sets of logits, NaN in the first left out.
float largest_distance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace atlas::testing

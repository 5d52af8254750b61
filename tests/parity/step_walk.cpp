#include "tests/parity/step_walk.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace atlas::testing {

using engine::StepRows;
using engine::TokenId;

namespace {

/// A sequence on its way.
struct Walker {
  std::span<const TokenId> tokens;
  size_t logit_row = 0, draft_row = 0;  // of its first token, in the walk's results
  uint32_t done = 0;
  uint32_t steps = 0;
  uint32_t left() const { return static_cast<uint32_t>(tokens.size()) - done; }
};

StepRows next_rows(const Walker& walker, uint32_t slot, const Cutting& cutting, bool drafts) {
  const uint32_t wanted = cutting.rows[walker.steps % cutting.rows.size()];
  const uint32_t count = wanted == 0 ? walker.left() : std::min(wanted, walker.left());
  StepRows rows{slot, walker.tokens.subspan(walker.done, count), count, walker.done == 0, {}};
  const size_t after = walker.done + count;
  if (drafts && after < walker.tokens.size()) rows.next = walker.tokens[after];
  return rows;
}

/// One step of all walkers that have tokens left; false if none has.
bool step(engine::Stepper& stepper, std::span<Walker> walkers, const Cutting& cutting, bool drafts,
          Walked& to) {
  std::vector<StepRows> rows;
  std::vector<Walker*> taking;
  for (size_t slot = 0; slot < walkers.size(); ++slot) {
    if (walkers[slot].left() == 0) continue;
    rows.push_back(next_rows(walkers[slot], static_cast<uint32_t>(slot), cutting, drafts));
    taking.push_back(&walkers[slot]);
  }
  if (rows.empty()) return false;
  const auto logits = stepper.run(cutting.kind, rows);
  REQUIRE_MESSAGE(logits, logits.error().message());
  const uint64_t vocab = stepper.vocab();
  const auto draft_rows = static_cast<uint64_t>(std::count_if(
      rows.begin(), rows.end(), [](const StepRows& one) { return one.next.has_value(); }));
  std::vector<float> draft_logits;
  if (draft_rows != 0) {
    auto read = stepper.activation("draft logits", draft_rows * vocab);
    REQUIRE_MESSAGE(read, read.error().message());
    draft_logits = std::move(*read);
  }
  auto from = logits->begin();
  auto draft_from = draft_logits.begin();
  for (size_t i = 0; i < rows.size(); ++i) {
    Walker& walker = *taking[i];
    const auto count = static_cast<uint32_t>(rows[i].tokens.size());
    std::copy_n(
        from, count * vocab,
        to.logits.begin() + static_cast<ptrdiff_t>((walker.logit_row + walker.done) * vocab));
    from += static_cast<ptrdiff_t>(count * vocab);
    walker.done += count;
    ++walker.steps;
    if (!rows[i].next) continue;
    std::copy_n(draft_from, vocab,
                to.draft_logits.begin() +
                    static_cast<ptrdiff_t>((walker.draft_row + walker.done - 1) * vocab));
    draft_from += static_cast<ptrdiff_t>(vocab);
  }
  return true;
}

}  // namespace

Walked walk(engine::Stepper& stepper, const std::vector<std::vector<TokenId>>& sequences,
            const Cutting& cutting, bool drafts) {
  std::vector<Walker> walkers;
  size_t tokens = 0;
  for (const auto& sequence : sequences) {
    walkers.push_back({sequence, tokens, tokens - walkers.size()});
    tokens += sequence.size();
  }
  const uint64_t vocab = stepper.vocab();
  Walked walked;
  walked.logits.resize(tokens * vocab);
  if (drafts) {
    walked.draft_logits.assign((tokens - sequences.size()) * vocab,
                               std::numeric_limits<float>::quiet_NaN());
  }
  if (cutting.together) {
    while (step(stepper, walkers, cutting, drafts, walked)) {
    }
    return walked;
  }
  for (Walker& walker : walkers) {
    while (step(stepper, {&walker, 1}, cutting, drafts, walked)) {
    }
  }
  return walked;
}

size_t rows_that_differ(const std::vector<float>& a, const std::vector<float>& b, uint32_t vocab) {
  REQUIRE(a.size() == b.size());
  size_t rows = 0;
  for (size_t first = 0; first < a.size(); first += vocab) {
    if (std::isnan(a[first]) || std::isnan(b[first])) continue;
    rows += std::memcmp(&a[first], &b[first], vocab * sizeof(float)) != 0;
  }
  return rows;
}

float largest_distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isnan(a[i])) largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

}  // namespace atlas::testing

#include "daemon/engine/scheduler.h"

#include <doctest/doctest.h>

#include <numeric>

using namespace atlas;
using namespace atlas::engine;

TEST_SUITE_BEGIN("engine");

namespace {

const SchedulerLimits kLimits{
    .prefill_rows = 100, .score_rows = 8, .decode_sequences = 4, .latency_bound_s = 0.1};

/// Of every generation but kDrafting, which is no object to look into.
constexpr char kDraftingPlace = 0;
const std::shared_ptr<Generation> kDrafting(
    std::shared_ptr<void>(), reinterpret_cast<Generation*>(const_cast<char*>(&kDraftingPlace)));

SchedulerLimits limits_of(const Generation* generation) {
  if (generation != kDrafting.get()) return kLimits;
  return {.prefill_rows = 40, .score_rows = 4, .decode_sequences = 2, .drafts = 3};
}

SequencePtr sequence(uint32_t prompt, uint32_t max_tokens = 10) {
  auto one = std::make_shared<Sequence>();
  one->spec.prompt.assign(prompt, 1);
  one->spec.max_tokens = max_tokens;
  one->prefill_end = prompt;
  one->slot = 0;
  return one;
}

/// What submitting a draft does to its sequences.
void submit(const StepDraft& draft) {
  for (const Share& share : draft.shares) {
    share.sequence->submitted += share.rows;
    share.sequence->sampled += share.sample ? 1 : 0;
  }
}

bool always(Sequence&) { return true; }

std::vector<uint32_t> rows_of(const StepDraft& draft) {
  std::vector<uint32_t> rows;
  for (const Share& share : draft.shares) rows.push_back(share.rows);
  return rows;
}

}  // namespace

TEST_CASE("scheduler: nothing to do gives no step") {
  Scheduler scheduler(&limits_of);
  CHECK_FALSE(scheduler.next({}, always));
}

TEST_CASE("scheduler: a long prompt goes in chunks, and samples after its last row only") {
  Scheduler scheduler(&limits_of);
  const SequencePtr one = sequence(250);
  std::vector<uint32_t> chunks;
  while (one->prefilling()) {
    const auto draft = scheduler.next({one}, always);
    REQUIRE(draft);
    CHECK(draft->kind == plan::StepKind::kPrefill);
    chunks.push_back(draft->rows());
    submit(*draft);
    CHECK(draft->shares[0].sample == !one->prefilling());
    CHECK(draft->logit_rows() == (one->prefilling() ? 0 : 1));
  }
  CHECK(chunks == std::vector<uint32_t>{100, 100, 50});
}

TEST_CASE("scheduler: prompts share a step in equal parts, what one leaves goes to the others") {
  Scheduler scheduler(&limits_of);
  const std::vector<SequencePtr> all{sequence(10), sequence(500), sequence(500)};
  const auto draft = scheduler.next(all, always);
  REQUIRE(draft);
  CHECK(rows_of(*draft) == std::vector<uint32_t>{10, 45, 45});
}

TEST_CASE("scheduler: prefill and decode steps take turns, and prefill then obeys the bound") {
  Scheduler scheduler(&limits_of);
  scheduler.measured_prefill(100, 0.4);  // 4 ms a row: 25 rows in 100 ms
  const SequencePtr decoding = sequence(1, 100);
  decoding->submitted = 1;
  decoding->sampled = 1;
  const SequencePtr waiting = sequence(200);
  std::vector<plan::StepKind> kinds;
  for (int i = 0; i < 4; ++i) {
    const auto draft = scheduler.next({decoding, waiting}, always);
    REQUIRE(draft);
    kinds.push_back(draft->kind);
    if (draft->kind == plan::StepKind::kPrefill) CHECK(draft->rows() == 25);
    submit(*draft);
  }
  using enum plan::StepKind;
  CHECK(kinds == std::vector<plan::StepKind>{kPrefill, kDecode, kPrefill, kDecode});
}

TEST_CASE("scheduler: more sequences than a decode step holds get their turns") {
  Scheduler scheduler(&limits_of);
  std::vector<SequencePtr> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(sequence(1, 1000));
    all.back()->submitted = 1;
    all.back()->sampled = 1;
  }
  for (int i = 0; i < 60; ++i) submit(*scheduler.next(all, always));
  for (const SequencePtr& one : all) CHECK(one->sampled >= 30);
}

TEST_CASE("scheduler: no row beyond max_tokens, none for a sequence that waits for a page") {
  Scheduler scheduler(&limits_of);
  const SequencePtr one = sequence(1, 3);
  int decoded = 0;
  while (const auto draft = scheduler.next({one}, always)) {
    decoded += draft->kind == plan::StepKind::kDecode ? 1 : 0;
    submit(*draft);
  }
  CHECK(decoded == 2);  // the first token came with the prompt
  CHECK(one->sampled == 3);
  one->spec.max_tokens = 10;
  CHECK_FALSE(scheduler.next({one}, [](Sequence&) { return false; }));
}

TEST_CASE("scheduler: a prompt that is to be scored goes in steps with logits for every row") {
  Scheduler scheduler(&limits_of);
  const SequencePtr scored = sequence(20);
  scored->spec.prompt_logprobs = true;
  const SequencePtr plain = sequence(20);
  const auto first = scheduler.next({scored, plain}, always);
  REQUIRE(first);
  REQUIRE(first->shares.size() == 1);
  CHECK(first->shares[0].sequence == scored);
  CHECK(first->rows() == 8);
  CHECK(first->logit_rows() == 8);
}

TEST_CASE("scheduler: with penalties, rows of a resumed sequence do not mix prompt and output") {
  Scheduler scheduler(&limits_of);
  const SequencePtr one = sequence(30);
  one->spec.sampling.frequency_penalty = 1;
  one->generated.assign(5, 2);
  one->sampled = 5;
  one->prefill_end = one->known();
  auto draft = scheduler.next({one}, always);
  REQUIRE(draft);
  CHECK(draft->rows() == 30);
  CHECK(draft->shares[0].prompt);
  CHECK_FALSE(draft->shares[0].sample);
  submit(*draft);
  draft = scheduler.next({one}, always);
  REQUIRE(draft);
  CHECK(draft->rows() == 5);
  CHECK_FALSE(draft->shares[0].prompt);
  CHECK(draft->shares[0].sample);
}

TEST_CASE("scheduler: a step keeps to the limits of its own generation, whichever serves now") {
  Scheduler scheduler(&limits_of);
  std::vector<SequencePtr> running;
  for (int i = 0; i < 6; ++i) {
    running.push_back(sequence(200));
    if (i % 2 == 1) running.back()->generation = kDrafting;
  }
  bool prefilled[2] = {}, decoded[2] = {};
  for (int i = 0; i < 200; ++i) {
    const auto draft = scheduler.next(running, always);
    if (!draft) break;
    const bool drafting = draft->generation == kDrafting;
    for (const Share& share : draft->shares) CHECK(share.sequence->generation == draft->generation);
    if (draft->kind == plan::StepKind::kPrefill) {
      prefilled[drafting ? 1 : 0] = true;
      CHECK(draft->rows() <= (drafting ? 40 : 100));
    } else {
      decoded[drafting ? 1 : 0] = true;
      CHECK(draft->kind == (drafting ? plan::StepKind::kVerify : plan::StepKind::kDecode));
      CHECK(draft->rows() == draft->shares.size() * (drafting ? 4 : 1));
      CHECK(draft->shares.size() <= (drafting ? 2 : 4));
    }
    submit(*draft);
  }
  for (const bool seen : {prefilled[0], prefilled[1], decoded[0], decoded[1]}) CHECK(seen);
}

TEST_SUITE_END();

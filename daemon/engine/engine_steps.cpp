// Steps of the engine: admitting sequences, writing a step's entry, reading its result back.
#include <algorithm>
#include <map>

#include "daemon/base/log.h"
#include "daemon/engine/engine_core.h"

namespace atlas::engine {

using std::chrono::steady_clock;

namespace {

uint32_t pages_for(uint32_t positions, uint32_t page_tokens) {
  return (positions + page_tokens - 1) / page_tokens;
}

kernels::SamplingInput sampling_input(const SamplingParams& params, uint32_t bias_first) {
  kernels::SamplingInput input{};
  input.temperature = params.temperature;
  input.top_p = params.top_p;
  input.min_p = params.min_p;
  input.top_k = params.top_k;
  input.repetition_penalty = params.repetition_penalty;
  input.presence_penalty = params.presence_penalty;
  input.frequency_penalty = params.frequency_penalty;
  input.bias_first = bias_first;
  input.bias_count = static_cast<uint32_t>(params.logit_bias.size());
  input.seed = params.seed;
  return input;
}

/// How often a request begins again because the disk was slow, before it fails.
constexpr uint32_t kLateSteps = 2;

/// Positions that a step of `rows` rows may touch: the draft head goes ahead of them.
uint32_t reach(const plan::Plan& plan, uint32_t submitted, uint32_t rows) {
  return std::min(submitted + rows + plan.limits.drafts, plan.limits.max_positions);
}

TokenLogprob token_logprob(const kernels::RowScore& score, uint32_t wanted) {
  TokenLogprob result{score.target, score.target_logprob, score.target_rank, {}};
  const uint32_t count = std::min({score.top_count, wanted, kernels::kMaxTopLogprobs});
  for (uint32_t i = 0; i < count; ++i) {
    result.top.emplace_back(score.top_ids[i], score.top_logprobs[i]);
  }
  return result;
}

/// Counts that no row of the share brings to a slot: a prefix that is not computed, and output that
/// is run again, which was counted when it was sampled, before the slot's reset.
std::map<TokenId, uint32_t> counts_before(const Sequence& sequence, const Share& share) {
  std::map<TokenId, uint32_t> counts;
  const auto add = [&](uint32_t position) {
    uint32_t& count = counts[sequence.token_at(position)];
    count = position < sequence.prompt_tokens() ? count | 1u : count + 2;
  };
  for (uint32_t i = 0; sequence.fresh && i < sequence.submitted; ++i) add(i);
  for (uint32_t i = 0; !share.prompt && !share.feed_back && i < share.rows; ++i) {
    add(sequence.submitted + i);
  }
  return counts;
}

/// The scores of a share's logit rows; empty unless it asked for them.
std::span<const kernels::RowScore> scores_of(const Share& share,
                                             const kernels::SequenceResult& outcome,
                                             const exec::ResultView& result) {
  const uint32_t rows = share.feed_back ? outcome.row_count : share.logit_rows;
  return result.scores.subspan(outcome.logit_first, rows);
}

Status step_error(const kernels::SequenceResult& outcome) {
  if ((outcome.error & (kernels::kErrorFeed | kernels::kErrorFeedLate)) != 0) {
    return unavailable(
        "rows of the n-gram table {}: see the daemon's log",
        (outcome.error & kernels::kErrorFeed) != 0 ? "could not be read" : "were not read in time");
  }
  return internal_error("the model gave a logit that is not finite at position {}",
                        outcome.length == 0 ? 0 : outcome.length - 1);
}

}  // namespace

void EngineCore::admit() {
  while (!queue_.empty()) {
    const SequencePtr sequence = queue_.front();
    if (sequence->finished) {  // cancelled before its turn: nothing is taken for it
      queue_.pop_front();
      continue;
    }
    if (sequence->generation == nullptr) {
      if (current_ == nullptr || releasing_) return;
      sequence->generation = current_;
    }
    if (!admit_resources(*sequence)) {
      if (!sequence->waiting) sequence->generation = nullptr;  // a swap may come before its turn
      return;
    }
    if (sequence->admitted == 0) count_request(*sequence->generation, 1);
    sequence->waiting = false;
    sequence->admitted = ++admissions_;
    queue_.pop_front();
    running_.push_back(sequence);
    const std::scoped_lock lock(mutex_);
    --waiting_count_;
  }
}

bool EngineCore::wants_prefix(const Sequence& sequence) const {
  // Scores of the prompt need all its rows; and a step's entry has room for the counts of one
  // prefix.
  const auto counts = [](const SequencePtr& one) {
    return one->fresh && one->counts_tokens() && one->submitted != 0;
  };
  return !sequence.wants_prompt_scores() &&
         (!sequence.counts_tokens() || std::none_of(running_.begin(), running_.end(), counts));
}

bool EngineCore::room_to_announce(const CachedPrefix& prefix) const {
  // A step's entry has room for one context's pages: several long prefixes take several steps.
  size_t waiting = 0;
  for (const SequencePtr& one : running_) {
    if (one->fresh && one->generation != nullptr) {
      waiting += one->submitted / one->generation->plan().page_tokens;
    }
  }
  return waiting == 0 || current_ == nullptr ||
         waiting + prefix.pages.size() <= current_->plan().limits.max_pages;
}

bool EngineCore::admit_resources(Sequence& sequence) {
  Generation& generation = *sequence.generation;
  CachePool& pool = generation.pool();
  PrefixCache& prefixes = generation.prefixes();
  const plan::Plan& plan = generation.plan();
  // All pages of what is known now, and one for each sequence that runs to go on with: so that
  // admitting one does not at once preempt another.
  const uint32_t need =
      pages_for(reach(plan, sequence.known(), 1 + plan.limits.drafts), plan.page_tokens);
  const auto spare = static_cast<uint32_t>(running_.size());
  if (pool.slots_free() == 0) return false;
  const std::vector<TokenId> tokens = sequence.first_tokens(sequence.known());
  CachedPrefix prefix = wants_prefix(sequence) ? prefixes.find(tokens) : CachedPrefix{};
  const auto own = need - static_cast<uint32_t>(prefix.pages.size());
  prefixes.evict_pages(own + spare);
  if (pool.pages_free() < own + spare || !room_to_announce(prefix)) {
    CacheShare share{std::move(prefix.pages), std::nullopt, {}};
    if (prefix.anchor) share.anchors.push_back(*prefix.anchor);
    pool.give_back(std::move(share), 0);
    return false;
  }
  if (wants_prefix(sequence)) prefixes.count(tokens.size(), prefix, counters_.prefix);
  if (!sequence.waiting) {
    sequence.cached_tokens = prefix.tokens;
    counters_.cached_tokens += prefix.tokens;
  }
  sequence.slot = pool.take_slot();
  sequence.pages = std::move(prefix.pages);
  while (sequence.pages.size() < need) sequence.pages.push_back(*pool.take_page());
  sequence.anchor = prefix.anchor;
  sequence.anchor_index = sequence.submitted = sequence.committed = prefix.tokens;
  // Others have had these pages too, and nobody the state behind them: now it is worth keeping.
  sequence.snapshot_at = prefix.known_tokens > prefix.tokens ? prefix.known_tokens : 0;
  sequence.prefill_end = sequence.known();
  sequence.fresh = true;
  return true;
}

void EngineCore::keep_prefix(Sequence& sequence) {
  if (sequence.generation == nullptr || !sequence.slot) return;
  // Rows past a stop were computed too, but are none of the sequence's tokens.
  const uint32_t count = std::min(sequence.committed, sequence.known());
  sequence.generation->prefixes().keep(
      sequence.first_tokens(count), sequence.pages,
      sequence.anchor_index <= count ? sequence.anchor : std::nullopt, sequence.anchor_index);
}

bool EngineCore::ensure_pages(Sequence& sequence, uint32_t positions) {
  CachePool& pool = sequence.generation->pool();
  const uint32_t need = pages_for(positions, sequence.generation->plan().page_tokens);
  if (sequence.pages.size() < need) {
    sequence.generation->prefixes().evict_pages(need -
                                                static_cast<uint32_t>(sequence.pages.size()));
  }
  while (sequence.pages.size() < need) {
    const auto page = pool.take_page();
    if (!page) {
      // Pages of steps in flight come back by themselves; otherwise the newest sequence gives way.
      if (pool.pages_free_soon() > 0 || !preempt_for(sequence)) return false;
      continue;
    }
    sequence.pages.push_back(*page);
  }
  return true;
}

bool EngineCore::preempt_for(const Sequence& sequence) {
  SequencePtr victim;
  for (const SequencePtr& one : running_) {
    if (one->finished || one->generation != sequence.generation || one->pages.empty()) continue;
    if (victim == nullptr || one->admitted > victim->admitted) victim = one;
  }
  if (victim == nullptr) return false;
  // What it computed is computed again later: the same bytes, by the design of all kernels.
  log_debug("request {} gives its pages to request {}", victim->id, sequence.id);
  keep_prefix(*victim);  // cheap to take back as long as nobody needs the pages
  requeue(victim);
  victim->generation->prefixes().evict_pages(1);
  return victim->id != sequence.id;
}

void EngineCore::requeue(const SequencePtr& sequence) {
  release_resources(*sequence);
  ++sequence->epoch;
  sequence->pages_announced = 0;
  sequence->submitted = 0;
  sequence->committed = 0;
  sequence->sampled = static_cast<uint32_t>(sequence->generated.size());
  sequence->prompt_scores.clear();
  sequence->waiting = true;
  std::erase(running_, sequence);
  queue_.push_front(sequence);
  const std::scoped_lock lock(mutex_);
  ++waiting_count_;
}

Status EngineCore::submit_next(bool& submitted) {
  submitted = false;
  if (scheduler_ == nullptr) return {};
  const auto can_decode = [this](Sequence& sequence) {
    const plan::Plan& plan = sequence.generation->plan();
    return ensure_pages(sequence, reach(plan, sequence.submitted, 1 + plan.limits.drafts));
  };
  // A copy: making room for one sequence may take another out of running_.
  const std::vector<SequencePtr> candidates(running_);
  std::optional<StepDraft> draft = scheduler_->next(candidates, can_decode);
  if (!draft) return {};
  submitted = true;
  return submit_step(std::move(*draft));
}

Status EngineCore::submit_step(StepDraft draft) {
  Generation& generation = *draft.generation;
  exec::Steps& steps = generation.steps();
  const plan::Bucket* bucket = steps.bucket(draft.kind, draft.rows(), draft.logit_rows());
  if (bucket == nullptr) {
    return internal_error("no {} step holds {} rows with {} logit rows",
                          plan::step_kind_name(draft.kind), draft.rows(), draft.logit_rows());
  }
  if (!steps.verified(*bucket)) {
    while (!flights_.empty()) ATLAS_RETURN_IF_ERROR(complete_oldest());
    ATLAS_RETURN_IF_ERROR(steps.verify(*bucket, *stream_, generation.scratch_page()));
    // What just came back may have ended sequences of the draft.
    std::erase_if(draft.shares, [](const Share& share) { return !share.sequence->slot; });
    if (draft.shares.empty()) return {};
  }
  Flight flight{.step = write_entry(draft),
                .draft = std::move(draft),
                .epochs = {},
                .event = std::move(spare_events_.back()),
                .submitted = steady_clock::now(),
                .alone = flights_.empty()};
  spare_events_.pop_back();
  ATLAS_RETURN_IF_ERROR(steps.launch(*bucket, *stream_));
  ATLAS_RETURN_IF_ERROR(flight.event.record(*stream_));
  for (Share& share : flight.draft.shares) {
    Sequence& sequence = *share.sequence;
    sequence.submitted += share.rows;
    sequence.sampled += share.sample ? 1 : 0;
    sequence.last_step = flight.step;
    sequence.fresh = false;
    flight.epochs.push_back(sequence.epoch);
  }
  flights_.push_back(std::move(flight));
  return {};
}

uint64_t EngineCore::write_entry(StepDraft& draft) {
  exec::ControlBlock& control = draft.generation->control();
  const plan::Plan& plan = draft.generation->plan();
  exec::EntryView entry = control.begin();
  kernels::StepEntry& head = *entry.head;
  for (Share& share : draft.shares) {
    Sequence& sequence = *share.sequence;
    share.spare_anchor = spare_anchor(sequence, share.rows);
    kernels::SequenceInput& input = entry.sequences[head.sequence_count++];
    input = {};
    input.slot = *sequence.slot;
    input.flags = (sequence.fresh ? kernels::kSequenceReset : 0u) |
                  (share.feed_back ? kernels::kSequenceFeedBack : 0u) |
                  (share.sample ? kernels::kSequenceSample : 0u) |
                  (sequence.counts_tokens() ? kernels::kSequenceCount : 0u) |
                  (share.prompt ? kernels::kSequencePromptRows : 0u);
    input.first_row = head.row_count;
    input.row_count = share.rows;
    input.logit_first = head.logit_count;
    input.logit_count = share.logit_rows;
    const uint32_t after = sequence.submitted + share.rows;
    input.next_token =
        !share.feed_back && after < sequence.known() ? sequence.token_at(after) : kernels::kNoToken;
    input.anchor = sequence.anchor.value_or(kernels::kNoAnchor);
    input.spare_anchor = share.spare_anchor.value_or(kernels::kNoAnchor);
    if (sequence.fresh) {
      input.reset_length = sequence.submitted;
      for (uint32_t i = 0; i < kernels::kHistoryIds; ++i) {
        input.history[i] = i < sequence.submitted ? sequence.token_at(sequence.submitted - 1 - i)
                                                  : kernels::kNoToken;
      }
    }
    input.score = sequence.spec.logprobs || sequence.wants_prompt_scores();
    input.score_top = sequence.spec.top_logprobs;
    input.sampling = sampling_input(sequence.spec.sampling, head.bias_count);
    for (const auto& [token, bias] : sequence.spec.sampling.logit_bias) {
      entry.biases[head.bias_count++] = {token, bias};
    }
    for (uint32_t i = 0; i < share.rows; ++i) {
      entry.ids[head.row_count++] =
          share.feed_back ? kernels::kNoToken : sequence.token_at(sequence.submitted + i);
    }
    for (uint32_t i = 0; i < share.logit_rows; ++i) {
      // Logit row i is the share's row rows - logit_rows + i; it is scored on the token after it.
      const uint32_t next = sequence.submitted + share.rows - share.logit_rows + i + 1;
      const bool known = !share.feed_back && next < sequence.prefill_end;
      entry.targets[head.logit_count++] = known ? sequence.token_at(next) : kernels::kNoToken;
    }
    if (sequence.counts_tokens()) {
      input.count_first = head.count_update_count;
      for (const auto& [token, count] : counts_before(sequence, share)) {
        entry.count_updates[head.count_update_count++] = {token, count};
      }
      input.count_count = head.count_update_count - input.count_first;
    }
    const uint32_t pages = pages_for(reach(plan, sequence.submitted, share.rows), plan.page_tokens);
    for (uint32_t& index = sequence.pages_announced; index < pages; ++index) {
      entry.page_updates[head.page_update_count++] = {*sequence.slot, index, sequence.pages[index],
                                                      0};
    }
  }
  return control.finish();
}

Status EngineCore::wait(const Flight& flight) {
  const auto deadline = flight.submitted + options_.step_deadline;
  for (;;) {
    const Status status = flight.event.wait(std::chrono::seconds(1));
    if (status.code() != Code::kDeadlineExceeded) return status;
    if (steady_clock::now() > deadline) {
      return unavailable("step {} did not finish within {} s: the device hangs", flight.step,
                         options_.step_deadline.count());
    }
  }
}

Status EngineCore::complete_oldest() {
  ATLAS_RETURN_IF_ERROR(wait(flights_.front()));
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  const auto seconds =
      std::chrono::duration<double>(steady_clock::now() - flight.submitted).count();
  Generation& generation = *flight.draft.generation;
  ATLAS_ASSIGN_OR_RETURN(const exec::ResultView result, generation.control().result(flight.step));
  generation.pool().finished(flight.step);
  if (flight.draft.kind == plan::StepKind::kPrefill) {
    ++counters_.steps_prefill;
    counters_.step_seconds_prefill += seconds;
    if (flight.alone && scheduler_ != nullptr) {
      scheduler_->measured_prefill(flight.draft.rows(), seconds);
    }
  } else {
    ++counters_.steps_decode;
    counters_.step_seconds_decode += seconds;
  }
  read_result(flight, result);
  spare_events_.push_back(std::move(flight.event));
  return {};
}

std::optional<uint32_t> EngineCore::spare_anchor(const Sequence& sequence, uint32_t rows) {
  const kernels::ControlLimits& limits = sequence.generation->plan().limits;
  if (limits.anchor_tokens == 0) return std::nullopt;
  const uint32_t last = std::min(sequence.submitted + rows, limits.max_positions) - 1;
  if (last / limits.anchor_tokens * limits.anchor_tokens <= sequence.anchor_index) {
    return std::nullopt;
  }
  CachePool& pool = sequence.generation->pool();
  if (pool.anchors_free() == 0) sequence.generation->prefixes().evict_anchor();
  const auto anchor = pool.take_anchor();
  ATLAS_CHECK(anchor, "there are anchors for every live sequence and its steps in flight");
  return anchor;
}

void EngineCore::take_anchor(Sequence& sequence, const Share& share,
                             const kernels::SequenceResult& outcome, bool current) {
  if (!share.spare_anchor) return;
  CacheShare unused;
  if (current && outcome.anchor == *share.spare_anchor) {
    if (sequence.anchor) unused.anchors.push_back(*sequence.anchor);
    sequence.anchor = share.spare_anchor;
    sequence.anchor_index = outcome.anchor_index;
  } else {
    unused.anchors.push_back(*share.spare_anchor);
  }
  share.sequence->generation->pool().give_back(std::move(unused), 0);
}

void EngineCore::read_result(const Flight& flight, const exec::ResultView& result) {
  for (size_t i = 0; i < flight.draft.shares.size(); ++i) {
    const Share& share = flight.draft.shares[i];
    const kernels::SequenceResult& outcome = result.sequences[i];
    Sequence& sequence = *share.sequence;
    const bool current = !sequence.finished && flight.epochs[i] == sequence.epoch;
    take_anchor(sequence, share, outcome, current);
    if (!current) continue;
    if (outcome.error != 0) {
      // Rows that came late were computed without them; computed again they are the same as ever.
      const bool late = (outcome.error & ~uint32_t{kernels::kErrorFeedLate}) == 0;
      if (late && sequence.late_steps++ < kLateSteps) {
        log_warning("request {}: rows of the n-gram table came too late, and it begins again",
                    sequence.id);
        requeue(share.sequence);
      } else {
        finish(share.sequence, FinishReason::kError, step_error(outcome), {});
      }
      continue;
    }
    sequence.committed = outcome.length;
    if (share.prompt) counters_.prompt_tokens += share.rows;
    const bool snapshot =
        sequence.snapshot_at != 0 && sequence.anchor_index == sequence.snapshot_at;
    if (share.ends_prefill || snapshot) keep_prefix(sequence);
    if (snapshot) sequence.snapshot_at = 0;
    if (share.sample) {
      take_tokens(share.sequence, share, outcome, result);
    } else {
      if (sequence.wants_prompt_scores())
        take_scores(sequence, share, scores_of(share, outcome, result));
      if (share.ends_prefill && sequence.spec.max_tokens == 0) {
        Update update;
        update.prompt = std::move(sequence.prompt_scores);
        finish(share.sequence, FinishReason::kLength, Status(), std::move(update));
      }
    }
  }
}

void EngineCore::take_tokens(const SequencePtr& sequence, const Share& share,
                             const kernels::SequenceResult& outcome,
                             const exec::ResultView& result) {
  const auto scores = scores_of(share, outcome, result);
  if (sequence->wants_prompt_scores()) take_scores(*sequence, share, scores);
  if (share.feed_back) {
    // Rows whose drafts were rejected, or that were cut, are no positions of the sequence.
    sequence->submitted -= share.rows - outcome.token_count;
    sequence->sampled += outcome.token_count - 1;
    counters_.drafted_tokens += outcome.row_count - 1;
    counters_.accepted_tokens += outcome.token_count - 1;
  }
  // A prefill's one token belongs to its last logit row; a decoding step has a logit row a token.
  const size_t first = share.feed_back ? 0 : scores.size() - 1;
  for (uint32_t i = 0; i < outcome.token_count && !sequence->finished; ++i) {
    const bool scored = sequence->spec.logprobs && !scores.empty();
    take_token(sequence, outcome.tokens[i], scored ? &scores[first + i] : nullptr);
  }
}

void EngineCore::take_scores(Sequence& sequence, const Share& share,
                             std::span<const kernels::RowScore> scores) {
  // The row of the prompt's last token scores what was sampled, which is not of the prompt.
  const size_t count = scores.size() - (share.ends_prefill ? 1 : 0);
  for (size_t i = 0; i < count; ++i) {
    sequence.prompt_scores.push_back(token_logprob(scores[i], sequence.spec.top_logprobs));
  }
}

void EngineCore::take_token(const SequencePtr& sequence, TokenId token,
                            const kernels::RowScore* score) {
  Update update;
  if (sequence->wants_prompt_scores()) {
    update.prompt = std::move(sequence->prompt_scores);
    sequence->prompt_scores_sent = true;
  }
  sequence->generated.push_back(token);
  ++counters_.generated_tokens;
  const auto& ends = sequence->info->end_of_generation;
  if (!sequence->spec.ignore_end_of_generation &&
      std::find(ends.begin(), ends.end(), token) != ends.end()) {
    finish(sequence, FinishReason::kStop, Status(), std::move(update));
    return;
  }
  std::optional<TokenLogprob> logprob;
  if (score != nullptr) logprob = token_logprob(*score, sequence->spec.top_logprobs);
  sequence->answer.push(token, std::move(logprob), update);
  if (sequence->answer.stop_string()) {
    finish(sequence, FinishReason::kStop, Status(), std::move(update));
  } else if (sequence->generated.size() >= sequence->spec.max_tokens) {
    finish(sequence, FinishReason::kLength, Status(), std::move(update));
  } else if (!update.tokens.empty() || !update.text.empty() || !update.prompt.empty()) {
    sequence->sink(sequence->id, std::move(update));
  }
}

}  // namespace atlas::engine

// Sequence: one request while it runs. The engine's thread owns it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/engine/answer_text.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/request.h"
#include "kernels/common/control.h"

namespace atlas::engine {

class Generation;

/// Positions: the sequence is prompt + generated tokens. `submitted` positions have been given to
/// the device in steps, of which results of `generated` tokens have come back. A step with drafts
/// counts all its rows until its result says how many of them were accepted.
struct Sequence {
  RequestId id = 0;
  RequestSpec spec;
  UpdateSink sink;
  std::shared_ptr<const ModelInfo> info;   // the model that it was encoded for
  std::shared_ptr<Generation> generation;  // from its first admission on

  std::vector<TokenId> generated;
  uint32_t submitted = 0;  // positions given to the device, at most
  uint32_t sampled = 0;    // tokens that submitted steps sample at least, seen or not
  std::optional<uint32_t> slot;
  std::vector<uint32_t> pages;
  uint32_t pages_announced = 0;    // of `pages`, in the device's block table
  std::optional<uint32_t> anchor;  // the state at anchor_index, as of the last result
  uint32_t anchor_index = 0;
  uint32_t committed = 0;      // positions whose steps have been read back
  uint32_t cached_tokens = 0;  // of the prompt, found in the prefix cache at the first admission
  uint32_t snapshot_at = 0;    // prefill stops once behind this position, to leave the state there
  uint64_t last_step = 0;      // that names the sequence
  bool fresh = true;           // the next step resets the slot
  uint32_t epoch = 0;          // grows with each preemption: results of older steps are void
  uint32_t late_steps = 0;     // that the host's rows missed
  bool finished = false;
  bool waiting = false;   // preempted: in the queue again
  uint64_t admitted = 0;  // order of admission

  AnswerText answer;
  std::vector<TokenLogprob> prompt_scores;
  bool prompt_scores_sent = false;

  uint32_t prompt_tokens() const { return static_cast<uint32_t>(spec.prompt.size()); }
  /// Positions that have to be given as ids: the prompt, and after a preemption what was generated.
  uint32_t known() const { return prompt_tokens() + static_cast<uint32_t>(generated.size()); }
  bool prefilling() const { return submitted < prefill_end; }
  uint32_t prefill_end = 0;  // positions whose ids the host gives
  TokenId token_at(uint32_t position) const {
    return position < prompt_tokens() ? spec.prompt[position]
                                      : generated[position - prompt_tokens()];
  }
  /// Ids of the first `count` positions.
  std::vector<TokenId> first_tokens(uint32_t count) const {
    std::vector<TokenId> tokens(count);
    for (uint32_t i = 0; i < count; ++i) tokens[i] = token_at(i);
    return tokens;
  }
  bool wants_prompt_scores() const { return spec.prompt_logprobs && !prompt_scores_sent; }
  bool counts_tokens() const {
    const SamplingParams& p = spec.sampling;
    return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f ||
           p.frequency_penalty != 0.0f;
  }
};

}  // namespace atlas::engine

// What a client asks of an engine and what the engine tells it: the border between serve and
// engine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::engine {

using TokenId = uint32_t;
using RequestId = uint64_t;

/// How the next token is drawn; neutral values switch a stage off. kernels/common/core.h (`sample`)
/// gives the order of the stages.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint32_t top_k = 0;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;  // callers that got none from the client draw one
  std::vector<std::pair<TokenId, float>> logit_bias;
};

/// One sequence to complete. `Engine::submit` checks every field.
struct RequestSpec {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  uint32_t max_tokens = 0;        // 0: only score the prompt (with `prompt_logprobs`)
  std::vector<std::string> stop;  // the answer ends before the first of these
  bool ignore_end_of_generation = false;
  bool skip_special = true;  // special tokens give no text
  bool logprobs = false;
  uint32_t top_logprobs = 0;     // 0..20 alternatives
  bool prompt_logprobs = false;  // score the prompt's tokens too (echo)
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
  uint32_t rank = 0;                           // 1: the most likely
  std::vector<std::pair<TokenId, float>> top;  // most likely first
};

enum class FinishReason {
  kStop,       // end of generation or a stop string
  kLength,     // max_tokens, or the context is full
  kCancelled,  // the client went away, or the daemon drains past its deadline
  kError,      // `error` says what failed
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // of the prompt, not computed again
  uint32_t completion_tokens = 0;
};

struct Finish {
  FinishReason reason = FinishReason::kStop;
  Status error;             // not ok exactly for kError
  std::string stop_string;  // the one that matched; empty for an end-of-generation token
  Usage usage;
};

/// News of one request, in order. `text` is whole characters and never part of a stop string, so it
/// may lag behind `tokens` or cover several of them.
struct Update {
  /// Once, before everything else, if prompt_logprobs: every token of the prompt but the first.
  std::vector<TokenLogprob> prompt;
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> logprobs;  // one for each of `tokens`, if logprobs
  std::optional<Finish> finish;        // the last update has it, and every request gets one
};

/// Called on the engine's thread, in order; must return at once and must not throw.
using UpdateSink = std::function<void(RequestId, Update)>;

}  // namespace atlas::engine

// Engine: one served model. Takes requests from any thread and runs them on a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/engine/request.h"

namespace atlas::model {
class Tokenizer;
class ChatTemplate;
}  // namespace atlas::model

namespace atlas::engine {

/// What clients may know of the model that serves new requests; immutable, replaced by a swap.
struct ModelInfo {
  std::string id;            // the name in /v1/models
  std::string architecture;  // "llama"
  std::string format;        // "gguf q4_1 + q8_0"
  std::string source;        // identity of the checkpoint's files
  uint32_t context_tokens = 0;
  uint32_t vocab = 0;
  int64_t created_unix_s = 0;
  uint64_t generation = 0;
  std::shared_ptr<const model::Tokenizer> tokenizer;         // null: served by token ids only
  std::shared_ptr<const model::ChatTemplate> chat_template;  // null: no chat completions
  std::string bos_text, eos_text;                            // for the template
  std::vector<TokenId> end_of_generation;
  /// A word for weights, plugins, packs and contracts: where it and the seed are equal, so are the
  /// bytes of an answer. Clients see it as `system_fingerprint`.
  std::string fingerprint;
};

/// How lookups in the prefix cache ended.
struct PrefixCounters {
  uint64_t exact = 0;   // all that could be cached
  uint64_t anchor = 0;  // up to an earlier state
  uint64_t pages = 0;   // keys and values only: nothing could be used
  uint64_t miss = 0;
  uint64_t recomputed_tokens = 0;  // whose pages were there, behind the last state
};

/// A generation that has been replaced and serves until its last request ends.
struct OldGeneration {
  uint64_t generation = 0;
  uint32_t requests = 0;
  uint64_t bytes = 0;  // that it alone holds: free again when it ends
};

enum class EngineState { kLoading, kServing, kDraining, kFailed, kStopped };

/// Counters and gauges since start; a consistent copy.
struct EngineStats {
  EngineState state = EngineState::kLoading;
  std::string phase;    // while loading: "reading weights"
  double progress = 0;  // 0..1 of the phase
  std::string failure;  // for kFailed
  uint64_t generation = 0;
  uint32_t running = 0, queued = 0;
  uint64_t requests_finished = 0, requests_failed = 0, requests_cancelled = 0, requests_refused = 0;
  uint64_t prompt_tokens = 0, generated_tokens = 0, cached_tokens = 0;
  uint64_t drafted_tokens = 0, accepted_tokens = 0;  // by the draft head
  PrefixCounters prefix;
  uint32_t prefix_pages = 0;  // that the prefix cache holds
  uint32_t anchors_total = 0, anchors_used = 0;
  uint64_t steps_prefill = 0, steps_decode = 0;
  double step_seconds_prefill = 0, step_seconds_decode = 0;
  uint32_t pages_total = 0, pages_used = 0, slots_total = 0, slots_used = 0;
  std::vector<OldGeneration> old_generations;
  uint64_t progress_ticks =
      0;  // grows while the engine's thread works or idles: the watchdog's food
  std::vector<std::pair<std::string, uint64_t>> ledger;  // line, bytes
  std::string graphs;                                    // "on", "off (settings)", or why not
};

/// The border that serve sees; EngineCore implements it, tests may too. Thread safe.
class Engine {
 public:
  virtual ~Engine() = default;
  /// Null while the first model is loading or after a failure.
  virtual std::shared_ptr<const ModelInfo> model() const = 0;
  /// Queues a request. Errors: kInvalidArgument names the field (empty prompt, token id out of the
  /// vocabulary, prompt longer than the context, ...); kResourceExhausted: the queue is full;
  /// kUnavailable: loading, draining, failed. After success exactly one Update has `finish`.
  virtual Result<RequestId> submit(RequestSpec spec, UpdateSink sink) = 0;
  /// Ends a request within one step; its pages are free again. Unknown ids are ignored.
  virtual void cancel(RequestId id) = 0;
  virtual EngineStats stats() const = 0;
};

}  // namespace atlas::engine

// Plan: what a model's steps are on a platform, decided before any weight is read.
// Audit, weight loading, recording, `atlasctl plan` and swap read only this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "kernels/common/control.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::plan {

using BufferId = uint32_t;

/// logit_bias entries of one sequence, at most.
inline constexpr uint32_t kMaxBiasesPerSequence = 1024;

/// Lines of the memory ledger: every byte that Atlas holds is on one of them.
enum class LedgerLine {
  kWeights,
  kCache,      // paged keys and values, and what each slot keeps beside them
  kAnchors,    // recurrent states at fixed positions
  kRowCache,   // rows of tables that stay in their file
  kWorkspace,  // activations and scratch
  kControl,    // control block on the device, token counts
  kPinned,     // rings, results, staging
  kGraphs,     // recorded steps
  kHostHeap,   // the daemon itself: tokenizer, queues, connections
  kReserve,    // left free for the system
};
std::string_view ledger_line_name(LedgerLine line);

/// Bytes a line. On unified memory all lines share one number.
struct Ledger {
  std::map<LedgerLine, uint64_t> bytes;
  uint64_t total() const;
  /// What of it lies in the device's memory: all of it where host and device share one.
  uint64_t on_device(bool unified_memory) const;
  /// Error kResourceExhausted with every line and what to change, if that is more than `available`.
  Status check(uint64_t available, bool unified_memory) const;
};

struct Buffer {
  std::string name;
  LedgerLine line = LedgerLine::kWorkspace;
  AtlasMemoryKind memory = ATLAS_MEMORY_DEVICE;
  uint64_t bytes = 0;
};

/// A weight's share of a packed buffer: one module of the checkpoint.
struct WeightPart {
  std::string module;
  AtlasWeightClaim claim{};
  uint64_t offset = 0;  // bytes, in the buffer
  uint64_t bytes = 0;
};

/// One resident weight: modules with one input whose outputs stand side by side ("q, k, v").
struct Weight {
  std::string plugin;
  std::string format;
  std::string contract;
  BufferId buffer = 0;
  uint64_t n = 0, k = 0;  // of one expert
  uint32_t experts = 1;
  uint64_t expert_bytes = 0;      // from one expert to the next; 0: there is one
  std::vector<WeightPart> parts;  // expert after expert
};

/// A float32 vector that the core reads itself: a norm's weight, a bias, a table.
struct Vector {
  std::string tensor;  // of the checkpoint; empty: `values` holds it
  std::vector<float> values;
  BufferId buffer = 0;
  uint64_t n = 0;
  float plus = 0;  // added to every element of the tensor
};

/// A table of the core's own as raw bytes: hash constants.
struct Constant {
  std::vector<std::byte> bytes;
  BufferId buffer = 0;
};

/// What a host feed brings to a step: rows of a table by keys that the device computes.
struct FeedPlan {
  uint32_t heads = 0;  // keys a row of the step
  uint32_t width = 0;  // floats a row of the step, all heads
  BufferId requests = 0, answers = 0;
  uint64_t request_bytes = 0, answer_bytes = 0;  // of a ring entry
};

/// Stands for an operation's index where a record belongs to the frame around them.
inline constexpr uint32_t kNoOperation = ~0u;

struct Record {
  std::string operation;                  // "layers.3.attention"
  uint32_t program_index = kNoOperation;  // of the operation in the step's program
  std::string owner;                      // "core" or a plugin
  std::string kernel;
  uint64_t params_digest = 0;
  std::array<uint32_t, 3> grid{}, block{};
  uint32_t shared_bytes = 0;
  uint64_t bytes_read = 0;
  std::vector<std::byte> params;
  std::vector<AtlasRelocation> relocations;
  /// The records that must have ended when this one begins, as places in the step before its own,
  /// and with them what those follow; empty: the record before it.
  std::vector<uint32_t> after;
};

enum class StepKind { kPrefill, kDecode, kVerify };
std::string_view step_kind_name(StepKind kind);

/// Bounds of a step: it runs with any counts up to these.
struct Bucket {
  StepKind kind = StepKind::kPrefill;
  uint32_t rows = 0;
  uint32_t logit_rows = 0;
  auto operator<=>(const Bucket&) const = default;
  std::string to_string() const;
};

struct StepPlan {
  Bucket bucket;
  std::vector<Record> records;
};

struct Plan {
  std::string platform;
  kernels::ControlLimits limits{};
  std::vector<Buffer> buffers;
  std::vector<Weight> weights;
  std::vector<Vector> vectors;
  std::vector<Constant> constants;
  std::vector<StepPlan> steps;
  uint32_t page_tokens = 0, page_count = 0;
  uint64_t page_bytes = 0;
  uint64_t slot_bytes = 0, anchor_bytes = 0;  // of all layers
  std::optional<FeedPlan> feed;
  std::string state_layout;   // equal texts: two generations can share pages and slots
  std::string weight_layout;  // equal texts: two generations can share weights
  // Buffers that running a step and its host side name.
  BufferId control = 0, ring = 0, results = 0, entry = 0, slots = 0, block_table = 0, counts = 0,
           rows = 0, spans = 0, draft_rows = 0, draft_spans = 0, draft_sources = 0, next_ids = 0,
           logit_rows = 0, sampled = 0, scores = 0, logits = 0, pages = 0, slot_state = 0,
           anchors = 0;
  Ledger ledger;

  const StepPlan* find(const Bucket& bucket) const;
};

/// Shapes of an engine that the settings decide.
struct Shape {
  uint32_t max_sequences = 0;    // live at once
  uint32_t context_tokens = 0;   // of one sequence
  uint64_t cache_tokens = 0;     // of all sequences together
  uint64_t snapshot_bytes = 0;   // of anchors kept beside those that live sequences need
  uint64_t row_cache_bytes = 0;  // of tables that stay in their file
  uint64_t feed_timeout_ns = 0;  // a step waits so long for the host's rows
  std::vector<Bucket> buckets;
  uint32_t ring_entries = 4;
  uint64_t host_heap_bytes = 0, reserve_bytes = 0;
};

}  // namespace atlas::plan

#include "daemon/exec/steps.h"

#include <algorithm>
#include <cstring>

#include "daemon/base/log.h"
#include "daemon/exec/launches.h"

namespace atlas::exec {

using plan::Bucket;

Result<KernelTable> resolve_kernels(const plan::Plan& plan, const std::vector<Module>& modules) {
  KernelTable table;
  std::string missing;
  for (const plan::StepPlan& step : plan.steps) {
    for (const plan::Record& record : step.records) {
      AtlasKernel& handle = table[record.kernel];
      if (handle != 0) continue;
      for (const Module& module : modules) {
        auto found = module.kernel(record.kernel);
        if (found) handle = *found;
        if (handle != 0) break;
        if (!found && found.error().code() != Code::kNotFound) return found.error();
      }
      if (handle == 0 && missing.find(record.kernel + " ") == std::string::npos) {
        missing += record.kernel + " (" + record.owner + "), ";
      }
    }
  }
  if (missing.empty()) return table;
  missing.resize(missing.size() - 2);
  return not_found("platform '{}' has no kernel {}", plan.platform, missing);
}

namespace {

/// Fills what a step must write before it reads it: as float32, a NaN.
constexpr uint8_t kStale = 0xff;

}  // namespace

Result<std::unique_ptr<Steps>> Steps::build(const std::shared_ptr<Device>& device,
                                            const plan::Plan& plan, const KernelTable& kernels,
                                            BufferTable buffers,
                                            std::shared_ptr<ControlBlock> control,
                                            GraphPolicy policy) {
  std::unique_ptr<Steps> steps(new Steps(plan, std::move(buffers), std::move(control)));
  steps->policy_ = policy;
  for (const plan::StepPlan& step : plan.steps) {
    ATLAS_ASSIGN_OR_RETURN(const StepLaunches all,
                           step_launches(plan, step, kernels, steps->buffers_));
    const std::vector<Launch>& launches = all.launches;
    ATLAS_ASSIGN_OR_RETURN(StepExecutable eager,
                           StepExecutable::create(device, launches, StepMode::kEager));
    Entry entry{std::move(eager), nullptr, policy == GraphPolicy::kOff, {}};
    if (policy == GraphPolicy::kOn) {
      auto graph = StepExecutable::create(device, launches, StepMode::kGraph);
      if (graph) {
        entry.graph = std::make_unique<StepExecutable>(std::move(*graph));
      } else if (graph.error().code() == Code::kUnavailable) {
        return graph.error();
      } else {
        entry.verified = true;
        entry.refusal = graph.error().message();
        log_warning("graph of {} was refused, its records are walked instead: {}",
                    step.bucket.to_string(), entry.refusal);
      }
    }
    steps->entries_.emplace(step.bucket, std::move(entry));
  }
  return steps;
}

const Bucket* Steps::bucket(plan::StepKind kind, uint32_t rows, uint32_t logit_rows) const {
  const Bucket* best = nullptr;
  for (const auto& [bucket, entry] : entries_) {
    if (bucket.kind != kind || bucket.rows < rows || bucket.logit_rows < logit_rows) continue;
    if (best == nullptr || bucket.rows < best->rows ||
        (bucket.rows == best->rows && bucket.logit_rows < best->logit_rows)) {
      best = &bucket;
    }
  }
  return best;
}

Status Steps::launch(const Bucket& bucket, Stream& stream) {
  const Entry& entry = entries_.at(bucket);
  const bool graph = entry.graph != nullptr && entry.verified;
  return graph ? entry.graph->launch(stream) : entry.eager.launch(stream);
}

bool Steps::verified(const Bucket& bucket) const { return entries_.at(bucket).verified; }

/// Everything that a run of a step on the scratch slot leaves behind.
struct Steps::Snapshot {
  std::vector<std::byte> logits, page, slot_state, anchor;
  std::vector<kernels::SequenceResult> sequences;
  std::vector<kernels::RowScore> scores;

  /// Whether all rows of the n-gram table came.
  bool fed() const {
    return std::all_of(sequences.begin(), sequences.end(), [](const auto& one) {
      return (one.error & (kernels::kErrorFeed | kernels::kErrorFeedLate)) == 0;
    });
  }
  const char* difference(const Snapshot& other) const {
    if (logits != other.logits) return "logits";
    if (page != other.page) return "keys and values";
    if (slot_state != other.slot_state || anchor != other.anchor) return "recurrent state";
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    if (!same(sequences, other.sequences)) return "results";
    if (!same(scores, other.scores)) return "log-probabilities";
    return nullptr;
  }
};

ScratchPlace Steps::place_of(plan::BufferId buffer, uint64_t index, uint64_t bytes) const {
  if (bytes == 0) return {};
  return {buffers_.at(buffer).address() + index * bytes, bytes};
}

Result<Steps::Snapshot> Steps::run_scratch(const Bucket& bucket, const StepExecutable& step,
                                           Stream& stream, uint32_t scratch_page) {
  const bool prefill = bucket.kind == plan::StepKind::kPrefill;
  const uint32_t rows =
      prefill ? std::min({bucket.rows, plan_.page_tokens, plan_.limits.max_positions}) : 1;
  const ScratchPlace page{buffers_.at(plan_.pages).address() + scratch_page * plan_.page_bytes,
                          plan_.page_bytes};
  const ScratchPlace slot = place_of(plan_.slot_state, control_->scratch_slot(), plan_.slot_bytes);
  const uint32_t spare = plan_.limits.anchors - 1;
  const ScratchPlace anchor = plan_.limits.anchors == 0
                                  ? ScratchPlace{}
                                  : place_of(plan_.anchors, spare, plan_.anchor_bytes);
  // A record that a graph leaves out must not find what the walk before it left behind.
  for (const ScratchPlace& place : {page, slot, anchor}) {
    if (place.bytes != 0) ATLAS_RETURN_IF_ERROR(stream.fill(place.address, kStale, place.bytes));
  }
  for (plan::BufferId id = 0; id < plan_.buffers.size(); ++id) {
    const bool scratch = plan_.buffers[id].line == plan::LedgerLine::kWorkspace ||
                         id == plan_.sampled || id == plan_.scores;
    if (!scratch) continue;
    ATLAS_RETURN_IF_ERROR(stream.fill(buffers_.at(id).address(), kStale, plan_.buffers[id].bytes));
  }
  EntryView entry = control_->begin();
  entry.head->row_count = rows;
  entry.head->sequence_count = 1;
  entry.head->logit_count = 1;
  entry.head->page_update_count = 1;
  entry.page_updates[0] = {control_->scratch_slot(), 0, scratch_page, 0};
  kernels::SequenceInput& sequence = entry.sequences[0];
  sequence = {};
  sequence.slot = control_->scratch_slot();
  sequence.flags =
      kernels::kSequenceReset | kernels::kSequenceSample | kernels::kSequencePromptRows;
  sequence.row_count = rows;
  sequence.next_token = kernels::kNoToken;
  sequence.anchor = kernels::kNoAnchor;
  sequence.spare_anchor = plan_.limits.anchors == 0 ? kernels::kNoAnchor : spare;
  std::fill_n(sequence.history, kernels::kHistoryIds, kernels::kNoToken);
  sequence.logit_count = 1;
  sequence.score = 1;
  sequence.score_top = 1;
  sequence.sampling.top_p = 1.0f;
  sequence.sampling.repetition_penalty = 1.0f;
  entry.targets[0] = kernels::kNoToken;
  // Ids that spread over the vocabulary; 7919 is a prime, nothing more.
  for (uint32_t i = 0; i < rows; ++i) entry.ids[i] = (i + 1) * 7919 % plan_.limits.vocab;
  const uint64_t number = control_->finish();
  ATLAS_RETURN_IF_ERROR(step.launch(stream));
  ATLAS_RETURN_IF_ERROR(stream.synchronize());
  ATLAS_ASSIGN_OR_RETURN(const ResultView result, control_->result(number));
  Snapshot snapshot;
  snapshot.sequences.assign(result.sequences.begin(), result.sequences.end());
  snapshot.scores.assign(result.scores.begin(), result.scores.end());
  const auto copy = [&](const ScratchPlace& place, std::vector<std::byte>& to) {
    to.resize(place.bytes);
    return to.empty() ? Status() : stream.copy_to_host(to.data(), place.address, to.size());
  };
  const ScratchPlace logits{buffers_.at(plan_.logits).address(),
                            uint64_t{plan_.limits.vocab} * sizeof(float)};
  ATLAS_RETURN_IF_ERROR(copy(logits, snapshot.logits));
  ATLAS_RETURN_IF_ERROR(copy(page, snapshot.page));
  ATLAS_RETURN_IF_ERROR(copy(slot, snapshot.slot_state));
  ATLAS_RETURN_IF_ERROR(copy(anchor, snapshot.anchor));
  return snapshot;
}

Status Steps::verify(const Bucket& bucket, Stream& stream, uint32_t scratch_page) {
  Entry& entry = entries_.at(bucket);
  if (entry.verified) return {};
  ATLAS_RETURN_IF_ERROR(stream.synchronize());
  ATLAS_ASSIGN_OR_RETURN(const Snapshot eager,
                         run_scratch(bucket, entry.eager, stream, scratch_page));
  auto graph = run_scratch(bucket, *entry.graph, stream, scratch_page);
  if (!graph && graph.error().code() != Code::kInternal) return graph.error();
  // A slow disk says nothing about a graph: the bucket's next step tries again.
  if (!eager.fed() || (graph && !graph->fed())) return {};
  entry.verified = true;
  const char* difference = graph ? eager.difference(*graph) : "results";
  if (difference == nullptr) return {};
  entry.graph = nullptr;
  found_different_graph_ = true;
  entry.refusal = fmt::format("gave other {} than the eager walk", difference);
  log_error("graph of {} is not used: it {}", bucket.to_string(), entry.refusal);
  return {};
}

std::string Steps::graph_report() const {
  if (policy_ == GraphPolicy::kOff) return "off (settings)";
  std::string report;
  for (const auto& [bucket, entry] : entries_) {
    if (entry.refusal.empty()) continue;
    report +=
        fmt::format("{}{}: {}", report.empty() ? "" : "; ", bucket.to_string(), entry.refusal);
  }
  return report.empty() ? "on" : "on but for " + report;
}

}  // namespace atlas::exec

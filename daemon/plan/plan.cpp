// Names, sums and look-ups of a plan.
#include "daemon/plan/plan.h"

#include <algorithm>

namespace atlas::plan {

std::string_view ledger_line_name(LedgerLine line) {
  switch (line) {
    case LedgerLine::kWeights:
      return "weights";
    case LedgerLine::kCache:
      return "cache";
    case LedgerLine::kAnchors:
      return "anchors";
    case LedgerLine::kRowCache:
      return "row_cache";
    case LedgerLine::kWorkspace:
      return "workspace";
    case LedgerLine::kControl:
      return "control";
    case LedgerLine::kPinned:
      return "pinned";
    case LedgerLine::kGraphs:
      return "graphs";
    case LedgerLine::kHostHeap:
      return "host_heap";
    case LedgerLine::kReserve:
      return "reserve";
  }
  return "unknown";
}

uint64_t Ledger::total() const {
  uint64_t sum = 0;
  for (const auto& [line, count] : bytes) sum += count;
  return sum;
}

uint64_t Ledger::on_device(bool unified_memory) const {
  if (unified_memory) return total();
  uint64_t sum = 0;
  for (const auto& [line, count] : bytes) {
    const bool host = line == LedgerLine::kPinned || line == LedgerLine::kHostHeap;
    if (!host) sum += count;
  }
  return sum;
}

Status Ledger::check(uint64_t available, bool unified_memory) const {
  const uint64_t needed = on_device(unified_memory);
  if (needed <= available) return {};
  constexpr double kMiB = 1024.0 * 1024.0;
  std::string lines;
  for (const auto& [line, count] : bytes) {
    lines += fmt::format("{}{} {:.1f}", lines.empty() ? "" : ", ", ledger_line_name(line),
                         static_cast<double>(count) / kMiB);
  }
  return resource_exhausted(
      "the model needs {:.1f} MiB and {:.1f} MiB are free (MiB: {}); lower engine.cache_tokens, "
      "engine.max_sequences or engine.prefill_rows, or free memory",
      static_cast<double>(needed) / kMiB, static_cast<double>(available) / kMiB, lines);
}

std::string_view step_kind_name(StepKind kind) {
  switch (kind) {
    case StepKind::kPrefill:
      return "prefill";
    case StepKind::kDecode:
      return "decode";
    case StepKind::kVerify:
      return "verify";
  }
  return "unknown";
}

std::string Bucket::to_string() const {
  return fmt::format("{} of {} rows, {} with logits", step_kind_name(kind), rows, logit_rows);
}

const StepPlan* Plan::find(const Bucket& bucket) const {
  const auto found = std::find_if(steps.begin(), steps.end(),
                                  [&](const StepPlan& step) { return step.bucket == bucket; });
  return found == steps.end() ? nullptr : &*found;
}

}  // namespace atlas::plan

// Reachability in the graph of a step's records, and the overlap of the places that they name.
#include "daemon/plan/concurrency.h"

#include <algorithm>

namespace atlas::plan {
namespace {

/// Whether two places of one buffer can have a byte in common.
bool overlap(const AtlasBufferRef& a, const AtlasBufferRef& b) {
  if (a.row_bytes == 0 || b.row_bytes == 0) return true;
  // Columns of the same rows.
  return a.offset < b.offset + b.row_bytes && b.offset < a.offset + a.row_bytes;
}

bool is_packed_weight(const Plan& plan, BufferId buffer) {
  return std::any_of(plan.weights.begin(), plan.weights.end(),
                     [&](const Weight& weight) { return weight.buffer == buffer; });
}

/// For each record the set of those that have ended when it begins, as bits.
class Order {
 public:
  explicit Order(const std::vector<Record>& records)
      : words_((records.size() + 63) / 64), before_(records.size() * words_) {
    for (uint32_t i = 1; i < records.size(); ++i) {
      if (records[i].after.empty()) follow(i, i - 1);
      for (const uint32_t j : records[i].after) follow(i, j);
    }
  }
  bool follows(uint32_t i, uint32_t j) const { return (row(i)[j / 64] >> j % 64 & 1) != 0; }

 private:
  const uint64_t* row(uint32_t i) const { return before_.data() + i * words_; }
  void follow(uint32_t i, uint32_t j) {
    uint64_t* to = before_.data() + i * words_;
    for (size_t word = 0; word < words_; ++word) to[word] |= row(j)[word];
    to[j / 64] |= uint64_t{1} << j % 64;
  }

  size_t words_;
  std::vector<uint64_t> before_;
};

}  // namespace

Status check_beside(const Plan& plan, const Record& a, const Record& b) {
  for (const AtlasRelocation& one : a.relocations) {
    for (const AtlasRelocation& other : b.relocations) {
      if (one.target.buffer != other.target.buffer || !overlap(one.target, other.target)) continue;
      const bool read = one.access == ATLAS_ACCESS_READS && other.access == ATLAS_ACCESS_READS;
      if (read && !is_packed_weight(plan, one.target.buffer)) continue;
      return internal_error(
          "'{}' of {} (kernel {}) and '{}' of {} (kernel {}) may run at the same time, and both "
          "name buffer '{}', which {}",
          a.operation, a.owner, a.kernel, b.operation, b.owner, b.kernel,
          plan.buffers[one.target.buffer].name,
          read ? "is a packed weight" : "one of them may write");
    }
  }
  return {};
}

Status check_concurrency(const Plan& plan, const StepPlan& step) {
  const std::vector<Record>& records = step.records;
  for (uint32_t i = 0; i < records.size(); ++i) {
    for (const uint32_t before : records[i].after) {
      if (before < i) continue;
      return internal_error(
          "record {} of {}, '{}' (kernel {}), is to follow record {}, which does "
          "not stand before it",
          i, step.bucket.to_string(), records[i].operation, records[i].kernel, before);
    }
  }
  const Order order(records);
  for (uint32_t i = 1; i < records.size(); ++i) {
    for (uint32_t j = 0; j < i; ++j) {
      if (order.follows(i, j)) continue;
      const Status status = check_beside(plan, records[j], records[i]);
      if (!status.ok()) return status.with_context(step.bucket.to_string());
    }
  }
  return {};
}

}  // namespace atlas::plan

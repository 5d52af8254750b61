// Steps of one layer of an attention plugin over rows and spans that a test builds itself: which
// rows count, which anchor a sequence starts from. The plugin's records run over the CPU pack.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/common/control.h"
#include "plugins/abi/atlas_plugin.h"
#include "tests/support/attention_plugin.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/numbers.h"

namespace atlas::test {

/// Records of a plan, with their parameters copied and relocated.
class PlannedRecords {
 public:
  AtlasRecordSink sink() { return {sizeof(AtlasRecordSink), 0, this, collect}; }
  bool empty() const { return records_.empty(); }

  /// places[i]: where buffer i lies.
  void relocate(const std::vector<void*>& places) {
    for (Record& record : records_) {
      for (const AtlasRelocation& relocation : record.relocations) {
        const auto address = reinterpret_cast<uint64_t>(places.at(relocation.target.buffer)) +
                             relocation.target.offset;
        std::memcpy(reinterpret_cast<std::byte*>(record.params.data()) + relocation.param_offset,
                    &address, sizeof(address));
      }
    }
  }
  /// The pointer at `offset` of the last record's parameters becomes buffer `buffer`.
  void point_last(uint32_t offset, uint32_t buffer) {
    records_.back().relocations.push_back({offset, 0, {buffer, 0, 0}});
  }
  /// Calls what(record, params) for each record, its parameters relocated.
  template <typename What>
  void each(const What& what) const {
    for (const Record& record : records_) what(record.head, record.params.data());
  }
  void run(const CpuPack& pack, Split split) const {
    for (const Record& record : records_) {
      pack.run_raw(record.head.kernel, record.params.data(),
                   record.head.grid[0] * record.head.grid[1] * record.head.grid[2], split,
                   record.head.shared_bytes);
    }
  }
  /// Whether every kernel of the plan is in the pack, with the digest that the plan names.
  bool known_to(const CpuPack& pack) const {
    for (const Record& record : records_) {
      if (!pack.has(record.head.kernel)) return false;
      if (pack.params_digest(record.head.kernel) != record.head.params_digest) return false;
    }
    return !records_.empty();
  }

 private:
  struct Record {
    AtlasRecord head;
    std::vector<uint64_t> params;  // aligned as the struct is
    std::vector<AtlasRelocation> relocations;
  };
  static AtlasCode collect(void* context, const AtlasRecord* record, AtlasError*) {
    Record copy{*record, std::vector<uint64_t>((record->params_size + 7) / 8), {}};
    std::memcpy(copy.params.data(), record->params, record->params_size);
    copy.relocations.assign(record->relocations, record->relocations + record->relocation_count);
    static_cast<PlannedRecords*>(context)->records_.push_back(std::move(copy));
    return ATLAS_OK;
  }
  std::vector<Record> records_;
};

/// A sequence's rows in a step: `counted` of them count (rejected ones follow), all unless said.
struct RowPart {
  uint32_t slot;
  uint32_t rows;
  uint32_t counted = ~0u;
};

/// Slots, their anchors and pages, and the rows and spans of one step after another.
class HandRows {
 public:
  HandRows(uint32_t max_rows, uint32_t slots, uint32_t pages_a_slot, uint32_t anchors,
           uint32_t anchor_tokens)
      : rows_(max_rows),
        spans_(slots),
        table_(size_t{slots} * pages_a_slot),
        anchor_tokens_(anchor_tokens) {
    control_.limits.max_rows = max_rows;
    control_.limits.max_slots = control_.limits.max_sequences = slots;
    control_.limits.max_pages = pages_a_slot;
    control_.limits.pool_pages = slots * pages_a_slot;
    control_.limits.max_positions = pages_a_slot * 64;
    control_.limits.anchor_tokens = anchor_tokens;
    control_.limits.anchors = anchors;
    control_.block_table = table_.data();
    control_.step.rows = rows_.data();
    control_.step.spans = spans_.data();
    // Pages are scattered: every slot's descend, slots interleaved.
    for (uint32_t s = 0; s < slots; ++s) {
      for (uint32_t p = 0; p < pages_a_slot; ++p) {
        table_[s * pages_a_slot + p] = (pages_a_slot - 1 - p) * slots + s;
      }
    }
  }

  kernels::StepControl& control() { return control_; }
  uint32_t length(uint32_t slot) { return states_[slot].length; }
  uint32_t anchor(uint32_t slot) { return states_[slot].anchor; }
  uint32_t anchor_index(uint32_t slot) { return states_[slot].anchor_index; }

  /// The slot goes on from an anchor of any slot, or begins anew.
  void restart(uint32_t slot, uint32_t anchor = kernels::kNoAnchor, uint32_t anchor_index = 0) {
    states_[slot] = {anchor_index, anchor, anchor_index};
  }
  /// The slot gets longer by rows that ran somewhere else.
  void advance(uint32_t slot, uint32_t rows) { states_[slot].length += rows; }
  /// The slot's pages are another's from now on.
  void share_pages(uint32_t slot, uint32_t of) {
    const uint32_t pages = control_.limits.max_pages;
    std::copy_n(table_.begin() + of * pages, pages, table_.begin() + slot * pages);
  }

  /// Fills rows and spans as control_fetch does.
  void begin(const std::vector<RowPart>& parts) {
    kernels::RowSet& set = control_.step;
    set.row_count = set.span_count = 0;
    for (const RowPart& part : parts) {
      const State& state = states_[part.slot];
      kernels::RowSpan& span = spans_.at(set.span_count);
      span = {};
      span.sequence = set.span_count++;
      span.slot = part.slot;
      span.first_row = set.row_count;
      span.row_count = part.rows;
      span.index = state.length;
      span.anchor = state.anchor;
      span.anchor_index = state.anchor_index;
      span.next_anchor = kernels::kNoAnchor;
      span.next_index = (state.length + part.rows - 1) / anchor_tokens_ * anchor_tokens_;
      if (span.next_index > state.anchor_index) {
        span.next_anchor = next_anchor_++;
        if (next_anchor_ > control_.limits.anchors) throw std::runtime_error("too few anchors");
      }
      for (uint32_t r = 0; r < part.rows; ++r) {
        kernels::RowInput& row = rows_.at(set.row_count++);
        row = {};
        row.sequence = span.sequence;
        row.slot = part.slot;
        row.index = state.length + r;
        for (int32_t& position : row.position) position = static_cast<int32_t>(row.index);
      }
    }
    control_.sequence_count = set.span_count;
  }
  /// Counts rows and takes anchors over, as control_commit does.
  void end(const std::vector<RowPart>& parts) {
    for (size_t s = 0; s < parts.size(); ++s) {
      State& state = states_[parts[s].slot];
      state.length += std::min(parts[s].rows, parts[s].counted);
      if (spans_[s].next_anchor == kernels::kNoAnchor) continue;
      if (state.length < spans_[s].next_index) throw std::runtime_error("a rejected anchor");
      state.anchor = spans_[s].next_anchor;
      state.anchor_index = spans_[s].next_index;
    }
  }

 private:
  struct State {
    uint32_t length = 0;
    uint32_t anchor = kernels::kNoAnchor;
    uint32_t anchor_index = 0;
  };
  std::vector<kernels::RowInput> rows_;
  std::vector<kernels::RowSpan> spans_;
  std::vector<uint32_t> table_;
  uint32_t anchor_tokens_;
  uint32_t next_anchor_ = 0;
  std::map<uint32_t, State> states_;
  kernels::StepControl control_{};
};

/// Rows of `slot` up to `positions`, in steps of the sizes given in turn.
template <typename Steps>
std::vector<float> in_steps(Steps& steps, uint32_t slot, uint32_t positions,
                            const std::vector<uint32_t>& sizes, Split split = {}) {
  std::vector<float> all;
  for (uint32_t i = 0; steps.rows().length(slot) < positions; ++i) {
    const uint32_t left = positions - steps.rows().length(slot);
    append(all, steps.step({{slot, std::min(sizes[i % sizes.size()], left)}}, split));
  }
  return all;
}

/// The same in verify steps of up to 8 rows, some of them rejected, that end before the next
/// multiple of `chunk`.
template <typename Steps>
std::vector<float> in_verify_steps(Steps& steps, uint32_t slot, uint32_t positions, uint32_t seed,
                                   uint32_t chunk) {
  std::mt19937 random(seed);
  std::vector<float> all;
  while (steps.rows().length(slot) < positions) {
    const uint32_t length = steps.rows().length(slot);
    const uint32_t rows =
        std::min<uint32_t>(1 + random() % kernels::kMaxVerifyRows, chunk - length % chunk);
    const uint32_t counted = std::min<uint32_t>(1 + random() % rows, positions - length);
    append(all, steps.step({{slot, rows, counted}}));
  }
  return all;
}

}  // namespace atlas::test

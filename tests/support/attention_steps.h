// Runs steps of one attention layer: the plugin's records, relocated, over the CPU pack; and the
// same attention in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/gqa.h"
#include "plugins/abi/atlas_plugin.h"
#include "tests/support/attention_plugin.h"
#include "tests/support/control_block.h"
#include "tests/support/numbers.h"

namespace atlas::test {

/// The table of the built plugin `gqa`.
inline const AtlasAttentionApi& gqa_plugin() {
  static const AtlasAttentionApi& api = attention_plugin("gqa");
  return api;
}

struct AttentionShape {
  uint32_t heads, kv_heads, head_dim;
};

/// A record as the plugin emitted it.
struct PlannedRecord {
  AtlasRecord record;
  std::vector<std::byte> params;
  std::vector<AtlasRelocation> relocations;
};

inline AtlasCode collect_record(void* context, const AtlasRecord* record, AtlasError*) {
  const auto* params = static_cast<const std::byte*>(record->params);
  static_cast<std::vector<PlannedRecord>*>(context)->push_back(
      {*record,
       {params, params + record->params_size},
       {record->relocations, record->relocations + record->relocation_count}});
  return ATLAS_OK;
}

/// A valid problem of `shape`; the ids of its buffers are those of AttentionSteps.
inline AtlasAttentionProblem attention_problem(const AttentionShape& shape, uint32_t max_rows,
                                               uint32_t max_pages) {
  AtlasAttentionProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = max_rows;
  problem.platform = "cpu";
  problem.backend = "gqa";
  problem.heads = shape.heads;
  problem.kv_heads = shape.kv_heads;
  problem.head_dim = shape.head_dim;
  problem.max_sequences = 8;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  problem.max_pages = max_pages;
  problem.q_stride = shape.heads * shape.head_dim + 5;
  problem.k_stride = shape.kv_heads * shape.head_dim + 1;
  problem.v_stride = shape.kv_heads * shape.head_dim + 2;
  problem.out_stride = shape.heads * shape.head_dim + 3;
  problem.q.buffer = 0;
  problem.k.buffer = 1;
  problem.v.buffer = 2;
  problem.out.buffer = 3;
  problem.control.buffer = 4;
  problem.rows = {4, 0, offsetof(kernels::StepControl, step)};
  problem.pages.buffer = 5;
  problem.workspace.buffer = 6;
  problem.page_stride =
      shape.kv_heads * kernels::gqa_head_floats(shape.head_dim) * sizeof(float) + 256;
  return problem;
}

/// Queries, keys and values of a slot at every position, from the slot's number alone.
class SlotValues {
 public:
  SlotValues(const AttentionShape& shape, uint32_t slot, uint32_t positions, float deviation)
      : q(normal_values(size_t{positions} * shape.heads * shape.head_dim, slot * 3 + 1, deviation)),
        k(normal_values(size_t{positions} * shape.kv_heads * shape.head_dim, slot * 3 + 2)),
        v(normal_values(size_t{positions} * shape.kv_heads * shape.head_dim, slot * 3 + 3)) {}
  std::vector<float> q, k, v;
};

/// A layer with its pages, which hold NaN wherever nothing was written. Page numbers are scattered.
class AttentionSteps {
 public:
  /// `max_positions` of a slot, a multiple of a page; `max_rows` of a step.
  AttentionSteps(const CpuPack& pack, const AttentionShape& shape, uint32_t max_positions,
                 uint32_t max_rows, float deviation = 1.0f)
      : pack_(pack), shape_(shape), deviation_(deviation), block_(limits(max_positions, max_rows)) {
    problem_ = attention_problem(shape, max_rows, block_.limits().max_pages);
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    if (gqa_plugin().needs(&problem_, &needs, &error) != ATLAS_OK) {
      throw std::runtime_error(error.message);
    }
    pages_.assign(problem_.page_stride / sizeof(float) * block_.limits().pool_pages, NAN);
    workspace_.assign(needs.workspace_bytes / sizeof(float), NAN);
    q_.assign(max_rows * problem_.q_stride, NAN);
    k_.assign(max_rows * problem_.k_stride, NAN);
    v_.assign(max_rows * problem_.v_stride, NAN);
    out_.assign(max_rows * problem_.out_stride, NAN);
    AtlasRecordSink sink{sizeof(sink), 0, &records_, collect_record};
    if (gqa_plugin().plan(&problem_, &sink, &error) != ATLAS_OK) {
      throw std::runtime_error(error.message);
    }
    relocate();
  }

  SlotValues& values(uint32_t slot) {
    const auto found = values_.find(slot);
    if (found != values_.end()) return found->second;
    return values_
        .emplace(slot, SlotValues(shape_, slot, block_.limits().max_positions, deviation_))
        .first->second;
  }

  /// Rows that follow for a slot.
  struct Part {
    uint32_t slot, rows;
  };

  /// One step; `attend` false only writes keys and values. Returns out, a row after the other.
  std::vector<float> step(const std::vector<Part>& parts, Split split = {}, bool attend = true) {
    std::vector<Share> shares;
    std::vector<kernels::PageUpdate> pages;
    uint32_t row = 0;
    for (const Part& part : parts) {
      uint32_t& length = lengths_[part.slot];
      Share share;
      share.slot = part.slot;
      share.flags = length == 0 ? uint32_t{kernels::kSequenceReset} : 0;
      share.ids.assign(part.rows, 1);
      shares.push_back(share);
      for (uint32_t i = 0; i < part.rows; ++i, ++row, ++length) {
        if (length % kernels::kGqaPageTokens == 0) {
          // 7 and the pool's size have no common factor: every page once, in no order.
          pages.push_back({part.slot, length / kernels::kGqaPageTokens,
                           next_page_++ * 7 % block_.limits().pool_pages, 0});
        }
        copy_row(values(part.slot), length, row);
      }
    }
    block_.submit(++step_, shares, pages);
    block_.fetch(pack_);
    if (block_.control().error != 0) throw std::runtime_error("the step's entry is wrong");
    for (PlannedRecord& record : records_) {
      if (!attend && record.record.kernel == std::string("gqa_attend")) continue;
      run(record, split);
    }
    block_.commit(pack_);
    const size_t width = size_t{shape_.heads} * shape_.head_dim;
    std::vector<float> result;
    for (uint32_t r = 0; r < row; ++r) {
      const float* from = out_.data() + r * problem_.out_stride;
      result.insert(result.end(), from, from + width);
    }
    return result;
  }

  /// The row at `position` of a slot, in float64.
  std::vector<double> exact(uint32_t slot, uint32_t position) {
    const SlotValues& all = values(slot);
    const size_t d = shape_.head_dim, group = shape_.heads / shape_.kv_heads;
    std::vector<double> out(shape_.heads * d, 0.0);
    for (size_t h = 0; h < shape_.heads; ++h) {
      const float* q = &all.q[(position * shape_.heads + h) * d];
      std::vector<double> weights(position + 1);
      double largest = -HUGE_VAL, sum = 0;
      for (size_t j = 0; j <= position; ++j) {
        const float* k = &all.k[(j * shape_.kv_heads + h / group) * d];
        for (size_t i = 0; i < d; ++i) weights[j] += double{q[i]} * double{k[i]};
        weights[j] *= double{problem_.scale};
        largest = std::max(largest, weights[j]);
      }
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      for (size_t j = 0; j <= position; ++j) {
        const float* v = &all.v[(j * shape_.kv_heads + h / group) * d];
        for (size_t i = 0; i < d; ++i) out[h * d + i] += weights[j] / sum * double{v[i]};
      }
    }
    return out;
  }

  /// The record of `kernel`.
  PlannedRecord& record(const std::string& kernel) {
    for (PlannedRecord& record : records_) {
      if (record.record.kernel == kernel) return record;
    }
    throw std::runtime_error("the plan has no " + kernel);
  }

 private:
  static kernels::ControlLimits limits(uint32_t max_positions, uint32_t max_rows) {
    kernels::ControlLimits limits = small_limits();
    limits.max_rows = max_rows;
    limits.max_positions = max_positions;
    limits.max_pages = (max_positions + 63) / 64;
    limits.pool_pages = limits.max_slots * limits.max_pages;
    while (limits.pool_pages % 7 == 0) ++limits.pool_pages;
    limits.max_page_updates = max_rows / 64 + 2 * limits.max_sequences;
    return limits;
  }

  void copy_row(const SlotValues& from, uint32_t position, uint32_t row) {
    const size_t wide = size_t{shape_.heads} * shape_.head_dim;
    const size_t narrow = size_t{shape_.kv_heads} * shape_.head_dim;
    std::copy_n(from.q.data() + position * wide, wide, q_.data() + row * problem_.q_stride);
    std::copy_n(from.k.data() + position * narrow, narrow, k_.data() + row * problem_.k_stride);
    std::copy_n(from.v.data() + position * narrow, narrow, v_.data() + row * problem_.v_stride);
  }

  void relocate() {
    void* const places[] = {q_.data(),         k_.data(),     v_.data(),        out_.data(),
                            &block_.control(), pages_.data(), workspace_.data()};
    for (PlannedRecord& record : records_) {
      for (const AtlasRelocation& relocation : record.relocations) {
        const auto address =
            reinterpret_cast<uint64_t>(places[relocation.target.buffer]) + relocation.target.offset;
        std::memcpy(record.params.data() + relocation.param_offset, &address, sizeof(address));
      }
    }
  }

  void run(const PlannedRecord& planned, Split split) {
    const auto as = [&planned]<typename Params>(Params params) {
      if (planned.params.size() != sizeof(params)) throw std::runtime_error("parameter size");
      std::memcpy(&params, planned.params.data(), sizeof(params));
      return params;
    };
    const AtlasRecord& record = planned.record;
    const uint32_t tasks = record.grid[0] * record.grid[1] * record.grid[2];
    if (record.kernel == std::string("gqa_write")) {
      pack_.run(record.kernel, as(kernels::GqaWriteParams{}), tasks, split, record.shared_bytes);
    } else {
      pack_.run(record.kernel, as(kernels::GqaAttendParams{}), tasks, split, record.shared_bytes);
    }
  }

  const CpuPack& pack_;
  AttentionShape shape_;
  float deviation_;
  ControlBlock block_;
  AtlasAttentionProblem problem_{};
  std::vector<float> pages_, workspace_, q_, k_, v_, out_;
  std::vector<PlannedRecord> records_;
  std::map<uint32_t, SlotValues> values_;
  std::map<uint32_t, uint32_t> lengths_;
  uint64_t step_ = 0;
  uint32_t next_page_ = 1;
};

}  // namespace atlas::test

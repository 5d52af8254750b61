// Runs steps of one attention layer on a GPU platform: the plugin's records with their grids,
// blocks and shared memory, over a GpuMachine; and the same attention in float64 over bf16
// operands.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/common/gpu_attention.h"
#include "tests/support/attention_steps.h"
#include "tests/support/gpu_machine.h"

namespace atlas::test {

inline float rounded_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

struct GpuBucket {
  uint32_t max_positions;  // a multiple of a page
  uint32_t max_rows;
  uint32_t max_sequences = 8;
};

/// A step's control block on a GpuMachine, as control_fetch leaves it. Page numbers are scattered.
class GpuControl {
 public:
  GpuControl(GpuMachine& machine, const GpuBucket& bucket) : machine_(machine), bucket_(bucket) {
    pages_ = bucket.max_positions / kernels::kGqaPageTokens;
    pool_ = kSlots * pages_;
    while (pool_ % 7 == 0) ++pool_;
    table_.assign(size_t{kSlots} * pages_, kNoPage);
    rows_ = machine.in_out("rows", std::vector<kernels::RowInput>(bucket.max_rows));
    spans_ = machine.in_out("spans", std::vector<kernels::RowSpan>(bucket.max_sequences));
    table_buffer_ = machine.in_out("table", table_);
    control_.resize(1);
    control_[0].limits.max_pages = pages_;
    control_[0].block_table = table_buffer_;
    control_[0].step = {rows_, spans_, 0, 0};
    buffer_ = machine.in_out("control", control_);
  }

  static constexpr uint32_t kSlots = 8;
  static constexpr uint32_t kNoPage = 0xffffffffu;
  uint32_t pool_pages() const { return pool_; }
  kernels::StepControl* buffer() const { return buffer_; }
  uint32_t length(uint32_t slot) { return lengths_[slot]; }

  struct Part {
    uint32_t slot, rows;
  };
  /// The next rows of some slots; `place` is called for each with its slot, position and row.
  template <typename Place>
  uint32_t begin(const std::vector<Part>& parts, const Place& place) {
    std::vector<kernels::RowInput> rows;
    std::vector<kernels::RowSpan> spans;
    for (const Part& part : parts) {
      uint32_t& length = lengths_[part.slot];
      kernels::RowSpan span{};
      span.sequence = static_cast<uint32_t>(spans.size());
      span.slot = part.slot;
      span.first_row = static_cast<uint32_t>(rows.size());
      span.row_count = part.rows;
      span.index = length;
      spans.push_back(span);
      for (uint32_t i = 0; i < part.rows; ++i, ++length) {
        const size_t page = part.slot * size_t{pages_} + length / kernels::kGqaPageTokens;
        // 7 and the pool's size have no common factor: every page once, in no order.
        if (table_[page] == kNoPage) table_[page] = next_page_++ * 7 % pool_;
        kernels::RowInput row{};
        row.sequence = span.sequence;
        row.slot = part.slot;
        row.index = length;
        place(part.slot, length, static_cast<uint32_t>(rows.size()));
        rows.push_back(row);
      }
    }
    if (rows.size() > bucket_.max_rows || spans.size() > bucket_.max_sequences) {
      throw std::runtime_error("the step does not fit its bucket");
    }
    control_[0].step.row_count = static_cast<uint32_t>(rows.size());
    control_[0].step.span_count = static_cast<uint32_t>(spans.size());
    machine_.write(buffer_, control_);
    machine_.write(table_buffer_, table_);
    if (!rows.empty()) machine_.write(rows_, rows);
    if (!spans.empty()) machine_.write(spans_, spans);
    return control_[0].step.row_count;
  }
  uint32_t page(uint32_t slot, uint32_t number) const { return table_[slot * pages_ + number]; }
  /// The slot goes on from `index`, with the pages of another.
  void go_on(uint32_t slot, uint32_t from, uint32_t index) {
    std::copy_n(table_.begin() + from * pages_, pages_, table_.begin() + slot * pages_);
    lengths_[slot] = index;
  }
  /// Takes back a slot's last positions, as a rejected draft is.
  void drop(uint32_t slot, uint32_t rows) { lengths_[slot] -= rows; }

 private:
  GpuMachine& machine_;
  GpuBucket bucket_;
  uint32_t pages_ = 0, pool_ = 0, next_page_ = 1;
  std::vector<uint32_t> table_;
  std::vector<kernels::StepControl> control_;
  kernels::StepControl* buffer_ = nullptr;
  kernels::RowInput* rows_ = nullptr;
  kernels::RowSpan* spans_ = nullptr;
  uint32_t* table_buffer_ = nullptr;
  std::map<uint32_t, uint32_t> lengths_;
};

/// Runs a planned record, relocated to buffers of a machine.
template <typename Params>
simt::Report run_planned(GpuMachine& machine, const PlannedRecord& planned,
                         const std::vector<void*>& buffers, uint64_t seed) {
  Params params{};
  if (planned.params.size() != sizeof(params)) throw std::runtime_error("parameter size");
  std::memcpy(&params, planned.params.data(), sizeof(params));
  for (const AtlasRelocation& relocation : planned.relocations) {
    const uint64_t address =
        reinterpret_cast<uint64_t>(buffers.at(relocation.target.buffer)) + relocation.target.offset;
    std::memcpy(reinterpret_cast<std::byte*>(&params) + relocation.param_offset, &address,
                sizeof(address));
  }
  const AtlasRecord& record = planned.record;
  return machine.run(record.kernel, params, record.params_digest,
                     {.shape = {record.grid[0], record.grid[1], record.grid[2], record.block[0],
                                record.shared_bytes},
                      .seed = seed});
}

/// Rows [first, end) of results of `width` a row.
inline std::vector<float> rows_of(const std::vector<float>& all, size_t width, size_t first,
                                  size_t end) {
  return {all.begin() + first * width, all.begin() + end * width};
}

/// A dense layer with its pages, which nothing has written at first.
class GpuAttentionSteps {
 public:
  using Part = GpuControl::Part;

  GpuAttentionSteps(const std::string& platform, const AttentionShape& shape,
                    const GpuBucket& bucket, float deviation = 1.0f)
      : platform_(platform),
        shape_(shape),
        bucket_(bucket),
        deviation_(deviation),
        capacity_(std::max(bucket.max_rows, 128u)),
        machine_(platform),
        control_(machine_, {bucket.max_positions, capacity_, bucket.max_sequences}) {
    problem_ =
        attention_problem(shape, bucket.max_rows, bucket.max_positions / kernels::kGqaPageTokens);
    problem_.platform = platform_.c_str();
    problem_.max_sequences = bucket.max_sequences;
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    if (gqa_plugin().needs(&problem_, &needs, &error) != ATLAS_OK) {
      throw std::runtime_error(error.message);
    }
    problem_.page_stride = needs.bytes_per_page + 256;
    AtlasRecordSink sink{sizeof(sink), 0, &records_, collect_record};
    if (gqa_plugin().plan(&problem_, &sink, &error) != ATLAS_OK) {
      throw std::runtime_error(error.message);
    }
    q_.assign(capacity_ * problem_.q_stride, NAN);
    k_.assign(capacity_ * problem_.k_stride, NAN);
    v_.assign(capacity_ * problem_.v_stride, NAN);
    buffers_ = {
        machine_.in_out("q", q_),
        machine_.in_out("k", k_),
        machine_.in_out("v", v_),
        out_ = machine_.output<float>("out", bucket.max_rows * problem_.out_stride),
        control_.buffer(),
        machine_.output<uint8_t>("pages", problem_.page_stride * control_.pool_pages()),
        machine_.output<uint8_t>("workspace", std::max<uint64_t>(needs.workspace_bytes, 1))};
  }

  SlotValues& values(uint32_t slot) {
    const auto found = values_.find(slot);
    if (found != values_.end()) return found->second;
    return values_.emplace(slot, SlotValues(shape_, slot, bucket_.max_positions, deviation_))
        .first->second;
  }

  /// One step; `attend` false only writes keys and values, of more rows than the bucket's if need
  /// be. Returns out, a row after the other.
  std::vector<float> step(const std::vector<Part>& parts, uint64_t seed = 0, bool attend = true) {
    const uint32_t rows = control_.begin(parts, [&](uint32_t slot, uint32_t position,
                                                    uint32_t row) {
      const size_t wide = size_t{shape_.heads} * shape_.head_dim;
      const size_t narrow = size_t{shape_.kv_heads} * shape_.head_dim;
      const SlotValues& from = values(slot);
      std::copy_n(from.q.data() + position * wide, wide, q_.data() + row * problem_.q_stride);
      std::copy_n(from.k.data() + position * narrow, narrow, k_.data() + row * problem_.k_stride);
      std::copy_n(from.v.data() + position * narrow, narrow, v_.data() + row * problem_.v_stride);
    });
    machine_.write(static_cast<float*>(buffers_[0]), q_);
    machine_.write(static_cast<float*>(buffers_[1]), k_);
    machine_.write(static_cast<float*>(buffers_[2]), v_);
    reports_.clear();
    for (PlannedRecord record : records_) {
      const std::string kernel = record.record.kernel;
      if (!attend && kernel != "gqa_write") continue;
      if (!attend) record.record.grid[0] = capacity_;
      reports_[kernel] =
          kernel == "gqa_write"
              ? run_planned<kernels::GqaWriteParams>(machine_, record, buffers_, seed)
              : run_planned<kernels::GqaAttendParams>(machine_, record, buffers_, seed);
      if (!reports_[kernel].ok()) throw std::runtime_error(reports_[kernel].text());
    }
    if (!attend) return {};
    const std::vector<float> all = machine_.contents(out_, std::nanf(""));
    const size_t width = size_t{shape_.heads} * shape_.head_dim;
    std::vector<float> result;
    for (uint32_t r = 0; r < rows; ++r) {
      const float* from = all.data() + r * problem_.out_stride;
      result.insert(result.end(), from, from + width);
    }
    return result;
  }
  /// Positions [the slot's length, end) are written, not attended.
  void fill(uint32_t slot, uint32_t end) {
    while (control_.length(slot) < end) {
      step({{slot, std::min(capacity_, end - control_.length(slot))}}, 0, false);
    }
  }
  void drop(uint32_t slot, uint32_t rows) { control_.drop(slot, rows); }

  /// The row at `position` of a slot, in float64, over queries, keys and values in bf16.
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
        for (size_t i = 0; i < d; ++i) {
          weights[j] += double{rounded_bf16(q[i])} * double{rounded_bf16(k[i])};
        }
        weights[j] *= double{problem_.scale};
        largest = std::max(largest, weights[j]);
      }
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      for (size_t j = 0; j <= position; ++j) {
        const float* v = &all.v[(j * shape_.kv_heads + h / group) * d];
        for (size_t i = 0; i < d; ++i) {
          out[h * d + i] += weights[j] / sum * double{rounded_bf16(v[i])};
        }
      }
    }
    return out;
  }

  const simt::Report& report(const std::string& kernel) const { return reports_.at(kernel); }
  const std::vector<PlannedRecord>& records() const { return records_; }

 private:
  std::string platform_;
  AttentionShape shape_;
  GpuBucket bucket_;
  float deviation_;
  uint32_t capacity_;  // rows that the buffers hold
  GpuMachine machine_;
  GpuControl control_;
  AtlasAttentionProblem problem_{};
  std::vector<PlannedRecord> records_;
  std::vector<float> q_, k_, v_;
  std::vector<void*> buffers_;
  float* out_ = nullptr;
  std::map<uint32_t, SlotValues> values_;
  std::map<std::string, simt::Report> reports_;
};

}  // namespace atlas::test

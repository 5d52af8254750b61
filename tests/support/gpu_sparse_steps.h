// One layer of plugin `qsa` on a GPU platform, step by step over a GpuMachine, and the same choice
// and attention in float64 over bf16 operands.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/common/codecs.h"
#include "kernels/common/gpu_qsa.h"
#include "tests/support/gpu_attention_steps.h"
#include "tests/support/sparse_steps.h"

namespace atlas::test {

/// A layer with pages, which nothing has written at first, and slots, which hold NaN.
class GpuSparseSteps {
 public:
  using Part = GpuControl::Part;

  GpuSparseSteps(const std::string& platform, const SparseShape& shape, const GpuBucket& bucket)
      : platform_(platform),
        shape_(shape),
        bucket_(bucket),
        capacity_(std::max(bucket.max_rows, 128u)),
        machine_(platform),
        control_(machine_, {bucket.max_positions, capacity_, bucket.max_sequences}) {
    const uint32_t max_pages = bucket.max_positions / kernels::kGqaPageTokens;
    fill_sparse_problem(problem_, shape, bucket.max_rows, max_pages);
    AtlasAttentionProblem& p = problem_.problem;
    p.platform = platform_.c_str();
    p.max_sequences = bucket.max_sequences;
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    if (sparse_plugin("qsa").needs(&p, &needs, &error) != ATLAS_OK) {
      throw std::runtime_error(error.message);
    }
    p.page_stride = needs.bytes_per_page + 64;
    AtlasRecordSink sink{sizeof(sink), 0, &records_, collect_record};
    if (sparse_plugin("qsa").plan(&p, &sink, &error) != ATLAS_OK) {
      throw std::runtime_error(error.message);
    }
    const uint32_t rows = capacity_;
    q_.assign(rows * p.q_stride, NAN);
    k_.assign(rows * p.k_stride, NAN);
    v_.assign(rows * p.v_stride, NAN);
    index_q_.assign(rows * problem_.indexer.q_stride, NAN);
    index_k_.assign(rows * problem_.indexer.k_stride, NAN);
    std::vector<float> frequencies = sparse_frequencies(shape);
    frequencies.resize(std::max<size_t>(frequencies.size(), 1));  // a buffer has an address
    pages_ = machine_.output<uint8_t>("pages", p.page_stride * control_.pool_pages());
    out_ = machine_.output<float>("out", rows * p.out_stride);
    buffers_.assign(kWork + 1, nullptr);
    buffers_[kQ] = machine_.in_out("q", q_);
    buffers_[kK] = machine_.in_out("k", k_);
    buffers_[kV] = machine_.in_out("v", v_);
    buffers_[kIndexQ] = machine_.in_out("index_q", index_q_);
    buffers_[kIndexK] = machine_.in_out("index_k", index_k_);
    buffers_[kNorm] = machine_.in_out("k_norm", sparse_norm(shape));
    buffers_[kFrequencies] = machine_.in_out("frequencies", frequencies);
    buffers_[kOut] = out_;
    buffers_[kControl] = control_.buffer();
    buffers_[kPages] = pages_;
    buffers_[kSlots] = machine_.in_out(
        "slots", std::vector<float>(GpuControl::kSlots * p.slot_stride / sizeof(float), NAN));
    buffers_[kWork] =
        machine_.output<uint8_t>("workspace", std::max<uint64_t>(needs.workspace_bytes, 1));
  }

  size_t width() const { return size_t{shape_.heads} * shape_.head_dim; }
  GpuControl& control() { return control_; }
  const SparseText& text(uint32_t number) {
    const auto found = texts_.find(number);
    if (found != texts_.end()) return found->second;
    return texts_[number] = sparse_text(shape_, number, bucket_.max_positions);
  }
  SparseText& spoil_text(uint32_t number) { return const_cast<SparseText&>(text(number)); }

  /// Runs a step with the texts of the slots' numbers, or `other` instead. `attend` false only
  /// writes, of more rows than the bucket's if need be. Returns out, a row after the other.
  std::vector<float> step(const std::vector<Part>& parts, uint64_t seed = 0, bool attend = true,
                          uint32_t other = ~0u) {
    const AtlasAttentionProblem& p = problem_.problem;
    const uint32_t rows =
        control_.begin(parts, [&](uint32_t slot, uint32_t position, uint32_t row) {
          const SparseText& from = text(other == ~0u ? slot : other);
          const auto put = [&](const std::vector<float>& values, std::vector<float>& to,
                               size_t count, uint64_t stride) {
            std::copy_n(values.data() + position * count, count, to.data() + row * stride);
          };
          put(from.q, q_, width(), p.q_stride);
          put(from.k, k_, size_t{shape_.kv_heads} * shape_.head_dim, p.k_stride);
          put(from.v, v_, size_t{shape_.kv_heads} * shape_.head_dim, p.v_stride);
          put(from.index_q, index_q_, size_t{shape_.index_heads} * shape_.index_dim,
              problem_.indexer.q_stride);
          put(from.index_k, index_k_, shape_.index_dim, problem_.indexer.k_stride);
        });
    machine_.write(static_cast<float*>(buffers_[kQ]), q_);
    machine_.write(static_cast<float*>(buffers_[kK]), k_);
    machine_.write(static_cast<float*>(buffers_[kV]), v_);
    machine_.write(static_cast<float*>(buffers_[kIndexQ]), index_q_);
    machine_.write(static_cast<float*>(buffers_[kIndexK]), index_k_);
    reports_.clear();
    for (PlannedRecord record : records_) {
      const std::string kernel = record.record.kernel;
      if (!attend && kernel != "qsa_write") continue;
      if (!attend) record.record.grid[0] = capacity_;
      if (kernel == "qsa_write") {
        reports_[kernel] = run_planned<kernels::QsaWriteParams>(machine_, record, buffers_, seed);
      } else if (kernel == "qsa_score" || kernel == "qsa_select") {
        reports_[kernel] =
            run_planned<kernels::QsaGpuSelectParams>(machine_, record, buffers_, seed);
      } else {
        reports_[kernel] = run_planned<kernels::QsaAttendParams>(machine_, record, buffers_, seed);
      }
      if (!reports_[kernel].ok()) throw std::runtime_error(reports_[kernel].text());
    }
    if (!attend) return {};
    const std::vector<float> all = machine_.contents(out_, std::nanf(""));
    std::vector<float> result;
    for (uint32_t r = 0; r < rows; ++r) {
      const float* from = all.data() + r * p.out_stride;
      result.insert(result.end(), from, from + width());
    }
    return result;
  }
  /// Positions [the slot's length, end) are written, not attended.
  void fill(uint32_t slot, uint32_t end) {
    while (control_.length(slot) < end) {
      step({{slot, std::min(capacity_, end - control_.length(slot))}}, 0, false);
    }
  }

  /// Index keys of the slot's first `count` blocks, as its pages hold them.
  std::vector<double> stored_keys(uint32_t slot, uint32_t count) {
    const std::vector<uint8_t> bytes = machine_.contents(pages_);
    const uint32_t n = shape_.index_dim, dims = kernels::attention_dims(n);
    const uint32_t page_blocks = kernels::qsa_page_blocks(shape_.ratio);
    std::vector<double> keys(size_t{count} * n);
    for (uint32_t b = 0; b < count; ++b) {
      const uint8_t* key = bytes.data() +
                           control_.page(slot, b / page_blocks) * problem_.problem.page_stride +
                           kernels::qsa_gpu_pooled_offset(shape_.kv_heads, shape_.head_dim) +
                           kernels::attention_key_offset(b % page_blocks, dims);
      for (uint32_t d = 0; d < n; ++d) {
        uint16_t bits;
        std::memcpy(&bits, key + d / 32 * 512 + d % 32 * 2, sizeof(bits));
        keys[size_t{b} * n + d] = double{kernels::bf16_to_f32(bits)};
      }
    }
    return keys;
  }
  /// The same from the text, in float64.
  std::vector<double> exact_keys(uint32_t number, uint32_t count) {
    return pooled_keys(shape_, text(number), count);
  }

  /// The positions that a row attends to, given the index keys; empty if the choice hangs on a
  /// difference that float32 may not see.
  std::vector<uint32_t> chosen(uint32_t number, uint32_t index, const std::vector<double>& keys) {
    const float* q =
        text(number).index_q.data() + size_t{index} * shape_.index_heads * shape_.index_dim;
    return chosen_positions(shape_, index, q, keys, 0, 3e-4);
  }

  /// Attention of a row to a list of positions, in float64.
  std::vector<double> exact(uint32_t number, uint32_t index,
                            const std::vector<uint32_t>& positions) {
    const SparseText& in = text(number);
    const size_t d = shape_.head_dim, group = shape_.heads / shape_.kv_heads;
    std::vector<double> out(width(), 0.0);
    for (size_t h = 0; h < shape_.heads; ++h) {
      const float* q = in.q.data() + index * width() + h * d;
      const auto at = [&](const std::vector<float>& values, uint32_t position) {
        return values.data() + (position * shape_.kv_heads + h / group) * d;
      };
      std::vector<double> weights;
      for (const uint32_t position : positions) {
        double dot = 0;
        for (size_t i = 0; i < d; ++i) {
          dot += double{rounded_bf16(q[i])} * double{rounded_bf16(at(in.k, position)[i])};
        }
        weights.push_back(dot * double{problem_.problem.scale});
      }
      const double largest = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      for (size_t j = 0; j < positions.size(); ++j) {
        for (size_t i = 0; i < d; ++i) {
          out[h * d + i] += weights[j] / sum * double{rounded_bf16(at(in.v, positions[j])[i])};
        }
      }
    }
    return out;
  }

  const simt::Report& report(const std::string& kernel) const { return reports_.at(kernel); }
  const std::vector<PlannedRecord>& records() const { return records_; }

 private:
  std::string platform_;
  SparseShape shape_;
  GpuBucket bucket_;
  uint32_t capacity_;  // rows that the buffers hold
  GpuMachine machine_;
  GpuControl control_;
  SparseProblem problem_;
  std::vector<PlannedRecord> records_;
  std::vector<float> q_, k_, v_, index_q_, index_k_;
  std::vector<void*> buffers_;
  uint8_t* pages_ = nullptr;
  float* out_ = nullptr;
  std::map<uint32_t, SparseText> texts_;
  std::map<std::string, simt::Report> reports_;
};

}  // namespace atlas::test

// Steps of one layer of the plugin `gdn` over texts of random numbers, on the CPU or on a GPU
// platform.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/common/gdn.h"
#include "kernels/common/gpu_weights.h"
#include "tests/support/numbers.h"
#include "tests/support/step_place.h"

namespace atlas::test {

using kernels::GdnShape;

inline const AtlasAttentionApi& gdn() {
  static const AtlasAttentionApi& api = attention_plugin("gdn");
  return api;
}

enum DeltaBuffer : uint32_t {
  kQkv,
  kB,
  kA,
  kConv,
  kALog,
  kDtBias,
  kOut,
  kControl,
  kSlots,
  kAnchors,
  kWork,
  kGate,
  kNormWeight,
  kEncoded
};

struct DeltaProblem {
  AtlasAttentionProblem problem{};
  AtlasDelta delta{};
};

inline void fill_problem(DeltaProblem& p, const GdnShape& shape, uint32_t max_rows) {
  AtlasDelta& delta = p.delta;
  delta.struct_size = sizeof(delta);
  delta.key_heads = shape.key_heads;
  delta.value_heads = shape.value_heads;
  delta.key_dim = shape.key_dim;
  delta.value_dim = shape.value_dim;
  delta.conv_kernel = shape.taps;
  delta.qkv_stride = kernels::gdn_channels(shape) + 3;
  delta.b_stride = shape.value_heads + 1;
  delta.a_stride = shape.value_heads + 2;
  delta.qkv.buffer = kQkv;
  delta.b.buffer = kB;
  delta.a.buffer = kA;
  delta.conv.buffer = kConv;
  delta.a_log.buffer = kALog;
  delta.dt_bias.buffer = kDtBias;
  AtlasAttentionProblem& problem = p.problem;
  problem.struct_size = sizeof(problem);
  problem.max_rows = max_rows;
  problem.platform = "cpu";
  problem.backend = "gdn";
  problem.max_sequences = 8;
  problem.out_stride = shape.value_heads * shape.value_dim + 5;
  problem.out.buffer = kOut;
  problem.control.buffer = kControl;
  problem.rows = {kControl, 0, offsetof(kernels::StepControl, step)};
  problem.slots.buffer = kSlots;
  problem.anchors.buffer = kAnchors;
  problem.workspace.buffer = kWork;
  problem.q.buffer = problem.k.buffer = problem.v.buffer = problem.pages.buffer = ATLAS_NO_BUFFER;
  problem.slot_stride = kernels::align_up(kernels::gdn_slot_floats(shape) * 4, 16) + 64;
  problem.anchor_stride = kernels::align_up(kernels::gdn_anchor_floats(shape) * 4, 16) + 128;
  problem.delta = &delta;
}

/// What a text brings to the layer at every position.
struct DeltaText {
  std::vector<float> qkv, b, a, gate;
};

/// How steps run whose sequences have few rows of one chunk each: by the kernel for them alone, and
/// with norm and gate of the heads.
struct DeltaForm {
  bool few = false;
  bool norms = false, silu = false, encodes = false;
};

/// A layer with slots and anchors, which hold NaN wherever nothing was written.
class DeltaSteps {
 public:
  DeltaSteps(const CpuPack& pack, const GdnShape& shape, uint32_t max_positions, uint32_t max_rows)
      : DeltaSteps(std::make_unique<CpuPlace>(pack), shape, max_positions, max_rows) {}
  DeltaSteps(std::unique_ptr<StepPlace> place, const GdnShape& shape, uint32_t max_positions,
             uint32_t max_rows, DeltaForm form = {})
      : place_(std::move(place)),
        form_(form),
        shape_(shape),
        positions_(max_positions + kernels::kMaxVerifyRows),
        rows_(max_rows, 8, 1, kAnchorCount, kernels::kGdnChunk) {
    fill_problem(problem_, shape, max_rows);
    AtlasAttentionProblem& p = problem_.problem;
    p.platform = place_->platform();
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    if (gdn().needs(&p, &needs, &error) != ATLAS_OK) throw std::runtime_error(error.message);
    qkv_.assign(max_rows * problem_.delta.qkv_stride, NAN);
    b_.assign(max_rows * problem_.delta.b_stride, NAN);
    a_.assign(max_rows * problem_.delta.a_stride, NAN);
    out_.assign(max_rows * p.out_stride, NAN);
    conv_ = normal_values(kernels::gdn_channels(shape) * shape.taps, 1001, 0.7f);
    a_log_ = normal_values(shape.value_heads, 1002, 0.8f);
    dt_bias_ = normal_values(shape.value_heads, 1003, 1.5f);
    AtlasRecordSink sink = records_.sink();
    if (gdn().plan(&p, &sink, &error) != ATLAS_OK) throw std::runtime_error(error.message);
    gate_.assign(max_rows * (width() + 7), NAN);
    norm_weight_ = normal_values(shape.value_dim, 1004);
    if (form.few) plan_few();
    places_ = {copy("qkv", qkv_),
               copy("b", b_),
               copy("a", a_),
               copy("conv", conv_),
               copy("a_log", a_log_),
               copy("dt_bias", dt_bias_),
               place_->floats("out", out_.size()),
               place_->bytes("control", &rows_.control(), sizeof(kernels::StepControl)),
               nans("slots", 8 * p.slot_stride),
               nans("anchors", kAnchorCount * p.anchor_stride),
               place_->floats("workspace", needs.workspace_bytes / sizeof(float)),
               copy("gate", gate_),
               copy("norm_weight", norm_weight_),
               place_->floats("encoded", max_rows * encoded_floats())};
    device_rows_ = static_cast<kernels::RowInput*>(
        place_->bytes("rows", rows_.control().step.rows, max_rows * sizeof(kernels::RowInput)));
    device_spans_ = static_cast<kernels::RowSpan*>(
        place_->bytes("spans", rows_.control().step.spans, 8 * sizeof(kernels::RowSpan)));
    records_.relocate(places_);
    few_records_.relocate(places_);
  }

  HandRows& rows() { return rows_; }
  const PlannedRecords& records() const { return records_; }
  /// Which text the slot holds: its own number's unless said.
  void set_text(uint32_t slot, uint32_t text) { of_slot_[slot] = text; }
  DeltaText& text(uint32_t number) {
    const auto found = texts_.find(number);
    if (found != texts_.end()) return found->second;
    DeltaText& text = texts_[number];
    text.qkv = normal_values(positions_ * kernels::gdn_channels(shape_), 10 * number + 1);
    text.b = normal_values(size_t{positions_} * shape_.value_heads, 10 * number + 2, 2.0f);
    text.a = normal_values(size_t{positions_} * shape_.value_heads, 10 * number + 3, 2.0f);
    text.gate = normal_values(positions_ * width(), 10 * number + 4, 3.0f);
    return text;
  }

  /// Runs a step; the outputs of the rows that count. Rows that do not are of another text.
  std::vector<float> step(const std::vector<RowPart>& parts, Split split = {}) {
    rows_.begin(parts);
    uint32_t row = 0;
    for (const RowPart& part : parts) {
      const auto named = of_slot_.find(part.slot);
      const uint32_t number = named == of_slot_.end() ? part.slot : named->second;
      for (uint32_t r = 0; r < part.rows; ++r, ++row) {
        put_row(text(r < part.counted ? number : 100 + number), rows_.length(part.slot) + r, row);
      }
    }
    send();
    ran_few_ = form_.few && fits_few(parts);
    place_->run(ran_few_ ? few_records_ : records_, split);
    place_->read(places_[kOut], out_.data(), out_.size() * sizeof(float));
    rows_.end(parts);
    std::vector<float> all;
    row = 0;
    for (const RowPart& part : parts) {
      for (uint32_t r = 0; r < part.rows; ++r, ++row) {
        if (r >= part.counted) continue;
        const float* out = out_.data() + row * problem_.problem.out_stride;
        all.insert(all.end(), out, out + width());
      }
    }
    return all;
  }
  size_t width() const { return size_t{shape_.value_heads} * shape_.value_dim; }
  /// Whether the last step was run by the kernel for few rows.
  bool ran_few() const { return ran_few_; }
  const std::vector<float>& norm_weight() const { return norm_weight_; }
  /// All rows of the last step: gates, outputs and outputs in bf16_b32, `width()` apart the first.
  std::vector<float> gates() {
    std::vector<float> all;
    for (uint32_t r = 0; r < rows_.control().step.row_count; ++r) {
      const auto from = gate_.begin() + static_cast<std::ptrdiff_t>(r * (width() + 7));
      all.insert(all.end(), from, from + static_cast<std::ptrdiff_t>(width()));
    }
    return all;
  }
  std::vector<uint8_t> encoded() {
    std::vector<uint8_t> all(rows_.control().step.row_count * encoded_floats() * sizeof(float));
    if (!all.empty()) place_->read(places_[kEncoded], all.data(), all.size());
    return all;
  }
  size_t encoded_floats() const { return kernels::bf16_row_bytes(width()) / sizeof(float); }

  std::vector<float> anchor(uint32_t number) const {
    const size_t stride = problem_.problem.anchor_stride / sizeof(float);
    std::vector<float> all(kAnchorCount * stride);
    place_->read(places_[kAnchors], all.data(), all.size() * sizeof(float));
    const float* from = all.data() + number * stride;
    return {from, from + kernels::gdn_anchor_floats(shape_)};
  }

  /// Outputs of positions 0 .. positions - 1 of a text, by the recurrence.
  std::vector<double> exact(uint32_t number, uint32_t positions);

 private:
  static constexpr uint32_t kAnchorCount = 64;

  /// The records for few rows.
  void plan_few() {
    DeltaProblem few = problem_;
    few.problem.delta = &few.delta;
    few.problem.span_rows = kernels::kMaxVerifyRows;
    few.problem.workspace.buffer = ATLAS_NO_BUFFER;
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    if (gdn().needs(&few.problem, &needs, &error) != ATLAS_OK || needs.can_norm == 0 ||
        needs.workspace_bytes != 0) {
      throw std::runtime_error("no kernel for few rows");
    }
    if (form_.norms) {
      few.delta.norms = 1;
      few.delta.silu = form_.silu ? 1 : 0;
      few.delta.norm_epsilon = 1e-6f;
      few.delta.gate_stride = width() + 7;
      few.delta.norm_weight.buffer = kNormWeight;
      few.delta.gate.buffer = kGate;
    }
    AtlasRecordSink sink = few_records_.sink();
    if (gdn().plan(&few.problem, &sink, &error) != ATLAS_OK) {
      throw std::runtime_error(error.message);
    }
    if (form_.encodes) few_records_.point_last(needs.encoded_offset, kEncoded);
  }
  bool fits_few(const std::vector<RowPart>& parts) {
    return std::all_of(parts.begin(), parts.end(), [&](const RowPart& part) {
      const uint32_t first = rows_.length(part.slot) % kernels::kGdnChunk;
      return part.rows <= kernels::kMaxVerifyRows && first + part.rows <= kernels::kGdnChunk;
    });
  }
  void* copy(const std::string& name, const std::vector<float>& values) {
    return place_->bytes(name, values.data(), values.size() * sizeof(float));
  }
  void* nans(const std::string& name, uint64_t bytes) {
    return copy(name, std::vector<float>(bytes / sizeof(float), NAN));
  }
  /// The step's rows to where they run.
  void send() {
    const auto put = [&](DeltaBuffer to, const std::vector<float>& from) {
      place_->write(places_[to], from.data(), from.size() * sizeof(float));
    };
    put(kQkv, qkv_);
    put(kB, b_);
    put(kA, a_);
    put(kGate, gate_);
    kernels::StepControl control = rows_.control();
    const kernels::RowSet& set = rows_.control().step;
    place_->write(device_rows_, set.rows, set.row_count * sizeof(kernels::RowInput));
    place_->write(device_spans_, set.spans, set.span_count * sizeof(kernels::RowSpan));
    control.step.rows = device_rows_;
    control.step.spans = device_spans_;
    place_->write(places_[kControl], &control, sizeof(control));
  }

  void put_row(const DeltaText& from, uint32_t position, uint32_t row) {
    const size_t channels = kernels::gdn_channels(shape_), heads = shape_.value_heads;
    std::copy_n(from.qkv.data() + position * channels, channels,
                qkv_.data() + row * problem_.delta.qkv_stride);
    std::copy_n(from.b.data() + position * heads, heads, b_.data() + row * problem_.delta.b_stride);
    std::copy_n(from.a.data() + position * heads, heads, a_.data() + row * problem_.delta.a_stride);
    std::copy_n(from.gate.data() + position * width(), width(), gate_.data() + row * (width() + 7));
  }

  std::unique_ptr<StepPlace> place_;
  DeltaForm form_;
  bool ran_few_ = false;
  GdnShape shape_;
  uint32_t positions_;
  HandRows rows_;
  DeltaProblem problem_;
  PlannedRecords records_, few_records_;
  std::vector<void*> places_;  // by DeltaBuffer
  kernels::RowInput* device_rows_;
  kernels::RowSpan* device_spans_;
  std::vector<float> qkv_, b_, a_, out_, gate_, conv_, a_log_, dt_bias_, norm_weight_;
  std::map<uint32_t, DeltaText> texts_;
  std::map<uint32_t, uint32_t> of_slot_;
};

inline std::vector<double> DeltaSteps::exact(uint32_t number, uint32_t positions) {
  const DeltaText& in = text(number);
  const size_t channels = kernels::gdn_channels(shape_), dk = shape_.key_dim, dv = shape_.value_dim;
  const size_t keys = shape_.key_heads, heads = shape_.value_heads;
  std::vector<double> state(heads * dk * dv, 0.0), out, x(channels);
  const auto unit = [dk](double* v, double scale) {
    double squares = 1e-6;
    for (size_t d = 0; d < dk; ++d) squares += v[d] * v[d];
    for (size_t d = 0; d < dk; ++d) v[d] *= scale / std::sqrt(squares);
  };
  for (uint32_t t = 0; t < positions; ++t) {
    for (size_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (uint32_t i = 0; i < shape_.taps; ++i) {
        const int64_t at = int64_t{t} - (shape_.taps - 1) + i;
        if (at >= 0) sum += double{conv_[c * shape_.taps + i]} * in.qkv[at * channels + c];
      }
      x[c] = sum / (1 + std::exp(-sum));
    }
    for (size_t h = 0; h < keys; ++h) {
      unit(x.data() + h * dk, 1 / std::sqrt(static_cast<double>(dk)));
      unit(x.data() + (keys + h) * dk, 1);
    }
    for (size_t h = 0; h < heads; ++h) {
      const double *q = x.data() + h * keys / heads * dk, *k = q + keys * dk;
      const double* v = x.data() + 2 * keys * dk + h * dv;
      const double beta = 1 / (1 + std::exp(-double{in.b[t * heads + h]}));
      const double gate = double{in.a[t * heads + h]} + dt_bias_[h];
      const double decay = std::exp(-std::exp(double{a_log_[h]}) * std::log1p(std::exp(gate)));
      double* m = state.data() + h * dk * dv;
      for (size_t c = 0; c < dv; ++c) {
        double read = 0, result = 0;
        for (size_t d = 0; d < dk; ++d) read += k[d] * (m[d * dv + c] *= decay);
        for (size_t d = 0; d < dk; ++d) m[d * dv + c] += k[d] * beta * (v[c] - read);
        for (size_t d = 0; d < dk; ++d) result += q[d] * m[d * dv + c];
        out.push_back(result);
      }
    }
  }
  return out;
}

}  // namespace atlas::test

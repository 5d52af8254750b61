// Attention plugin `gdn`: its answers while planning, and its records against the recurrence in
// float64 and against themselves, bit for bit, however the rows come.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/gdn.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/numbers.h"
#include "tests/support/row_steps.h"

namespace atlas::test {
namespace {

using kernels::GdnShape;

// key heads, value heads, key dim, value dim, taps
const GdnShape kShapes[] = {
    {2, 6, 16, 16, 4}, {1, 1, 8, 12, 2}, {2, 4, 7, 33, 3}, {1, 3, 128, 128, 4}, {3, 3, 20, 8, 1},
};

const AtlasAttentionApi& gdn() {
  static const AtlasAttentionApi& api = attention_plugin("gdn");
  return api;
}

enum Buffer : uint32_t {
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
  kWork
};

struct Problem {
  AtlasAttentionProblem problem{};
  AtlasDelta delta{};
};

void fill_problem(Problem& p, const GdnShape& shape, uint32_t max_rows) {
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
  problem.slot_stride = kernels::gdn_slot_floats(shape) * sizeof(float) + 64;
  problem.anchor_stride = kernels::gdn_anchor_floats(shape) * sizeof(float) + 128;
  problem.delta = &delta;
}

/// What a text brings to the layer at every position.
struct Text {
  std::vector<float> qkv, b, a;
};

/// A layer with slots and anchors, which hold NaN wherever nothing was written.
class DeltaSteps {
 public:
  DeltaSteps(const CpuPack& pack, const GdnShape& shape, uint32_t max_positions, uint32_t max_rows)
      : pack_(pack),
        shape_(shape),
        positions_(max_positions + kernels::kMaxVerifyRows),
        rows_(max_rows, 8, 1, kAnchorCount, kernels::kGdnChunk) {
    fill_problem(problem_, shape, max_rows);
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    if (gdn().needs(&problem_.problem, &needs, &error) != ATLAS_OK) {
      throw std::runtime_error(error.message);
    }
    const AtlasAttentionProblem& p = problem_.problem;
    slots_.assign(8 * p.slot_stride / sizeof(float), NAN);
    anchors_.assign(kAnchorCount * p.anchor_stride / sizeof(float), NAN);
    workspace_.assign(needs.workspace_bytes / sizeof(float), NAN);
    qkv_.assign(max_rows * problem_.delta.qkv_stride, NAN);
    b_.assign(max_rows * problem_.delta.b_stride, NAN);
    a_.assign(max_rows * problem_.delta.a_stride, NAN);
    out_.assign(max_rows * p.out_stride, NAN);
    conv_ = normal_values(kernels::gdn_channels(shape) * shape.taps, 1001, 0.7f);
    a_log_ = normal_values(shape.value_heads, 1002, 0.8f);
    dt_bias_ = normal_values(shape.value_heads, 1003, 1.5f);
    AtlasRecordSink sink = records_.sink();
    if (gdn().plan(&p, &sink, &error) != ATLAS_OK) throw std::runtime_error(error.message);
    records_.relocate({qkv_.data(), b_.data(), a_.data(), conv_.data(), a_log_.data(),
                       dt_bias_.data(), out_.data(), &rows_.control(), slots_.data(),
                       anchors_.data(), workspace_.data()});
  }

  HandRows& rows() { return rows_; }
  const PlannedRecords& records() const { return records_; }
  /// Which text the slot holds: its own number's unless said.
  void set_text(uint32_t slot, uint32_t text) { of_slot_[slot] = text; }
  Text& text(uint32_t number) {
    const auto found = texts_.find(number);
    if (found != texts_.end()) return found->second;
    Text& text = texts_[number];
    text.qkv = normal_values(positions_ * kernels::gdn_channels(shape_), 10 * number + 1);
    text.b = normal_values(size_t{positions_} * shape_.value_heads, 10 * number + 2, 2.0f);
    text.a = normal_values(size_t{positions_} * shape_.value_heads, 10 * number + 3, 2.0f);
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
    records_.run(pack_, split);
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

  std::vector<float> anchor(uint32_t number) const {
    const size_t stride = problem_.problem.anchor_stride / sizeof(float);
    const float* from = anchors_.data() + number * stride;
    return {from, from + kernels::gdn_anchor_floats(shape_)};
  }

  /// Outputs of positions 0 .. positions - 1 of a text, by the recurrence.
  std::vector<double> exact(uint32_t number, uint32_t positions);

 private:
  static constexpr uint32_t kAnchorCount = 64;

  void put_row(const Text& from, uint32_t position, uint32_t row) {
    const size_t channels = kernels::gdn_channels(shape_), heads = shape_.value_heads;
    std::copy_n(from.qkv.data() + position * channels, channels,
                qkv_.data() + row * problem_.delta.qkv_stride);
    std::copy_n(from.b.data() + position * heads, heads, b_.data() + row * problem_.delta.b_stride);
    std::copy_n(from.a.data() + position * heads, heads, a_.data() + row * problem_.delta.a_stride);
  }

  const CpuPack& pack_;
  GdnShape shape_;
  uint32_t positions_;
  HandRows rows_;
  Problem problem_;
  PlannedRecords records_;
  std::vector<float> slots_, anchors_, workspace_, qkv_, b_, a_, out_, conv_, a_log_, dt_bias_;
  std::map<uint32_t, Text> texts_;
  std::map<uint32_t, uint32_t> of_slot_;
};

std::vector<double> DeltaSteps::exact(uint32_t number, uint32_t positions) {
  const Text& in = text(number);
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

void append(std::vector<float>& to, const std::vector<float>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// Rows of `slot` up to `positions`, in steps of the sizes given in turn.
std::vector<float> in_steps(DeltaSteps& steps, uint32_t slot, uint32_t positions,
                            const std::vector<uint32_t>& sizes, Split split = {}) {
  std::vector<float> all;
  for (uint32_t i = 0; steps.rows().length(slot) < positions; ++i) {
    const uint32_t left = positions - steps.rows().length(slot);
    append(all, steps.step({{slot, std::min(sizes[i % sizes.size()], left)}}, split));
  }
  return all;
}

/// The same in verify steps: up to 8 rows that end before the next chunk, some of them rejected.
std::vector<float> in_verify_steps(DeltaSteps& steps, uint32_t slot, uint32_t positions,
                                   uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> all;
  while (steps.rows().length(slot) < positions) {
    const uint32_t length = steps.rows().length(slot);
    const uint32_t rows = std::min<uint32_t>(1 + random() % kernels::kMaxVerifyRows,
                                             kernels::kGdnChunk - length % kernels::kGdnChunk);
    const uint32_t counted = std::min<uint32_t>(1 + random() % rows, positions - length);
    append(all, steps.step({{slot, rows, counted}}));
  }
  return all;
}

std::string answer(const std::function<void(AtlasAttentionProblem&, AtlasDelta&)>& spoil,
                   bool plan) {
  Problem p;
  fill_problem(p, {2, 6, 16, 24, 4}, 8);
  spoil(p.problem, p.delta);
  AtlasError error{sizeof(AtlasError), {}};
  PlannedRecords records;
  AtlasRecordSink sink = records.sink();
  AtlasAttentionNeeds needs{};
  needs.struct_size = sizeof(needs);
  const AtlasCode code =
      plan ? gdn().plan(&p.problem, &sink, &error) : gdn().needs(&p.problem, &needs, &error);
  if (code == ATLAS_OK) return "";
  CHECK(code == ATLAS_INVALID_ARGUMENT);
  CHECK(records.empty());
  return error.message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gdn: needs says state, anchors and contract") {
    Problem p;
    fill_problem(p, {2, 6, 16, 24, 4}, 8);
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    REQUIRE(gdn().needs(&p.problem, &needs, nullptr) == ATLAS_OK);
    CHECK(needs.page_tokens == 64);
    CHECK(needs.bytes_per_page == 0);
    CHECK(needs.anchor_tokens == 64);
    const uint64_t channels = 2 * 2 * 16 + 6 * 24;
    CHECK(needs.bytes_per_slot == 4 * (16 * channels + 2 * 16 * 64 + 6 * 64 * 32 + 6 * 64));
    CHECK(needs.bytes_per_anchor == 4 * (6 * 16 * 32 + 3 * channels));
    CHECK(needs.workspace_bytes == 8 * 4 * (2 * 2 * 16 + 6 * 32));
    CHECK(std::string(needs.contract) == "gdn_f32_c64");
    CHECK(std::string(needs.state_layout) == "gdn f32 v16 2x16 6x24 conv 4");
  }

  TEST_CASE("gdn: problems that no kernel serves are refused with what was found") {
    for (const bool plan : {false, true}) {
      CAPTURE(plan);
      CHECK(answer([](auto&, auto&) {}, plan).empty());
      CHECK(contains(answer([](auto& p, auto&) { p.platform = "gb10"; }, plan), "'gb10'"));
      CHECK(contains(answer([](auto& p, auto&) { p.platform = nullptr; }, plan), "platform"));
      CHECK(contains(answer([](auto& p, auto&) { p.backend = "gqa"; }, plan), "'gqa'"));
      CHECK(contains(answer([](auto& p, auto&) { p.delta = nullptr; }, plan), "no delta"));
      CHECK(contains(answer([](auto& p, auto&) { p.struct_size = 8; }, plan), "8 bytes"));
      CHECK(contains(answer([](auto&, auto& d) { d.struct_size = 12; }, plan), "12 bytes"));
      CHECK(
          contains(answer([](auto&, auto& d) { d.key_heads = 4; }, plan), "6 value heads over 4"));
      CHECK(contains(answer([](auto&, auto& d) { d.key_heads = 0; }, plan), "0 key heads"));
      CHECK(contains(answer([](auto&, auto& d) { d.value_heads = 0; }, plan), "0 value heads"));
      CHECK(contains(answer([](auto&, auto& d) { d.value_heads = 8192; }, plan), "at most 4096"));
      CHECK(contains(answer([](auto&, auto& d) { d.key_dim = 257; }, plan), "key_dim 257"));
      CHECK(contains(answer([](auto&, auto& d) { d.value_dim = 0; }, plan), "value_dim 0"));
      CHECK(contains(answer([](auto&, auto& d) { d.conv_kernel = 17; }, plan), "conv_kernel 17"));
      CHECK(contains(answer([](auto& p, auto&) { p.max_rows = 0; }, plan), "at least one row"));
      CHECK(contains(answer([](auto& p, auto&) { p.max_sequences = 0; }, plan), "one sequence"));
    }
    CHECK(contains(answer([](auto&, auto& d) { d.qkv_stride = 207; }, true), "qkv_stride 207"));
    CHECK(contains(answer([](auto&, auto& d) { d.b_stride = 5; }, true), "b_stride 5"));
    CHECK(contains(answer([](auto&, auto& d) { d.a_stride = 0; }, true), "a_stride 0"));
    CHECK(contains(answer([](auto& p, auto&) { p.out_stride = 143; }, true), "out_stride 143"));
    CHECK(contains(answer([](auto& p, auto&) { p.slot_stride = 64; }, true), "slot_stride 64"));
    CHECK(contains(answer([](auto& p, auto&) { p.anchor_stride += 2; }, true), "anchor_stride"));
    CHECK(contains(answer([](auto& p, auto&) { p.rows.buffer = ATLAS_NO_BUFFER; }, true),
                   "no buffer"));
    CHECK(contains(answer([](auto&, auto& d) { d.conv.buffer = ATLAS_NO_BUFFER; }, true),
                   "no buffer"));
  }

  TEST_CASE("gdn: the recurrence of float64, in any chunks with the bits of one step") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 150;
    for (const GdnShape& shape : kShapes) {
      CAPTURE(shape.key_dim);
      CAPTURE(shape.value_dim);
      std::vector<float> best;
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        DeltaSteps whole(pack, shape, kPositions, kPositions);
        REQUIRE(whole.records().known_to(pack));
        const std::vector<float> expected = whole.step({{0, kPositions}});
        if (best.empty()) {
          best = expected;
          CHECK(largest_difference(best, whole.exact(0, kPositions)) < 3e-6);
        }
        if (target.name == "SCALAR") {  // no fused multiply-add
          CHECK(largest_difference(expected, {best.begin(), best.end()}) < 3e-6);
        } else {
          CHECK(same_bits(expected, best));
        }
        for (const std::vector<uint32_t>& sizes :
             std::vector<std::vector<uint32_t>>{{1}, {3}, {7}, {32}, {50}, {33, 1, 64, 2, 31}}) {
          CAPTURE(sizes[0]);
          DeltaSteps steps(pack, shape, kPositions, 64);
          CHECK(same_bits(expected, in_steps(steps, 0, kPositions, sizes, {2, 3})));
        }
      }
    }
  }

  TEST_CASE("gdn: rejected rows leave no trace") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 140;
    for (const GdnShape& shape : kShapes) {
      CAPTURE(shape.key_dim);
      DeltaSteps whole(pack, shape, kPositions, kPositions);
      const std::vector<float> expected = whole.step({{0, kPositions}});
      for (uint32_t seed = 0; seed < 4; ++seed) {
        CAPTURE(seed);
        DeltaSteps steps(pack, shape, kPositions, 8);
        CHECK(same_bits(expected, in_verify_steps(steps, 0, kPositions, seed)));
      }
    }
  }

  TEST_CASE("gdn: a sequence goes on from an anchor in another slot, which stays as it is") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 150;
    for (const GdnShape& shape : kShapes) {
      CAPTURE(shape.key_dim);
      DeltaSteps steps(pack, shape, kPositions, 64);
      std::vector<float> expected;
      std::map<uint32_t, uint32_t> anchors;  // index: anchor
      while (steps.rows().length(1) < kPositions) {
        append(expected, steps.step({{1, std::min(11u, kPositions - steps.rows().length(1))}}));
        anchors[steps.rows().anchor_index(1)] = steps.rows().anchor(1);
      }
      REQUIRE(anchors.size() == 3);
      // The slot is used by another text first.
      steps.step({{5, 45}});
      steps.set_text(5, 1);
      for (const auto& [index, anchor] : anchors) {
        CAPTURE(index);
        const bool none = anchor == kernels::kNoAnchor;
        const std::vector<float> before = none ? std::vector<float>() : steps.anchor(anchor);
        for (const uint32_t size : {1u, 2u, 40u}) {
          steps.rows().restart(5, anchor, index);
          const std::vector<float> rest = in_steps(steps, 5, kPositions, {size});
          CHECK(same_bits(rest, {expected.begin() + index * steps.width(), expected.end()}));
        }
        if (!none) CHECK(same_bits(before, steps.anchor(anchor)));
      }
    }
  }

  TEST_CASE("gdn: an anchor is the same whether its chunk came in one step or in many") {
    const CpuPack pack;
    const GdnShape shape{2, 4, 12, 20, 4};
    DeltaSteps many(pack, shape, 130, 64), one(pack, shape, 130, 130);
    in_steps(many, 0, 129, {5});
    one.step({{0, 129}});
    REQUIRE(many.rows().anchor_index(0) == 128);
    REQUIRE(one.rows().anchor_index(0) == 128);
    CHECK(same_bits(many.anchor(many.rows().anchor(0)), one.anchor(one.rows().anchor(0))));
  }

  TEST_CASE("gdn: ragged steps give every sequence the bits that it has alone") {
    const CpuPack pack;
    const GdnShape shape{2, 6, 16, 16, 4};
    const std::vector<std::vector<RowPart>> schedule = {
        {{3, 70}, {5, 1}, {0, 20}},
        {{0, 1}, {3, 8, 3}, {5, 31}, {7, 40}},
        {{7, 1}, {5, 8, 1}, {3, 1}, {0, 8, 5}},
        {{0, 60}, {3, 3, 2}, {5, 5}, {7, 24}},
        {{5, 100}, {3, 8, 4}},
        {{3, 1}, {5, 1}, {7, 1}},
    };
    for (const Split split : {Split{1, 0}, Split{3, 1}, Split{2, 3}}) {
      CAPTURE(split.chunk);
      DeltaSteps together(pack, shape, 200, 128);
      std::map<uint32_t, std::vector<float>> rows;
      for (const std::vector<RowPart>& parts : schedule) {
        const std::vector<float> out = together.step(parts, split);
        auto at = out.begin();
        for (const RowPart& part : parts) {
          const size_t count = std::min(part.rows, part.counted) * together.width();
          append(rows[part.slot], {at, at + count});
          at += count;
        }
        REQUIRE(at == out.end());
      }
      for (const auto& [slot, out] : rows) {
        CAPTURE(slot);
        DeltaSteps alone(pack, shape, 200, 200);
        CHECK(same_bits(out, alone.step({{slot, together.rows().length(slot)}})));
      }
    }
  }

  TEST_CASE("gdn: what is not a number stays with its sequence") {
    const CpuPack pack;
    const GdnShape shape{1, 2, 16, 16, 4};
    DeltaSteps clean(pack, shape, 80, 160), spoilt(pack, shape, 80, 160);
    const std::vector<float> expected = clean.step({{0, 80}, {1, 80}});
    for (size_t c = 0; c < kernels::gdn_channels(shape); ++c) {
      spoilt.text(0).qkv[40 * kernels::gdn_channels(shape) + c] = NAN;
    }
    const std::vector<float> out = spoilt.step({{0, 80}, {1, 80}});
    const size_t bad = 40 * spoilt.width(), second = 80 * spoilt.width();
    CHECK(same_bits({out.begin(), out.begin() + bad}, {expected.begin(), expected.begin() + bad}));
    CHECK(
        same_bits({out.begin() + second, out.end()}, {expected.begin() + second, expected.end()}));
    for (size_t i = bad; i < second; ++i) CHECK(std::isnan(out[i]));
  }
}

}  // namespace atlas::test

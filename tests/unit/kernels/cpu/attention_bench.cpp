// Times of Gated DeltaNet and of sparse attention in the shapes of Qwen3.8-Flash-Next (GDN: 16 key
// and 48 value heads of 128; QSA: 24 query heads over 2 of 256, 4 index heads of 128, 2,048 of the
// positions, blocks of 4): one layer, in CPU time of one thread, best of several. Numbers, not
// judgements.
#include <doctest/doctest.h>
#include <time.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/numbers.h"
#include "tests/support/row_steps.h"

namespace atlas::test {
namespace {

/// CPU time of this thread in seconds: other processes' turns do not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A layer over buffers of random numbers. Slots take turns, so that none's state stays in a cache.
class Layer {
 public:
  Layer(const std::string& name, uint32_t slots, uint32_t rows, uint32_t pages)
      : name_(name), rows_(rows, slots, pages, 1u << 20, 32), slots_(slots) {
    problem_.struct_size = sizeof(problem_);
    problem_.max_rows = rows;
    problem_.platform = "cpu";
    problem_.backend = name_.c_str();
    problem_.max_sequences = 1;
    problem_.max_pages = pages;
    problem_.control = add(rows_.control());
    problem_.rows = problem_.control;
    problem_.rows.offset = offsetof(kernels::StepControl, step);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  AtlasAttentionProblem& problem() { return problem_; }
  AtlasBufferRef noise(size_t floats) {
    static const std::vector<float> values = normal_values(1 << 16, 1);
    memory_.emplace_back(floats);
    for (size_t i = 0; i < floats; ++i) memory_.back()[i] = values[i % 65521];
    return add(memory_.back()[0]);
  }
  void plan(uint64_t anchors) {
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    const AtlasAttentionApi& api = attention_plugin(name_);
    REQUIRE_MESSAGE(api.needs(&problem_, &needs, &error) == ATLAS_OK, error.message);
    problem_.page_stride = needs.bytes_per_page;
    problem_.slot_stride = needs.bytes_per_slot;
    problem_.anchor_stride = needs.bytes_per_anchor;
    problem_.pages = noise(slots_ * uint64_t{problem_.max_pages} * needs.bytes_per_page / 4 + 1);
    problem_.slots = noise(slots_ * needs.bytes_per_slot / 4);
    problem_.anchors = noise(anchors * needs.bytes_per_anchor / 4 + 1);
    problem_.workspace = noise(needs.workspace_bytes / 4 + 1);
    AtlasRecordSink sink = records_.sink();
    REQUIRE_MESSAGE(api.plan(&problem_, &sink, &error) == ATLAS_OK, error.message);
    records_.relocate(places_);
  }
  /// Best time of steps of `rows` rows from position `index` on, in microseconds.
  double best_us(const CpuPack& pack, uint32_t rows, uint32_t index, uint32_t anchor_index) {
    double best = HUGE_VAL;
    for (uint32_t i = 0; i < 4 * slots_; ++i) {
      const uint32_t slot = i % slots_;
      rows_.restart(slot, slot, anchor_index);
      if (index != anchor_index) rows_.advance(slot, index - anchor_index);
      const std::vector<RowPart> parts = {{slot, rows}};
      rows_.begin(parts);
      // The anchors after the slots' own are for states that steps reach.
      kernels::RowSpan& span = rows_.control().step.spans[0];
      if (span.next_anchor != kernels::kNoAnchor) span.next_anchor = slots_;
      const double start = thread_seconds();
      records_.run(pack, {});
      if (i >= slots_) best = std::min(best, thread_seconds() - start);
    }
    return best * 1e6;
  }

 private:
  template <typename T>
  AtlasBufferRef add(T& memory) {
    places_.push_back(&memory);
    return {static_cast<uint32_t>(places_.size() - 1), 0, 0};
  }
  std::string name_;
  HandRows rows_;
  uint32_t slots_;
  AtlasAttentionProblem problem_{};
  PlannedRecords records_;
  std::vector<void*> places_;
  std::vector<std::vector<float>> memory_;
};

void delta_layer(const CpuPack& pack, uint32_t rows, uint32_t pending) {
  constexpr uint32_t kSlots = 12;
  Layer layer("gdn", kSlots, rows, 1);
  AtlasDelta delta{};
  delta.struct_size = sizeof(delta);
  delta.key_heads = 16;
  delta.value_heads = 48;
  delta.key_dim = delta.value_dim = 128;
  delta.conv_kernel = 4;
  delta.qkv_stride = 10240;
  delta.b_stride = delta.a_stride = 48;
  delta.qkv = layer.noise(rows * 10240);
  delta.b = layer.noise(rows * 48);
  delta.a = layer.noise(rows * 48);
  delta.conv = layer.noise(10240 * 4);
  delta.a_log = layer.noise(48);
  delta.dt_bias = layer.noise(48);
  layer.problem().delta = &delta;
  layer.problem().out_stride = 6144;
  layer.problem().out = layer.noise(rows * 6144);
  layer.plan(kSlots + 1);
  std::printf("gdn  %4u rows after %2u pending: %9.1f us\n", rows, pending,
              layer.best_us(pack, rows, 64 + pending, 64));
}

void sparse_layer(const CpuPack& pack, uint32_t rows, uint32_t context) {
  Layer layer("qsa", 1, rows, context / 64);
  AtlasIndexer indexer{};
  indexer.struct_size = sizeof(indexer);
  indexer.heads = 4;
  indexer.head_dim = 128;
  indexer.budget = 2048;
  indexer.ratio = 4;
  indexer.rotary_dim = 64;
  indexer.epsilon = 1e-6f;
  indexer.magnitude = 1.0f;
  indexer.q_stride = 512;
  indexer.k_stride = 128;
  indexer.q = layer.noise(rows * 512);
  indexer.k = layer.noise(rows * 128);
  indexer.k_norm = layer.noise(128);
  indexer.inverse_frequencies = layer.noise(32);
  AtlasAttentionProblem& problem = layer.problem();
  problem.indexer = &indexer;
  problem.heads = 24;
  problem.kv_heads = 2;
  problem.head_dim = 256;
  problem.scale = 0.0625f;
  problem.q_stride = problem.out_stride = 6144;
  problem.k_stride = problem.v_stride = 512;
  problem.q = layer.noise(rows * 6144);
  problem.k = layer.noise(rows * 512);
  problem.v = layer.noise(rows * 512);
  problem.out = layer.noise(rows * 6144);
  layer.plan(1);
  std::printf("qsa  %4u rows at %6u positions: %9.1f us\n", rows, context,
              layer.best_us(pack, rows, context - rows, 0));
}

}  // namespace

TEST_SUITE("bench") {
  TEST_CASE("gdn: a layer's steps") {
    const CpuPack pack;
    delta_layer(pack, 1, 0);
    delta_layer(pack, 1, 31);
    delta_layer(pack, 1, 32);  // with a fold
    delta_layer(pack, 4, 16);
    delta_layer(pack, 8, 16);
    delta_layer(pack, 256, 0);
  }

  TEST_CASE("qsa: a layer's steps") {
    const CpuPack pack;
    for (const uint32_t context : {1024u, 2048u, 8192u, 32768u}) {
      for (const uint32_t rows : {1u, 4u, 64u}) sparse_layer(pack, rows, context);
    }
  }
}

}  // namespace atlas::test

// Times of the core's kernels in the shapes of SmolLM2-135M (9 query heads over 3, head size 64, 30
// layers, vocabulary 49,152), in CPU time of one thread, best of several. Numbers, not judgements.
#include <doctest/doctest.h>
#include <time.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "kernels/common/gqa.h"
#include "tests/support/control_block.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr uint32_t kHeads = 9, kKvHeads = 3, kHeadDim = 64, kLayers = 30, kHidden = 576;

/// CPU time of this thread in seconds: other processes' turns do not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Best time of `repeats` runs, in microseconds.
double best_us(int repeats, const std::function<void()>& run) {
  double best = HUGE_VAL;
  for (int i = 0; i < repeats; ++i) {
    const double start = thread_seconds();
    run();
    best = std::min(best, thread_seconds() - start);
  }
  return best * 1e6;
}

/// One step of `rows` rows that end at `context`, over all layers, each with pages of its own.
void attention(const CpuPack& pack, uint32_t rows, uint32_t context) {
  ControlLimits limits = small_limits();
  limits.max_rows = rows;
  limits.max_pages = limits.pool_pages = limits.max_page_updates = (context + 63) / 64;
  limits.max_positions = context;
  ControlBlock block(limits);
  std::vector<PageUpdate> pages;
  for (uint32_t i = 0; i < limits.max_pages; ++i) pages.push_back({0, i, i, 0});
  Share share;
  share.flags = kSequenceReset;
  share.reset_length = context - rows;
  share.ids.assign(rows, 1);
  block.submit(1, {share}, pages);
  block.fetch(pack);
  REQUIRE(block.control().error == 0);

  const size_t page_floats = kKvHeads * gqa_head_floats(kHeadDim);
  std::vector<std::vector<float>> layers(kLayers, normal_values(page_floats * limits.max_pages, 1));
  const std::vector<float> q = normal_values(size_t{rows} * kHeads * kHeadDim, 2);
  const std::vector<float> kv = normal_values(size_t{rows} * kKvHeads * kHeadDim, 3);
  std::vector<float> out(q.size());
  const uint32_t split_rows = std::min(rows, 8u), blocks = (context + 255) / 256;
  std::vector<uint32_t> arrivals(split_rows * kKvHeads);
  std::vector<float> partials(split_rows * kHeads * blocks * gqa_partial_floats(kHeadDim));
  Aligned scratch(gqa_scratch_bytes(kHeads, kKvHeads, kHeadDim));
  GqaWriteParams write{};
  write.k = write.v = kv.data();
  write.control = &block.control();
  write.rows = &block.control().step;
  write.arrivals = arrivals.data();
  write.page_stride = page_floats * sizeof(float);
  write.k_stride = write.v_stride = kKvHeads * kHeadDim;
  write.kv_heads = kKvHeads;
  write.head_dim = kHeadDim;
  write.split_rows = split_rows;
  GqaAttendParams attend{};
  attend.q = q.data();
  attend.out = out.data();
  attend.control = &block.control();
  attend.rows = &block.control().step;
  attend.arrivals = arrivals.data();
  attend.partials = partials.data();
  attend.page_stride = write.page_stride;
  attend.q_stride = attend.out_stride = kHeads * kHeadDim;
  attend.heads = kHeads;
  attend.kv_heads = kKvHeads;
  attend.head_dim = kHeadDim;
  attend.tasks = rows > 16 ? 128 : 32;
  attend.split_rows = split_rows;
  attend.max_blocks = blocks;
  attend.scale = 0.125f;
  const auto write_kernel = pack.kernel("gqa_write"), attend_kernel = pack.kernel("gqa_attend");
  const int repeats = rows > 16 || context > 4096 ? 4 : 20;
  double write_us = HUGE_VAL, attend_us = HUGE_VAL;
  for (int i = 0; i < repeats; ++i) {
    double write_now = 0, attend_now = 0;
    for (std::vector<float>& layer : layers) {
      write.pages = reinterpret_cast<unsigned char*>(layer.data());
      attend.pages = write.pages;
      write_now += best_us(1, [&] {
        write_kernel(&write, 0, (rows + kGqaWriteRows - 1) / kGqaWriteRows, scratch.data());
      });
      attend_now += best_us(1, [&] { attend_kernel(&attend, 0, attend.tasks, scratch.data()); });
    }
    write_us = std::min(write_us, write_now);
    attend_us = std::min(attend_us, attend_now);
  }
  std::printf("  %3u rows at context %5u, %u layers: gqa_write %8.0f us, gqa_attend %8.0f us\n",
              rows, context, kLayers, write_us, attend_us);
}

void row_kernels(const CpuPack& pack, uint32_t rows) {
  const int repeats = rows == 1 ? 2000 : 50;
  std::vector<float> x = normal_values(size_t{rows} * 3072, 1), y(x.size());
  const std::vector<float> weight = normal_values(kHidden, 2);
  ControlLimits limits = small_limits();
  limits.max_rows = limits.max_positions = rows;
  ControlBlock block(limits);
  Share share;
  share.flags = kSequenceReset;
  share.ids.assign(rows, 1);
  block.submit(1, {share});
  block.fetch(pack);
  const uint32_t* count = &block.control().step.row_count;
  const auto time = [&](const char* kernel, const auto& params) {
    const auto function = pack.kernel(kernel);
    std::printf("  %3u rows: %-8s %8.2f us\n", rows, kernel,
                best_us(repeats, [&] { function(&params, 0, rows, nullptr); }));
  };
  time("rms_norm", RmsNormParams{x.data(), weight.data(), y.data(), count, kHidden, kHidden, 1,
                                 kHidden, 0, 0, 0, 1e-5f});
  time("silu_mul", SiluMulParams{x.data(), y.data(), count, 3072, 1536, 1536, 0});
  time("add", AddParams{x.data(), y.data(), count, kHidden, kHidden, kHidden, 0});
  std::vector<float> frequency(32);
  for (size_t i = 0; i < 32; ++i) frequency[i] = std::pow(1e4f, -static_cast<float>(i) / 32);
  RopeParams rope{};
  rope.x = y.data();
  rope.inverse_frequency = frequency.data();
  rope.rows = &block.control().step;
  rope.x_stride = (kHeads + 2 * kKvHeads) * kHeadDim;
  rope.heads = kHeads + kKvHeads;
  rope.head_dim = rope.rotary_dim = kHeadDim;
  rope.interleaved = 1;
  rope.magnitude = 1.0f;
  time("rope", rope);
}

void sampling(const CpuPack& pack, uint32_t vocab) {
  ControlBlock block(small_limits(vocab));
  const std::vector<float> logits = normal_values(vocab, 1, 2.5f);
  std::vector<float> scratch(size_t{8} * vocab);
  uint64_t step = 0;
  const auto time = [&](const char* what, const char* kernel, const SamplingInput& input) {
    Share share;
    share.flags = kSequenceReset | kSequenceSample | kSequenceCount | kSequencePromptRows;
    share.ids = {1, 2, 3};
    share.logit_count = 1;
    share.sampling = input;
    share.score = 1;
    share.score_top = 20;
    block.submit(++step, {share});
    block.fetch(pack);
    const auto function = pack.kernel(kernel);
    const SampleParams sample{&block.control(), logits.data(), scratch.data()};
    const ScoreParams score{&block.control(), logits.data()};
    const void* params = &sample;
    if (kernel == std::string("score")) params = &score;
    std::printf("  vocabulary %6u: %-26s %8.1f us\n", vocab, what,
                best_us(50, [&] { function(params, 0, 1, nullptr); }));
    block.commit(pack);
  };
  SamplingInput input = neutral_sampling(0.0f);
  time("greedy", "sample", input);
  time("20 alternatives", "score", input);
  input.temperature = 1.0f;
  time("temperature 1", "sample", input);
  input.top_k = 50;
  time("top_k 50", "sample", input);
  input.top_p = 0.9f;
  time("top_k 50, top_p 0.9", "sample", input);
  input.top_k = 0;
  time("top_p 0.9", "sample", input);
  input.min_p = 0.05f;
  time("top_p 0.9, min_p 0.05", "sample", input);
  input = neutral_sampling(1.0f);
  input.repetition_penalty = 1.1f;
  time("repetition penalty", "sample", input);
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("core kernels: times") {
    const CpuPack pack;
    for (const CpuTarget& target : cpu_targets()) {
      if (target.name == "SCALAR" || target.name == "AVX3") continue;  // no news
      const ForcedTarget forced(target);
      std::printf("%s, one thread\n", target.name.c_str());
      for (const uint32_t context : {128u, 512u, 8192u}) attention(pack, 1, context);
      attention(pack, 8, 512);
      attention(pack, 512, 512);
      for (const uint32_t rows : {1u, 512u}) row_kernels(pack, rows);
      for (const uint32_t vocab : {49'152u, 262'144u}) sampling(pack, vocab);
    }
  }
}

}  // namespace atlas::test

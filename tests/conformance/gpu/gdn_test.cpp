// Gated DeltaNet of every GPU pack: the plugin's records in the emulator give the bits of its
// records on the CPU, however rows come, in any order of blocks and warps.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/common/core.h"
#include "kernels/common/gpu_products.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/delta_steps.h"
#include "tests/support/gpu_place.h"

namespace atlas::test {
namespace {

using Schedule = std::vector<std::vector<RowPart>>;

// Bits of SCALAR, without fused multiply-add, differ where sums are made.
bool has_fma() { return cpu_targets().front().name != "SCALAR"; }

DeltaSteps on_gpu(const std::string& platform, uint64_t seed, const GdnShape& shape,
                  uint32_t positions, uint32_t rows, DeltaForm form = {}) {
  return {std::make_unique<GpuPlace>(platform, seed), shape, positions, rows, form};
}

/// Runs a schedule on the CPU and on every GPU platform in several orders, step by step.
void same_as_cpu(const GdnShape& shape, const Schedule& schedule, uint32_t positions, uint32_t rows,
                 const std::vector<uint64_t>& seeds, DeltaForm form = {}) {
  const CpuPack pack;
  DeltaSteps cpu(pack, shape, positions, rows);
  std::vector<std::vector<float>> expected;
  for (const auto& parts : schedule) expected.push_back(cpu.step(parts));
  for (const char* platform : kGpuPlatforms) {
    for (const uint64_t seed : seeds) {
      CAPTURE(platform);
      CAPTURE(seed);
      DeltaSteps gpu = on_gpu(platform, seed, shape, positions, rows, form);
      for (size_t i = 0; i < schedule.size(); ++i) {
        CAPTURE(i);
        REQUIRE(same_bits(gpu.step(schedule[i]), expected[i]));
      }
      CHECK(gpu.ran_few() == form.few);  // the last step of every schedule could be
      for (uint32_t slot = 0; slot < 8; ++slot) {
        const uint32_t anchor = cpu.rows().anchor(slot);
        CAPTURE(slot);
        REQUIRE(gpu.rows().anchor(slot) == anchor);
        if (anchor != kernels::kNoAnchor) CHECK(same_bits(gpu.anchor(anchor), cpu.anchor(anchor)));
      }
    }
  }
}

/// What the CPU pack makes of heads by norm and gate; all rows' heads side by side.
std::vector<float> normed(const CpuPack& pack, const GdnShape& shape, std::vector<float> heads,
                          const std::vector<float>& gates, const std::vector<float>& weight,
                          bool silu) {
  const uint32_t n = shape.value_dim, groups = shape.value_heads;
  const uint64_t stride = uint64_t{groups} * n;
  const auto rows = static_cast<uint32_t>(heads.size() / stride);
  float* x = heads.data();
  pack.run("rms_norm",
           kernels::RmsNormParams{x, weight.data(), x, &rows, stride, stride, groups, n, n, n, 0,
                                  1e-6f, nullptr},
           rows);
  pack.run("gate_mul",
           kernels::GateMulParams{x, gates.data(), x, &rows, stride, stride, stride, groups, n, n,
                                  n, n, silu ? 1u : 0u, nullptr},
           rows);
  return heads;
}

/// Rows of floats in the encoding that products read.
std::vector<uint8_t> in_bf16(const std::string& platform, const std::vector<float>& values,
                             uint32_t k) {
  GpuMachine machine(platform);
  const auto rows = static_cast<uint32_t>(values.size() / k);
  const float* x = machine.input("x", values);
  uint8_t* out = machine.output<uint8_t>("out", rows * kernels::bf16_row_bytes(k));
  const uint32_t* count = machine.input("rows", std::vector<uint32_t>{rows});
  const kernels::ProductLaunch launch = kernels::encode_launch(k, rows);
  const kernels::EncodeParams params{x, out, count, k, kernels::bf16_row_bytes(k), k, 0};
  const auto report =
      machine.run(kernels::kEncodeBf16, params, kernels::kEncodeParamsDigest,
                  {.shape = {static_cast<uint32_t>(launch.x), static_cast<uint32_t>(launch.y), 1,
                             launch.threads, 0}});
  REQUIRE(report.ok());
  return machine.contents(out, uint8_t{0xff});
}

/// What the CPU gives for `positions` rows of slot 0 in one step.
std::vector<float> in_one_step(const GdnShape& shape, uint32_t positions) {
  const CpuPack pack;
  DeltaSteps whole(pack, shape, positions, positions);
  return whole.step({{0, positions}});
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: gdn has the CPU's bits at every shape, in prefill, decode and verify steps") {
    if (!has_fma()) return;
    const Schedule schedule = {
        {{0, 70}}, {{0, 1}}, {{0, 8, 3}}, {{0, 30}}, {{0, 24}}, {{0, 1}}, {{0, 7, 1}},
    };
    // key heads, value heads, key dim, value dim, taps
    for (const GdnShape& shape : {GdnShape{2, 6, 16, 16, 4}, GdnShape{1, 1, 8, 12, 2},
                                  GdnShape{2, 4, 7, 33, 3}, GdnShape{3, 3, 20, 8, 1}}) {
      CAPTURE(shape.key_dim);
      same_as_cpu(shape, schedule, 160, 70, {0, 1, 2});
    }
    // The heads of a released model, and the largest.
    same_as_cpu({1, 3, 128, 128, 4}, schedule, 160, 70, {3});
    same_as_cpu({1, 1, 256, 40, 16}, {{{0, 66}}, {{0, 4}}, {{0, 8, 6}}, {{0, 60}}}, 160, 70, {4});
  }

  TEST_CASE("gpu: gdn in ragged steps") {
    if (!has_fma()) return;
    const Schedule schedule = {
        {{3, 70}, {5, 1}, {0, 20}},
        {{0, 1}, {3, 8, 3}, {5, 31}, {7, 40}},
        {{7, 1}, {5, 8, 1}, {3, 1}, {0, 8, 5}},
        {{0, 60}, {3, 3, 2}, {5, 5}, {7, 24}},
        {{5, 100}, {3, 8, 4}},
        {{3, 1}, {5, 1}, {7, 1}},
    };
    same_as_cpu({2, 6, 16, 16, 4}, schedule, 200, 128, {0, 5});
    same_as_cpu({1, 2, 12, 36, 4}, schedule, 200, 128, {6});
  }

  TEST_CASE("gpu: gdn gives a row the same bits however steps divide the rows") {
    if (!has_fma()) return;
    const GdnShape shape{1, 2, 12, 20, 4};
    constexpr uint32_t kPositions = 140;
    const std::vector<float> expected = in_one_step(shape, kPositions);
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      DeltaSteps one = on_gpu(platform, 7, shape, kPositions, kPositions);
      CHECK(same_bits(expected, one.step({{0, kPositions}})));
      // Around the border between few and many rows, and that of a chunk.
      for (const std::vector<uint32_t>& sizes : std::vector<std::vector<uint32_t>>{
               {1}, {8}, {9}, {63}, {64}, {65}, {62, 1, 1, 1, 61, 3}, {33, 1, 64, 2, 31}}) {
        CAPTURE(sizes[0]);
        DeltaSteps steps = on_gpu(platform, 8 + sizes[0], shape, kPositions, 70);
        CHECK(same_bits(expected, in_steps(steps, 0, kPositions, sizes)));
      }
      for (uint32_t seed = 0; seed < 3; ++seed) {
        CAPTURE(seed);
        DeltaSteps steps = on_gpu(platform, seed, shape, kPositions, 8);
        CHECK(same_bits(expected, in_verify_steps(steps, 0, kPositions, seed, kernels::kGdnChunk)));
      }
    }
  }

  TEST_CASE(
      "gpu: gdn_step has the CPU's bits in decode and verify steps, behind prefill and alone") {
    if (!has_fma()) return;
    const DeltaForm few{.few = true};
    const Schedule schedule = {
        {{0, 1}},    {{0, 8, 3}}, {{0, 2}},  {{0, 8}},      {{0, 48}}, {{0, 2, 2}},
        {{0, 3, 1}}, {{0, 8, 7}}, {{0, 55}}, {{0, 1}},      {{0, 1}},  {{0, 63}},
        {{0, 8, 2}}, {{0, 1}},    {{0, 40}}, {{0, 20, 20}}, {{0, 1}},
    };
    for (const GdnShape& shape :
         {GdnShape{2, 6, 16, 16, 4}, GdnShape{1, 1, 8, 12, 2}, GdnShape{2, 4, 7, 33, 3},
          GdnShape{3, 3, 20, 8, 1}, GdnShape{1, 2, 100, 72, 4}}) {
      CAPTURE(shape.key_dim);
      same_as_cpu(shape, schedule, 300, 64, {0, 1, 2}, few);
    }
    same_as_cpu({1, 3, 128, 128, 4},
                {{{0, 63}}, {{0, 1}}, {{0, 8, 3}}, {{0, 7, 1}}, {{0, 60}}, {{0, 5}}, {{0, 1}}}, 160,
                64, {3}, few);
    const Schedule ragged = {
        {{3, 1}, {5, 8, 2}, {0, 4}},
        {{0, 60}, {3, 62}, {5, 60}},
        {{0, 8, 3}, {3, 1}, {5, 2}, {7, 8, 8}},
        {{3, 1}, {7, 3, 2}, {5, 8, 8}, {0, 1}},
        {{5, 1}, {7, 8, 1}},
    };
    same_as_cpu({2, 6, 16, 16, 4}, ragged, 200, 200, {0, 5}, few);
  }

  TEST_CASE("gpu: gdn_step gives a row the bits of one long step, from the first row on") {
    if (!has_fma()) return;
    const GdnShape shape{1, 2, 12, 20, 4};
    constexpr uint32_t kPositions = 140;
    const std::vector<float> expected = in_one_step(shape, kPositions);
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      for (const std::vector<uint32_t>& sizes : std::vector<std::vector<uint32_t>>{{1}, {4}}) {
        DeltaSteps steps = on_gpu(platform, sizes[0], shape, kPositions, 8, {.few = true});
        CHECK(same_bits(expected, in_steps(steps, 0, kPositions, sizes)));
        CHECK(steps.ran_few());
      }
      for (uint32_t seed = 0; seed < 3; ++seed) {
        CAPTURE(seed);
        DeltaSteps steps = on_gpu(platform, seed, shape, kPositions, 8, {.few = true});
        CHECK(same_bits(expected, in_verify_steps(steps, 0, kPositions, seed, kernels::kGdnChunk)));
      }
    }
  }

  TEST_CASE("gpu: gdn_step norms, gates and encodes its heads") {
    if (!has_fma()) return;
    const CpuPack pack;
    for (const GdnShape& shape :
         {GdnShape{2, 4, 16, 32, 4}, GdnShape{1, 3, 128, 128, 4}, GdnShape{1, 2, 24, 20, 4}}) {
      CAPTURE(shape.value_dim);
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        for (const bool silu : {false, true}) {
          const uint32_t width = shape.value_heads * shape.value_dim;
          const bool encodes = width % 128 == 0;
          DeltaSteps cpu(pack, shape, 90, 80);
          DeltaSteps gpu = on_gpu(platform, silu, shape, 90, 80,
                                  {.few = true, .norms = true, .silu = silu, .encodes = encodes});
          for (const std::vector<RowPart>& parts :
               {std::vector<RowPart>{{0, 60}, {2, 9}}, std::vector<RowPart>{{0, 4}, {2, 8}},
                std::vector<RowPart>{{0, 1}}, std::vector<RowPart>{{2, 1}, {0, 5}}}) {
            const std::vector<float> raw = cpu.step(parts), out = gpu.step(parts);
            if (!gpu.ran_few()) {
              CHECK(same_bits(out, raw));
              continue;
            }
            CHECK(same_bits(out, normed(pack, shape, raw, gpu.gates(), gpu.norm_weight(), silu)));
            if (encodes) CHECK(gpu.encoded() == in_bf16(platform, out, width));
          }
          CHECK(gpu.ran_few());
        }
      }
    }
  }

  TEST_CASE("gpu: gdn goes on from an anchor in another slot, which stays as it is") {
    if (!has_fma()) return;
    const GdnShape shape{2, 4, 16, 16, 4};
    constexpr uint32_t kPositions = 150;
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      DeltaSteps steps = on_gpu(platform, 9, shape, kPositions, 64);
      std::vector<float> expected;
      std::map<uint32_t, uint32_t> anchors;  // index: anchor
      while (steps.rows().length(1) < kPositions) {
        append(expected, steps.step({{1, std::min(21u, kPositions - steps.rows().length(1))}}));
        anchors[steps.rows().anchor_index(1)] = steps.rows().anchor(1);
      }
      REQUIRE(anchors.size() == 3);
      steps.step({{5, 45}});  // the slot is used by another text first
      steps.set_text(5, 1);
      for (const auto& [index, anchor] : anchors) {
        CAPTURE(index);
        const bool none = anchor == kernels::kNoAnchor;
        const std::vector<float> before = none ? std::vector<float>() : steps.anchor(anchor);
        for (const uint32_t size : {7u, 40u}) {
          steps.rows().restart(5, anchor, index);
          const std::vector<float> rest = in_steps(steps, 5, kPositions, {size});
          CHECK(same_bits(rest, {expected.begin() + index * steps.width(), expected.end()}));
        }
        if (!none) CHECK(same_bits(before, steps.anchor(anchor)));
      }
    }
  }

  TEST_CASE("gpu: gdn keeps what is not a number in its sequence") {
    if (!has_fma()) return;
    const GdnShape shape{1, 2, 16, 16, 4};
    for (const char* platform : kGpuPlatforms) {
      DeltaSteps clean = on_gpu(platform, 0, shape, 80, 160);
      DeltaSteps spoilt = on_gpu(platform, 0, shape, 80, 160);
      const std::vector<float> expected = clean.step({{0, 80}, {1, 80}});
      for (size_t c = 0; c < kernels::gdn_channels(shape); ++c) {
        spoilt.text(0).qkv[40 * kernels::gdn_channels(shape) + c] = NAN;
      }
      const std::vector<float> out = spoilt.step({{0, 80}, {1, 80}});
      const size_t bad = 40 * spoilt.width(), second = 80 * spoilt.width();
      CHECK(
          same_bits({out.begin(), out.begin() + bad}, {expected.begin(), expected.begin() + bad}));
      CHECK(same_bits({out.begin() + second, out.end()},
                      {expected.begin() + second, expected.end()}));
      for (size_t i = bad; i < second; ++i) CHECK(std::isnan(out[i]));
    }
  }
}

}  // namespace atlas::test

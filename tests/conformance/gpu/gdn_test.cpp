// Gated DeltaNet of every GPU pack: the plugin's records in the emulator give the bits of its
// records on the CPU, however rows come, in any order of blocks and warps.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/cpu_targets.h"
#include "tests/support/delta_steps.h"
#include "tests/support/gpu_place.h"

namespace atlas::test {
namespace {

using Schedule = std::vector<std::vector<RowPart>>;

// Bits of SCALAR, without fused multiply-add, differ where sums are made.
bool has_fma() { return cpu_targets().front().name != "SCALAR"; }

DeltaSteps on_gpu(const std::string& platform, uint64_t seed, const GdnShape& shape,
                  uint32_t positions, uint32_t rows) {
  return {std::make_unique<GpuPlace>(platform, seed), shape, positions, rows};
}

/// Runs a schedule on the CPU and on every GPU platform in several orders, step by step.
void same_as_cpu(const GdnShape& shape, const Schedule& schedule, uint32_t positions, uint32_t rows,
                 const std::vector<uint64_t>& seeds) {
  const CpuPack pack;
  DeltaSteps cpu(pack, shape, positions, rows);
  std::vector<std::vector<float>> expected;
  for (const auto& parts : schedule) expected.push_back(cpu.step(parts));
  for (const char* platform : kGpuPlatforms) {
    for (const uint64_t seed : seeds) {
      CAPTURE(platform);
      CAPTURE(seed);
      DeltaSteps gpu = on_gpu(platform, seed, shape, positions, rows);
      for (size_t i = 0; i < schedule.size(); ++i) {
        CAPTURE(i);
        REQUIRE(same_bits(gpu.step(schedule[i]), expected[i]));
      }
      for (uint32_t slot = 0; slot < 8; ++slot) {
        const uint32_t anchor = cpu.rows().anchor(slot);
        CAPTURE(slot);
        REQUIRE(gpu.rows().anchor(slot) == anchor);
        if (anchor != kernels::kNoAnchor) CHECK(same_bits(gpu.anchor(anchor), cpu.anchor(anchor)));
      }
    }
  }
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
    const CpuPack pack;
    DeltaSteps whole(pack, shape, kPositions, kPositions);
    const std::vector<float> expected = whole.step({{0, kPositions}});
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

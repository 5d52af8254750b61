// Clusters in their emulated form: blocks that add up each other's numbers, two steps of them, and
// what it looks like when that is broken.
#include "kernels/common/device/cluster.h"

#include <doctest/doctest.h>

#include <vector>

#include "tests/support/simt/machine.h"

namespace atlas::test {
namespace {

using namespace atlas::device;
using simt::FaultKind;
using simt::Machine;
using simt::Report;

enum Broken : uint32_t {
  kSound,
  kNoBegin,     // stores before a wait has shown that others have begun
  kNoWait,      // what was stored is read without a wait
  kWaitOnly,    // waits without having arrived
  kTwice,       // arrives twice
  kRelaxed,     // an arrival that orders no memory
  kEarlyLeave,  // the block that is stored to leaves without a wait
  kLate,        // stores to a block that has left
  kSameHalf,    // the next step's numbers take the place of those that are read
  kNoArrival,   // a block stays away from the last barrier
  kOutside,     // of the cluster
  kPartOfWarp,  // of the warp arrives
  kGlobal,      // stores to memory that is not shared
};

// clang-format off
ATLAS_PARAMS(SumParams,
  const float* x;  // [2, blocks, columns, 32]
  float* y;        // [2, columns, 32], sums over blocks
  uint32_t blocks;
  uint32_t broken;
);
// clang-format on

/// Where the numbers of a step and block stand.
ATLAS_DEVICE float* place(uint32_t step, uint32_t z) {
  return shared_memory<float>() + (step * grid_blocks<2>() + z) * 32 + thread_index();
}

ATLAS_CLUSTER_KERNEL(cluster_sum, SumParams, 32, 1) {
  const uint32_t broken = params.broken, z = block_index<2>(), columns = grid_blocks();
  const auto x = [&](uint32_t step) {
    return load(params.x + ((step * params.blocks + z) * columns + block_index()) * 32 +
                thread_index());
  };
  const auto add = [&](uint32_t step, uint32_t half) {
    if (z != 0) return;
    float sum = 0;
    for (uint32_t other = 0; other < params.blocks; ++other) sum += load(place(half, other));
    store(params.y + (step * columns + block_index()) * 32 + thread_index(), sum);
  };
  const uint32_t owner = broken == kOutside ? params.blocks : 0;
  if (broken == kPartOfWarp && thread_index() == 31) return;
  if (broken != kNoBegin && broken != kWaitOnly) cluster_begin();
  if (broken == kTwice) cluster_begin();
  if (broken == kEarlyLeave && z == 0) return;
  if (broken != kNoBegin) cluster_wait();
  if (broken == kLate && z == 0) return;
  if (broken == kGlobal) {
    cluster_store(params.y, owner, 1.0f);
    return;
  }
  cluster_store(place(0, z), owner, x(0));
  if (broken == kRelaxed) {
    cluster_begin();
  } else {
    cluster_arrive();
  }
  if (broken == kNoWait) return add(0, 0);
  cluster_wait();
  const uint32_t half = broken == kSameHalf ? 0 : 1;
  cluster_store(place(half, z), owner, x(1));
  add(0, 0);
  if (broken == kNoArrival && z == 1) {
    for (;;) pause();
  }
  cluster_arrive();
  if (z != 0) return;
  cluster_wait();
  add(1, half);
}

// Sums go around by way of another warp, and a block barrier.
ATLAS_CLUSTER_KERNEL(cluster_warps, SumParams, 64, 1) {
  const uint32_t z = block_index<2>(), lane = lane_index();
  float* const mine = shared_memory<float>() + lane;
  cluster_begin();
  cluster_wait();
  if (warp_index() == 0) cluster_store(mine, (z + 1) % params.blocks, load(params.x + lane) + z);
  cluster_arrive();
  if (warp_index() == 0) cluster_wait();
  if (params.broken != kNoWait) block_barrier();
  if (warp_index() == 1) store(params.y + z * 32 + lane, load(mine));
}

constexpr uint32_t kBlocks = 3, kColumns = 5;

struct Outcome {
  Report report;
  std::vector<float> y;
};

Outcome run(uint32_t broken, uint64_t seed, uint32_t blocks = kBlocks) {
  Machine machine;
  std::vector<float> x(size_t{2} * blocks * kColumns * 32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 64);
  float* y = machine.output<float>("y", size_t{2} * kColumns * 32);
  const SumParams params{machine.input("x", x), y, blocks, broken};
  Outcome outcome;
  outcome.report = machine.run(
      ATLAS_SIMT_CLUSTER_KERNEL(cluster_sum), params,
      {.grid = {kColumns, 1, blocks}, .shared_bytes = 2 * blocks * 32 * 4, .seed = seed});
  outcome.y = machine.contents(y, -1.0f);
  if (broken != kSound) return outcome;
  for (uint32_t i = 0; i < outcome.y.size(); ++i) {
    const uint32_t step = i / (kColumns * 32);
    float sum = 0;
    for (uint32_t z = 0; z < blocks; ++z) {
      sum += x[(step * blocks + z) * kColumns * 32 + i % (kColumns * 32)];
    }
    REQUIRE(outcome.y[i] == sum);
  }
  return outcome;
}

TEST_SUITE("kernels") {
  TEST_CASE("cluster: its blocks' numbers meet in one of them, whatever the order") {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      CAPTURE(seed);
      for (const uint32_t blocks : {1u, 3u, 8u}) {
        const Outcome outcome = run(kSound, seed, blocks);
        CHECK_MESSAGE(outcome.report.ok(), outcome.report.text());
      }
    }
  }

  TEST_CASE("cluster: what breaks its rules is found, whatever the order") {
    struct Case {
      Broken broken;
      FaultKind kind;
      const char* text;
    };
    for (const Case& each :
         {Case{kNoBegin, FaultKind::kCluster, "no wait has shown to have begun"},
          {kNoWait, FaultKind::kRace, "nothing orders the two"},
          {kWaitOnly, FaultKind::kCluster, "without having arrived"},
          {kTwice, FaultKind::kCluster, "again before it has waited"},
          {kRelaxed, FaultKind::kRace, "nothing orders the two"},
          {kEarlyLeave, FaultKind::kCluster, "which has left"},
          {kLate, FaultKind::kCluster, "the shared memory of block 0"},
          {kSameHalf, FaultKind::kRace, "nothing orders the two"},
          {kNoArrival, FaultKind::kCluster, "which 32 of its 96 threads never come to"},
          {kOutside, FaultKind::kCluster, "a cluster that has 3"},
          {kPartOfWarp, FaultKind::kWarpDivergence, "the cluster's barrier"},
          {kGlobal, FaultKind::kNotDeviceMemory, "no shared memory"}}) {
      CAPTURE(each.broken);
      for (uint64_t seed = 0; seed < 6; ++seed) {
        CAPTURE(seed);
        const Report report = run(each.broken, seed).report;
        CAPTURE(report.text());
        CHECK(report.has(each.kind));
        CHECK(report.text().find(each.text) != std::string::npos);
      }
    }
  }

  TEST_CASE("cluster: a wait of one warp is there for another behind a block barrier") {
    for (const uint32_t broken : {uint32_t{kSound}, uint32_t{kNoWait}}) {
      for (uint64_t seed = 0; seed < 6; ++seed) {
        CAPTURE(seed);
        Machine machine;
        float* y = machine.output<float>("y", size_t{kBlocks} * 32);
        const SumParams params{machine.input("x", std::vector<float>(32, 1.0f)), y, kBlocks,
                               broken};
        const Report report =
            machine.run(ATLAS_SIMT_CLUSTER_KERNEL(cluster_warps), params,
                        {.grid = {1, 1, kBlocks}, .shared_bytes = 32 * 4, .seed = seed});
        CAPTURE(report.text());
        CHECK(report.ok() == (broken == kSound));
        for (uint32_t z = 0; broken == kSound && z < kBlocks; ++z) {
          CHECK(machine.contents(y)[z * 32] == static_cast<float>((z + kBlocks - 1) % kBlocks + 1));
        }
      }
    }
  }

  TEST_CASE("cluster: more blocks than a device promises are refused") {
    const Report report = run(kOutside, 0, 9).report;
    CHECK(report.has(FaultKind::kLaunch));
    CHECK(report.text().find("asked for 9, of at most 8") != std::string::npos);
  }
}

}  // namespace
}  // namespace atlas::test

// Barriers of phases and bulk copies in their emulated form: a ring of stages that one warp fills
// and another empties, and what it looks like when it is broken.
#include "kernels/common/device/bulk.h"

#include <doctest/doctest.h>

#include <numeric>
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
  kNoInit,        // barriers are never made
  kNoWait,        // stages are read before they are full
  kNoExpect,      // the phase ends without the copy's bytes
  kNoRelease,     // stages are never let go
  kEarlyRelease,  // let go by one lane before the others have read
  kNoEmptyWait,   // stages are filled again before they are let go
  kOddBytes,      // no multiple of 16
  kTwoArrivals,   // more than a phase has
};

// clang-format off
ATLAS_PARAMS(RingParams,
  const float* x;  // [stages, 32]
  float* y;        // [stages, 32], twice x
  uint32_t stages;
  uint32_t broken;
);
// clang-format on

constexpr uint32_t kSlots = 2, kBytes = 32 * sizeof(float);

ATLAS_DEVICE PhaseBarrier* barrier(uint32_t i) {
  return shared_memory<PhaseBarrier>(kSlots * kBytes) + i;
}

ATLAS_DEVICE_KERNEL(ring, RingParams, 64) {
  const uint32_t broken = params.broken, lane = lane_index();
  if (thread_index() == 0 && broken != kNoInit) {
    for (uint32_t i = 0; i < 2 * kSlots; ++i) phase_init(barrier(i), 1);
  }
  block_barrier();
  if (warp_index() == 1) {
    if (!elect_lane()) return;
    for (uint32_t stage = 0; stage < params.stages; ++stage) {
      const uint32_t slot = stage % kSlots, parity = stage / kSlots % 2;
      if (broken != kNoEmptyWait) phase_wait(barrier(kSlots + slot), parity ^ 1);
      const uint32_t bytes = broken == kOddBytes ? kBytes - 4 : kBytes;
      if (broken == kNoExpect) {
        phase_arrive(barrier(slot));
      } else {
        phase_expect(barrier(slot), bytes);
      }
      if (broken == kTwoArrivals) phase_arrive(barrier(slot));
      bulk_copy(shared_memory<uint8_t>(slot * kBytes), params.x + 32 * stage, bytes, barrier(slot));
    }
    return;
  }
  for (uint32_t stage = 0; stage < params.stages; ++stage) {
    const uint32_t slot = stage % kSlots, parity = stage / kSlots % 2;
    if (broken != kNoWait) phase_wait(barrier(slot), parity);
    if (broken == kEarlyRelease && lane == 0) phase_arrive(barrier(kSlots + slot));
    const float value = load(shared_memory<float>(slot * kBytes) + lane);
    store(params.y + 32 * stage + lane, 2.0f * value);
    warp_barrier();  // all lanes have read the stage
    if (lane == 0 && broken != kNoRelease && broken != kEarlyRelease) {
      phase_arrive(barrier(kSlots + slot));
    }
  }
}

/// The same where each lane of the warp that fills copies its own number.
ATLAS_DEVICE_KERNEL(lane_ring, RingParams, 64) {
  const uint32_t broken = params.broken, lane = lane_index();
  if (thread_index() == 0 && broken != kNoInit) {
    for (uint32_t i = 0; i < kSlots; ++i) {
      phase_init(barrier(i), kWarpLanes);
      phase_init(barrier(kSlots + i), 1);
    }
  }
  block_barrier();
  for (uint32_t stage = 0; stage < params.stages; ++stage) {
    const uint32_t slot = stage % kSlots, parity = stage / kSlots % 2;
    float* at = shared_memory<float>(slot * kBytes) + lane;
    if (warp_index() == 1) {
      if (broken != kNoEmptyWait) phase_wait(barrier(kSlots + slot), parity ^ 1);
      async_copy<4>(at, params.x + 32 * stage + lane);
      if (broken == kNoExpect) {
        phase_arrive(barrier(slot));
      } else {
        phase_arrive_copied(barrier(slot));
      }
      if (broken == kTwoArrivals) phase_arrive_copied(barrier(slot));
      continue;
    }
    if (broken != kNoWait) phase_wait(barrier(slot), parity);
    if (broken == kEarlyRelease && lane == 0) phase_arrive(barrier(kSlots + slot));
    store(params.y + 32 * stage + lane, 2.0f * load(at));
    warp_barrier();  // all lanes have read the stage
    if (lane == 0 && broken != kNoRelease && broken != kEarlyRelease) {
      phase_arrive(barrier(kSlots + slot));
    }
  }
}

struct Result {
  std::vector<float> y;
  Report report;
};

Result run(bool by_lanes, uint32_t broken, uint64_t seed) {
  constexpr uint32_t kStages = 7;
  std::vector<float> x(32 * kStages);
  std::iota(x.begin(), x.end(), 1.0f);
  Machine machine;
  float* y = machine.output<float>("y", x.size());
  const RingParams params{machine.input("x", x), y, kStages, broken};
  Result result;
  const simt::Launch options{.shared_bytes = kSlots * (kBytes + 16), .seed = seed};
  result.report = by_lanes ? machine.run(ATLAS_SIMT_KERNEL(lane_ring), params, options)
                           : machine.run(ATLAS_SIMT_KERNEL(ring), params, options);
  result.y = machine.contents(y);
  return result;
}

}  // namespace

TEST_SUITE("simt") {
  TEST_CASE("bulk: stages of a ring arrive whole, in every order of warps") {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const Result found = run(seed % 2 == 1, kSound, seed / 2);
      INFO(found.report.text());
      REQUIRE(found.report.ok());
      for (size_t i = 0; i < found.y.size(); ++i) {
        REQUIRE(found.y[i] == 2.0f * (static_cast<float>(i) + 1.0f));
      }
    }
  }

  TEST_CASE("bulk: what breaks a ring is found, whichever warp runs first") {
    for (const bool by_lanes : {false, true}) {
      CAPTURE(by_lanes);
      const auto found_in = [&](uint32_t broken, FaultKind kind) {
        for (uint64_t seed = 0; seed < 6; ++seed) {
          if (run(by_lanes, broken, seed).report.has(kind)) return true;
        }
        return false;
      };
      CHECK(found_in(kNoInit, FaultKind::kPhase));
      CHECK(found_in(kNoWait, FaultKind::kInFlight));
      CHECK(found_in(kNoWait, FaultKind::kUnwritten));
      CHECK(found_in(kNoExpect, FaultKind::kInFlight));
      CHECK(found_in(kNoRelease, FaultKind::kStuck));
      CHECK(found_in(kEarlyRelease, FaultKind::kRace));
      CHECK(found_in(kNoEmptyWait, FaultKind::kPhase));
      CHECK(found_in(kTwoArrivals, FaultKind::kPhase));
      if (by_lanes) continue;
      CHECK(found_in(kNoEmptyWait, FaultKind::kInFlight));
      CHECK(found_in(kOddBytes, FaultKind::kMisaligned));
    }
  }
}

}  // namespace atlas::test

// Kernels broken on purpose, one for each class of fault: the emulator must name what is wrong,
// where, and nothing else; beside each its repaired form runs clean.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "kernels/common/device/device.h"
#include "tests/support/simt/machine.h"

namespace atlas::test {
namespace {

using namespace atlas::device;
using simt::FaultKind;
using simt::Launch;
using simt::Machine;
using simt::Report;

// clang-format off
ATLAS_PARAMS(ProbeParams,
  const float* x;
  float* y;
  uint32_t* counter;
  uint32_t n;
  uint32_t broken;  // 1: with the fault
);
// clang-format on

// One block of 64 threads unless said.
ATLAS_DEVICE_KERNEL(bounds, ProbeParams, 64) {
  const uint32_t i = block_index() * 64 + thread_index();
  if (i < params.n || params.broken != 0) store(params.y + i, load(params.x + i));
}

ATLAS_DEVICE_KERNEL(below, ProbeParams, 64) {
  const uint32_t i = thread_index();
  const float before = i > 0 || params.broken != 0 ? load(params.x + i - 1) : 0.0f;
  store(params.y + i, before);
}

ATLAS_DEVICE_KERNEL(alignment, ProbeParams, 32) {
  const uint32_t i = thread_index() * 4 + params.broken;
  const Floats4 four = load_as<Floats4>(params.x + i);
  store(params.y + thread_index(), four.f[0]);
}

ATLAS_DEVICE_KERNEL(null_pointer, ProbeParams, 32) {
  const float* from = params.broken != 0 ? nullptr : params.x;
  store(params.y + thread_index(), load(from));
}

ATLAS_DEVICE_KERNEL(input_write, ProbeParams, 32) {
  float* to = params.broken != 0 ? const_cast<float*>(params.x) : params.y;
  store(to + thread_index(), 1.0f);
}

ATLAS_DEVICE_KERNEL(unwritten_shared, ProbeParams, 64) {
  float* tile = shared_memory<float>();
  const uint32_t i = thread_index();
  if (i < 63 || params.broken == 0) store(tile + i, load(params.x + i));
  block_barrier();
  store(params.y + i, load(tile + 63 - i));
}

ATLAS_DEVICE_KERNEL(unwritten_output, ProbeParams, 32) {
  float* to = params.y + thread_index();
  if (params.broken == 0) store(to, 0.0f);
  store(to, load(to) + load(params.x + thread_index()));
}

ATLAS_DEVICE_KERNEL(missing_barrier, ProbeParams, 64) {
  float* tile = shared_memory<float>();
  const uint32_t i = thread_index();
  store(tile + i, load(params.x + i));
  if (params.broken == 0) block_barrier();
  store(params.y + i, load(tile + (i ^ 32)));
}

// The second round overwrites what slower threads still read.
ATLAS_DEVICE_KERNEL(early_overwrite, ProbeParams, 64) {
  float* tile = shared_memory<float>();
  const uint32_t i = thread_index();
  float sum = 0.0f;
  for (uint32_t round = 0; round < 2; ++round) {
    store(tile + i, load(params.x + i));
    block_barrier();
    sum += load(tile + (i ^ 32));
    if (params.broken == 0) block_barrier();
  }
  store(params.y + i, sum);
}

ATLAS_DEVICE_KERNEL(warp_race, ProbeParams, 32) {
  float* tile = shared_memory<float>();
  const uint32_t i = thread_index();
  store(tile + i, load(params.x + i));
  if (params.broken == 0) warp_barrier();
  store(params.y + i, load(tile + (i ^ 1)));
}

// A shuffle moves a register; it orders no memory.
ATLAS_DEVICE_KERNEL(shuffle_orders_nothing, ProbeParams, 32) {
  float* tile = shared_memory<float>();
  const uint32_t i = thread_index();
  store(tile + i, load(params.x + i));
  const float other = shuffle_xor(1.0f, 1);
  if (params.broken == 0) warp_barrier();
  store(params.y + i, load(tile + (i ^ 1)) * other);
}

ATLAS_DEVICE_KERNEL(block_race, ProbeParams, 32) {
  if (thread_index() == 0) store(params.y + (params.broken != 0 ? 0 : block_index()), 1.0f);
}

// Every block adds its part; the last to arrive adds the parts up. Without the order of the counter
// it may read parts that have not arrived.
ATLAS_DEVICE_KERNEL(last_arriver, ProbeParams, 32) {
  uint32_t* last = shared_memory<uint32_t>();
  if (thread_index() < 4) store(params.y + block_index() * 4 + thread_index(), 1.0f);
  block_barrier();
  if (thread_index() == 0) {
    const uint32_t place = params.broken != 0 ? atomic_add<Order::kRelaxed>(params.counter, 1u)
                                              : atomic_add<Order::kAcqRel>(params.counter, 1u);
    store(last, place + 1 == grid_blocks() ? 1u : 0u);
  }
  block_barrier();
  if (load(last) == 0 || thread_index() >= 4) return;
  float sum = 0.0f;
  for (uint32_t b = 0; b < grid_blocks(); ++b) sum += load(params.y + b * 4 + thread_index());
  store(params.y + grid_blocks() * 4 + thread_index(), sum);
}

ATLAS_DEVICE_KERNEL(divergent_barrier, ProbeParams, 64) {
  if (params.broken == 0 || thread_index() < 32) {
    block_barrier();
  } else {
    block_barrier();
  }
}

ATLAS_DEVICE_KERNEL(early_return, ProbeParams, 64) {
  if (params.broken != 0 && thread_index() == 63) return;
  block_barrier();
}

ATLAS_DEVICE_KERNEL(skipped_barrier, ProbeParams, 64) {
  // Warp 1 waits for a lane of its own that waits at the block's barrier.
  if (params.broken == 0 || thread_index() != 40) warp_barrier();
  block_barrier();
}

ATLAS_DEVICE_KERNEL(foreign_lane, ProbeParams, 32) {
  const uint32_t lane = lane_index();
  if (lane >= 16) return;
  const float value =
      shuffle(load(params.x + lane), params.broken != 0 ? lane + 1 : lane ^ 1, 0xffff);
  store(params.y + lane, value);
}

ATLAS_DEVICE_KERNEL(unnamed_lane, ProbeParams, 32) {
  const uint32_t mask = params.broken != 0 ? 0x7fffffffu : kAllLanes;
  if (ballot(true, mask) == 0 && thread_index() == 0) store(params.y, 1.0f);
}

ATLAS_DEVICE_KERNEL(absent_lane, ProbeParams, 32) {
  if (params.broken != 0 && lane_index() >= 16) return;
  if (all(true)) store(params.y + lane_index(), 1.0f);
}

ATLAS_DEVICE_KERNEL(copy_in_flight, ProbeParams, 32) {
  float* tile = shared_memory<float>();
  const uint32_t i = thread_index();
  async_copy<4>(tile + i, params.x + i);
  async_commit();
  async_copy<4>(tile + 32 + i, params.x + 32 + i);
  async_commit();
  if (params.broken != 0) {
    async_wait<1>();
  } else {
    async_wait<0>();
  }
  store(params.y + i, load(tile + i) + load(tile + 32 + i));
}

ATLAS_DEVICE_KERNEL(copy_without_barrier, ProbeParams, 32) {
  float* tile = shared_memory<float>();
  const uint32_t i = thread_index();
  async_copy<4>(tile + i, params.x + i);
  async_commit();
  async_wait<0>();
  if (params.broken == 0) block_barrier();
  store(params.y + i, load(tile + (i ^ 1)));
}

ATLAS_DEVICE_KERNEL(never, ProbeParams, 32) {
  if (thread_index() != 0) return;
  if (params.broken == 0) atomic_store<Order::kRelease>(params.counter, 1u);
  while (atomic_load<Order::kAcquire>(params.counter) == 0) pause();
}

// A block waits for the next one: only a cooperative launch promises that it runs.
ATLAS_DEVICE_KERNEL(neighbour, ProbeParams, 32) {
  if (thread_index() != 0) return;
  atomic_add<Order::kRelease>(params.counter, 1u);
  while (atomic_load<Order::kAcquire>(params.counter) != grid_blocks()) pause();
}

struct Probe {
  simt::Kernel kernel;
  FaultKind kind;
  uint32_t line;  // of the faulty access; 0: any
  Launch launch;
};

Report run(const Probe& probe, uint32_t broken, uint64_t seed) {
  Machine machine;
  std::vector<float> x(128);
  std::iota(x.begin(), x.end(), 1.0f);
  const ProbeParams params{machine.input("x", x), machine.output<float>("y", 128),
                           machine.in_out<uint32_t>("counter", {0}), 100, broken};
  Launch launch = probe.launch;
  launch.shared_bytes = 256;
  launch.seed = seed;
  return machine.run(probe.kernel, params, launch);
}

void expect(const simt::Kernel& kernel, FaultKind kind, Launch launch = {}) {
  const Probe probe{kernel, kind, 0, launch};
  CAPTURE(kernel.name);
  for (const uint64_t seed : {0, 1, 2, 3}) {
    CAPTURE(seed);
    const Report broken = run(probe, 1, seed);
    INFO(broken.text());
    REQUIRE(!broken.ok());
    for (const simt::Fault& fault : broken.faults) {
      CHECK(simt::fault_name(fault.kind) == simt::fault_name(kind));
      CHECK(fault.text.find(kernel.name) != std::string::npos);
      CHECK(fault.file.ends_with("faults_test.cpp"));
      CHECK(fault.line > 0);
    }
    const Report repaired = run(probe, 0, seed);
    INFO(repaired.text());
    CHECK(repaired.ok());
  }
}

Launch grid(uint32_t blocks) {
  Launch launch;
  launch.grid[0] = blocks;
  return launch;
}

}  // namespace

TEST_SUITE("simt") {
  TEST_CASE("simt: an access past a buffer's end") {
    expect(ATLAS_SIMT_KERNEL(bounds), FaultKind::kOutOfBounds, grid(2 + 1));
  }
  TEST_CASE("simt: an access before a buffer's begin") {
    expect(ATLAS_SIMT_KERNEL(below), FaultKind::kOutOfBounds);
  }
  TEST_CASE("simt: a vector access that is not aligned") {
    const Probe probe{ATLAS_SIMT_KERNEL(alignment), FaultKind::kMisaligned, 0, {}};
    const Report report = run(probe, 1, 0);
    REQUIRE(!report.ok());
    CHECK(report.faults[0].kind == FaultKind::kMisaligned);
    CHECK(run(probe, 0, 0).ok());
  }
  TEST_CASE("simt: a null pointer") {
    expect(ATLAS_SIMT_KERNEL(null_pointer), FaultKind::kNotDeviceMemory);
  }
  TEST_CASE("simt: a write to an input") {
    expect(ATLAS_SIMT_KERNEL(input_write), FaultKind::kReadOnly);
  }
  TEST_CASE("simt: shared memory that nobody has written") {
    expect(ATLAS_SIMT_KERNEL(unwritten_shared), FaultKind::kUnwritten);
  }
  TEST_CASE("simt: output that nobody has written") {
    expect(ATLAS_SIMT_KERNEL(unwritten_output), FaultKind::kUnwritten);
  }
  TEST_CASE("simt: a missing barrier between a write and a read") {
    // Threads that run early read what is not there yet, so that shows too.
    const Probe probe{ATLAS_SIMT_KERNEL(missing_barrier), FaultKind::kRace, 0, {}};
    for (const uint64_t seed : {0, 1, 2, 3}) {
      const Report report = run(probe, 1, seed);
      INFO(report.text());
      CHECK(report.has(FaultKind::kRace));
      CHECK(run(probe, 0, seed).ok());
    }
  }
  TEST_CASE("simt: a missing barrier between a read and the next write") {
    expect(ATLAS_SIMT_KERNEL(early_overwrite), FaultKind::kRace);
  }
  TEST_CASE("simt: lanes of a warp exchange through memory without a barrier") {
    for (const auto& kernel :
         {ATLAS_SIMT_KERNEL(warp_race), ATLAS_SIMT_KERNEL(shuffle_orders_nothing)}) {
      const Probe probe{kernel, FaultKind::kRace, 0, {}};
      for (const uint64_t seed : {0, 1, 2, 3}) {
        CAPTURE(kernel.name);
        CHECK(run(probe, 1, seed).has(FaultKind::kRace));
        CHECK(run(probe, 0, seed).ok());
      }
    }
  }
  TEST_CASE("simt: blocks write the same place") {
    expect(ATLAS_SIMT_KERNEL(block_race), FaultKind::kRace, grid(3));
  }
  TEST_CASE("simt: the last to arrive reads what no order brings to it") {
    expect(ATLAS_SIMT_KERNEL(last_arriver), FaultKind::kRace, grid(5));
  }
  TEST_CASE("simt: threads at different barriers") {
    expect(ATLAS_SIMT_KERNEL(divergent_barrier), FaultKind::kDivergentBarrier);
  }
  TEST_CASE("simt: a thread returns before a barrier") {
    expect(ATLAS_SIMT_KERNEL(early_return), FaultKind::kDivergentBarrier);
  }
  TEST_CASE("simt: a warp waits for a lane that waits for the block") {
    const Probe probe{ATLAS_SIMT_KERNEL(skipped_barrier), FaultKind::kWarpDivergence, 0, {}};
    const Report report = run(probe, 1, 0);
    INFO(report.text());
    CHECK(report.has(FaultKind::kWarpDivergence));
    CHECK(report.faults[0].text.find("lane 8 of the mask") != std::string::npos);
    CHECK(run(probe, 0, 0).ok());
  }
  TEST_CASE("simt: a shuffle reads a lane outside of its mask") {
    expect(ATLAS_SIMT_KERNEL(foreign_lane), FaultKind::kWarpLane);
  }
  TEST_CASE("simt: a lane comes to a vote that does not name it") {
    expect(ATLAS_SIMT_KERNEL(unnamed_lane), FaultKind::kWarpLane);
  }
  TEST_CASE("simt: a vote waits for lanes that have returned") {
    expect(ATLAS_SIMT_KERNEL(absent_lane), FaultKind::kWarpDivergence);
  }
  TEST_CASE("simt: a read of what an asynchronous copy has not delivered") {
    expect(ATLAS_SIMT_KERNEL(copy_in_flight), FaultKind::kInFlight);
  }
  TEST_CASE("simt: a read of what another lane's copy has delivered, without a barrier") {
    const Probe probe{ATLAS_SIMT_KERNEL(copy_without_barrier), FaultKind::kRace, 0, {}};
    for (const uint64_t seed : {0, 1, 2, 3}) {
      CHECK(run(probe, 1, seed).has(FaultKind::kRace));
      CHECK(run(probe, 0, seed).ok());
    }
  }
  TEST_CASE("simt: a wait for what nobody does") {
    expect(ATLAS_SIMT_KERNEL(never), FaultKind::kStuck);
  }
  TEST_CASE("simt: blocks that wait for each other run in a cooperative launch only") {
    Launch launch = grid(4);
    const Probe alone{ATLAS_SIMT_KERNEL(neighbour), FaultKind::kStuck, 0, launch};
    CHECK(run(alone, 0, 0).has(FaultKind::kStuck));
    launch.cooperative = true;
    const Report together = run({alone.kernel, alone.kind, 0, launch}, 0, 0);
    INFO(together.text());
    CHECK(together.ok());
  }
  TEST_CASE("simt: a launch of another block size") {
    Launch launch;
    launch.threads = 32;
    CHECK(run({ATLAS_SIMT_KERNEL(bounds), FaultKind::kLaunch, 0, launch}, 0, 0)
              .has(FaultKind::kLaunch));
  }
  TEST_CASE("simt: a fault says kernel, block, thread, line and what") {
    Launch launch = grid(2);
    const Report report =
        run({ATLAS_SIMT_KERNEL(bounds), FaultKind::kOutOfBounds, 0, launch}, 1, 0);
    CHECK(report.ok());  // 128 elements, 128 threads
    launch.grid[0] = 3;
    const Report past = run({ATLAS_SIMT_KERNEL(bounds), FaultKind::kOutOfBounds, 0, launch}, 1, 0);
    REQUIRE(!past.ok());
    CHECK(past.faults[0].block == 2);
    CHECK(past.faults[0].thread == 0);
    const std::string& text = past.faults[0].text;
    CHECK(
        text.find("out of bounds: kernel 'bounds', block (2, 0, 0), thread 0 (lane 0 of warp 0) at "
                  "faults_test.cpp:") == 0);
    CHECK(text.find("reads 4 bytes at byte 512 of buffer 'x', which has 512") != std::string::npos);
  }
}

}  // namespace atlas::test

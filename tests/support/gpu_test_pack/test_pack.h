// The kernels of the test pack for GPUs: what the device contract's tests launch. A task is a block
// of one thread.
#pragma once

#include "kernels/common/device/device.h"
#include "tests/support/test_pack_params.h"

namespace atlas::kernels {

ATLAS_DEVICE uint32_t test_task() {
  using namespace device;
  return (block_index<2>() * grid_blocks<1>() + block_index<1>()) * grid_blocks() + block_index();
}

ATLAS_DEVICE_KERNEL(test_empty, TestEmptyParams, 1) { (void)params; }

ATLAS_DEVICE_KERNEL(test_iota, TestIotaParams, 1) {
  const uint32_t first = test_task() * params.block;
  for (uint32_t i = first; i < first + params.block; ++i) {
    device::store(params.out + i, params.base + i);
  }
}

ATLAS_DEVICE_KERNEL(test_mix, TestMixParams, 1) {
  uint32_t* x = params.x + test_task();
  device::store(x, device::load(x) * 3 + params.addend);
}

ATLAS_DEVICE_KERNEL(test_neighbour, TestNeighbourParams, 1) {
  const uint32_t task = test_task();
  // A product whose remainder differs from task to task and from value to value.
  const uint32_t mixed = (task + device::load(params.x + task)) * 2654435761u;
  const uint32_t turns = params.idle == 0 ? 0 : mixed % params.idle;
  for (uint32_t turn = 0; turn < turns; ++turn) device::pause();
  device::store(params.y + task, device::load(params.x + (task + 1) % params.n) + 1);
}

ATLAS_DEVICE_KERNEL(test_wait, TestWaitParams, 1) {
  using namespace device;
  const uint64_t begin = clock_ns();
  uint32_t* flag = const_cast<uint32_t*>(params.flag);
  while (atomic_load<Order::kAcquire, Scope::kSystem>(flag) == 0) {
    if (clock_ns() - begin >= params.timeout_ns) {
      atomic_store<Order::kRelease, Scope::kSystem>(params.seen, 2u);
      return;
    }
    pause();
  }
  atomic_store<Order::kRelease, Scope::kSystem>(params.seen, 1u);
}

ATLAS_DEVICE_KERNEL(test_scratch, TestScratchParams, 1) {
  const uint32_t task = test_task();
  uint8_t* scratch = device::shared_memory<uint8_t>();
  bool kept = reinterpret_cast<uint64_t>(scratch) % 16 == 0;
  for (uint32_t i = 0; i < params.bytes; ++i) {
    device::store(scratch + i, static_cast<uint8_t>(task + i));
  }
  device::block_barrier();
  for (uint32_t i = 0; i < params.bytes; ++i) {
    kept = kept && device::load(scratch + i) == static_cast<uint8_t>(task + i);
  }
  device::store(params.out + task, kept ? 1u : 0u);
}

}  // namespace atlas::kernels

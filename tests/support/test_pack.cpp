// A kernel pack for tests of devices, so that those depend on no real one.
#include <atomic>
#include <chrono>

#include "kernels/cpu/kernel.h"
#include "tests/support/test_pack_params.h"

namespace atlas::kernels {

ATLAS_CPU_KERNEL(test_empty, TestEmptyParams) {}

ATLAS_CPU_KERNEL(test_iota, TestIotaParams) {
  for (uint64_t i = uint64_t{begin} * params.block; i < uint64_t{end} * params.block; ++i) {
    params.out[i] = params.base + static_cast<uint32_t>(i);
  }
}

ATLAS_CPU_KERNEL(test_mix, TestMixParams) {
  for (uint32_t task = begin; task < end; ++task) {
    params.x[task] = params.x[task] * 3 + params.addend;
  }
}

// As a GPU's kernel that waits by itself for the one before it.
extern "C" {
extern __attribute__((visibility("default"))) const uint32_t atlas_waits_test_mix;
__attribute__((used)) const uint32_t atlas_waits_test_mix = 1;
}

ATLAS_CPU_KERNEL(test_neighbour, TestNeighbourParams) {
  for (uint32_t task = begin; task < end; ++task) {
    // A product whose remainder differs from task to task and from value to value.
    const uint32_t mixed = (task + params.x[task]) * 2654435761u;
    const uint32_t turns = params.idle == 0 ? 0 : mixed % params.idle;
    for (uint32_t turn = 0; turn < turns; ++turn) asm volatile("");  // keeps the empty loop
    params.y[task] = params.x[(task + 1) % params.n] + 1;
  }
}

ATLAS_CPU_KERNEL(test_wait, TestWaitParams) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(params.timeout_ns);
  std::atomic_ref<uint32_t> flag(*const_cast<uint32_t*>(params.flag));
  while (flag.load(std::memory_order_acquire) == 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      *params.seen = 2;
      return;
    }
  }
  *params.seen = 1;
}

ATLAS_CPU_KERNEL(test_scratch, TestScratchParams) {
  for (uint32_t task = begin; task < end; ++task) {
    bool kept = reinterpret_cast<uintptr_t>(scratch) % 64 == 0;
    volatile std::byte* bytes = scratch;
    for (uint32_t i = 0; i < params.bytes; ++i) bytes[i] = static_cast<std::byte>(task + i);
    for (uint32_t i = 0; i < params.bytes; ++i) {
      kept = kept && bytes[i] == static_cast<std::byte>(task + i);
    }
    params.out[task] = kept ? 1 : 0;
  }
}

ATLAS_CPU_KERNEL(test_float, TestFloatParams) {
  volatile float x = params.x;
  volatile float y = params.y;
  for (uint32_t task = begin; task < end; ++task) params.out[task] = x * y;
}

ATLAS_CPU_KERNEL(test_sum, TestSumParams) {
  for (uint32_t task = begin; task < end; ++task) {
    float sum = 0;
    for (uint32_t i = 0; i < params.n; ++i) sum += params.x[uint64_t{task} * params.n + i];
    params.out[task] = sum;
  }
}

}  // namespace atlas::kernels

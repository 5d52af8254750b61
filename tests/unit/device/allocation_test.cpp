// Submitting and running steps allocates nothing, in any thread of the process.
#include <doctest/doctest.h>

#include <memory>
#include <thread>

#include "tests/support/allocation_counter.h"
#include "tests/support/test_pack_params.h"
#include "tests/support/test_platform.h"

namespace atlas::test {

using namespace std::chrono_literals;

TEST_SUITE_BEGIN("device");

TEST_CASE("allocations: the counter sees those of every thread and of every object") {
  const uint64_t before = allocation_count();
  std::thread([] { delete new int(1); }).join();
  CHECK(allocation_count() >= before + 2);  // the thread's own state, and the int
  const uint64_t opening = allocation_count();
  (void)open_device<CpuPlatform>();
  CHECK(allocation_count() > opening);
}

TEST_CASE("allocations: none while steps are submitted and run") {
  const auto device = open_device<CpuPlatform>();
  Stream stream = take(device->create_stream());
  const Module pack = take(device->load_module(test_pack_path()));
  DeviceBuffer x = take(device->alloc(MemoryKind::kDevice, 4096));
  DeviceBuffer pinned = take(device->alloc(MemoryKind::kPinned, 4096));
  const kernels::TestMixParams mix{pointer<uint32_t>(x), 1, 0};
  const kernels::TestScratchParams scratch{pointer<uint32_t>(x), 4096, 0};
  const AtlasKernel mixing = take(pack.kernel("test_mix"));
  const AtlasKernel scratching = take(pack.kernel("test_scratch"));
  std::vector<Launch> launches;
  for (int i = 0; i < 40; ++i) {
    launches.push_back(make_launch(mixing, mix, i % 2 == 0 ? 1 : 100));
    launches.push_back(make_launch(scratching, scratch, 9, 4096));
  }
  const StepExecutable graph = take(StepExecutable::create(device, launches, StepMode::kGraph));
  const StepExecutable eager = take(StepExecutable::create(device, launches, StepMode::kEager));
  Event event = take(device->create_event());
  const uint64_t before = allocation_count();
  bool all_ok = true;
  for (int i = 0; i < 300; ++i) {
    all_ok = all_ok && stream.copy_to_device(x.address(), pinned.host().data(), 4096).ok();
    all_ok = all_ok && graph.launch(stream).ok() && eager.launch(stream).ok();
    all_ok = all_ok && stream.copy_to_host(pinned.host().data(), x.address(), 4096).ok();
    all_ok = all_ok && stream.fill(x.address(), 0, 4096).ok() && event.record(stream).ok();
    // Every tenth time the threads fall asleep first.
    if (i % 10 == 0) all_ok = all_ok && event.wait(30s).ok();
    if (i % 30 == 0) std::this_thread::sleep_for(1ms);
    all_ok = all_ok && event.query().has_value();
  }
  all_ok = all_ok && stream.synchronize().ok();
  const uint64_t after = allocation_count();
  CHECK(all_ok);
  CHECK(after == before);
}

TEST_SUITE_END();

}  // namespace atlas::test

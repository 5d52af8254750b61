// Measures what a platform adds to kernels and copies: `device_overhead --device PLATFORM`, or
// platform cpu. Not a test: it prints a table.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/support/real_platform.h"
#include "tests/support/test_pack_params.h"

namespace {

using namespace atlas;
using namespace atlas::test;
using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Bench {
  std::shared_ptr<Device> device;
  Stream stream;
  Module pack;
  kernels::TestEmptyParams params{};

  StepExecutable step(size_t records, StepMode mode) const {
    const std::vector<Launch> launches(records,
                                       make_launch(take(pack.kernel("test_empty")), params, 1));
    return take(StepExecutable::create(device, launches, mode));
  }
};

/// Medians of a step: `submit_us` of the host, `total_us` from there until the event has been seen.
struct Times {
  double submit_us, total_us;
};

Times times_of(Bench& bench, const StepExecutable& step, int runs) {
  Event event = take(bench.device->create_event());
  std::vector<double> submits, totals;
  for (int i = 0; i < runs + 20; ++i) {
    const auto start = Clock::now();
    ok(step.launch(bench.stream));
    const double submitted = us_since(start);
    ok(event.record(bench.stream));
    ok(event.wait(std::chrono::seconds(10)));
    if (i < 20) continue;
    submits.push_back(submitted);
    totals.push_back(us_since(start));
  }
  return {median(submits), median(totals)};
}

// Two lengths of one chain, so that what a launch costs once falls out.
void measure_steps(Bench& bench) {
  std::printf(
      "| step of empty launches | submit, us | submit to done, us |\n| --- | --- | --- |\n");
  for (const StepMode mode : {StepMode::kGraph, StepMode::kEager}) {
    const char* name = mode == StepMode::kGraph ? "graph" : "eager";
    double total[2] = {};
    for (const size_t records : {1u, 100u, 1000u}) {
      const Times times = times_of(bench, bench.step(records, mode), 200);
      std::printf("| %zu, %s | %.2f | %.2f |\n", records, name, times.submit_us, times.total_us);
      if (records > 1) total[records == 1000] = times.total_us;
    }
    std::printf("| a launch more, %s | | %.3f |\n", name, (total[1] - total[0]) / 900);
  }
}

void measure_ahead(Bench& bench) {
  const StepExecutable step = bench.step(300, StepMode::kGraph);
  Event events[2] = {take(bench.device->create_event()), take(bench.device->create_event())};
  constexpr int kRuns = 1000;
  Clock::time_point start;
  for (int i = -20; i < kRuns; ++i) {
    if (i == 0) start = Clock::now();
    ok(events[i & 1].wait(std::chrono::seconds(10)));
    ok(step.launch(bench.stream));
    ok(events[i & 1].record(bench.stream));
  }
  ok(bench.stream.synchronize());
  std::printf("\nSteps of 300 empty launches, two in flight: %.2f us a step\n",
              us_since(start) / kRuns);
}

void measure_copies(Bench& bench) {
  constexpr uint64_t kBytes = uint64_t{256} << 20;
  DeviceBuffer memory = take(bench.device->alloc(MemoryKind::kDevice, kBytes));
  DeviceBuffer pinned = take(bench.device->alloc(MemoryKind::kPinned, kBytes));
  std::vector<char> pageable(kBytes, 1);
  const auto rate = [&](const char* name, const auto& copy) {
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) {
      const auto start = Clock::now();
      ok(copy());
      ok(bench.stream.synchronize());
      times.push_back(us_since(start));
    }
    std::printf("| %s | %.1f |\n", name, static_cast<double>(kBytes) / median(times) / 1e3);
  };
  std::printf("\n| copy of 256 MiB | GB/s |\n| --- | --- |\n");
  Stream& stream = bench.stream;
  rate("pageable to device",
       [&] { return stream.copy_to_device(memory.address(), pageable.data(), kBytes); });
  rate("pinned to device",
       [&] { return stream.copy_to_device(memory.address(), pinned.host().data(), kBytes); });
  rate("device to pageable",
       [&] { return stream.copy_to_host(pageable.data(), memory.address(), kBytes); });
  rate("device to pinned",
       [&] { return stream.copy_to_host(pinned.host().data(), memory.address(), kBytes); });
  rate("fill", [&] { return stream.fill(memory.address(), 0, kBytes); });
}

void measure_making(Bench& bench) {
  const uint64_t before = take(bench.device->info()).available_bytes;
  auto start = Clock::now();
  std::vector<StepExecutable> graphs;
  for (int i = 0; i < 10; ++i) graphs.push_back(bench.step(1000, StepMode::kGraph));
  const double made = us_since(start) / 10;
  const uint64_t after = take(bench.device->info()).available_bytes;
  std::printf("\nA graph of 1000 launches: %.0f us to make, %.2f MiB of device memory\n", made,
              (static_cast<double>(before) - static_cast<double>(after)) / 10 / (1 << 20));
  std::vector<double> takes, frees;
  for (int i = 0; i < 20; ++i) {
    start = Clock::now();
    DeviceBuffer buffer = take(bench.device->alloc(MemoryKind::kDevice, uint64_t{64} << 20));
    takes.push_back(us_since(start));
    start = Clock::now();
    buffer = DeviceBuffer();
    frees.push_back(us_since(start));
  }
  std::printf("64 MiB: %.0f us to allocate, %.0f us to free\n", median(takes), median(frees));
}

template <typename Platform>
void measure() {
  const auto device = open_device<Platform>();
  Bench bench{device, take(device->create_stream()), take(device->load_module(Platform::pack()))};
  const DeviceInfo info = take(device->info());
  std::printf("%s, %s, %.1f of %.1f GiB free\n\n", info.name.c_str(), info.architecture.c_str(),
              static_cast<double>(info.available_bytes) / (1 << 30),
              static_cast<double>(info.memory_bytes) / (1 << 30));
  measure_steps(bench);
  measure_ahead(bench);
  measure_copies(bench);
  measure_making(bench);
}

}  // namespace

TEST_CASE("overhead of a device") {
  if (argument("device").empty()) {
    measure<CpuPlatform>();
  } else {
    measure<RealPlatform>();
  }
}

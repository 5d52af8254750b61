// Measures what platform cpu adds to kernels: time a record, submit to done, and a wake from idle.
// Not a test: run it by hand; it prints microseconds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/support/test_pack_params.h"
#include "tests/support/test_platform.h"

namespace {

using namespace atlas;
using namespace atlas::test;
using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Median microseconds from launch to the event, over `runs` runs.
double run_us(const std::shared_ptr<Device>& device, Stream& stream, const StepExecutable& step,
              int runs, std::chrono::microseconds pause) {
  Event event = take(device->create_event());
  std::vector<double> times;
  for (int i = 0; i < runs + 50; ++i) {
    if (pause.count() != 0) std::this_thread::sleep_for(pause);
    const auto start = Clock::now();
    ok(step.launch(stream));
    ok(event.record(stream));
    ok(event.wait(std::chrono::seconds(10)));
    if (i >= 50 || pause.count() != 0) {
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
  }
  return median(times);
}

struct Bench {
  explicit Bench(const char* threads)
      : device(open_device<CpuPlatform>({{"threads", threads}})),
        stream(take(device->create_stream())),
        pack(take(device->load_module(test_pack_path()))) {}
  std::shared_ptr<Device> device;
  Stream stream;
  Module pack;

  template <typename Params>
  StepExecutable step(const char* kernel, const Params& params, size_t records, uint32_t tasks,
                      StepMode mode = StepMode::kGraph) {
    const std::vector<Launch> launches(records,
                                       make_launch(take(pack.kernel(kernel)), params, tasks));
    return take(StepExecutable::create(device, launches, mode));
  }
};

void measure_empty(Bench& bench) {
  const kernels::TestEmptyParams params{};
  for (const uint32_t tasks : {1u, 2u, 16u, 64u}) {
    for (const StepMode mode : {StepMode::kGraph, StepMode::kEager}) {
      const StepExecutable step = bench.step("test_empty", params, 300, tasks, mode);
      std::printf("  300 records of %2u empty tasks, %s: %.3f us a record\n", tasks,
                  mode == StepMode::kGraph ? "graph" : "eager",
                  run_us(bench.device, bench.stream, step, 1000, {}) / 300);
    }
  }
  const StepExecutable one = bench.step("test_empty", params, 1, 2);
  std::printf("  submit to done, one record, awake: %.2f us\n",
              run_us(bench.device, bench.stream, one, 2000, {}));
  std::printf("  submit to done, one record, after 5 ms of idleness: %.2f us\n",
              run_us(bench.device, bench.stream, one, 200, std::chrono::microseconds(5000)));
}

// Microseconds a record of `tasks` tasks that each add `n` floats in order.
double sums_us(Bench& bench, uint32_t tasks, uint32_t n) {
  DeviceBuffer x = take(bench.device->alloc(MemoryKind::kDevice, uint64_t{tasks} * n * 4));
  DeviceBuffer out = take(bench.device->alloc(MemoryKind::kDevice, tasks * 4));
  ok(bench.stream.fill(x.address(), 0, uint64_t{tasks} * n * 4));
  const kernels::TestSumParams params{pointer<float>(x), pointer<float>(out), n, 0};
  const StepExecutable step = bench.step("test_sum", params, 300, tasks);
  return run_us(bench.device, bench.stream, step, 200, {}) / 300;
}

}  // namespace

TEST_CASE("overhead") {
  Bench one("1");
  Bench two("2");
  std::printf("threads 1\n");
  measure_empty(one);
  std::printf("threads 2\n");
  measure_empty(two);
  std::printf("overhead a record: time of 2 threads less half the time of one\n");
  for (const auto& [tasks, n] :
       {std::pair(2u, 1000u), std::pair(8u, 500u), std::pair(36u, 200u), std::pair(96u, 250u)}) {
    const double alone = sums_us(one, tasks, n);
    const double both = sums_us(two, tasks, n);
    std::printf("  %2u tasks: %.2f us alone, %.2f us with two, overhead %.2f us\n", tasks, alone,
                both, both - alone / 2);
  }
}

// What platform cpu promises beyond the contract: its options and its threads' arithmetic.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/support/test_pack_params.h"
#include "tests/support/test_platform.h"

namespace atlas::test {

TEST_SUITE_BEGIN("device");

TEST_CASE("cpu: bad values of options are refused with what they take") {
  const auto refusal = [](const char* key, const char* value) {
    const auto opened = Device::open(CpuPlatform::api(), "cpu", {{key, value}});
    REQUIRE(!opened);
    CHECK(opened.error().code() == Code::kInvalidArgument);
    CHECK(opened.error().message().find(key) != std::string::npos);
    return opened.error().message();
  };
  for (const char* threads : {"0", "-1", "two", "2x", "", "1025", "99999999999"}) {
    CHECK(refusal("threads", threads).find("1 to 1024") != std::string::npos);
  }
  CHECK(refusal("pin", "yes").find("true or false") != std::string::npos);
}

TEST_CASE("cpu: the thread count is obeyed and said") {
  for (const char* threads : {"1", "3"}) {
    const auto device = open_device<CpuPlatform>({{"threads", threads}, {"pin", "true"}});
    const DeviceInfo info = take(device->info());
    CHECK(info.compute_units == static_cast<uint32_t>(std::stoi(threads)));
    CHECK(info.unified_memory);
    CHECK(info.name.find(std::string(threads) + " thread") != std::string::npos);
  }
}

TEST_CASE("cpu: results do not depend on the thread count") {
  constexpr uint32_t kRows = 513;
  constexpr uint32_t kWidth = 33;
  std::vector<float> x(kRows * kWidth);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * 1000;
  std::vector<std::vector<float>> results;
  for (const char* threads : {"1", "2", "5"}) {
    const auto device = open_device<CpuPlatform>({{"threads", threads}});
    Stream stream = take(device->create_stream());
    const Module pack = take(device->load_module(test_pack_path()));
    DeviceBuffer in = take(device->alloc(MemoryKind::kDevice, x.size() * sizeof(float)));
    DeviceBuffer out = take(device->alloc(MemoryKind::kDevice, kRows * sizeof(float)));
    write(stream, in, x);
    const kernels::TestSumParams params{pointer<float>(in), pointer<float>(out), kWidth, 0};
    const Launch launch = make_launch(take(pack.kernel("test_sum")), params, kRows);
    const StepExecutable step =
        take(StepExecutable::create(device, std::span(&launch, 1), StepMode::kGraph));
    ok(step.launch(stream));
    results.push_back(read<float>(stream, out, kRows));
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("cpu: a record waits for the slowest task of the record before it") {
  constexpr uint32_t kTasks = 23;
  constexpr uint32_t kRecords = 200;
  for (const char* threads : {"2", "4"}) {  // as many as cores here, and more
    const auto device = open_device<CpuPlatform>({{"threads", threads}});
    Stream stream = take(device->create_stream());
    const Module pack = take(device->load_module(test_pack_path()));
    const AtlasKernel neighbour = take(pack.kernel("test_neighbour"));
    std::array<DeviceBuffer, 2> x{take(device->alloc(MemoryKind::kDevice, kTasks * 4)),
                                  take(device->alloc(MemoryKind::kDevice, kTasks * 4))};
    std::vector<kernels::TestNeighbourParams> params;
    std::vector<Launch> launches;
    params.reserve(kRecords);
    for (uint32_t i = 0; i < kRecords; ++i) {
      params.push_back(
          {pointer<uint32_t>(x[i % 2]), pointer<uint32_t>(x[(i + 1) % 2]), kTasks, 4000});
      launches.push_back(make_launch(neighbour, params.back(), kTasks));
    }
    const StepExecutable step = take(StepExecutable::create(device, launches, StepMode::kGraph));
    std::vector<uint32_t> expected(kTasks);
    std::iota(expected.begin(), expected.end(), 0u);
    write(stream, x[0], expected);
    for (int run = 0; run < 5; ++run) ok(step.launch(stream));
    for (uint32_t i = 0; i < 5 * kRecords; ++i) {
      std::rotate(expected.begin(), expected.begin() + 1, expected.end());
      for (uint32_t& value : expected) ++value;
    }
    CHECK(read<uint32_t>(stream, x[0], kTasks) == expected);
  }
}

TEST_CASE("cpu: an idle device uses no processor time") {
  const auto device = open_device<CpuPlatform>();
  Stream stream = take(device->create_stream());
  DeviceBuffer x = take(device->alloc(MemoryKind::kDevice, 64));
  ok(stream.fill(x.address(), 0, 64));
  ok(stream.synchronize());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the threads fall asleep
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double used_ms = 1000.0 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  CHECK(used_ms < 10);
}

TEST_CASE("cpu: subnormal numbers are kept by every thread") {
  const auto device = open_device<CpuPlatform>();
  Stream stream = take(device->create_stream());
  const Module pack = take(device->load_module(test_pack_path()));
  DeviceBuffer out = take(device->alloc(MemoryKind::kDevice, 10'000 * sizeof(float)));
  constexpr float kSmallest = std::numeric_limits<float>::min();
  const kernels::TestFloatParams params{pointer<float>(out), kSmallest, 0.25f};
  const Launch launch = make_launch(take(pack.kernel("test_float")), params, 10'000);
  const StepExecutable step =
      take(StepExecutable::create(device, std::span(&launch, 1), StepMode::kGraph));
  ok(step.launch(stream));
  CHECK(read<float>(stream, out, 10'000) == std::vector<float>(10'000, kSmallest / 4));
  CHECK(kSmallest / 4 > 0);
}

TEST_SUITE_END();

}  // namespace atlas::test

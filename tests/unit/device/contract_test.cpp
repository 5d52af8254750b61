// One suite for every platform: what the contract promises, whoever keeps it.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <thread>

#include "tests/support/test_pack_params.h"
#include "tests/support/test_platform.h"
#ifdef ATLAS_DEVICE_CONTRACT
#include "tests/support/real_platform.h"
#endif

namespace atlas::test {
namespace {

using namespace std::chrono_literals;
using kernels::TestIotaParams;
using kernels::TestMixParams;
using kernels::TestNeighbourParams;
using kernels::TestScratchParams;
using kernels::TestSumParams;
using kernels::TestWaitParams;

#ifdef ATLAS_DEVICE_CONTRACT
#define PLATFORMS RealPlatform
#else
#define PLATFORMS CpuPlatform, ImitationPlatform, FakeCudaPlatform, FakeHipPlatform
#endif

template <typename Platform>
struct Bench {
  std::shared_ptr<Device> device = open_device<Platform>();
  Stream stream = take(device->create_stream());
  Module pack = take(device->load_module(Platform::pack()));

  DeviceBuffer memory(uint64_t bytes) { return take(device->alloc(MemoryKind::kDevice, bytes)); }
  DeviceBuffer pinned(uint64_t bytes) { return take(device->alloc(MemoryKind::kPinned, bytes)); }
  AtlasKernel kernel(const char* name) { return take(pack.kernel(name)); }
  StepExecutable step(const std::vector<Launch>& launches, StepMode mode = StepMode::kGraph) {
    return take(StepExecutable::create(device, launches, mode));
  }
};

uint32_t& word(const DeviceBuffer& pinned) {
  return *reinterpret_cast<uint32_t*>(pinned.host().data());
}

void set_flag(const DeviceBuffer& pinned, uint32_t value) {
  std::atomic_ref<uint32_t>(word(pinned)).store(value, std::memory_order_release);
}

}  // namespace

TEST_SUITE_BEGIN("device");

TEST_CASE_TEMPLATE("info: a device says what it is", Platform, PLATFORMS) {
  const DeviceInfo info = take(open_device<Platform>()->info());
  CHECK(!info.name.empty());
  CHECK(!info.architecture.empty());
  CHECK(info.memory_bytes > 0);
  CHECK(info.available_bytes > 0);
  CHECK(info.available_bytes <= info.memory_bytes);
  CHECK(info.compute_units > 0);
  CHECK(info.supports_graphs);
}

TEST_CASE_TEMPLATE("options: an unknown key is refused and the known ones are named", Platform,
                   PLATFORMS) {
  const auto opened = Device::open(Platform::api(), Platform::platform(), {{"thread", "2"}});
  REQUIRE(!opened);
  CHECK(opened.error().code() == Code::kInvalidArgument);
  CHECK(opened.error().message().find("'thread'") != std::string::npos);
  CHECK(opened.error().message().find("knows") != std::string::npos);
}

TEST_CASE_TEMPLATE("memory: bytes that go to the device come back", Platform, PLATFORMS) {
  Bench<Platform> bench;
  std::mt19937 random(7);
  for (const size_t bytes :
       {size_t{1}, size_t{255}, size_t{4096}, size_t{1} << 20, (size_t{9} << 20) + 13}) {
    CAPTURE(bytes);
    DeviceBuffer buffer = bench.memory(bytes);
    CHECK(buffer.address() % 256 == 0);
    CHECK(buffer.host().empty());
    std::vector<uint8_t> values(bytes);
    for (uint8_t& value : values) value = static_cast<uint8_t>(random());
    write(bench.stream, buffer, values);
    CHECK(read<uint8_t>(bench.stream, buffer, bytes) == values);
  }
}

TEST_CASE_TEMPLATE("memory: pageable source may be overwritten as soon as the copy returns",
                   Platform, PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer buffer = bench.memory(3000 * 4);
  std::vector<uint32_t> values(3000, 1);
  write(bench.stream, buffer, values);
  std::fill(values.begin(), values.end(), 2);
  CHECK(read<uint32_t>(bench.stream, buffer, 3000) == std::vector<uint32_t>(3000, 1));
}

TEST_CASE_TEMPLATE("memory: fills and parts of a buffer", Platform, PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer buffer = bench.memory(1000);
  ok(bench.stream.fill(buffer.address(), 0xab, 1000));
  ok(bench.stream.fill(buffer.address() + 10, 0x01, 5));
  std::vector<uint8_t> expected(1000, 0xab);
  std::fill(expected.begin() + 10, expected.begin() + 15, 1);
  CHECK(read<uint8_t>(bench.stream, buffer, 1000) == expected);
  ok(bench.stream.fill(buffer.address(), 0, 0));
  CHECK(read<uint8_t>(bench.stream, buffer, 1000) == expected);
}

TEST_CASE_TEMPLATE("memory: pinned memory has one address and is copied in stream order", Platform,
                   PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer from = bench.pinned(64);
  DeviceBuffer to = bench.pinned(64);
  DeviceBuffer device = bench.memory(64);
  REQUIRE(from.host().size() == 64);
  CHECK(reinterpret_cast<AtlasAddress>(from.host().data()) == from.address());
  word(from) = 41;
  ok(bench.stream.copy_to_device(device.address(), from.host().data(), 4));
  ok(bench.stream.copy_to_host(to.host().data(), device.address(), 4));
  ok(bench.stream.synchronize());
  CHECK(word(to) == 41);
}

TEST_CASE_TEMPLATE("memory: a range outside the allocations is refused", Platform, PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer buffer = bench.memory(100);
  char byte = 0;
  CHECK(bench.stream.copy_to_device(buffer.address() + 100, &byte, 1).code() == Code::kOutOfRange);
  CHECK(bench.stream.copy_to_host(&byte, buffer.address() + 50, 51).code() == Code::kOutOfRange);
  CHECK(bench.stream.fill(64, 0, 1).code() == Code::kOutOfRange);
  CHECK(bench.stream.fill(buffer.address(), 0, ~uint64_t{0}).code() == Code::kOutOfRange);
}

TEST_CASE_TEMPLATE("memory: too much is refused with the bytes named, and nothing at all too",
                   Platform, PLATFORMS) {
  Bench<Platform> bench;
  const auto much = bench.device->alloc(MemoryKind::kDevice, uint64_t{1} << 60);
  REQUIRE(!much);
  CHECK(much.error().code() == Code::kResourceExhausted);
  CHECK(much.error().message().find(std::to_string(uint64_t{1} << 60)) != std::string::npos);
  CHECK(bench.device->alloc(MemoryKind::kDevice, ~uint64_t{0}).error().code() ==
        Code::kResourceExhausted);
  CHECK(bench.device->alloc(MemoryKind::kPinned, 0).error().code() == Code::kInvalidArgument);
  // The device goes on as before.
  CHECK(bench.memory(100).address() != 0);
}

TEST_CASE_TEMPLATE("memory: live bytes are counted and given back", Platform, PLATFORMS) {
  const auto device = open_device<Platform>();
  for (int round = 0; round < 100; ++round) {
    DeviceBuffer buffer = take(device->alloc(MemoryKind::kDevice, 50'000));
    CHECK(device->allocated_bytes(MemoryKind::kDevice) == 50'000);
  }
  CHECK(device->allocated_bytes(MemoryKind::kDevice) == 0);
}

TEST_CASE_TEMPLATE("module: what is missing is named", Platform, PLATFORMS) {
  Bench<Platform> bench;
  const auto missing = bench.device->load_module("/no/such/pack.so");
  REQUIRE(!missing);
  CHECK(missing.error().code() == Code::kNotFound);
  CHECK(missing.error().message().find("/no/such/pack.so") != std::string::npos);
  const auto text = bench.device->load_module("/etc/passwd");
  REQUIRE(!text);
  CHECK(text.error().code() == Code::kFailedPrecondition);
  const auto kernel = bench.pack.kernel("test_absent");
  REQUIRE(!kernel);
  CHECK(kernel.error().code() == Code::kNotFound);
  CHECK(kernel.error().message().find("'test_absent'") != std::string::npos);
}

TEST_CASE_TEMPLATE("module: one that is let go takes nothing from another load of its pack",
                   Platform, PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer x = bench.memory(64);
  const auto run = [&](const Module& pack) {
    ok(bench.stream.fill(x.address(), 0, 64));
    const kernels::TestMixParams params{pointer<uint32_t>(x), 1, 0};
    const Launch launch = make_launch(take(pack.kernel("test_mix")), params, 4);
    const StepExecutable step = bench.step({launch});
    ok(step.launch(bench.stream));
    return read<uint32_t>(bench.stream, x, 1)[0];
  };
  for (int round = 0; round < 3; ++round) {
    const Module again = take(bench.device->load_module(Platform::pack()));
    const Module copy = again;
    CHECK(run(copy) == 1);
  }
  CHECK(run(bench.pack) == 1);
  // Nor does it stay known: there is no load left that gave it out.
  const auto kernel_of = [&](Module pack) { return take(pack.kernel("test_mix")); };
  const AtlasKernel gone = kernel_of(std::move(bench.pack));
  const kernels::TestMixParams params{pointer<uint32_t>(x), 1, 0};
  const Launch launch = make_launch(gone, params, 4);
  const auto step = StepExecutable::create(bench.device, std::span(&launch, 1), StepMode::kEager);
  REQUIRE(!step);
  CHECK(step.error().code() == Code::kInvalidArgument);
}

TEST_CASE_TEMPLATE("step: what cannot run is refused when the step is made", Platform, PLATFORMS) {
  Bench<Platform> bench;
  const TestIotaParams params{};
  const AtlasKernel iota = bench.kernel("test_iota");
  const auto refusal = [&](const std::vector<Launch>& launches) {
    const auto step = StepExecutable::create(bench.device, launches, StepMode::kGraph);
    REQUIRE(!step);
    CHECK(step.error().code() == Code::kInvalidArgument);
    return step.error().message();
  };
  const Launch good = make_launch(iota, params, 1);
  CHECK(refusal({}).find("at least one") != std::string::npos);
  Launch bad = good;
  bad.kernel = 0;
  bad.name = "layer 3, gate";
  CHECK(refusal({good, bad}).find("launch 1 (layer 3, gate)") != std::string::npos);
  bad.kernel = 0x1234;
  refusal({bad});
  bad = good;
  bad.grid = {0, 1, 1};
  refusal({bad});
  bad.grid = {1u << 20, 1u << 20, 1u << 30};
  refusal({bad});
  const std::vector<std::byte> large(5000);
  bad = good;
  bad.params = large;
  refusal({bad});
}

TEST_CASE_TEMPLATE("step: parameters and names are copied when the step is made", Platform,
                   PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer out = bench.memory(64 * 4);
  TestIotaParams params{pointer<uint32_t>(out), 100, 16};
  const StepExecutable step = bench.step({make_launch(bench.kernel("test_iota"), params, 4)});
  params = {};
  ok(step.launch(bench.stream));
  std::vector<uint32_t> expected(64);
  std::iota(expected.begin(), expected.end(), 100);
  CHECK(read<uint32_t>(bench.stream, out, 64) == expected);
}

TEST_CASE_TEMPLATE("step: a record sees all of the record before it, graph and eager alike",
                   Platform, PLATFORMS) {
  Bench<Platform> bench;
  constexpr uint32_t kTasks = 97;
  constexpr uint32_t kRecords = 60;
  std::vector<uint32_t> start(kTasks);
  std::iota(start.begin(), start.end(), 0u);
  std::vector<std::vector<uint32_t>> results;
  for (const StepMode mode : {StepMode::kGraph, StepMode::kEager}) {
    std::array<DeviceBuffer, 2> x{bench.memory(kTasks * 4), bench.memory(kTasks * 4)};
    const AtlasKernel neighbour = bench.kernel("test_neighbour");
    const AtlasKernel mix = bench.kernel("test_mix");
    std::vector<TestNeighbourParams> shifts;
    std::vector<TestMixParams> mixes;
    std::vector<Launch> launches;
    shifts.reserve(kRecords);
    mixes.reserve(kRecords);
    for (uint32_t i = 0; i < kRecords; ++i) {
      shifts.push_back({pointer<uint32_t>(x[i % 2]), pointer<uint32_t>(x[(i + 1) % 2]), kTasks, 0});
      launches.push_back(make_launch(neighbour, shifts.back(), kTasks));
      // Every third record has one task only: it changes element 0 between two shifts of all.
      mixes.push_back({pointer<uint32_t>(x[(i + 1) % 2]), i, 0});
      if (i % 3 == 0) launches.push_back(make_launch(mix, mixes.back(), 1));
    }
    const StepExecutable step = bench.step(launches, mode);
    CHECK(step.mode() == mode);
    write(bench.stream, x[0], start);
    for (int run = 0; run < 20; ++run) ok(step.launch(bench.stream));
    results.push_back(read<uint32_t>(bench.stream, x[0], kTasks));
  }
  std::vector<uint32_t> expected = start;
  for (uint32_t i = 0; i < 20 * kRecords; ++i) {
    std::rotate(expected.begin(), expected.begin() + 1, expected.end());
    for (uint32_t& value : expected) ++value;
    if (i % kRecords % 3 == 0) expected[0] = expected[0] * 3 + i % kRecords;
  }
  CHECK(results[0] == expected);
  CHECK(results[1] == expected);
}

TEST_CASE_TEMPLATE("step: branches see what stands before the fork, and what joins sees them all",
                   Platform, PLATFORMS) {
  Bench<Platform> bench;
  constexpr uint32_t kTasks = 97, kRounds = 12, kEach = 6;
  constexpr uint32_t kSlow = 4000, kSlower = 40'000;
  std::vector<uint32_t> start(kTasks);
  std::iota(start.begin(), start.end(), 0u);
  for (const StepMode mode : {StepMode::kGraph, StepMode::kEager}) {
    DeviceBuffer memory = bench.memory(6 * kTasks * 4);
    const auto at = [&](uint32_t i) { return pointer<uint32_t>(memory, i * kTasks); };
    uint32_t *const x = at(0), *const fork = at(1), *const left = at(2), *const left_end = at(3),
                    *const right = at(4), *const joined = at(5);
    std::vector<TestNeighbourParams> params;
    std::vector<std::array<uint32_t, 2>> after;
    std::vector<Launch> launches;
    params.reserve(kRounds * kEach);
    after.reserve(kRounds * kEach);
    const AtlasKernel neighbour = bench.kernel("test_neighbour");
    const auto add = [&](const uint32_t* from, uint32_t* to, uint32_t idle,
                         std::initializer_list<uint32_t> follows) {
      params.push_back({from, to, kTasks, idle});
      Launch launch = make_launch(neighbour, params.back(), kTasks);
      std::copy(follows.begin(), follows.end(), after.emplace_back().begin());
      launch.after = std::span(after.back()).first(follows.size());
      launches.push_back(launch);
      return static_cast<uint32_t>(launches.size() - 1);
    };
    for (uint32_t round = 0; round < kRounds; ++round) {
      // Each branch is the slower one in turn.
      const bool turn = round % 2 == 0;
      const uint32_t before = add(x, fork, kSlow, {});
      const uint32_t first = add(fork, left, turn ? kSlow : 0, {before});
      const uint32_t left_last = add(left, left_end, 0, {first});
      const uint32_t right_last = add(fork, right, turn ? 0 : kSlower, {before});
      const uint32_t join = add(left_end, joined, 0, {left_last, right_last});
      // It follows the branch by way of the join alone.
      add(right, x, 0, {join});
    }
    const StepExecutable step = bench.step(launches, mode);
    write(bench.stream, memory, start);
    constexpr uint32_t kRuns = 10;
    for (uint32_t run = 0; run < kRuns; ++run) ok(step.launch(bench.stream));
    // x goes by three shifts a round, what was joined is one more than that behind the last fork.
    const auto shifted = [&](uint32_t times) {
      std::vector<uint32_t> values = start;
      std::rotate(values.begin(), values.begin() + times % kTasks, values.end());
      for (uint32_t& value : values) value += times;
      return values;
    };
    const std::vector<uint32_t> all = read<uint32_t>(bench.stream, memory, 6 * kTasks);
    const auto part = [&](uint32_t i) {
      return std::vector(all.begin() + i * kTasks, all.begin() + (i + 1) * kTasks);
    };
    CHECK(part(0) == shifted(3 * kRuns * kRounds));
    CHECK(part(5) == shifted(3 * (kRuns * kRounds - 1) + 4));
  }
}

TEST_CASE_TEMPLATE("step: every task runs once, whatever their number", Platform, PLATFORMS) {
  Bench<Platform> bench;
  const AtlasKernel mix = bench.kernel("test_mix");
  for (const uint32_t tasks : {1u, 2u, 3u, 7u, 64u, 1000u, 65'537u}) {
    CAPTURE(tasks);
    DeviceBuffer x = bench.memory((tasks + 1) * 4);
    ok(bench.stream.fill(x.address(), 0, (tasks + 1) * 4));
    const TestMixParams params{pointer<uint32_t>(x), 1, 0};
    const StepExecutable step = bench.step({make_launch(mix, params, tasks)});
    ok(step.launch(bench.stream));
    std::vector<uint32_t> expected(tasks + 1, 1);
    expected[tasks] = 0;
    CHECK(read<uint32_t>(bench.stream, x, tasks + 1) == expected);
  }
}

TEST_CASE_TEMPLATE("step: a grid's three sides multiply", Platform, PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer x = bench.memory(31 * 4);
  ok(bench.stream.fill(x.address(), 0, 31 * 4));
  const TestMixParams params{pointer<uint32_t>(x), 1, 0};
  Launch launch = make_launch(bench.kernel("test_mix"), params, 1);
  launch.grid = {2, 3, 5};
  const StepExecutable step = bench.step({launch});
  ok(step.launch(bench.stream));
  std::vector<uint32_t> expected(31, 1);
  expected[30] = 0;
  CHECK(read<uint32_t>(bench.stream, x, 31) == expected);
}

TEST_CASE_TEMPLATE("step: each thread has the scratch that the largest record asks for", Platform,
                   PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer out = bench.memory(200 * 4);
  const TestScratchParams small{pointer<uint32_t>(out), 100, 0};
  const TestScratchParams large{pointer<uint32_t>(out, 100), 20'000, 0};
  const AtlasKernel scratch = bench.kernel("test_scratch");
  const StepExecutable first = bench.step({make_launch(scratch, small, 100, 100)});
  const StepExecutable second =
      bench.step({make_launch(scratch, small, 100, 100), make_launch(scratch, large, 100, 20'000)});
  ok(bench.stream.fill(out.address(), 0, 200 * 4));
  ok(first.launch(bench.stream));
  ok(second.launch(bench.stream));
  ok(first.launch(bench.stream));
  CHECK(read<uint32_t>(bench.stream, out, 200) == std::vector<uint32_t>(200, 1));
}

TEST_CASE_TEMPLATE("stream: launches are submitted ahead and run later, in order", Platform,
                   PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer flag = bench.pinned(256);
  DeviceBuffer seen = bench.pinned(256);
  DeviceBuffer x = bench.memory(4);
  set_flag(flag, 0);
  word(seen) = 0;
  ok(bench.stream.fill(x.address(), 0, 4));
  const TestWaitParams wait{pointer<uint32_t>(flag), pointer<uint32_t>(seen), 30'000'000'000};
  const StepExecutable gate = bench.step({make_launch(bench.kernel("test_wait"), wait, 1)});
  std::vector<StepExecutable> steps;
  for (uint32_t i = 0; i < 5; ++i) {
    const TestMixParams mix{pointer<uint32_t>(x), i, 0};
    steps.push_back(bench.step({make_launch(bench.kernel("test_mix"), mix, 1)}));
  }
  Event before = take(bench.device->create_event());
  Event after = take(bench.device->create_event());
  ok(bench.stream.synchronize());
  ok(before.record(bench.stream));
  ok(gate.launch(bench.stream));
  for (const StepExecutable& step : steps) ok(step.launch(bench.stream));
  ok(after.record(bench.stream));
  // All is submitted, nothing behind the gate has run.
  ok(before.wait(30s));
  CHECK(!take(after.query()));
  CHECK(after.wait(2ms).code() == Code::kDeadlineExceeded);
  CHECK(std::atomic_ref<uint32_t>(word(seen)).load() == 0);
  set_flag(flag, 1);
  ok(after.wait(30s));
  CHECK(take(after.query()));
  CHECK(word(seen) == 1);
  uint32_t expected = 0;
  for (uint32_t i = 0; i < 5; ++i) expected = expected * 3 + i;
  CHECK(read<uint32_t>(bench.stream, x, 1)[0] == expected);
}

TEST_CASE_TEMPLATE("stream: copies, fills and launches keep their order", Platform, PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer x = bench.memory(1000 * 4);
  DeviceBuffer pinned = bench.pinned(1000 * 4);
  const TestMixParams mix{pointer<uint32_t>(x), 5, 0};
  const StepExecutable step = bench.step({make_launch(bench.kernel("test_mix"), mix, 1000)});
  const std::vector<uint32_t> threes(1000, 3);
  for (int round = 0; round < 30; ++round) {
    ok(bench.stream.fill(x.address(), 0, 4000));
    ok(step.launch(bench.stream));  // 5
    ok(bench.stream.copy_to_host(pinned.host().data(), x.address(), 4000));
    ok(bench.stream.fill(x.address(), 0xff, 4000));
    ok(bench.stream.copy_to_device(x.address(), pinned.host().data(), 4000));
    ok(step.launch(bench.stream));  // 20
    CHECK(read<uint32_t>(bench.stream, x, 1000) == std::vector<uint32_t>(1000, 20));
    write(bench.stream, x, threes);
    ok(step.launch(bench.stream));  // 14
    CHECK(read<uint32_t>(bench.stream, x, 1000) == std::vector<uint32_t>(1000, 14));
  }
}

TEST_CASE_TEMPLATE("stream: more launches than any queue holds", Platform, PLATFORMS) {
  Bench<Platform> bench;
  DeviceBuffer x = bench.memory(4);
  ok(bench.stream.fill(x.address(), 0, 4));
  const TestMixParams mix{pointer<uint32_t>(x), 1, 0};
  const StepExecutable step = bench.step({make_launch(bench.kernel("test_mix"), mix, 1)});
  uint32_t expected = 0;
  for (int i = 0; i < 3000; ++i) {
    ok(step.launch(bench.stream));
    expected = expected * 3 + 1;
  }
  CHECK(read<uint32_t>(bench.stream, x, 1)[0] == expected);
}

TEST_CASE_TEMPLATE("stream: two streams do not wait for each other", Platform, PLATFORMS) {
  Bench<Platform> bench;
  Stream other = take(bench.device->create_stream());
  DeviceBuffer flag = bench.pinned(256);
  DeviceBuffer seen = bench.pinned(256);
  DeviceBuffer x = bench.memory(256);
  DeviceBuffer y = bench.pinned(256);
  set_flag(flag, 0);
  word(seen) = 0;
  const TestWaitParams wait{pointer<uint32_t>(flag), pointer<uint32_t>(seen), 30'000'000'000};
  const StepExecutable gate = bench.step({make_launch(bench.kernel("test_wait"), wait, 1)});
  ok(gate.launch(bench.stream));
  ok(other.fill(x.address(), 7, 4));
  ok(other.copy_to_host(y.host().data(), x.address(), 4));
  ok(other.synchronize());
  CHECK(word(y) == 0x07070707);
  CHECK(std::atomic_ref<uint32_t>(word(seen)).load() == 0);
  set_flag(flag, 1);
  ok(bench.stream.synchronize());
  CHECK(word(seen) == 1);
}

TEST_CASE_TEMPLATE("event: one that was never recorded has nothing to wait for", Platform,
                   PLATFORMS) {
  const auto device = open_device<Platform>();
  const Event event = take(device->create_event());
  CHECK(take(event.query()));
  ok(event.wait(1s));
}

TEST_CASE_TEMPLATE("event: it outlives its stream, and waits in other threads", Platform,
                   PLATFORMS) {
  Bench<Platform> bench;
  Event event = take(bench.device->create_event());
  DeviceBuffer x = bench.memory(1 << 20);
  {
    Stream stream = take(bench.device->create_stream());
    std::vector<std::thread> waiters;
    for (int round = 0; round < 10; ++round) {
      ok(stream.fill(x.address(), 1, 1 << 20));
      ok(event.record(stream));
      waiters.emplace_back([&event] { CHECK(event.wait(30s).ok()); });
    }
    for (std::thread& waiter : waiters) waiter.join();
    ok(event.record(stream));
  }
  ok(event.wait(30s));
}

TEST_CASE_TEMPLATE("device: what comes from it keeps it open", Platform, PLATFORMS) {
  std::weak_ptr<Device> watch;
  {
    auto device = open_device<Platform>();
    watch = device;
    DeviceBuffer buffer = take(device->alloc(MemoryKind::kDevice, 16));
    Stream stream = take(device->create_stream());
    device.reset();
    CHECK(!watch.expired());
    write(stream, buffer, std::vector<uint32_t>{1, 2, 3, 4});
    CHECK(read<uint32_t>(stream, buffer, 4) == std::vector<uint32_t>{1, 2, 3, 4});
  }
  CHECK(watch.expired());
}

TEST_CASE_TEMPLATE("device: open and close, again and again", Platform, PLATFORMS) {
  for (int round = 0; round < 20; ++round) {
    Bench<Platform> bench;
    DeviceBuffer out = bench.memory(40);
    const TestIotaParams params{pointer<uint32_t>(out), 0, 1};
    const StepExecutable step = bench.step({make_launch(bench.kernel("test_iota"), params, 10)});
    ok(step.launch(bench.stream));
    CHECK(read<uint32_t>(bench.stream, out, 10)[9] == 9);
  }
}

#ifndef ATLAS_DEVICE_CONTRACT
TEST_CASE("device: a platform table that is too short or has holes is refused") {
  AtlasPlatformApi api = *CpuPlatform::api();
  CHECK(Device::open(nullptr, "cpu", {}).error().code() == Code::kFailedPrecondition);
  api.struct_size = offsetof(AtlasPlatformApi, step_launch);
  CHECK(Device::open(&api, "cpu", {}).error().code() == Code::kFailedPrecondition);
  api = *CpuPlatform::api();
  api.event_wait = nullptr;
  const auto opened = Device::open(&api, "cpu", {});
  REQUIRE(!opened);
  CHECK(opened.error().message().find("event_wait") != std::string::npos);
}

TEST_CASE("device: modules of a platform of before ABI 1.3 stay until the device is closed") {
  AtlasPlatformApi api = *CpuPlatform::api();
  api.struct_size = offsetof(AtlasPlatformApi, module_release);
  api.module_release = [](AtlasModule*) { FAIL("a version 1.2 has no such function"); };
  const auto device = take(Device::open(&api, "cpu", CpuPlatform::options()));
  CHECK(take(take(device->load_module(test_pack_path())).kernel("test_mix")) != 0);
}
#endif

TEST_SUITE_END();

}  // namespace atlas::test

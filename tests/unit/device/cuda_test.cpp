// Plugin cuda over a driver that fails as it is asked to: what it chooses, what it refuses, what it
// says, and that a lost device ends in answers.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "plugins/platform_cuda/driver_api.h"
#include "tests/support/test_pack_params.h"
#include "tests/support/test_platform.h"

namespace atlas::test {
namespace {

using namespace std::chrono_literals;
using namespace platform_cuda;
using Clock = std::chrono::steady_clock;
using fake_gpu::Script;
using kernels::TestMixParams;
using kernels::TestScratchParams;

const FakeGpu& gpu() { return FakeCudaPlatform::gpu(); }

Result<std::shared_ptr<Device>> try_open(const Script& script, const char* platform = "h200",
                                         const Device::Options& options = {}) {
  const AtlasPlatformApi* api = FakeCudaPlatform::api();
  gpu().set(script);
  return Device::open(api, platform, options);
}

Script changed(const std::function<void(Script&)>& change) {
  Script script = FakeCudaPlatform::script();
  change(script);
  return script;
}

Script failing(const char* call, uint32_t at, int code) {
  return changed([&](Script& script) {
    std::snprintf(script.failing_call, sizeof(script.failing_call), "%s", call);
    script.failing_at = at;
    script.failing_code = code;
  });
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// An RTX 4090, an H200 and a GB10.
Script three_devices() {
  return changed([](Script& script) {
    script.device_count = 3;
    script.devices[1] = script.devices[0];
    script.devices[0] = {"NVIDIA GeForce RTX 4090", "sm_89", 0, uint64_t{1} << 30};
    script.devices[2] = {"NVIDIA GB10", "sm_121", 1, uint64_t{1} << 30};
  });
}

struct Bench {
  explicit Bench(const Script& script, const Device::Options& options = {})
      : device(take(try_open(script, "h200", options))),
        stream(take(device->create_stream())),
        pack(take(device->load_module(test_pack_path()))),
        x(take(device->alloc(MemoryKind::kDevice, 4096))) {
    ok(stream.fill(x.address(), 0, 4096));
  }
  std::shared_ptr<Device> device;
  Stream stream;
  Module pack;
  DeviceBuffer x;

  Launch mix(const std::string& name) {
    static TestMixParams params;
    params = {pointer<uint32_t>(x), 1, 0};
    Launch launch = make_launch(take(pack.kernel("test_mix")), params, 4);
    launch.name = name;
    return launch;
  }
  Result<StepExecutable> try_step(const std::vector<Launch>& launches, StepMode mode) {
    return StepExecutable::create(device, launches, mode);
  }
  StepExecutable step(StepMode mode) {
    return take(try_step({mix("layer 0, gate"), mix("layer 0, up"), mix("layer 0, down")}, mode));
  }
  uint32_t first_word() { return read<uint32_t>(stream, x, 1)[0]; }
};

void check_lost(Bench& bench, const std::string& reason) {
  CHECK(bench.device->lost());
  const auto is_lost = [&](const Status& status) {
    CAPTURE(status.to_string());
    CHECK(status.code() == Code::kUnavailable);
    CHECK(has(status.message(), "device lost"));
    CHECK(has(status.message(), reason));
  };
  is_lost(bench.stream.synchronize());
  is_lost(bench.stream.fill(bench.x.address(), 0, 1));
  is_lost(bench.device->info().error());
  is_lost(bench.device->alloc(MemoryKind::kDevice, 1).error());
  is_lost(bench.device->create_stream().error());
  is_lost(bench.device->create_event().error());
  is_lost(bench.device->load_module(test_pack_path()).error());
}

std::vector<char> file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_bytes(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
}

// A file that is removed with the object.
struct TemporaryFile {
  explicit TemporaryFile(const std::vector<char>& bytes)
      : path("/tmp/atlas-cuda-test-" + std::to_string(::getpid()) + ".cubin") {
    write_bytes(path, bytes);
  }
  ~TemporaryFile() { ::unlink(path.c_str()); }
  std::string path;
};

}  // namespace

TEST_SUITE_BEGIN("device");

TEST_CASE("cuda: the first device of the platform's architecture is taken") {
  const auto h200 = take(try_open(three_devices(), "h200"));
  const DeviceInfo info = take(h200->info());
  CHECK(has(info.name, "NVIDIA H200"));
  CHECK(has(info.name, "CUDA 13.0"));
  CHECK(info.architecture == "sm_90");
  CHECK(info.compute_units == 132);
  CHECK(!info.unified_memory);
  const auto gb10 = take(try_open(three_devices(), "gb10"));
  CHECK(take(gb10->info()).architecture == "sm_121");
  CHECK(take(gb10->info()).unified_memory);
}

TEST_CASE("cuda: without a fitting device the ones that are there are listed") {
  const auto none = try_open(changed([](Script& script) { script.device_count = 0; }));
  REQUIRE(!none);
  CHECK(none.error().code() == Code::kNotFound);
  CHECK(has(none.error().message(), "there is none"));
  const auto other = try_open(FakeCudaPlatform::script(), "gb10");
  REQUIRE(!other);
  CHECK(other.error().code() == Code::kNotFound);
  CHECK(has(other.error().message(), "compute capability 12.1"));
  CHECK(has(other.error().message(), "device 0 is NVIDIA H200, compute capability 9.0"));
}

TEST_CASE("cuda: option device names one, which must fit") {
  CHECK(try_open(three_devices(), "h200", {{"device", "1"}}).has_value());
  const auto wrong = try_open(three_devices(), "h200", {{"device", "0"}});
  REQUIRE(!wrong);
  CHECK(has(wrong.error().message(), "RTX 4090, compute capability 8.9"));
  const auto absent = try_open(three_devices(), "h200", {{"device", "7"}});
  REQUIRE(!absent);
  CHECK(absent.error().code() == Code::kNotFound);
  CHECK(has(absent.error().message(), "no device 7"));
  CHECK(has(absent.error().message(), "NVIDIA GB10"));
}

TEST_CASE("cuda: bad values of options are refused with what they take") {
  const auto refusal = [](const char* key, const char* value) {
    const auto opened = try_open(FakeCudaPlatform::script(), "h200", {{key, value}});
    REQUIRE(!opened);
    CHECK(opened.error().code() == Code::kInvalidArgument);
    CHECK(has(opened.error().message(), key));
  };
  refusal("device", "GPU-1");
  refusal("device", "-1");
  refusal("reserve_bytes", "1 GiB");
  refusal("patience_ms", "0");
  refusal("check_launches", "yes");
}

TEST_CASE("cuda: an old driver is refused with what it lacks") {
  const auto old = try_open(changed([](Script& script) { script.version = 11040; }));
  REQUIRE(!old);
  CHECK(old.error().code() == Code::kFailedPrecondition);
  CHECK(has(old.error().message(), "CUDA 11.4"));
  CHECK(has(old.error().message(), "lacks cuGraphAddKernelNode"));
  CHECK(has(old.error().message(), "R580"));
  const auto one =
      try_open(changed([](Script& script) { std::snprintf(script.missing, 64, "cuGraphUpload"); }));
  REQUIRE(!one);
  CHECK(has(one.error().message(), "lacks cuGraphUpload;"));
}

TEST_CASE("cuda: what a newer driver has is not needed") {
  Bench bench(changed([](Script& script) { script.version = 12000; }));
  ok(bench.step(StepMode::kGraph).launch(bench.stream));
  CHECK(bench.first_word() == 13);
}

TEST_CASE("cuda: a driver that does not start says why") {
  const auto opened = try_open(failing("cuInit", 1, kCuNotSupported));
  REQUIRE(!opened);
  CHECK(has(opened.error().message(), "cuInit answered CUDA_ERROR_NOT_SUPPORTED (801)"));
}

TEST_CASE("cuda: the reserve is left free") {
  const auto device =
      take(try_open(FakeCudaPlatform::script(), "h200", {{"reserve_bytes", "1000"}}));
  CHECK(take(device->info()).available_bytes == (uint64_t{1} << 30) - 1000);
  const auto usual = take(try_open(FakeCudaPlatform::script()));
  CHECK(take(usual->info()).available_bytes == (uint64_t{1} << 30) - (uint64_t{256} << 20));
}

TEST_CASE("cuda: memory that is shared with the machine ends where the machine's does") {
  // The driver would give all of it; the machine has none to spare beside this reserve.
  const auto device =
      take(try_open(three_devices(), "gb10", {{"reserve_bytes", "1125899906842624"}}));
  CHECK(take(device->info()).available_bytes == 0);
  const auto refused = device->alloc(MemoryKind::kDevice, 4096);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Code::kResourceExhausted);
  CHECK(has(refused.error().message(), "reserve of 1125899906842624"));
  CHECK(gpu().calls("cuMemAlloc") == 0);
}

TEST_CASE(
    "cuda: memory that the driver refuses is told with what is free, and the device goes on") {
  Bench bench(failing("cuMemAlloc", 2, kCuOutOfMemory));
  const auto refused = bench.device->alloc(MemoryKind::kDevice, 12345);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Code::kResourceExhausted);
  CHECK(has(refused.error().message(), "12345 bytes of device memory"));
  CHECK(has(refused.error().message(), "cuMemAlloc answered CUDA_ERROR_OUT_OF_MEMORY (2)"));
  CHECK(!bench.device->lost());
  CHECK(take(bench.device->alloc(MemoryKind::kDevice, 12345)).address() != 0);
}

TEST_CASE("cuda: pinned memory with two addresses is refused") {
  const auto device = take(try_open(changed([](Script& s) { s.other_pinned_address = 1; })));
  const auto refused = device->alloc(MemoryKind::kPinned, 4096);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Code::kUnimplemented);
  CHECK(gpu().objects() == 0);
}

TEST_CASE("cuda: packs of another architecture and cut ones are refused with what they are") {
  const auto device = take(try_open(FakeCudaPlatform::script()));
  std::vector<char> bytes = file_bytes(test_pack_path());
  const auto refusal = [&](const std::vector<char>& content) {
    const TemporaryFile file(content);
    const auto loaded = device->load_module(file.path);
    REQUIRE(!loaded);
    CHECK(loaded.error().code() == Code::kFailedPrecondition);
    CHECK(has(loaded.error().message(), file.path));
    return loaded.error().message();
  };
  std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<long>(bytes.size() / 2));
  CHECK(has(refusal(cut), "cut short"));
  CHECK(gpu().calls("cuModuleLoadData") == 0);
  // As ptxas 13 marks code for sm_121a.
  bytes[8] = 8;
  bytes[18] = static_cast<char>(190);
  bytes[19] = 0;
  for (int i = 0; i < 4; ++i) bytes[48 + i] = static_cast<char>(0x6007902u >> (8 * i));
  const std::string message = refusal(bytes);
  CHECK(has(message, "CUDA_ERROR_NO_BINARY_FOR_GPU"));
  CHECK(has(message, "built for sm_121"));
  CHECK(has(message, "device of sm_90"));
}

TEST_CASE("cuda: a pack is loaded once, and again when its file has changed") {
  const auto device = take(try_open(FakeCudaPlatform::script()));
  std::vector<char> bytes = file_bytes(test_pack_path());
  const TemporaryFile file(bytes);
  const Module first = take(device->load_module(file.path));
  const Module same = take(device->load_module(file.path));
  const AtlasKernel kernel = take(first.kernel("test_mix"));
  CHECK(take(same.kernel("test_mix")) == kernel);
  CHECK(gpu().calls("cuModuleLoadData") == 1);
  bytes.push_back('\0');  // behind all parts of the file
  write_bytes(file.path, bytes);
  CHECK(take(take(device->load_module(file.path)).kernel("test_mix")) != kernel);
  CHECK(gpu().calls("cuModuleLoadData") == 2);
}

TEST_CASE("cuda: a pack that swaps find changed ten times is on the device once") {
  struct Generation {
    Module pack;
    StepExecutable step;
  };
  const auto device = take(try_open(FakeCudaPlatform::script()));
  Stream stream = take(device->create_stream());
  DeviceBuffer x = take(device->alloc(MemoryKind::kDevice, 4096));
  std::vector<char> bytes = file_bytes(test_pack_path());
  const TemporaryFile file(bytes);
  const auto build = [&] {
    Module pack = take(device->load_module(file.path));
    const kernels::TestMixParams params{pointer<uint32_t>(x), 1, 0};
    const Launch launch = make_launch(take(pack.kernel("test_mix")), params, 4);
    StepExecutable step =
        take(StepExecutable::create(device, std::span(&launch, 1), StepMode::kGraph));
    return Generation{std::move(pack), std::move(step)};
  };
  auto serving = std::make_unique<Generation>(build());
  const uint32_t objects = gpu().objects();
  for (int swap = 1; swap <= 10; ++swap) {
    CAPTURE(swap);
    bytes.push_back('\0');
    write_bytes(file.path, bytes);
    Generation next = build();
    CHECK(gpu().calls("cuModuleUnload") == static_cast<uint32_t>(swap - 1));
    ok(stream.fill(x.address(), 0, 4));
    ok(serving->step.launch(stream));
    ok(next.step.launch(stream));
    CHECK(read<uint32_t>(stream, x, 1)[0] == 4);
    serving = std::make_unique<Generation>(std::move(next));
    CHECK(gpu().calls("cuModuleUnload") == static_cast<uint32_t>(swap));
    CHECK(gpu().objects() == objects);
  }
  CHECK(gpu().calls("cuModuleLoadData") == 11);
  serving.reset();
  CHECK(gpu().calls("cuModuleUnload") == 11);
  ok(stream.synchronize());
}

TEST_CASE("cuda: a module that is let go while another's launch hangs loses the device") {
  Bench bench(changed([](Script& s) { s.hang_at = 1; }), {{"patience_ms", "200"}});
  std::vector<char> bytes = file_bytes(test_pack_path());
  bytes.push_back('\0');
  const TemporaryFile file(bytes);
  const StepExecutable step = bench.step(StepMode::kGraph);
  {
    const Module other = take(bench.device->load_module(file.path));
    CHECK(gpu().calls("cuModuleLoadData") == 2);
    ok(step.launch(bench.stream));
    // A load of what is in use anyway is let go without waiting.
    (void)take(bench.device->load_module(test_pack_path()));
    CHECK(take(bench.device->info()).compute_units != 0);
  }
  CHECK(gpu().calls("cuModuleUnload") == 0);
  CHECK(bench.device->info().error().code() == Code::kUnavailable);
}

TEST_CASE("cuda: launches that the device cannot run are refused when the step is made") {
  Bench bench(FakeCudaPlatform::script());
  const auto refusal = [&](const std::function<void(Launch&)>& change) {
    Launch bad = bench.mix("layer 7, gate");
    change(bad);
    const auto step = bench.try_step({bench.mix("first"), bad}, StepMode::kEager);
    REQUIRE(!step);
    CHECK(step.error().code() == Code::kInvalidArgument);
    CHECK(has(step.error().message(), "launch 1 (layer 7, gate)"));
    return step.error().message();
  };
  CHECK(has(refusal([](Launch& launch) { launch.block = {1025, 1, 1}; }), "at most 1024"));
  CHECK(has(refusal([](Launch& launch) { launch.block = {1, 1, 65}; }), "1024 x 1024 x 64"));
  CHECK(has(refusal([](Launch& launch) { launch.block = {0, 1, 1}; }), "block of 0"));
  CHECK(has(refusal([](Launch& launch) { launch.grid = {1, 65536, 1}; }), "65535"));
  CHECK(has(refusal([](Launch& launch) { launch.shared_bytes = 300'000; }), "300000"));
  CHECK(has(refusal([](Launch& launch) { launch.params = launch.params.first(8); }),
            "8 bytes of parameters; its kernel takes 16"));
}

TEST_CASE("cuda: shared memory beyond 48 KiB is asked for once for a kernel") {
  Bench bench(FakeCudaPlatform::script());
  DeviceBuffer out = take(bench.device->alloc(MemoryKind::kDevice, 16));
  const auto run = [&](uint32_t bytes, StepMode mode) {
    const TestScratchParams params{pointer<uint32_t>(out), bytes, 0};
    const Launch launch = make_launch(take(bench.pack.kernel("test_scratch")), params, 4, bytes);
    ok(bench.stream.fill(out.address(), 0, 16));
    ok(take(bench.try_step({launch}, mode)).launch(bench.stream));
    CHECK(read<uint32_t>(bench.stream, out, 4) == std::vector<uint32_t>(4, 1));
  };
  // A kernel that is looked up is told how to divide a multiprocessor's memory.
  run(48 * 1024, StepMode::kGraph);
  CHECK(gpu().calls("cuFuncSetAttribute") == 1);
  run(200'000, StepMode::kGraph);
  run(100'000, StepMode::kEager);
  CHECK(gpu().calls("cuFuncSetAttribute") == 2);
}

TEST_CASE("cuda: a graph is one call a run, an eager step one a launch, with the same result") {
  Bench bench(FakeCudaPlatform::script());
  const StepExecutable graph = bench.step(StepMode::kGraph);
  const StepExecutable eager = bench.step(StepMode::kEager);
  ok(graph.launch(bench.stream));
  CHECK(bench.first_word() == 13);
  CHECK(gpu().calls("cuGraphLaunch") == 1);
  CHECK(gpu().calls("cuLaunchKernel") == 0);
  ok(bench.stream.fill(bench.x.address(), 0, 4096));
  ok(eager.launch(bench.stream));
  CHECK(bench.first_word() == 13);
  CHECK(gpu().calls("cuLaunchKernel") == 3);
}

TEST_CASE("cuda: a launch of a graph follows those that it names, and nothing else") {
  Bench bench(FakeCudaPlatform::script());
  const std::array<TestMixParams, 4> params = {{{pointer<uint32_t>(bench.x), 1, 0},
                                                {pointer<uint32_t>(bench.x), 2, 0},
                                                {pointer<uint32_t>(bench.x), 3, 0},
                                                {pointer<uint32_t>(bench.x), 4, 0}}};
  std::vector<Launch> launches;
  for (const TestMixParams& one : params) {
    launches.push_back(make_launch(take(bench.pack.kernel("test_mix")), one, 1));
  }
  const auto run = [&](StepMode mode) {
    ok(bench.stream.fill(bench.x.address(), 0, 4096));
    ok(take(bench.try_step(launches, mode)).launch(bench.stream));
    return bench.first_word();
  };
  const uint32_t in_order = ((1 * 3 + 2) * 3 + 3) * 3 + 4,
                 third_first = ((1 * 3 + 3) * 3 + 2) * 3 + 4;
  CHECK(run(StepMode::kGraph) == in_order);
  // The fake driver runs what may run in the order that was not meant.
  const std::vector<uint32_t> first = {0}, both = {1, 2};
  launches[2].after = first;
  launches[3].after = both;
  CHECK(run(StepMode::kGraph) == third_first);
  CHECK(run(StepMode::kEager) == in_order);
  const std::vector<uint32_t> itself = {3};
  launches[3].after = itself;
  for (const StepMode mode : {StepMode::kGraph, StepMode::kEager}) {
    const auto refused = bench.try_step(launches, mode);
    REQUIRE(!refused);
    CHECK(refused.error().code() == Code::kInvalidArgument);
    CHECK(has(refused.error().message(), "launch 3 (test) is to follow launch 3"));
  }
}

TEST_CASE("cuda: a graph that the driver refuses says which call did, and the device goes on") {
  Bench bench(failing("cuGraphInstantiateWithFlags", 1, kCuNotSupported));
  const auto refused = bench.try_step({bench.mix("a"), bench.mix("b")}, StepMode::kGraph);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Code::kUnimplemented);
  CHECK(has(refused.error().message(), "cuGraphInstantiateWithFlags"));
  CHECK(has(refused.error().message(), "2 launches from 'a' to 'b'"));
  ok(bench.step(StepMode::kEager).launch(bench.stream));
  CHECK(bench.first_word() == 13);
}

TEST_CASE("cuda: a node that cannot be added is named") {
  Bench bench(failing("cuGraphAddKernelNode", 2, kCuInvalidValue));
  const auto refused = bench.try_step({bench.mix("a"), bench.mix("b")}, StepMode::kGraph);
  REQUIRE(!refused);
  CHECK(has(refused.error().message(),
            "cuGraphAddKernelNode answered CUDA_ERROR_INVALID_VALUE (1): invalid argument for "
            "launch 1 (b)"));
}

TEST_CASE("cuda: a kernel's fault names the step, and the device is lost for good") {
  for (const StepMode mode : {StepMode::kGraph, StepMode::kEager}) {
    const auto script = changed([](Script& s) {
      s.fault_at = 2;
      s.fault_code = kCuIllegalAddress;
    });
    const auto start = Clock::now();
    {
      Bench bench(script);
      const StepExecutable step = bench.step(mode);
      Event event = take(bench.device->create_event());
      // The fault may be told by any call from here on.
      (void)step.launch(bench.stream);
      (void)event.record(bench.stream);
      const Status status = bench.stream.synchronize();
      CHECK(status.code() == Code::kUnavailable);
      CHECK(has(status.message(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
      CHECK(event.wait(30s).code() == Code::kUnavailable);
      CHECK(step.launch(bench.stream).code() == Code::kUnavailable);
      check_lost(bench, "CUDA_ERROR_ILLEGAL_ADDRESS");
    }
    CHECK(Clock::now() - start < 10s);
  }
}

TEST_CASE("cuda: waiting says which step was on its way when the fault came") {
  Bench bench(changed([](Script& s) {
    s.fault_at = 4;
    s.fault_code = kCuLaunchFailed;
  }));
  const StepExecutable step = bench.step(StepMode::kGraph);
  ok(step.launch(bench.stream));
  ok(bench.stream.synchronize());
  ok(step.launch(bench.stream));
  const Status status = bench.stream.synchronize();
  CAPTURE(status.to_string());
  CHECK(has(status.message(), "the graph of 3 launches from 'layer 0, gate' to 'layer 0, down'"));
}

TEST_CASE("cuda: with check_launches the launch that faults is named") {
  Bench bench(changed([](Script& s) {
                s.fault_at = 2;
                s.fault_code = kCuIllegalAddress;
              }),
              {{"check_launches", "true"}});
  CHECK(!take(bench.device->info()).supports_graphs);
  CHECK(bench.try_step({bench.mix("a")}, StepMode::kGraph).error().code() == Code::kUnimplemented);
  const Status status = bench.step(StepMode::kEager).launch(bench.stream);
  CHECK(status.code() == Code::kUnavailable);
  CHECK(has(status.message(), "launch 1 (layer 0, up)"));
}

TEST_CASE("cuda: a lost device is left alone") {
  const auto script = changed([](Script& s) {
    s.fault_at = 1;
    s.fault_code = kCuEccUncorrectable;
  });
  {
    Bench bench(script);
    const StepExecutable step = bench.step(StepMode::kGraph);
    ok(step.launch(bench.stream));
    CHECK(bench.stream.synchronize().code() == Code::kUnavailable);
  }
  // Everything of the bench is gone by now, and no call that could wait was made for it.
  for (const char* call : {"cuMemFree", "cuMemFreeHost", "cuStreamDestroy", "cuEventDestroy",
                           "cuModuleUnload", "cuGraphExecDestroy", "cuDevicePrimaryCtxRelease"}) {
    CAPTURE(call);
    // The upload of the graph had a stream of its own.
    CHECK(gpu().calls(call) == (std::string(call) == "cuStreamDestroy" ? 1 : 0));
  }
}

TEST_CASE("cuda: a launch that hangs is a timeout, and then a lost device that can be closed") {
  const auto start = Clock::now();
  {
    Bench bench(changed([](Script& s) { s.hang_at = 1; }), {{"patience_ms", "200"}});
    const StepExecutable step = bench.step(StepMode::kGraph);
    Event event = take(bench.device->create_event());
    ok(step.launch(bench.stream));
    ok(event.record(bench.stream));
    CHECK(event.wait(20ms).code() == Code::kDeadlineExceeded);
    CHECK(!bench.device->lost());
    // Freeing memory would wait for the launch in the driver.
    bench.x = DeviceBuffer();
    const Status status = bench.stream.synchronize();
    CHECK(status.code() == Code::kUnavailable);
    CHECK(has(status.message(),
              "memory is freed in 200 ms, which is the platform's option patience_ms"));
  }
  CHECK(Clock::now() - start < 10s);
}

TEST_CASE("cuda: memory can be freed beside a stream that is never idle") {
  Bench bench(FakeCudaPlatform::script(), {{"patience_ms", "2000"}});
  const StepExecutable step = bench.step(StepMode::kGraph);
  Stream busy = take(bench.device->create_stream());
  std::atomic<bool> stop{false};
  std::thread engine([&] {
    // Two steps in flight all the time.
    Event events[2] = {take(bench.device->create_event()), take(bench.device->create_event())};
    for (uint32_t i = 0; !stop.load(); ++i) {
      ok(events[i % 2].wait(30s));
      ok(step.launch(busy));
      ok(events[i % 2].record(busy));
    }
  });
  for (int i = 0; i < 200; ++i) {
    CHECK(take(bench.device->alloc(MemoryKind::kDevice, 4096)).address() != 0);
  }
  stop.store(true);
  engine.join();
  CHECK(!bench.device->lost());
  ok(busy.synchronize());
}

TEST_CASE("cuda: nothing is left behind by a device that is closed") {
  {
    Bench bench(FakeCudaPlatform::script());
    const StepExecutable step = bench.step(StepMode::kGraph);
    ok(step.launch(bench.stream));
    CHECK(bench.first_word() == 13);
    CHECK(gpu().objects() > 0);
  }
  CHECK(gpu().objects() == 0);
  CHECK(gpu().calls("cuDevicePrimaryCtxRelease") == 1);
}

TEST_SUITE_END();

}  // namespace atlas::test

// Plugin hip over a runtime that fails as it is asked to, and the limits of mapped memory. What it
// shares with the plugin cuda is tested there.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "plugins/platform_hip/mapped_memory.h"
#include "plugins/platform_hip/runtime_api.h"
#include "tests/support/test_pack_params.h"
#include "tests/support/test_platform.h"

namespace atlas::test {
namespace {

using namespace std::chrono_literals;
using namespace platform_hip;
using fake_gpu::Script;
using kernels::TestMixParams;

constexpr uint64_t kGiB = uint64_t{1} << 30;

const FakeGpu& gpu() { return FakeHipPlatform::gpu(); }

Result<std::shared_ptr<Device>> try_open(const Script& script, const char* platform = "strix-hip",
                                         const Device::Options& options = {}) {
  const AtlasPlatformApi* api = FakeHipPlatform::api();
  gpu().set(script);
  return Device::open(api, platform, options);
}

Script changed(const std::function<void(Script&)>& change) {
  Script script = FakeHipPlatform::script();
  change(script);
  return script;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Bench {
  explicit Bench(const Script& script)
      : device(take(try_open(script, "strix-hip", FakeHipPlatform::options()))),
        stream(take(device->create_stream())),
        pack(take(device->load_module(test_pack_path()))),
        x(take(device->alloc(MemoryKind::kDevice, 4096))),
        params{pointer<uint32_t>(x), 1, 0} {
    ok(stream.fill(x.address(), 0, 4096));
  }
  std::shared_ptr<Device> device;
  Stream stream;
  Module pack;
  DeviceBuffer x;
  TestMixParams params;

  Result<StepExecutable> try_step(StepMode mode) {
    const std::vector<Launch> launches(3, make_launch(take(pack.kernel("test_mix")), params, 4));
    return StepExecutable::create(device, launches, mode);
  }
  uint32_t first_word() { return read<uint32_t>(stream, x, 1)[0]; }
};

// A folder as sysfs has it for one device.
struct Sysfs {
  Sysfs() : root("/tmp/atlas-hip-test-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(root + "/bus/pci/devices/0000:c5:00.0");
    std::filesystem::create_directories(root + "/module/ttm/parameters");
  }
  ~Sysfs() { std::filesystem::remove_all(root); }
  void set(const std::string& file, uint64_t value) const {
    std::ofstream(root + "/" + file) << value << "\n";
  }
  void set_memory(const std::string& name, uint64_t value) const {
    set("bus/pci/devices/0000:c5:00.0/mem_info_" + name, value);
  }
  MappedMemory read() const { return read_mapped_memory(root, "0000:c5:00.0"); }
  std::string root;
};

}  // namespace

TEST_SUITE_BEGIN("device");

TEST_CASE("hip: the first gfx1151 is taken, whatever features its name lists") {
  const auto device = take(try_open(changed([](Script& script) {
    script.device_count = 2;
    script.devices[1] = {"AMD Radeon Graphics", "gfx1151:sramecc-:xnack-", 1, kGiB};
    script.devices[0] = {"AMD Radeon RX 7900 XTX", "gfx1100", 0, kGiB};
  })));
  const DeviceInfo info = take(device->info());
  CHECK(has(info.name, "AMD Radeon Graphics, HIP 7.0"));
  CHECK(info.architecture == "gfx1151");
  CHECK(info.unified_memory);
  CHECK(info.compute_units == 20);
}

TEST_CASE("hip: without a fitting device the ones that are there are listed") {
  const auto none = try_open(changed([](Script& script) { script.device_count = 0; }));
  REQUIRE(!none);
  CHECK(none.error().code() == Code::kNotFound);
  CHECK(has(none.error().message(), "there is none"));
  const auto other = try_open(changed([](Script& script) {
    script.devices[0] = {"AMD Radeon RX 7900 XTX", "gfx1100", 0, kGiB};
  }));
  REQUIRE(!other);
  CHECK(has(other.error().message(), "device 0 is AMD Radeon RX 7900 XTX, gfx1100"));
  CHECK(has(other.error().message(), "gfx1151"));
  const auto named = try_open(FakeHipPlatform::script(), "strix-hip", {{"device", "3"}});
  REQUIRE(!named);
  CHECK(has(named.error().message(), "no device 3"));
  CHECK(try_open(FakeHipPlatform::script(), "h200").error().code() == Code::kInvalidArgument);
}

TEST_CASE("hip: a graph that the runtime refuses says so, and the eager walk runs") {
  Bench bench(changed([](Script& script) {
    std::snprintf(script.failing_call, sizeof(script.failing_call), "hipGraphInstantiateWithFlags");
    script.failing_at = 1;
    script.failing_code = kHipNotSupported;
  }));
  const auto refused = bench.try_step(StepMode::kGraph);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Code::kUnimplemented);
  CHECK(
      has(refused.error().message(), "hipGraphInstantiateWithFlags answered hipErrorNotSupported"));
  ok(take(bench.try_step(StepMode::kEager)).launch(bench.stream));
  CHECK(bench.first_word() == 13);
  // The next one may be taken.
  ok(bench.stream.fill(bench.x.address(), 0, 4096));
  ok(take(bench.try_step(StepMode::kGraph)).launch(bench.stream));
  CHECK(bench.first_word() == 13);
}

TEST_CASE("hip: a launch of a graph follows those that it names, and nothing else") {
  Bench bench(FakeHipPlatform::script());
  const std::vector<uint32_t> first = {0}, both = {1, 2};
  std::vector<TestMixParams> params;
  for (uint32_t addend = 1; addend <= 4; ++addend) {
    params.push_back({pointer<uint32_t>(bench.x), addend, 0});
  }
  std::vector<Launch> launches;
  for (const TestMixParams& one : params) {
    launches.push_back(make_launch(take(bench.pack.kernel("test_mix")), one, 1));
  }
  launches[2].after = first;
  launches[3].after = both;
  ok(take(StepExecutable::create(bench.device, launches, StepMode::kGraph)).launch(bench.stream));
  // The fake runtime runs what may run in the order that was not meant.
  CHECK(bench.first_word() == ((1 * 3 + 3) * 3 + 2) * 3 + 4);
}

TEST_CASE("hip: a launch failure is a lost device") {
  Bench bench(changed([](Script& script) {
    script.fault_at = 2;
    script.fault_code = kHipLaunchFailure;
  }));
  const StepExecutable step = take(bench.try_step(StepMode::kGraph));
  ok(step.launch(bench.stream));
  const Status status = bench.stream.synchronize();
  CHECK(status.code() == Code::kUnavailable);
  CHECK(has(status.message(), "hipErrorLaunchFailure (719)"));
  CHECK(bench.device->alloc(MemoryKind::kDevice, 1).error().code() == Code::kUnavailable);
}

TEST_CASE("hip: packs of another machine are refused by name") {
  Bench bench(FakeHipPlatform::script());
  std::ifstream file(test_pack_path(), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  bytes[18] = static_cast<char>(224);
  bytes[19] = 0;
  bytes[48] = 0x41;  // gfx1100
  const std::string path = "/tmp/atlas-hip-test-" + std::to_string(::getpid()) + ".hsaco";
  std::ofstream(path, std::ios::binary) << bytes;
  const auto loaded = bench.device->load_module(path);
  ::unlink(path.c_str());
  REQUIRE(!loaded);
  CHECK(has(loaded.error().message(), "hipErrorNoBinaryForGpu"));
  CHECK(has(loaded.error().message(), "AMD machine 65"));
}

TEST_CASE("hip: a grid of 2^32 threads is refused, as a dispatch counts threads") {
  Bench bench(FakeHipPlatform::script());
  Launch launch = make_launch(take(bench.pack.kernel("test_mix")), bench.params, 1u << 24);
  launch.block = {256, 1, 1};
  const auto step = StepExecutable::create(bench.device, std::span(&launch, 1), StepMode::kEager);
  REQUIRE(!step);
  CHECK(has(step.error().message(), "4294967295 threads along a side"));
}

TEST_CASE(
    "hip: mapped memory ends at the lower of GTT and ttm's limit, and the message says how to "
    "raise them") {
  const Sysfs sysfs;
  sysfs.set_memory("vram_total", kGiB / 2);
  sysfs.set_memory("gtt_total", 62 * kGiB);
  sysfs.set_memory("gtt_used", 2 * kGiB);
  sysfs.set("module/ttm/parameters/pages_limit", 16 * kGiB / ::sysconf(_SC_PAGESIZE));
  MappedMemory memory = sysfs.read();
  memory.machine_total = 124 * kGiB;
  memory.machine_available = 100 * kGiB;
  CHECK(memory.maps());
  CHECK(memory.wall() == 16 * kGiB);
  CHECK(memory.left() == 14 * kGiB);
  const std::string advice = memory.advice();
  CAPTURE(advice);
  CHECK(has(advice, "may map 16.0 GiB of the machine's 124.0 GiB"));
  CHECK(has(advice, "amdgpu.gttsize=118784"));
  CHECK(has(advice, "ttm.pages_limit=" + std::to_string(116 * kGiB / ::sysconf(_SC_PAGESIZE))));
  // What the machine has left counts as well.
  memory.machine_available = 3 * kGiB;
  CHECK(memory.left() == 3 * kGiB);
  // Raised, there is nothing to say.
  memory.gtt_total = memory.pages_limit = 120 * kGiB;
  CHECK(memory.advice().empty());
}

TEST_CASE("hip: a large part of the BIOS's is where allocations go") {
  const Sysfs sysfs;
  sysfs.set_memory("vram_total", 96 * kGiB);
  sysfs.set_memory("vram_used", kGiB);
  sysfs.set_memory("gtt_total", 15 * kGiB);
  MappedMemory memory = sysfs.read();
  memory.machine_total = 31 * kGiB;
  memory.machine_available = 20 * kGiB;
  CHECK(!memory.maps());
  CHECK(memory.left() == 95 * kGiB);
  CHECK(has(memory.advice(), "96.0 GiB that the BIOS gives it"));
}

TEST_CASE("hip: a system that says nothing sets no limit") {
  const MappedMemory memory = read_mapped_memory("/no/such/folder", "0000:00:00.0");
  CHECK(memory.left() == ~uint64_t{0});
  CHECK(memory.advice().empty());
}

TEST_SUITE_END();

}  // namespace atlas::test

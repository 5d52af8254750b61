// The imitation is as strict as it says, and fails as it is asked to.
#include <dirent.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/test_pack_params.h"
#include "tests/support/test_platform.h"

namespace atlas::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Bench {
  explicit Bench(const Device::Options& options = {})
      : device(open_device<ImitationPlatform>(options)),
        stream(take(device->create_stream())),
        pack(take(device->load_module(test_pack_path()))),
        x(take(device->alloc(MemoryKind::kDevice, 4096))) {
    ok(stream.fill(x.address(), 0, 4096));
  }
  std::shared_ptr<Device> device;
  Stream stream;
  Module pack;
  DeviceBuffer x;

  // `records` records that each turn v into 3 v + 1.
  Result<StepExecutable> try_step(uint32_t records, StepMode mode) {
    const kernels::TestMixParams params{pointer<uint32_t>(x), 1, 0};
    const std::vector<Launch> launches(records,
                                       make_launch(take(pack.kernel("test_mix")), params, 4));
    return StepExecutable::create(device, launches, mode);
  }
  StepExecutable step(uint32_t records = 1, StepMode mode = StepMode::kGraph) {
    return take(try_step(records, mode));
  }
  uint32_t first_word() { return read<uint32_t>(stream, x, 1)[0]; }
};

// A patience for devices that shall be lost, short and yet longer than any work of a Bench takes:
// under an emulator of processors what takes a millisecond here takes a second.
std::string short_patience() {
  static const std::string text = [] {
    const auto start = Clock::now();
    const Bench bench;
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    return std::to_string(std::max<int64_t>(200, 2 * took.count()));
  }();
  return text;
}

// The device process of the one open device: a child of this process.
pid_t device_process(pid_t parent) {
  pid_t found = -1;
  DIR* directory = ::opendir("/proc");
  REQUIRE((directory != nullptr));
  while (const dirent* entry = ::readdir(directory)) {
    const int pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(file, text);
    // "pid (name) state ppid ..."
    const size_t end = text.rfind(") ");
    if (end == std::string::npos || text.find("(atlas-imitation") == std::string::npos) continue;
    if (std::atoi(text.c_str() + end + 4) == parent) found = pid;
  }
  ::closedir(directory);
  return found;
}

bool runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(") ");
  return end != std::string::npos && text[end + 2] != 'Z';
}

// The signal that ends a forked process which runs `body`, or none.
template <typename Body>
std::optional<int> signal_of(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? std::optional(WTERMSIG(status)) : std::nullopt;
}

void check_lost(Bench& bench, const std::string& reason) {
  CHECK(bench.device->lost());
  const auto is_lost = [&](const Status& status) {
    CAPTURE(status.to_string());
    CHECK(status.code() == Code::kUnavailable);
    CHECK(status.message().find("device lost") != std::string::npos);
    CHECK(status.message().find(reason) != std::string::npos);
  };
  is_lost(bench.stream.synchronize());
  is_lost(bench.stream.fill(bench.x.address(), 0, 1));
  is_lost(bench.device->info().error());
  is_lost(bench.device->alloc(MemoryKind::kDevice, 1).error());
  is_lost(bench.device->create_stream().error());
  is_lost(bench.device->load_module(test_pack_path()).error());
}

}  // namespace

TEST_SUITE_BEGIN("device");

TEST_CASE("imitation: the host faults when it touches device memory") {
  Bench bench;
  volatile char* memory = reinterpret_cast<volatile char*>(bench.x.address());
  CHECK(signal_of([&] { (void)*memory; }) == SIGSEGV);
  CHECK(signal_of([&] { *memory = 1; }) == SIGSEGV);
  DeviceBuffer pinned = take(bench.device->alloc(MemoryKind::kPinned, 16));
  CHECK(!signal_of([&] { *reinterpret_cast<volatile char*>(pinned.host().data()) = 1; }));
}

TEST_CASE("imitation: new memory is not zero") {
  Bench bench;
  DeviceBuffer device = take(bench.device->alloc(MemoryKind::kDevice, 4000));
  CHECK(read<uint32_t>(bench.stream, device, 1000) == std::vector<uint32_t>(1000, ~0u));
  DeviceBuffer pinned = take(bench.device->alloc(MemoryKind::kPinned, 4));
  CHECK(*reinterpret_cast<uint32_t*>(pinned.host().data()) == ~0u);
}

TEST_CASE("imitation: addresses have the contract's alignment and no more") {
  Bench bench;
  for (const uint64_t bytes : {1, 4096, 100'000}) {
    DeviceBuffer buffer = take(bench.device->alloc(MemoryKind::kDevice, bytes));
    CHECK(buffer.address() % 512 == 256);
  }
}

TEST_CASE("imitation: the same step gives the same bytes as on cpu") {
  constexpr uint32_t kRows = 203;
  constexpr uint32_t kWidth = 77;
  std::vector<float> x(kRows * kWidth);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * 1000;
  const auto run = [&](const std::shared_ptr<Device>& device) {
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
    return read<float>(stream, out, kRows);
  };
  CHECK(run(open_device<ImitationPlatform>()) == run(open_device<CpuPlatform>()));
}

TEST_CASE("imitation: launches run late, and submitting them does not wait") {
  Bench bench(Device::Options{{"delay_us", "300000"}});
  const StepExecutable step = bench.step();
  ok(bench.stream.synchronize());
  Event event = take(bench.device->create_event());
  const auto start = Clock::now();
  for (int i = 0; i < 3; ++i) ok(step.launch(bench.stream));
  ok(event.record(bench.stream));
  CHECK(Clock::now() - start < 300ms);
  CHECK(!take(event.query()));
  ok(event.wait(30s));
  CHECK(Clock::now() - start >= 300ms);
  CHECK(Clock::now() - start < 900ms);  // they were in flight together
}

TEST_CASE("imitation: the allocation that shall fail does, and only that one") {
  const auto device = open_device<ImitationPlatform>({{"fail_alloc_at", "2"}});
  const DeviceBuffer first = take(device->alloc(MemoryKind::kDevice, 100));
  const auto second = device->alloc(MemoryKind::kDevice, 100);
  REQUIRE(!second);
  CHECK(second.error().code() == Code::kResourceExhausted);
  CHECK(take(device->alloc(MemoryKind::kDevice, 100)).address() != 0);
  CHECK(!device->lost());
}

TEST_CASE("imitation: memory ends where the settings say, and what is freed can be had again") {
  const auto device = open_device<ImitationPlatform>({{"memory_bytes", "1048576"}});
  CHECK(take(device->info()).memory_bytes == 1048576);
  for (int round = 0; round < 3; ++round) {
    DeviceBuffer most = take(device->alloc(MemoryKind::kDevice, 900'000));
    const auto more = device->alloc(MemoryKind::kDevice, 200'000);
    REQUIRE(!more);
    CHECK(more.error().code() == Code::kResourceExhausted);
    CHECK(more.error().message().find("200000") != std::string::npos);
    CHECK(take(device->info()).available_bytes < 200'000);
  }
  CHECK(take(device->info()).available_bytes == 1048576);
}

TEST_CASE("imitation: a launch that fails is told to who waits, and the device is lost") {
  Bench bench(Device::Options{{"fail_launch_at", "2"}});
  const StepExecutable step = bench.step();
  Event first = take(bench.device->create_event());
  Event second = take(bench.device->create_event());
  ok(step.launch(bench.stream));
  ok(first.record(bench.stream));
  ok(step.launch(bench.stream));
  ok(second.record(bench.stream));
  const Status status = second.wait(30s);
  CHECK(status.code() == Code::kInternal);
  CHECK(status.message().find("launch 2") != std::string::npos);
  CHECK(second.wait(30s).code() == Code::kUnavailable);
  CHECK(first.wait(30s).code() == Code::kUnavailable);
  CHECK(step.launch(bench.stream).code() == Code::kUnavailable);
  check_lost(bench, "launch 2 failed");
}

TEST_CASE("imitation: a launch that hangs is a timeout, and closing the device ends it") {
  pid_t process = -1;
  {
    Bench bench(Device::Options{{"hang_at", "1"}, {"patience_ms", short_patience()}});
    process = device_process(::getpid());
    CHECK(runs(process));
    const StepExecutable step = bench.step();
    Event event = take(bench.device->create_event());
    ok(step.launch(bench.stream));
    ok(event.record(bench.stream));
    CHECK(event.wait(20ms).code() == Code::kDeadlineExceeded);
    CHECK(!bench.device->lost());
  }
  CHECK(!runs(process));
}

TEST_CASE("imitation: waiting without end for a launch that hangs ends with a lost device") {
  Bench bench(Device::Options{{"hang_at", "1"}, {"patience_ms", short_patience()}});
  const StepExecutable step = bench.step();
  ok(step.launch(bench.stream));
  CHECK(bench.stream.synchronize().code() == Code::kUnavailable);
  check_lost(bench, "nothing has moved");
}

TEST_CASE("imitation: a device that goes away in a launch is lost") {
  Bench bench(Device::Options{{"lose_at", "1"}});
  const StepExecutable step = bench.step();
  Event event = take(bench.device->create_event());
  ok(step.launch(bench.stream));
  // Whether this call still gets through depends on how fast the process ends.
  (void)event.record(bench.stream).ok();
  CHECK(bench.stream.synchronize().code() == Code::kUnavailable);
  CHECK(event.wait(30s).code() == Code::kUnavailable);
  check_lost(bench, "status 3");
}

TEST_CASE("imitation: kill -9 of the device process is a lost device, for those who wait too") {
  Bench bench;
  DeviceBuffer flag = take(bench.device->alloc(MemoryKind::kPinned, 256));
  *reinterpret_cast<uint32_t*>(flag.host().data()) = 0;
  const kernels::TestWaitParams params{pointer<uint32_t>(flag), pointer<uint32_t>(flag, 1),
                                       60'000'000'000};
  const Launch launch = make_launch(take(bench.pack.kernel("test_wait")), params, 1);
  const StepExecutable gate =
      take(StepExecutable::create(bench.device, std::span(&launch, 1), StepMode::kGraph));
  Event event = take(bench.device->create_event());
  ok(gate.launch(bench.stream));
  ok(event.record(bench.stream));
  std::thread killer([pid = device_process(::getpid())] {
    std::this_thread::sleep_for(20ms);
    ::kill(pid, SIGKILL);
  });
  const auto start = Clock::now();
  CHECK(event.wait(60s).code() == Code::kUnavailable);
  CHECK(Clock::now() - start < 10s);
  killer.join();
  check_lost(bench, "signal 9");
}

TEST_CASE("imitation: a device process that is stopped does not answer, and is lost") {
  Bench bench(Device::Options{{"patience_ms", short_patience()}});
  ok(bench.stream.synchronize());
  ::kill(device_process(::getpid()), SIGSTOP);
  CHECK(bench.device->load_module(test_pack_path()).error().code() == Code::kUnavailable);
  check_lost(bench, "does not answer");
}

TEST_CASE("imitation: graphs can be refused, and eager steps run on") {
  Bench bench(Device::Options{{"refuse_graphs", "true"}});
  CHECK(!take(bench.device->info()).supports_graphs);
  CHECK(bench.try_step(1, StepMode::kGraph).error().code() == Code::kUnimplemented);
  const StepExecutable eager = bench.step(2, StepMode::kEager);
  ok(eager.launch(bench.stream));
  CHECK(bench.first_word() == 4);
}

TEST_CASE("imitation: a corrupt graph leaves out its last record but one, an eager step nothing") {
  const auto run = [](Bench& bench, const StepExecutable& step) {
    ok(bench.stream.fill(bench.x.address(), 0, 4));
    ok(step.launch(bench.stream));
    return bench.first_word();
  };
  Bench all(Device::Options{{"corrupt_graphs", "true"}});
  CHECK(run(all, all.step(3, StepMode::kEager)) == 13);
  CHECK(run(all, all.step(3)) == 4);
  Bench second(Device::Options{{"corrupt_graph_at", "2"}});
  CHECK(run(second, second.step(3)) == 13);
  CHECK(run(second, second.step(3)) == 4);
  CHECK(run(second, second.step(3)) == 13);
}

TEST_CASE("imitation: bad values of options are refused with what they take") {
  const auto refusal = [](const char* key, const char* value) {
    const auto opened = Device::open(ImitationPlatform::api(), "cpu", {{key, value}});
    REQUIRE(!opened);
    CHECK(opened.error().code() == Code::kInvalidArgument);
    CHECK(opened.error().message().find(key) != std::string::npos);
  };
  refusal("memory_bytes", "12");
  refusal("delay_us", "-1");
  refusal("hang_at", "0");
  refusal("lose_at", "soon");
  refusal("refuse_graphs", "1");
  const auto missing =
      Device::open(ImitationPlatform::api(), "cpu", {{"device_program", "/no/such/program"}});
  REQUIRE(!missing);
  CHECK(missing.error().code() == Code::kFailedPrecondition);
  CHECK(missing.error().message().find("/no/such/program") != std::string::npos);
  // A program that is none: it ends without a word.
  const auto silent =
      Device::open(ImitationPlatform::api(), "cpu", {{"device_program", "/bin/true"}});
  REQUIRE(!silent);
  CHECK(silent.error().code() == Code::kUnavailable);
}

TEST_CASE("imitation: the device process ends with its host, however that ends") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t host = ::fork();
  if (host == 0) {
    const auto opened = Device::open(ImitationPlatform::api(), "cpu", {});
    const pid_t process = device_process(::getpid());
    (void)!::write(ends[1], &process, sizeof(process));
    for (;;) ::pause();
  }
  pid_t process = -1;
  REQUIRE(::read(ends[0], &process, sizeof(process)) == sizeof(process));
  CHECK(runs(process));
  ::kill(host, SIGKILL);
  REQUIRE(::waitpid(host, nullptr, 0) == host);
  for (const auto end = Clock::now() + 60s; runs(process) && Clock::now() < end;) {
    std::this_thread::sleep_for(10ms);
  }
  CHECK(!runs(process));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_SUITE_END();

}  // namespace atlas::test

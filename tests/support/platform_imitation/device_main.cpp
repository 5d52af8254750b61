// The device process: the only one that can touch device memory. It runs recorded steps, copies and
// fills in the order of their streams, and nothing else.
//
// It is stricter than it needs to be where the contract leaves room: tasks run from the last to the
// first, scratch is filled with ones before every record.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cpu/kernel.h"
#include "plugins/abi/atlas_plugin.h"
#include "plugins/sdk/guard.h"
#include "tests/support/platform_imitation/protocol.h"

namespace atlas::imitation {
namespace {

using kernels::cpu::Kernel;
using sdk::Failure;

// ---- Steps
// ----------------------------------------------------------------------------------------

struct AlignedDelete {
  void operator()(std::byte* block) const { ::operator delete (block, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte, AlignedDelete>;

AlignedBytes make_aligned(size_t bytes) {
  return AlignedBytes(
      static_cast<std::byte*>(::operator new (std::max<size_t>(bytes, 64), std::align_val_t{64})));
}

struct Step {
  std::vector<StepRecord> records;
  AlignedBytes params;
  AlignedBytes scratch;  // a step is launched on one stream at a time, so one is enough
  std::mutex running;    // and this makes sure of it
  size_t left_out = SIZE_MAX;
};

void run_record(const Step& step, const StepRecord& record) {
  constexpr uint32_t kParts = 8;
  const uint32_t part = std::max(record.tasks / kParts, 1u);
  std::memset(step.scratch.get(), 0xff, record.shared_bytes);
  for (uint32_t end = record.tasks; end != 0;) {
    const uint32_t begin = end - std::min(end, part);
    reinterpret_cast<Kernel>(record.kernel)(step.params.get() + record.params_offset, begin, end,
                                            step.scratch.get());
    end = begin;
  }
}

[[noreturn]] void stop_for_good() {
  for (;;) ::pause();
}

// ---- The device
// -----------------------------------------------------------------------------------

class DeviceProcess {
 public:
  void hello(const Hello& hello);
  uint64_t load_module(const std::string& path);
  uint64_t find_kernel(uint64_t module, const std::string& name);
  void release_module(uint64_t module);
  uint64_t create_step(const std::vector<char>& payload);
  void destroy_step(uint64_t id);
  void start_stream(uint64_t index);
  void stop_stream(uint64_t index);

 private:
  std::shared_ptr<Step> find_step(uint64_t id);
  void run_stream(SharedStream& stream);
  void run_command(SharedStream& stream, const Command& command);
  void run_step(SharedStream& stream, const Command& command);
  [[noreturn]] void fail(SharedStream& stream, const std::string& reason);

  Shared* shared_ = nullptr;
  uint64_t delay_ns_ = 0;
  std::vector<std::pair<std::string, void*>> modules_;  // null: released
  std::mutex mutex_;                                    // guards steps_
  std::map<uint64_t, std::shared_ptr<Step>> steps_;
  uint64_t next_step_ = 1;
  std::array<std::thread, kMaxStreams> streams_;
};

void map_at(uint64_t address, uint64_t bytes, int fd, const char* what) {
  void* wanted = reinterpret_cast<void*>(address);
  void* got = ::mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, fd, 0);
  if (got == wanted) return;
  throw Failure(
      errno == EEXIST || got != MAP_FAILED ? ATLAS_ALREADY_EXISTS : ATLAS_RESOURCE_EXHAUSTED,
      std::string(what) + " cannot be mapped where the host has it: " + std::strerror(errno));
}

void DeviceProcess::hello(const Hello& hello) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != hello.host_pid) std::_Exit(0);  // it ended before the line above
  map_at(hello.device_address, hello.device_bytes, kDeviceFd, "device memory");
  map_at(hello.pinned_address, hello.pinned_bytes, kPinnedFd, "pinned memory");
  void* shared = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, kSharedFd, 0);
  if (shared == MAP_FAILED) throw Failure(ATLAS_RESOURCE_EXHAUSTED, "the queues cannot be mapped");
  shared_ = static_cast<Shared*>(shared);
  delay_ns_ = hello.delay_ns;
}

uint64_t DeviceProcess::load_module(const std::string& path) {
  char full[PATH_MAX];
  if (::realpath(path.c_str(), full) == nullptr) {
    throw Failure(ATLAS_NOT_FOUND, "kernel pack '" + path + "': " + std::strerror(errno));
  }
  void* handle = ::dlopen(full, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    throw Failure(ATLAS_FAILED_PRECONDITION, "kernel pack '" + path + "' cannot be loaded: " +
                                                 (reason == nullptr ? "no reason given" : reason));
  }
  modules_.emplace_back(full, handle);
  return modules_.size();
}

uint64_t DeviceProcess::find_kernel(uint64_t module, const std::string& name) {
  if (module == 0 || module > modules_.size() || modules_[module - 1].second == nullptr) {
    throw Failure(ATLAS_INVALID_ARGUMENT, "module " + std::to_string(module) + " is not loaded");
  }
  const auto& [path, handle] = modules_[module - 1];
  const std::string symbol = "atlas_kernel_" + name;
  void* function = ::dlsym(handle, symbol.c_str());
  if (function == nullptr) {
    throw Failure(ATLAS_NOT_FOUND, "kernel pack '" + path + "' has no kernel '" + name +
                                       "' (symbol " + symbol + ")");
  }
  return reinterpret_cast<uint64_t>(function);
}

void DeviceProcess::release_module(uint64_t module) {
  if (module == 0 || module > modules_.size()) return;
  void* handle = std::exchange(modules_[module - 1].second, nullptr);
  if (handle != nullptr) ::dlclose(handle);
}

uint64_t DeviceProcess::create_step(const std::vector<char>& payload) {
  StepHead head{};
  std::memcpy(&head, payload.data(), sizeof(head));
  auto step = std::make_shared<Step>();
  step->records.resize(head.count);
  const char* next = payload.data() + sizeof(head);
  std::memcpy(step->records.data(), next, head.count * sizeof(StepRecord));
  step->params = make_aligned(head.params_bytes);
  std::memcpy(step->params.get(), next + head.count * sizeof(StepRecord), head.params_bytes);
  uint32_t scratch_bytes = 0;
  for (const StepRecord& record : step->records) {
    scratch_bytes = std::max(scratch_bytes, record.shared_bytes);
  }
  step->scratch = make_aligned(scratch_bytes);
  if (head.corrupt != 0) step->left_out = head.count < 2 ? 0 : head.count - 2;
  const std::lock_guard lock(mutex_);
  steps_.emplace(next_step_, std::move(step));
  return next_step_++;
}

void DeviceProcess::destroy_step(uint64_t id) {
  const std::lock_guard lock(mutex_);
  steps_.erase(id);
}

std::shared_ptr<Step> DeviceProcess::find_step(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = steps_.find(id);
  return found == steps_.end() ? nullptr : found->second;
}

// ---- Streams
// --------------------------------------------------------------------------------------

void DeviceProcess::start_stream(uint64_t index) {
  SharedStream& stream = shared_->streams[index];
  stream.stop.store(0);
  streams_[index] = std::thread([this, &stream] { run_stream(stream); });
}

void DeviceProcess::stop_stream(uint64_t index) { streams_[index].join(); }

void DeviceProcess::run_stream(SharedStream& stream) {
  for (uint64_t done = stream.completed.load();;) {
    const auto ready = [&] { return stream.submitted.load() != done || stream.stop.load() != 0; };
    while (!ready()) stream.submit_door.sleep(ready, 1'000'000'000);
    if (stream.submitted.load() == done) return;
    const Command command = stream.queue[done % kQueueCapacity];
    run_command(stream, command);
    stream.heartbeat.fetch_add(1);
    // Orders the command's effects before what a waiter reads, in either process.
    stream.completed.store(++done);
    stream.done_door.wake();
  }
}

void DeviceProcess::run_command(SharedStream& stream, const Command& command) {
  const uint64_t due = command.submitted_ns + delay_ns_;
  for (uint64_t now = now_ns(); now < due; now = now_ns()) {
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(std::min<uint64_t>(due - now, 10'000'000)));
    stream.heartbeat.fetch_add(1);
  }
  switch (command.kind) {
    case CommandKind::kStep:
      return run_step(stream, command);
    case CommandKind::kCopy:
      std::memmove(reinterpret_cast<void*>(command.to), reinterpret_cast<const void*>(command.from),
                   command.bytes);
      return;
    case CommandKind::kFill:
      std::memset(reinterpret_cast<void*>(command.to), static_cast<int>(command.value),
                  command.bytes);
      return;
  }
}

void DeviceProcess::run_step(SharedStream& stream, const Command& command) {
  const std::shared_ptr<Step> step = find_step(command.step);
  const std::string launch = "launch " + std::to_string(command.bytes);
  if (step == nullptr) fail(stream, launch + " names a step that was destroyed");
  const std::lock_guard lock(step->running);
  for (size_t i = 0; i < step->records.size(); ++i) {
    // What goes wrong on request goes wrong in the middle.
    if (i == step->records.size() / 2) {
      if (command.fault == Fault::kFail) fail(stream, launch + " failed on request");
      if (command.fault == Fault::kHang) stop_for_good();
      if (command.fault == Fault::kLose) std::_Exit(3);
    }
    if (i != step->left_out) run_record(*step, step->records[i]);
    stream.heartbeat.fetch_add(1, std::memory_order_relaxed);
  }
}

void DeviceProcess::fail(SharedStream& stream, const std::string& reason) {
  std::snprintf(stream.failure, sizeof(stream.failure), "%s", reason.c_str());
  stream.failed.store(1);
  stream.done_door.wake();
  stop_for_good();
}

// ---- Requests
// -------------------------------------------------------------------------------------

void receive_all(void* data, size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes != 0) {
    const ssize_t received = ::read(kSocketFd, next, bytes);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) std::_Exit(0);  // the host has closed the device, or is gone
    next += received;
    bytes -= static_cast<size_t>(received);
  }
}

void send_all(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t sent = ::write(kSocketFd, next, bytes);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) std::_Exit(0);
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

uint64_t first_number(const std::vector<char>& payload) {
  uint64_t number = 0;
  std::memcpy(&number, payload.data(), std::min(sizeof(number), payload.size()));
  return number;
}

uint64_t handle(DeviceProcess& device, RequestKind kind, const std::vector<char>& payload) {
  switch (kind) {
    case RequestKind::kHello: {
      Hello hello{};
      std::memcpy(&hello, payload.data(), std::min(sizeof(hello), payload.size()));
      device.hello(hello);
      return 0;
    }
    case RequestKind::kLoadModule:
      return device.load_module(std::string(payload.begin(), payload.end()));
    case RequestKind::kFindKernel:
      return device.find_kernel(first_number(payload),
                                std::string(payload.begin() + sizeof(uint64_t), payload.end()));
    case RequestKind::kReleaseModule:
      device.release_module(first_number(payload));
      return 0;
    case RequestKind::kCreateStep:
      return device.create_step(payload);
    case RequestKind::kDestroyStep:
      device.destroy_step(first_number(payload));
      return 0;
    case RequestKind::kStartStream:
      device.start_stream(first_number(payload));
      return 0;
    case RequestKind::kStopStream:
      device.stop_stream(first_number(payload));
      return 0;
  }
  throw Failure(ATLAS_INTERNAL, "an unknown request");
}

void serve() {
  DeviceProcess device;
  for (;;) {
    RequestHead head{};
    receive_all(&head, sizeof(head));
    std::vector<char> payload(head.bytes);
    receive_all(payload.data(), payload.size());
    AtlasError error{};
    Answer answer{};
    answer.code = sdk::guarded(&error, [&]() -> AtlasCode {
      answer.value = handle(device, head.kind, payload);
      return ATLAS_OK;
    });
    answer.bytes = static_cast<uint32_t>(::strnlen(error.message, sizeof(error.message)));
    send_all(&answer, sizeof(answer));
    send_all(error.message, answer.bytes);
  }
}

}  // namespace
}  // namespace atlas::imitation

int main() {
  // A terminal's Ctrl-C and a service manager's stop go to the whole group; the host decides when
  // its device ends.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_IGN);
  ::syscall(SYS_close_range, static_cast<unsigned>(atlas::imitation::kFirstFreeFd), ~0u, 0u);
  atlas::imitation::serve();
}

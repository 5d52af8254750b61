// Memory, requests and waiting. What runs, runs in the device process (device_main.cpp).
#include "tests/support/platform_imitation/device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace atlas::imitation {
namespace {

using sdk::Failure;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxPoisonBytes = uint64_t{64} << 20;
constexpr uint64_t kSliceNs = 50'000'000;
constexpr uint32_t kStartAttempts = 5;

template <typename T>
std::span<const char> bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

template <typename T>
void append(std::vector<char>& to, const T* values, size_t count) {
  const char* bytes = reinterpret_cast<const char*>(values);
  to.insert(to.end(), bytes, bytes + count * sizeof(T));
}

}  // namespace

Device::Device(const Options& options)
    : options_(options),
      device_file_(make_memory_file("atlas-imitation-device", options.memory_bytes)),
      pinned_file_(make_memory_file("atlas-imitation-pinned", options.memory_bytes)),
      shared_file_(make_memory_file("atlas-imitation-queues", sizeof(Shared))),
      arenas_{Arena(options.memory_bytes), Arena(options.memory_bytes)} {
  void* shared =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, shared_file_.fd(), 0);
  if (shared == MAP_FAILED) {
    throw Failure(ATLAS_RESOURCE_EXHAUSTED,
                  std::string("the queues cannot be mapped: ") + std::strerror(errno));
  }
  shared_ = static_cast<Shared*>(shared);
  for (uint32_t attempt = 0;; ++attempt) {
    try {
      start(attempt);
      return;
    } catch (const Failure& failure) {
      // ALREADY_EXISTS: the other process has something at our addresses. Try others.
      if (failure.code() == ATLAS_ALREADY_EXISTS && attempt + 1 < kStartAttempts) continue;
      process_.reset();  // its last words touch the queues
      ::munmap(shared_, sizeof(Shared));
      throw;
    }
  }
}

void Device::start(uint32_t attempt) {
  process_.reset();
  space_ = std::make_unique<AddressSpace>(options_.memory_bytes, options_.memory_bytes,
                                          pinned_file_, attempt);
  lost_.store(false);
  process_ = std::make_unique<Process>(options_.device_program,
                                       Process::Files{device_file_, pinned_file_, shared_file_},
                                       [this](const std::string& how) { lose(how); });
  const Hello hello{space_->device(),      options_.memory_bytes,    space_->pinned(),
                    options_.memory_bytes, options_.delay_us * 1000, ::getpid()};
  process_->greet(hello, options_.patience_ms);
}

Device::~Device() {
  process_.reset();
  ::munmap(shared_, sizeof(Shared));
}

// ---- A lost device
// --------------------------------------------------------------------------------

void Device::check_not_lost() {
  if (!lost_.load()) return;
  const std::lock_guard lock(lost_mutex_);
  throw Failure(ATLAS_UNAVAILABLE, "device lost: " + lost_reason_);
}

bool Device::lose(const std::string& reason) {
  {
    const std::lock_guard lock(lost_mutex_);
    if (lost_.load()) return false;
    lost_reason_ = reason;
    lost_.store(true);
  }
  for (SharedStream& stream : shared_->streams) stream.done_door.wake();
  return true;
}

// A failed launch takes the device with it, as a failed kernel does on a GPU; who waits for it is
// told what happened, everyone later that the device is lost.
void Device::fail_stream(SharedStream& stream) {
  const std::string reason(stream.failure, ::strnlen(stream.failure, sizeof(stream.failure)));
  if (lose(reason)) {
    process_->kill();
    throw Failure(ATLAS_INTERNAL, reason);
  }
  check_not_lost();
}

uint64_t Device::ask(RequestKind kind, std::span<const char> payload) {
  check_not_lost();
  try {
    return process_->ask(kind, payload);
  } catch (const Failure& failure) {
    if (failure.code() != ATLAS_UNAVAILABLE) throw;
    lose(failure.what());
    process_->kill();
    check_not_lost();
    throw;
  }
}

// ---- Memory
// ---------------------------------------------------------------------------------------

uint64_t Device::base(AtlasMemoryKind kind) const {
  return kind == ATLAS_MEMORY_DEVICE ? space_->device() : space_->pinned();
}

void Device::info(AtlasDeviceInfo* info) {
  check_not_lost();
  const std::lock_guard lock(mutex_);
  info->unified_memory = 0;
  sdk::copy_text(info->name, "imitation");
  sdk::copy_text(info->architecture, "imitation");
  info->memory_bytes = options_.memory_bytes;
  info->available_bytes = options_.memory_bytes - arena(ATLAS_MEMORY_DEVICE).taken_bytes();
  info->compute_units = 1;
  info->supports_graphs = options_.refuse_graphs ? 0 : 1;
}

AtlasAddress Device::alloc(AtlasMemoryKind kind, uint64_t bytes) {
  if (kind != ATLAS_MEMORY_DEVICE && kind != ATLAS_MEMORY_PINNED) {
    throw Failure(ATLAS_INVALID_ARGUMENT, "memory kind " + std::to_string(kind) + " is unknown");
  }
  if (bytes == 0) throw Failure(ATLAS_INVALID_ARGUMENT, "0 bytes of memory were asked for");
  {
    const std::lock_guard lock(mutex_);
    if (++allocation_count_ == options_.fail_alloc_at) {
      throw Failure(ATLAS_RESOURCE_EXHAUSTED,
                    std::to_string(bytes) + " bytes were asked for; allocation " +
                        std::to_string(allocation_count_) + " fails on request");
    }
  }
  return take_memory(kind, bytes);
}

AtlasAddress Device::take_memory(AtlasMemoryKind kind, uint64_t bytes) {
  check_not_lost();
  const std::lock_guard lock(mutex_);
  Arena& memory = arena(kind);
  const std::optional<uint64_t> offset = memory.take(bytes);
  if (!offset) {
    throw Failure(ATLAS_RESOURCE_EXHAUSTED, std::to_string(bytes) + " bytes were asked for; " +
                                                std::to_string(memory.taken_bytes()) +
                                                " of the device's " +
                                                std::to_string(memory.capacity()) + " are taken");
  }
  poison(kind, *offset, std::min(bytes, kMaxPoisonBytes));
  const AtlasAddress address = base(kind) + *offset;
  allocations_.add(address, {bytes, kind});
  return address;
}

// New memory is full of NaNs and of indices beyond every end: what reads it before writing shows.
void Device::poison(AtlasMemoryKind kind, uint64_t offset, uint64_t bytes) {
  const std::vector<char> ones(std::min(bytes, uint64_t{1} << 20), '\xff');
  const File& file = kind == ATLAS_MEMORY_DEVICE ? device_file_ : pinned_file_;
  while (bytes != 0) {
    const ssize_t written = ::pwrite(file.fd(), ones.data(), std::min<uint64_t>(bytes, ones.size()),
                                     static_cast<off_t>(offset));
    if (written <= 0) return;  // memory is short; the first touch will say so
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<uint64_t>(written);
  }
}

void Device::free(AtlasMemoryKind kind, AtlasAddress address) {
  const std::lock_guard lock(mutex_);
  const sdk::Allocations::Entry entry = allocations_.remove(kind, address);
  const uint64_t offset = address - base(kind);
  arena(kind).give_back(offset);
  const uint64_t begin = (offset + kPage - 1) / kPage * kPage;
  const uint64_t end = (offset + entry.bytes) / kPage * kPage;
  if (begin < end) {
    const File& file = kind == ATLAS_MEMORY_DEVICE ? device_file_ : pinned_file_;
    (void)::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  }
  check_not_lost();
}

void Device::check_range(const char* what, AtlasAddress address, uint64_t bytes) {
  check_not_lost();
  const std::lock_guard lock(mutex_);
  allocations_.check(what, address, bytes);
}

bool Device::is_pinned(const void* address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return allocations_.is_pinned(address, bytes);
}

// ---- Modules and steps
// ----------------------------------------------------------------------------

uint64_t Device::load_module(const std::string& path) {
  return ask(RequestKind::kLoadModule, {path.data(), path.size()});
}

AtlasKernel Device::find_kernel(uint64_t module, const std::string& name) {
  std::vector<char> payload;
  append(payload, &module, 1);
  append(payload, name.data(), name.size());
  const AtlasKernel kernel = ask(RequestKind::kFindKernel, payload);
  const std::lock_guard lock(mutex_);
  kernels_[module].insert(kernel);
  return kernel;
}

void Device::release_module(uint64_t module) noexcept {
  {
    const std::lock_guard lock(mutex_);
    kernels_.erase(module);
  }
  try {
    ask(RequestKind::kReleaseModule, bytes_of(module));
  } catch (const Failure&) {  // a device that is lost has no module any more
  }
}

uint64_t Device::create_step(const AtlasLaunch* launches, uint32_t count, AtlasStepMode mode) {
  check_not_lost();
  const sdk::LaunchList list(launches, count, mode, [this](AtlasKernel kernel) {
    const std::lock_guard lock(mutex_);
    return std::any_of(kernels_.begin(), kernels_.end(),
                       [&](const auto& one) { return one.second.contains(kernel); });
  });
  StepHead head{count, 0, 0};
  if (mode == ATLAS_STEP_GRAPH) {
    if (options_.refuse_graphs) {
      throw Failure(ATLAS_UNIMPLEMENTED, "the imitation has no graphs (refuse_graphs)");
    }
    const std::lock_guard lock(mutex_);
    const bool chosen = ++graph_count_ == options_.corrupt_graph_at;
    head.corrupt = options_.corrupt_graphs || chosen ? 1 : 0;
  }
  std::vector<StepRecord> records;
  std::vector<char> params;
  for (uint32_t i = 0; i < count; ++i) {
    const AtlasLaunch& launch = list[i];
    records.push_back({launch.kernel, params.size(), list.tasks(i), launch.shared_bytes});
    append(params, static_cast<const char*>(launch.params), launch.params_size);
    params.resize((params.size() + 63) / 64 * 64);
  }
  head.params_bytes = params.size();
  std::vector<char> payload;
  append(payload, &head, 1);
  append(payload, records.data(), records.size());
  append(payload, params.data(), params.size());
  return ask(RequestKind::kCreateStep, payload);
}

void Device::destroy_step(uint64_t step) noexcept {
  try {
    ask(RequestKind::kDestroyStep, bytes_of(step));
  } catch (const std::exception&) {
    // A lost device holds no steps.
  }
}

// ---- Streams
// --------------------------------------------------------------------------------------

uint32_t Device::open_stream() {
  const std::lock_guard lock(mutex_);
  const auto free = std::find(stream_used_.begin(), stream_used_.end(), false);
  if (free == stream_used_.end()) {
    throw Failure(ATLAS_RESOURCE_EXHAUSTED, "the imitation has " + std::to_string(kMaxStreams) +
                                                " streams, and all are open");
  }
  const auto index = static_cast<uint32_t>(free - stream_used_.begin());
  ask(RequestKind::kStartStream, bytes_of(uint64_t{index}));
  *free = true;
  return index;
}

void Device::close_stream(uint32_t index) noexcept {
  try {
    SharedStream& closing = stream(index);
    wait(closing, closing.submitted.load(), kForever);
    closing.stop.store(1);
    closing.submit_door.wake();
    ask(RequestKind::kStopStream, bytes_of(uint64_t{index}));
    const std::lock_guard lock(mutex_);
    stream_used_[index] = false;
  } catch (const std::exception&) {
    // A lost device has no streams; the place stays taken.
  }
}

void Device::submit(SharedStream& stream, Command command) {
  check_not_lost();
  const uint64_t number = stream.submitted.load();
  if (number >= kQueueCapacity) wait(stream, number - kQueueCapacity + 1, kForever);
  if (stream.failed.load() != 0) fail_stream(stream);
  command.submitted_ns = now_ns();
  stream.queue[number % kQueueCapacity] = command;
  stream.submitted.store(number + 1);
  stream.submit_door.wake();
}

Command Device::next_launch(uint64_t step) {
  const uint64_t number = launch_count_.fetch_add(1) + 1;
  Command command{};
  command.kind = CommandKind::kStep;
  command.step = step;
  command.bytes = number;
  if (number == options_.fail_launch_at) command.fault = Fault::kFail;
  if (number == options_.hang_at) command.fault = Fault::kHang;
  if (number == options_.lose_at) command.fault = Fault::kLose;
  return command;
}

// What a waiter need not wait for any longer.
bool Device::finished(SharedStream& stream, uint64_t ticket) {
  return stream.completed.load() >= ticket || lost_.load() || stream.failed.load() != 0;
}

bool Device::wait(SharedStream& stream, uint64_t ticket, uint64_t timeout_ns) {
  const uint64_t start = now_ns();
  uint64_t moved_ns = start;
  uint64_t heartbeat = stream.heartbeat.load();
  for (;;) {
    check_not_lost();
    if (stream.completed.load() >= ticket) return true;
    if (stream.failed.load() != 0) fail_stream(stream);
    const uint64_t now = now_ns();
    uint64_t slice = kSliceNs;
    if (timeout_ns != kForever) {
      if (now - start >= timeout_ns) return false;
      slice = std::min(slice, timeout_ns - (now - start));
    } else if (const uint64_t beat = stream.heartbeat.load(); beat != heartbeat) {
      heartbeat = beat;
      moved_ns = now;
    } else if (now - moved_ns >= options_.patience_ms * 1'000'000) {
      lose("nothing has moved for " + std::to_string(options_.patience_ms) + " ms");
      process_->kill();
      check_not_lost();
    }
    stream.done_door.sleep([&] { return finished(stream, ticket); }, slice);
  }
}

}  // namespace atlas::imitation

// See machine.h. The one mutex is never held while a kernel runs or a stream is waited for.
#include "tests/support/fake_gpu/machine.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/support/test_pack_params.h"

namespace atlas::fake_gpu {
namespace {

constexpr uint64_t kAlignment = 256;

// What a real image says of its kernels' parameters, for the kernels of the test pack.
const std::map<std::string, uint32_t>& params_bytes() {
  static const auto* table = new std::map<std::string, uint32_t>{
      {"atlas_kernel_test_empty", sizeof(kernels::TestEmptyParams)},
      {"atlas_kernel_test_iota", sizeof(kernels::TestIotaParams)},
      {"atlas_kernel_test_mix", sizeof(kernels::TestMixParams)},
      {"atlas_kernel_test_neighbour", sizeof(kernels::TestNeighbourParams)},
      {"atlas_kernel_test_wait", sizeof(kernels::TestWaitParams)},
      {"atlas_kernel_test_scratch", sizeof(kernels::TestScratchParams)},
      {"atlas_kernel_test_float", sizeof(kernels::TestFloatParams)},
      {"atlas_kernel_test_sum", sizeof(kernels::TestSumParams)},
  };
  return *table;
}

uint64_t round_up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::unique_ptr<Machine>& current() {
  static auto* machine = new std::unique_ptr<Machine>(make_machine(Script{}));
  return *machine;
}

}  // namespace

Machine& machine() { return *current(); }

// ---- Stream
// ---------------------------------------------------------------------------------------

Stream::Stream(Machine& machine) : machine_(machine), thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::submit(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  ++submitted_;
  changed_.notify_all();
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return done_ == submitted_;
}

void Stream::wait() {
  std::unique_lock lock(mutex_);
  const uint64_t last = submitted_;
  changed_.wait(lock, [&] { return done_ >= last || machine_.stopping(); });
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !tasks_.empty() || stop_; });
    if (tasks_.empty() || (stop_ && machine_.stopping())) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

// ---- Machine
// --------------------------------------------------------------------------------------

Machine::Machine(const Script& script) : script_(script) {
  capacity_ = script.devices[0].memory_bytes;
  if (capacity_ == 0) return;
  const int file = ::memfd_create("atlas-fake-gpu", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(capacity_)) != 0) std::abort();
  void* hidden =
      ::mmap(nullptr, capacity_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* seen = ::mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (hidden == MAP_FAILED || seen == MAP_FAILED) std::abort();
  ::close(file);
  device_base_ = reinterpret_cast<uint64_t>(hidden);
  backing_ = static_cast<std::byte*>(seen);
}

void Machine::stop() {
  {
    const std::lock_guard lock(stop_mutex_);
    stopping_.store(true);
    stopped_.notify_all();
  }
  for (Stream* stream : streams_) delete stream;
  streams_.clear();
}

Machine::~Machine() {
  stop();
  for (Event* event : events_) delete event;
  for (Module* module : modules_) {
    if (module->library != nullptr) ::dlclose(module->library);
    delete module;
  }
  for (Graph* graph : graphs_) delete graph;
  for (Executable* executable : executables_) delete executable;
  for (const auto& [address, bytes] : pinned_) std::free(reinterpret_cast<void*>(address));
  if (capacity_ == 0) return;
  ::munmap(reinterpret_cast<void*>(device_base_), capacity_);
  ::munmap(backing_, capacity_);
}

int Machine::begin_call(const char* name) {
  const std::lock_guard lock(mutex_);
  const uint32_t count = ++calls_[name];
  if (const int fault = fault_.load()) return fault;
  const bool fails = count == script_.failing_at && std::strcmp(name, script_.failing_call) == 0;
  return fails ? script_.failing_code : 0;
}

uint32_t Machine::calls(const char* name) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(name);
  return found == calls_.end() ? 0 : found->second;
}

void Machine::hang() {
  std::unique_lock lock(stop_mutex_);
  stopped_.wait(lock, [this] { return stopping_.load(); });
}

// ---- Memory
// ---------------------------------------------------------------------------------------

bool Machine::take(uint64_t bytes, uint64_t* address) {
  uint64_t at = 0;
  for (const auto& [begin, size] : device_) {
    const uint64_t offset = begin - device_base_;
    if (bytes <= offset - at) break;
    at = round_up(offset + size);
  }
  if (at > capacity_ || bytes > capacity_ - at) return false;
  std::memset(backing_ + at, 0xff, std::min<uint64_t>(bytes, uint64_t{64} << 20));
  *address = device_base_ + at;
  return true;
}

bool Machine::alloc_device(uint64_t bytes, uint64_t* address) {
  const std::lock_guard lock(mutex_);
  if (!take(bytes, address)) return false;
  device_.emplace(*address, bytes);
  return true;
}

bool Machine::free_device(uint64_t address) {
  std::vector<Stream*> streams;
  {
    const std::lock_guard lock(mutex_);
    if (!device_.contains(address)) return false;
    streams.assign(streams_.begin(), streams_.end());
  }
  for (Stream* stream : streams) stream->wait();
  const std::lock_guard lock(mutex_);
  give_back(address);
  return device_.erase(address) == 1;
}

bool Machine::alloc_pinned(uint64_t bytes, void** host) {
  if (bytes > uint64_t{1} << 32) return false;
  void* memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (memory == nullptr) return false;
  std::memset(memory, 0xff, bytes);
  const std::lock_guard lock(mutex_);
  pinned_.emplace(reinterpret_cast<uint64_t>(memory), bytes);
  took_pinned(memory, bytes);
  *host = memory;
  return true;
}

bool Machine::free_pinned(void* host) {
  const std::lock_guard lock(mutex_);
  if (pinned_.erase(reinterpret_cast<uint64_t>(host)) == 0) return false;
  giving_back_pinned(host);
  std::free(host);
  return true;
}

uint64_t Machine::free_bytes() {
  const std::lock_guard lock(mutex_);
  uint64_t taken = 0;
  for (const auto& [offset, bytes] : device_) taken += round_up(bytes);
  return capacity_ - std::min(taken, capacity_);
}

namespace {
bool inside(const std::map<uint64_t, uint64_t>& parts, uint64_t at, uint64_t bytes) {
  auto after = parts.upper_bound(at);
  if (after == parts.begin()) return false;
  const auto& [begin, size] = *--after;
  return at - begin <= size && bytes <= size - (at - begin);
}
}  // namespace

bool Machine::is_device(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return inside(device_, address, bytes);
}

bool Machine::is_pinned(const void* host, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return inside(pinned_, reinterpret_cast<uint64_t>(host), bytes);
}

// ---- Streams and events
// ---------------------------------------------------------------------------

Stream* Machine::open_stream() {
  auto stream = std::make_unique<Stream>(*this);
  const std::lock_guard lock(mutex_);
  streams_.insert(stream.get());
  return stream.release();
}

bool Machine::close_stream(Stream* stream) {
  {
    const std::lock_guard lock(mutex_);
    if (streams_.erase(stream) == 0) return false;
  }
  delete stream;
  return true;
}

bool Machine::has_stream(Stream* stream) {
  const std::lock_guard lock(mutex_);
  return streams_.contains(stream);
}

Event* Machine::open_event() {
  const std::lock_guard lock(mutex_);
  return *events_.insert(new Event).first;
}

bool Machine::close_event(Event* event) {
  // A record that has not run yet writes to it: wait, as a real one is kept until then.
  while (event->done.load() < event->recorded && !stopping()) std::this_thread::yield();
  const std::lock_guard lock(mutex_);
  if (events_.erase(event) == 0) return false;
  delete event;
  return true;
}

void Machine::record(Event* event, Stream* stream) {
  const uint64_t number = ++event->recorded;
  stream->submit([event, number] { event->done.store(number); });
}

// ---- Modules
// --------------------------------------------------------------------------------------

Load Machine::load(const void* image, Module** module) {
  Elf64_Ehdr head;
  std::memcpy(&head, image, sizeof(head));
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return Load::kInvalid;
  if (head.e_machine == 190 || head.e_machine == 224) return Load::kOtherArchitecture;
  // The section table ends a file that a linker made.
  const uint64_t bytes = head.e_shoff + uint64_t{head.e_shnum} * head.e_shentsize;
  const int file = ::memfd_create("atlas-fake-module", MFD_CLOEXEC);
  if (file < 0) std::abort();
  const bool written = ::write(file, image, bytes) == static_cast<ssize_t>(bytes);
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  void* library = written ? ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  ::close(file);
  if (library == nullptr) return Load::kInvalid;
  *module = keep(new Module{library});
  return Load::kOk;
}

Module* Machine::keep(Module* module) {
  const std::lock_guard lock(mutex_);
  return *modules_.insert(module).first;
}

void Machine::unload(Module* module) {
  const std::lock_guard lock(mutex_);
  if (modules_.erase(module) == 0) return;
  if (module->library != nullptr) ::dlclose(module->library);
  delete module;
}

Kernel* Machine::kernel(Module* module, const char* symbol) {
  void* function = ::dlsym(module->library, symbol);
  const auto known = params_bytes().find(symbol);
  if (function == nullptr || known == params_bytes().end()) return nullptr;
  auto kernel = std::make_unique<Kernel>();
  kernel->function = reinterpret_cast<decltype(kernel->function)>(function);
  kernel->name = symbol;
  kernel->params_bytes = known->second;
  return keep(std::move(kernel));
}

Kernel* Machine::keep(std::unique_ptr<Kernel> kernel) {
  const std::lock_guard lock(mutex_);
  kernels_.push_back(std::move(kernel));
  return kernels_.back().get();
}

// ---- Launches and graphs
// --------------------------------------------------------------------------

bool Machine::prepare(Kernel* kernel, const uint32_t (&grid)[3], const uint32_t (&block)[3],
                      uint32_t shared_bytes, const void* params, Launch* launch) {
  const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || grid[i] > kMostGrid[i]) return false;
    launch->grid[i] = grid[i];
    launch->block[i] = block[i];
  }
  if (threads == 0 || threads > kMostThreads || shared_bytes > kernel->allowed_shared) return false;
  launch->kernel = kernel;
  launch->shared_bytes = shared_bytes;
  const auto* bytes = static_cast<const std::byte*>(params);
  launch->params.assign(bytes, bytes + kernel->params_bytes);
  translate(launch->params);
  return true;
}

void Machine::translate(std::vector<std::byte>& params) {
  for (size_t at = 0; at + 8 <= params.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, params.data() + at, 8);
    if (word < device_base_ || word - device_base_ >= capacity_) continue;
    word = reinterpret_cast<uint64_t>(memory(word));
    std::memcpy(params.data() + at, &word, 8);
  }
}

void Machine::run(const Launch& launch) {
  if (fault_.load() != 0 || stopping()) return;
  const uint32_t number = ++launch_count_;
  if (number == script_.hang_at) return hang();
  if (number == script_.fault_at) return fault_.store(script_.fault_code);
  execute(launch);
}

void Machine::execute(const Launch& launch) {
  const uint32_t tasks = launch.grid[0] * launch.grid[1] * launch.grid[2];
  std::vector<std::byte> scratch(launch.shared_bytes + 64);
  const auto begin = reinterpret_cast<uintptr_t>(scratch.data());
  auto* aligned = reinterpret_cast<std::byte*>((begin + 63) / 64 * 64);
  launch.kernel->function(launch.params.data(), 0, tasks, aligned);
}

void Machine::submit(Stream* stream, const std::vector<Launch>& launches) {
  stream->submit([this, launches] {
    for (const Launch& launch : launches) run(launch);
  });
}

bool Machine::has_symbol(const Module* module, const char* symbol) const {
  return ::dlsym(module->library, symbol) != nullptr;
}

Graph* Machine::open_graph() {
  const std::lock_guard lock(mutex_);
  return *graphs_.insert(new Graph).first;
}

void Machine::close_graph(Graph* graph) {
  const std::lock_guard lock(mutex_);
  if (graphs_.erase(graph) != 0) delete graph;
}

Executable* Machine::instantiate(const Graph& graph) {
  auto executable = std::make_unique<Executable>();
  std::set<const Node*> done;
  // Of the nodes that may run, the one that was added last.
  while (done.size() != graph.nodes.size()) {
    const Node* next = nullptr;
    for (const Node& node : graph.nodes) {
      const bool ready = std::all_of(node.after.begin(), node.after.end(),
                                     [&](const Node* before) { return done.contains(before); });
      if (ready && !done.contains(&node)) next = &node;
    }
    if (next == nullptr) return nullptr;
    done.insert(next);
    executable->launches.push_back(next->launch);
  }
  const std::lock_guard lock(mutex_);
  return *executables_.insert(executable.release()).first;
}

void Machine::close_executable(Executable* executable) {
  const std::lock_guard lock(mutex_);
  if (executables_.erase(executable) != 0) delete executable;
}

uint32_t Machine::objects() {
  const std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(device_.size() + pinned_.size() + streams_.size() + events_.size() +
                               modules_.size() + graphs_.size() + executables_.size());
}

}  // namespace atlas::fake_gpu

#define ATLAS_FAKE_EXPORT extern "C" __attribute__((visibility("default")))

ATLAS_FAKE_EXPORT void atlas_fake_gpu_set_script(const atlas::fake_gpu::Script* script) {
  atlas::fake_gpu::current() = nullptr;
  atlas::fake_gpu::current() = atlas::fake_gpu::make_machine(*script);
}
ATLAS_FAKE_EXPORT uint32_t atlas_fake_gpu_count_launches() {
  return atlas::fake_gpu::machine().launches();
}
ATLAS_FAKE_EXPORT uint32_t atlas_fake_gpu_count_calls(const char* name) {
  return atlas::fake_gpu::machine().calls(name);
}
ATLAS_FAKE_EXPORT uint32_t atlas_fake_gpu_count_objects() {
  return atlas::fake_gpu::machine().objects();
}

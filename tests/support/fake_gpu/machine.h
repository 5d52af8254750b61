// A GPU that is none: what the fake vendor libraries stand on. Kernels are those of the CPU test
// pack, run by one thread for each stream. It is stricter than the real ones:
// - device memory faults when the host touches it: kernels get other addresses of the same pages,
// as
//   pointers in parameters are translated at launch (pointers in memory are not);
// - new memory is full of ones; copies take pinned host memory only; freeing waits for all streams;
// - a graph's nodes without an edge between them run in the order that was not meant.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_gpu/script.h"

namespace atlas::fake_gpu {

inline constexpr uint32_t kSharedBytes = 48 * 1024;       // a block's without asking
inline constexpr uint32_t kMostSharedBytes = 227 * 1024;  // a Hopper block's
inline constexpr uint32_t kMostThreads = 1024;
inline constexpr uint32_t kMostGrid[3] = {0x7fffffff, 65535, 65535};

struct Module {
  void* library = nullptr;
  std::vector<char> image = {};  // of an emulated one
};

struct Kernel {
  void (*function)(const void*, uint32_t, uint32_t, std::byte*);
  std::string name;
  uint32_t params_bytes;
  void (*lane)(const void*) = nullptr;  // of an emulated one, and the threads that it is made for
  uint32_t threads = 0;
  uint32_t allowed_shared = kSharedBytes;
};

struct Launch {
  Kernel* kernel;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  std::vector<std::byte> params;  // translated
};

struct Node {
  Launch launch;
  std::vector<Node*> after;
};

struct Graph {
  std::deque<Node> nodes;
};

/// The launches of a graph in the order in which they will run.
struct Executable {
  std::vector<Launch> launches;
};

struct Event {
  std::atomic<uint64_t> recorded{0};
  std::atomic<uint64_t> done{0};
};

class Machine;

class Stream {
 public:
  explicit Stream(Machine& machine);
  /// Waits for what was submitted, unless the machine is stopping.
  ~Stream();
  void submit(std::function<void()> task);
  bool idle();
  /// For what was submitted before the call.
  void wait();

 private:
  void run();
  Machine& machine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t submitted_ = 0;
  uint64_t done_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

enum class Load { kOk, kInvalid, kOtherArchitecture };

class Machine {
 public:
  explicit Machine(const Script& script);
  virtual ~Machine();

  const Script& script() const { return script_; }
  /// Counts a call; the result that the script wants of it, the device's fault, or 0.
  int begin_call(const char* name);
  uint32_t calls(const char* name);
  /// What a launch has done to the device, or 0. Asked after "is it done", as work that faults is
  /// done.
  int fault() const { return fault_.load(); }
  bool stopping() const { return stopping_.load(); }
  /// The launch with this number does not end before the machine does.
  void hang();

  bool alloc_device(uint64_t bytes, uint64_t* address);
  bool free_device(uint64_t address);
  bool alloc_pinned(uint64_t bytes, void** host);
  bool free_pinned(void* host);
  uint64_t free_bytes();
  bool is_device(uint64_t address, uint64_t bytes);
  bool is_pinned(const void* host, uint64_t bytes);
  /// The bytes behind a device address, for copies and kernels.
  virtual std::byte* memory(uint64_t address) { return backing_ + (address - device_base_); }
  /// After a copy to a device address, or a fill.
  virtual void wrote(uint64_t, uint64_t) {}

  Stream* open_stream();
  bool close_stream(Stream* stream);
  bool has_stream(Stream* stream);
  Event* open_event();
  bool close_event(Event* event);
  void record(Event* event, Stream* stream);

  virtual Load load(const void* image, Module** module);
  void unload(Module* module);
  /// Null: the module has no such kernel.
  virtual Kernel* kernel(Module* module, const char* symbol);
  bool has_symbol(const Module* module, const char* symbol) const;

  Graph* open_graph();
  void close_graph(Graph* graph);
  Executable* instantiate(const Graph& graph);
  void close_executable(Executable* executable);

  /// Copies parameters with their pointers translated. False: a shape that no device runs.
  bool prepare(Kernel* kernel, const uint32_t (&grid)[3], const uint32_t (&block)[3],
               uint32_t shared_bytes, const void* params, Launch* launch);
  void submit(Stream* stream, const std::vector<Launch>& launches);

  uint32_t launches() const { return launch_count_.load(); }
  uint32_t objects();

 protected:
  /// Takes `bytes` of device memory; false: there is not so much.
  virtual bool take(uint64_t bytes, uint64_t* address);
  virtual void give_back(uint64_t) {}
  virtual void took_pinned(void*, uint64_t) {}
  virtual void giving_back_pinned(void*) {}
  virtual void execute(const Launch& launch);
  /// Pointers in parameters, as kernels get them.
  virtual void translate(std::vector<std::byte>& params);
  /// Ends the streams; first in the destructor of what they call.
  void stop();
  void set_fault(int code) { fault_.store(code); }
  Module* keep(Module* module);
  Kernel* keep(std::unique_ptr<Kernel> kernel);

 private:
  void run(const Launch& launch);

  Script script_;
  std::mutex mutex_;
  std::map<std::string, uint32_t> calls_;
  std::atomic<int> fault_{0};
  std::atomic<bool> stopping_{false};
  std::mutex stop_mutex_;
  std::condition_variable stopped_;
  std::atomic<uint32_t> launch_count_{0};

  uint64_t capacity_ = 0;
  uint64_t device_base_ = 0;
  std::byte* backing_ = nullptr;
  std::map<uint64_t, uint64_t> device_;  // address: bytes
  std::map<uint64_t, uint64_t> pinned_;  // address: bytes
  std::set<Stream*> streams_;
  std::set<Event*> events_;
  std::set<Module*> modules_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::set<Graph*> graphs_;
  std::set<Executable*> executables_;
};

/// Each library has its own.
std::unique_ptr<Machine> make_machine(const Script& script);

/// The machine of the script that was set last; never null.
Machine& machine();

}  // namespace atlas::fake_gpu

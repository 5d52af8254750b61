// What a vendor's runtime does for a platform, without its names: the seam between the code that
// CUDA and HIP share (device.h, stream.h, step.h) and the entry points of each.
//
// Every call answers with the name of the entry point and its result, so that an error can say
// both. No call of this interface throws, and none but `bind` may be made by a thread that has not
// bound.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace atlas::gpu {

/// What an entry point answered; result 0 is success for every vendor.
struct Answer {
  const char* call;
  int result;
};

/// What a result means for us.
enum class Outcome {
  kOk,
  kNotReady,     // the work asked for is not done yet
  kOutOfMemory,  // the device goes on as before
  kNotFound,     // no such symbol
  kBadCode,      // no kernel pack at all, or none for this architecture
  kUnsupported,  // the driver or the device does not do that
  kLost,         // nothing works any more: the fault of a kernel, or of the device
  kFailed,       // anything else
};

/// What is known of a device once it is open.
struct Facts {
  std::string name;            // "NVIDIA H200"
  std::string architecture;    // "sm_90"
  std::string runtime;         // "CUDA 13.0": for messages
  bool unified = false;        // device memory is the machine's memory
  uint32_t compute_units = 0;  // multiprocessors
  uint32_t max_block_threads = 0;
  uint32_t max_block[3] = {};
  uint32_t max_grid[3] = {};
  uint64_t max_grid_threads = 0;   // a side of the grid times that of its blocks; 0: no such limit
  uint32_t shared_bytes = 0;       // that a block may use without being asked for
  uint32_t most_shared_bytes = 0;  // after allow_shared
};

struct Budget {
  uint64_t total_bytes;
  uint64_t free_bytes;  // now
};

/// What is known of a kernel.
struct Kernel {
  void* handle = nullptr;
  uint32_t max_block_threads = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t params_bytes = 0;  // of its one parameter; 0: the driver does not say
  bool waits = false;         // it waits by itself for the kernel before it to end
};

/// One launch: `params` is the kernel's one parameter, a struct by value.
struct Shape {
  void* kernel;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  const void* params;
  bool waits;  // Kernel::waits
};

/// What a graph's node follows.
struct Edge {
  void* node;
  bool early;  // the follower waits by itself: it may begin while the last blocks of `node` run
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual const Facts& facts() const = 0;
  virtual Outcome outcome(int result) const = 0;
  /// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
  virtual std::string describe(int result) const = 0;
  /// What a pack's file is built for, as far as it says so: "sm_121"; empty: it does not.
  virtual std::string architecture_of(const std::vector<char>& image) const = 0;
  /// Beside "out of memory": what bounds memory here and how to raise it; may be empty.
  virtual std::string memory_advice() const { return {}; }

  /// Makes the device current for the calling thread.
  virtual Answer bind() = 0;
  /// The device is lost: the destructor gives nothing of it back, which might wait for ever.
  virtual void abandon() = 0;
  virtual Answer budget(Budget* budget) = 0;

  virtual Answer alloc_device(uint64_t bytes, uint64_t* address) = 0;
  virtual Answer free_device(uint64_t address) = 0;
  /// Host memory that kernels reach at `device`.
  virtual Answer alloc_pinned(uint64_t bytes, void** host, uint64_t* device) = 0;
  virtual Answer free_pinned(void* host) = 0;

  virtual Answer stream_create(void** stream) = 0;
  virtual Answer stream_destroy(void* stream) = 0;
  virtual Answer stream_query(void* stream) = 0;
  virtual Answer event_create(void** event) = 0;
  virtual Answer event_destroy(void* event) = 0;
  virtual Answer event_record(void* event, void* stream) = 0;
  virtual Answer event_query(void* event) = 0;

  /// The host's side of both is pinned memory: neither call waits.
  virtual Answer copy_to_device(uint64_t to, const void* from, uint64_t bytes, void* stream) = 0;
  virtual Answer copy_to_host(void* to, uint64_t from, uint64_t bytes, void* stream) = 0;
  virtual Answer fill(uint64_t to, uint8_t value, uint64_t bytes, void* stream) = 0;

  virtual Answer module_load(const void* image, void** module) = 0;
  virtual Answer module_unload(void* module) = 0;
  /// Loads the kernel's code onto the device, too, so that no launch has to.
  virtual Answer module_kernel(void* module, const char* symbol, Kernel* kernel) = 0;
  /// Lets launches of `kernel` have up to `bytes` of dynamic shared memory.
  virtual Answer allow_shared(void* kernel, uint32_t bytes) = 0;
  virtual Answer launch(const Shape& shape, void* stream) = 0;

  virtual Answer graph_create(void** graph) = 0;
  virtual Answer graph_destroy(void* graph) = 0;
  /// Adds a launch that runs after the nodes of `after` (none: at once).
  virtual Answer graph_add(void* graph, std::span<const Edge> after, const Shape& shape,
                           void** node) = 0;
  virtual Answer graph_instantiate(void* graph, void** executable) = 0;
  virtual Answer graph_upload(void* executable, void* stream) = 0;
  virtual Answer graph_launch(void* executable, void* stream) = 0;
  virtual Answer graph_release(void* executable) = 0;
};

}  // namespace atlas::gpu

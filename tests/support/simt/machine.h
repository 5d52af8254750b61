// The SIMT emulator: runs kernels written for the device layer on the host, lane by lane, and
// reports what no GPU reports: accesses out of bounds, unwritten memory read, races, divergent
// barriers. Link atlas_simt.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/common/device/simt.h"

namespace atlas::simt {

enum class FaultKind {
  kNotDeviceMemory,  // an address that no buffer and no shared memory has
  kOutOfBounds,
  kMisaligned,        // not aligned to the access's size
  kReadOnly,          // a write to an input
  kUnwritten,         // a read of output or shared memory that nothing has written
  kInFlight,          // a read of what an asynchronous copy has not delivered yet
  kRace,              // two accesses, one of them a write, and nothing that orders them
  kDivergentBarrier,  // a barrier that not all threads of the block come to
  kWarpLane,          // a lane that its mask does not name, or reads one that it does not
  kWarpDivergence,    // lanes of a mask that do not come to the same call
  kUnderWay,          // what a matrix instruction that still runs reads or writes, touched
  kProxy,             // shared memory that no fence has shown to a matrix instruction
  kPhase,             // a barrier of phases that is none, or is used against its count
  kMatrix,            // a matrix instruction that its order or its operands do not allow
  kReplication,       // halves of a wave that should bring the same registers to WMMA
  kStuck,             // every lane waits for something that no lane will do
  kLaunch,            // a launch that the kernel is not made for
};
ATLAS_SIMT std::string_view fault_name(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kLaunch;
  uint32_t block = 0;   // linear, x fastest
  uint32_t thread = 0;  // of the block
  std::string file;
  uint32_t line = 0;
  uint64_t times = 1;  // faults of this kind on this line
  std::string text;    // one sentence with all of this, of the first
};

/// Bytes of one buffer that a launch moved.
struct Traffic {
  std::string buffer;
  uint64_t read_bytes = 0;     // as lanes asked for them
  uint64_t fetched_bytes = 0;  // sectors of 32 bytes that were not among the block's recent ones
  uint64_t written_bytes = 0;
};

struct ATLAS_SIMT Report {
  std::vector<Fault> faults;
  std::vector<Traffic> traffic;
  uint64_t matrix[kMatrixKinds] = {};  // instructions of each kind, one a warp

  bool ok() const { return faults.empty(); }
  bool has(FaultKind kind) const;
  uint64_t matrix_count(Matrix kind) const { return matrix[static_cast<uint32_t>(kind)]; }
  const Traffic& of(std::string_view buffer) const;
  /// All faults, one a line; "no faults" if there are none.
  std::string text() const;
};

struct Kernel {
  std::string name;
  void (*lane)(const void* params) = nullptr;  // runs one lane
  uint32_t threads = 0;                        // that the kernel is made for
};
/// A kernel that is declared in the same file.
#define ATLAS_SIMT_KERNEL(name) \
  ::atlas::simt::Kernel { #name, atlas_kernel_##name, atlas_threads_##name }

struct Launch {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t threads = 0;  // 0: what the kernel is made for
  uint32_t shared_bytes = 0;
  /// All blocks run together and may wait for each other; otherwise they run in some order.
  bool cooperative = false;
  /// Another order of blocks, warps and lanes for each seed; 0: ascending.
  uint64_t seed = 0;
  /// What the host does meanwhile: called when every lane waits in a loop. Returns whether it did
  /// anything (Machine::write); a launch in which neither side does is stuck.
  std::function<bool()> host = nullptr;
};

class ATLAS_SIMT Machine {
 public:
  Machine();
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// Memory that kernels read only.
  template <typename T>
  const T* input(const std::string& name, std::span<const T> values) {
    return static_cast<const T*>(add(name, values.data(), values.size_bytes(), false));
  }
  template <typename T>
  const T* input(const std::string& name, const std::vector<T>& values) {
    return input(name, std::span<const T>(values));
  }
  /// Memory that nothing has written: kernels may not read what they have not written.
  template <typename T>
  T* output(const std::string& name, size_t count) {
    return static_cast<T*>(add(name, nullptr, count * sizeof(T), true));
  }
  /// Memory with contents that kernels may change.
  template <typename T>
  T* in_out(const std::string& name, const std::vector<T>& values) {
    return static_cast<T*>(add(name, values.data(), values.size() * sizeof(T), true));
  }

  /// What a buffer holds, from its begin. `unwritten` stands where nothing was written.
  template <typename T>
  std::vector<T> contents(const T* buffer, T unwritten = T()) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> values(bytes_of(buffer) / sizeof(T));
    copy_out(buffer, values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      if (!is_written(buffer, i * sizeof(T), sizeof(T))) values[i] = unwritten;
    }
    return values;
  }
  bool is_written(const void* buffer, uint64_t offset, uint64_t bytes) const;
  /// Puts values into a buffer, from element `first` on, as the host does between launches or, with
  /// Launch::host, during one. What stands there is known to every lane that acquires it.
  template <typename T>
  void write(const T* buffer, const std::vector<T>& values, size_t first = 0) {
    copy_in(buffer, first * sizeof(T), values.data(), values.size() * sizeof(T));
  }

  // For a driver that stands on the machine:

  /// The bytes of a buffer as the host keeps them. Whoever writes there marks it as written.
  std::byte* storage(const void* buffer);
  void mark_written(const void* buffer, uint64_t offset, uint64_t bytes);
  /// Frees a buffer's bytes; accesses to it are out of bounds from then on.
  void remove(const void* buffer);
  /// Memory of the host that kernels may read and write at its own address, until unshare.
  void share(void* memory, uint64_t bytes);
  void unshare(void* memory);

  template <typename Params>
  Report run(const Kernel& kernel, const Params& params, const Launch& launch) {
    return run_raw(kernel, &params, launch);
  }
  Report run_raw(const Kernel& kernel, const void* params, const Launch& launch);

 private:
  void* add(const std::string& name, const void* values, uint64_t bytes, bool writable);
  uint64_t bytes_of(const void* buffer) const;
  void copy_out(const void* buffer, void* to) const;
  void copy_in(const void* buffer, uint64_t offset, const void* from, uint64_t bytes);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atlas::simt

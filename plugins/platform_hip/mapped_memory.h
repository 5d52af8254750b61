// What an APU's GPU may map of the machine's memory: the limits of Linux's amdgpu driver, and the
// kernel parameters that raise them.
//
// Source: the kernel's documentation of amdgpu (mem_info_* in sysfs, module parameters) and of ttm,
// and AMD's guide for Strix Halo. A GPU whose own part of the memory (set in the BIOS) is smaller
// than what it may map takes its allocations from the mapped memory, GTT; otherwise from its own
// part.
#pragma once

#include <cstdint>
#include <string>

namespace atlas::platform_hip {

/// Bytes; 0 where the system does not say.
struct MappedMemory {
  uint64_t own_total = 0, own_used = 0;  // the BIOS's part: mem_info_vram_*
  uint64_t gtt_total = 0, gtt_used = 0;  // mem_info_gtt_*
  uint64_t pages_limit = 0;              // ttm's parameter of this name, in bytes
  uint64_t machine_total = 0, machine_available = 0;

  /// Whether allocations come from mapped memory.
  bool maps() const { return gtt_total > own_total; }
  /// The most that may be mapped: allocations beyond it can succeed, and fault when they are used.
  uint64_t wall() const;
  /// What is left of whichever part allocations come from; no limit known: the largest number.
  uint64_t left() const;
  /// One sentence: where memory ends, and the kernel parameters that move it; empty: nothing to
  /// say.
  std::string advice() const;
};

/// Reads /proc/meminfo and `root`'s sysfs (a folder such as /sys) for the device at a PCI address
/// such as "0000:c5:00.0".
MappedMemory read_mapped_memory(const std::string& root, const std::string& pci);

}  // namespace atlas::platform_hip

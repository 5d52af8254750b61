// The machine's own memory, for devices that share it.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace atlas::gpu {

struct MachineMemory {
  uint64_t total_bytes = 0;      // 0: the system does not say
  uint64_t available_bytes = 0;  // without swapping, the page cache given back
};

/// From /proc/meminfo.
inline MachineMemory machine_memory() {
  MachineMemory memory;
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kibibytes = 0;
  std::string unit;
  while (file >> key >> kibibytes) {
    std::getline(file, unit);
    if (key == "MemTotal:") memory.total_bytes = kibibytes * 1024;
    if (key == "MemAvailable:") memory.available_bytes = kibibytes * 1024;
  }
  return memory;
}

}  // namespace atlas::gpu

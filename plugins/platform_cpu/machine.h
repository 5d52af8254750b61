// Facts about the host: which cores this process may use, its memory, its instruction set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace atlas::platform_cpu {

struct Memory {
  uint64_t total_bytes = 0;      // MemTotal, or the control group's limit if that is lower
  uint64_t available_bytes = 0;  // MemAvailable, or what the limit leaves if that is less
};

/// One logical CPU for each physical core of the affinity mask, in ascending order; never empty.
std::vector<int> usable_cores();
/// How many threads run a step unless the settings say so: the usable cores, but no more than the
/// control group's CPU quota pays for.
uint32_t default_threads();
/// The processor's name as /proc/cpuinfo spells it.
std::string processor_name();
/// The best instruction set that the kernel pack has code for, in Highway's spelling: "avx3_dl",
/// "avx3", "avx2", "sse4", "neon"; "portable" where none is known.
std::string instruction_set();
Memory memory();

}  // namespace atlas::platform_cpu

// Which platforms kernel tests run for, and on what: all of them in the emulator, or the one that
// `--device PLATFORM` names, on the GPU of this machine.
#pragma once

#include <string>
#include <vector>

namespace atlas::test {

/// The platform of `--device`; empty: the emulator.
const std::string& gpu_device();

/// Platforms to run for: `for (const char* platform : kGpuPlatforms)`.
struct GpuPlatforms {
  const char* const* begin() const;
  const char* const* end() const;
};
inline constexpr GpuPlatforms kGpuPlatforms;

/// Whether runs are counted: matrix instructions, and traffic of buffers. Only the emulator does.
inline bool gpu_counts() { return gpu_device().empty(); }

}  // namespace atlas::test

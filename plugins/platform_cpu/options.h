// The settings that this platform takes: `platform.options`.
#pragma once

#include <cstdint>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::platform_cpu {

inline constexpr uint32_t kMaxThreads = 1024;

struct Options {
  uint32_t threads = 0;  // `threads`: that run a step together; 0: one a physical core
  bool pin = false;      // `pin`: each thread stays on one core of the affinity mask
};

/// Throws Failure (ATLAS_INVALID_ARGUMENT) for an unknown key or a bad value, naming what is known.
Options parse_options(const AtlasDeviceOptions& options);

}  // namespace atlas::platform_cpu

// The settings of the imitation: how it behaves, and what shall go wrong. All counts begin at 1.
#pragma once

#include <cstdint>
#include <string>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::imitation {

struct Options {
  std::string device_program;     // of the device process; as built unless given
  uint64_t memory_bytes;          // capacity of device memory, and of pinned memory
  uint64_t delay_us = 0;          // a command starts at least so long after its submission
  uint64_t patience_ms = 10'000;  // without progress for so long, the device counts as lost once it
                                  // has begun
  uint64_t fail_alloc_at = 0;     // this allocation is refused (RESOURCE_EXHAUSTED)
  uint64_t fail_launch_at = 0;    // this launch fails when it runs (INTERNAL), then all is lost
  uint64_t hang_at = 0;           // this launch never ends
  uint64_t lose_at = 0;           // the device process ends in this launch
  bool refuse_graphs = false;     // a graph cannot be made (UNIMPLEMENTED)
  bool corrupt_graphs = false;    // every graph leaves out its last record but one
  uint64_t corrupt_graph_at = 0;  // this graph does, in the order of creation
};

/// Throws sdk::Failure (ATLAS_INVALID_ARGUMENT) for an unknown key or a bad value.
Options parse_options(const AtlasDeviceOptions& options);

}  // namespace atlas::imitation

// What a test asks of the fake GPU: which devices there are, and what goes wrong. Plain data: it
// crosses from the test into the fake library.
#pragma once

#include <cstdint>

namespace atlas::fake_gpu {

struct FakeDevice {
  char name[64];
  char architecture[32];  // "sm_90", "gfx1151"
  uint32_t integrated;
  uint64_t memory_bytes;
};

struct Script {
  FakeDevice devices[4] = {};
  uint32_t device_count = 0;
  int32_t version = 0;         // of the driver or runtime, as it counts
  char missing[64] = {};       // an entry point that the library does not have
  char failing_call[64] = {};  // this one answers `failing_code` ...
  uint32_t failing_at = 0;     // ... when it is called for the so-manieth time; 0: never
  int32_t failing_code = 0;
  uint32_t fault_at = 0;              // the launch, counted from 1, that ends the device with ...
  int32_t fault_code = 0;             // ... this result, told by every later call
  uint32_t hang_at = 0;               // the launch that never ends
  uint32_t other_pinned_address = 0;  // 1: pinned memory has another address on the device
};

/// Begins anew with a script: what was open before is gone. Exported by each fake library.
using SetScript = void (*)(const Script*);
inline constexpr char kSetScript[] = "atlas_fake_gpu_set_script";
/// Launches that have run, and calls of an entry point since the script was set.
using CountLaunches = uint32_t (*)();
inline constexpr char kCountLaunches[] = "atlas_fake_gpu_count_launches";
using CountCalls = uint32_t (*)(const char*);
inline constexpr char kCountCalls[] = "atlas_fake_gpu_count_calls";
/// Allocations, streams, events, modules and graphs that are there now.
using CountObjects = uint32_t (*)();
inline constexpr char kCountObjects[] = "atlas_fake_gpu_count_objects";

}  // namespace atlas::fake_gpu

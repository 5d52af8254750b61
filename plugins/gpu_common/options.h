// The options that every GPU platform takes: `platform.options` of the settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::gpu {

struct Options {
  std::string platform;             // "h200"
  std::optional<uint32_t> device;   // ordinal of the runtime; none: the first that fits
  std::optional<uint64_t> reserve;  // bytes that stay free; none: by the kind of memory
  /// After so long a wait without a deadline the device counts as lost: a kernel hangs.
  uint64_t patience_ms = 120'000;
  /// Steps are walked, and each launch is waited for: an error names its kernel. Slow.
  bool check_launches = false;
};

/// Throws sdk::Failure (ATLAS_INVALID_ARGUMENT): an unknown key, or a value that it does not take.
/// `runtime`: the platform's, for the message.
Options parse_options(const AtlasDeviceOptions& options, const std::string& runtime);

}  // namespace atlas::gpu

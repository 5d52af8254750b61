// Checks of what a plugin's entry returned, before anything of it is called.
#pragma once

#include <string>

#include "daemon/base/status.h"
#include "daemon/plugin_host/descriptor.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::plugin_host {

/// Our copies of a plugin's tables.
struct Tables {
  AtlasQuantApi quant{};
  AtlasAttentionApi attention{};
  AtlasPlatformApi platform{};
  void (*shutdown)() = nullptr;
};

/// Copies what `returned` points to, no further than each struct_size says.
/// Errors (messages do not name the file): kFailedPrecondition if a struct_size is smaller than
/// that of the plugin's version, the ABI version or the kind differs from the descriptor's, or a
/// table or a function of the plugin's version is null. Functions of later versions than the
/// plugin's are null.
Result<Tables> take_tables(const AtlasPlugin* returned, const PluginDescriptor& descriptor);

}  // namespace atlas::plugin_host

// The platform table of a GPU plugin: everything but opening a device is the same for all.
#pragma once

#include <memory>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/gpu_common/device.h"

namespace atlas::gpu {

/// What a plugin's own device_open does: throws sdk::Failure.
using OpenRuntime = std::unique_ptr<Runtime> (*)(const Options& options);

/// The body of device_open. `runtime_name`: for messages about options.
AtlasCode open_device(const AtlasDeviceOptions* options, const char* runtime_name, OpenRuntime open,
                      AtlasDevice** device, AtlasError* error);

/// Where warnings go from now on: what the entry was given, or null.
void set_host(const AtlasHost* host);

using DeviceOpen = AtlasCode (*)(const AtlasDeviceOptions*, AtlasDevice**, AtlasError*);
AtlasPlatformApi platform_table(DeviceOpen open);

}  // namespace atlas::gpu

// Platform plugin hip: AMD GPUs by HIP's runtime API.
#include "plugins/abi/atlas_plugin.h"
#include "plugins/gpu_common/table.h"
#include "plugins/platform_hip/hip_runtime.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"

namespace {

AtlasCode device_open(const AtlasDeviceOptions* options, AtlasDevice** device, AtlasError* error) {
  return atlas::gpu::open_device(options, "hip", atlas::platform_hip::open_hip, device, error);
}

}  // namespace

ATLAS_DESCRIPTOR(atlas::sdk::describe(atlas::sdk::Identity{ATLAS_KIND_PLATFORM, "hip", "0.1.0",
                                                           "Apache-2.0"},
                                      std::array<std::string_view, 1>{"strix-hip"},
                                      std::array<AtlasDescriptorKernel, 0>{}));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  static const AtlasPlatformApi table = atlas::gpu::platform_table(device_open);
  static const AtlasPlugin plugin = {sizeof(AtlasPlugin),
                                     ATLAS_ABI_MAJOR,
                                     ATLAS_ABI_MINOR,
                                     ATLAS_KIND_PLATFORM,
                                     nullptr,
                                     nullptr,
                                     &table,
                                     nullptr};
  const AtlasPlugin* entered = atlas::sdk::enter(plugin, host, error);
  if (entered != nullptr) atlas::gpu::set_host(host);
  return entered;
}

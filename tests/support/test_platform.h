// Opens the platforms that tests run on: `cpu`, and the strict imitation of a GPU.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "daemon/device/device.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::test {

/// The platform table of a plugin file. Fails the test if it cannot be loaded.
inline const AtlasPlatformApi* load_platform(const std::string& path) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* reason = handle == nullptr ? ::dlerror() : "";
  REQUIRE_MESSAGE(handle != nullptr, reason);
  const auto entry = reinterpret_cast<AtlasPluginEntry>(::dlsym(handle, ATLAS_PLUGIN_ENTRY));
  REQUIRE((entry != nullptr));
  static const AtlasHost host = {sizeof(AtlasHost), ATLAS_ABI_MAJOR, ATLAS_ABI_MINOR, 0,
                                 [](AtlasLogLevel, const char*) {}};
  AtlasError error{};
  error.struct_size = sizeof(error);
  const AtlasPlugin* plugin = entry(&host, &error);
  REQUIRE_MESSAGE(plugin != nullptr, error.message);
  REQUIRE(plugin->platform != nullptr);
  return plugin->platform;
}

inline std::string test_pack_path() {
  return ATLAS_BINARY_DIR "/lib/atlas/test-plugins/test_pack.so";
}

/// Platform cpu with two threads, whatever machine this is.
struct CpuPlatform {
  static constexpr const char* kName = "cpu";
  static const AtlasPlatformApi* api() {
    static const AtlasPlatformApi* table =
        load_platform(ATLAS_BINARY_DIR "/lib/atlas/plugins/platform_cpu.so");
    return table;
  }
  static Device::Options options() { return {{"threads", "2"}}; }
};

/// The imitation: the same kernel packs in another process.
struct ImitationPlatform {
  static constexpr const char* kName = "imitation";
  static const AtlasPlatformApi* api() {
    static const AtlasPlatformApi* table =
        load_platform(ATLAS_BINARY_DIR "/lib/atlas/test-plugins/platform_imitation.so");
    return table;
  }
  static Device::Options options() { return {}; }
};

/// The value, or a failed test with the error's text.
template <typename T>
T take(Result<T> result) {
  REQUIRE_MESSAGE(result.has_value(), result.error().to_string());
  return std::move(*result);
}

inline void ok(const Status& status) { REQUIRE_MESSAGE(status.ok(), status.to_string()); }

template <typename Platform>
std::shared_ptr<Device> open_device(Device::Options options = Platform::options()) {
  return take(Device::open(Platform::api(), "cpu", options));
}

/// A launch of `tasks` tasks over `params`, which must outlive it.
template <typename Params>
Launch make_launch(AtlasKernel kernel, const Params& params, uint32_t tasks,
                   uint32_t shared_bytes = 0) {
  Launch launch;
  launch.kernel = kernel;
  launch.grid = {tasks, 1, 1};
  launch.shared_bytes = shared_bytes;
  launch.params = std::as_bytes(std::span(&params, 1));
  launch.name = "test";
  return launch;
}

/// An address as the pointer that a parameter struct holds.
template <typename T>
T* pointer(const DeviceBuffer& buffer, uint64_t index = 0) {
  return reinterpret_cast<T*>(buffer.address()) + index;
}

/// Reads device memory through a copy.
template <typename T>
std::vector<T> read(Stream& stream, const DeviceBuffer& buffer, size_t count) {
  std::vector<T> values(count);
  ok(stream.copy_to_host(values.data(), buffer.address(), count * sizeof(T)));
  return values;
}

template <typename T>
void write(Stream& stream, const DeviceBuffer& buffer, const std::vector<T>& values) {
  ok(stream.copy_to_device(buffer.address(), values.data(), values.size() * sizeof(T)));
}

}  // namespace atlas::test

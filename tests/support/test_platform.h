// Opens the platforms that tests run on: `cpu`, the strict imitation of a GPU, and the plugins of
// GPU runtimes over fakes of these.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "daemon/device/device.h"
#include "plugins/abi/atlas_plugin.h"
#include "tests/support/fake_gpu/script.h"

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
  static std::string name() { return "cpu"; }
  static std::string platform() { return "cpu"; }
  static std::string pack() { return test_pack_path(); }
  static const AtlasPlatformApi* api() {
    static const AtlasPlatformApi* table =
        load_platform(ATLAS_BINARY_DIR "/lib/atlas/plugins/platform_cpu.so");
    return table;
  }
  static Device::Options options() { return {{"threads", "2"}}; }
};

/// The imitation: the same kernel packs in another process.
struct ImitationPlatform {
  static std::string name() { return "imitation"; }
  static std::string platform() { return "cpu"; }
  static std::string pack() { return test_pack_path(); }
  static const AtlasPlatformApi* api() {
    static const AtlasPlatformApi* table =
        load_platform(ATLAS_BINARY_DIR "/lib/atlas/test-plugins/platform_imitation.so");
    return table;
  }
  static Device::Options options() { return {}; }
};

/// A vendor's library that stands for the real one: loaded by its path first, so that the plugin's
/// dlopen by name finds it.
class FakeGpu {
 public:
  explicit FakeGpu(const char* file)
      : library_(::dlopen((std::string(ATLAS_BINARY_DIR "/tests/fake_gpu/") + file).c_str(),
                          RTLD_NOW | RTLD_LOCAL)) {
    const char* reason = library_ == nullptr ? ::dlerror() : "";
    REQUIRE_MESSAGE(library_ != nullptr, reason);
  }
  void set(const fake_gpu::Script& script) const {
    symbol<fake_gpu::SetScript>(fake_gpu::kSetScript)(&script);
  }
  uint32_t calls(const char* name) const {
    return symbol<fake_gpu::CountCalls>(fake_gpu::kCountCalls)(name);
  }
  uint32_t launches() const { return symbol<fake_gpu::CountLaunches>(fake_gpu::kCountLaunches)(); }
  uint32_t objects() const { return symbol<fake_gpu::CountObjects>(fake_gpu::kCountObjects)(); }

 private:
  template <typename Function>
  Function symbol(const char* name) const {
    const auto found = reinterpret_cast<Function>(::dlsym(library_, name));
    REQUIRE((found != nullptr));
    return found;
  }
  void* library_;
};

/// Plugin cuda over the fake driver, with one H200 unless a test sets another script.
struct FakeCudaPlatform {
  static std::string name() { return "cuda"; }
  static std::string platform() { return "h200"; }
  static std::string pack() { return test_pack_path(); }
  static const FakeGpu& gpu() {
    static const FakeGpu fake("libcuda.so.1");
    return fake;
  }
  static fake_gpu::Script script() {
    fake_gpu::Script script{};
    script.device_count = 1;
    script.devices[0] = {"NVIDIA H200", "sm_90", 0, uint64_t{1} << 30};
    script.version = 13000;
    return script;
  }
  static const AtlasPlatformApi* api() {
    gpu().set(script());
    static const AtlasPlatformApi* table =
        load_platform(ATLAS_BINARY_DIR "/lib/atlas/plugins/platform_cuda.so");
    return table;
  }
  static Device::Options options() { return {{"patience_ms", "20000"}}; }
};

/// Plugin hip over the fake runtime, with one Strix Halo unless a test sets another script.
struct FakeHipPlatform {
  static std::string name() { return "hip"; }
  static std::string platform() { return "strix-hip"; }
  static std::string pack() { return test_pack_path(); }
  static const FakeGpu& gpu() {
    static const FakeGpu fake("libamdhip64.so.7");
    return fake;
  }
  static fake_gpu::Script script() {
    fake_gpu::Script script{};
    script.device_count = 1;
    script.devices[0] = {"AMD Radeon 8060S", "gfx1151", 1, uint64_t{1} << 30};
    script.version = 70051831;
    return script;
  }
  static const AtlasPlatformApi* api() {
    gpu().set(script());
    static const AtlasPlatformApi* table =
        load_platform(ATLAS_BINARY_DIR "/lib/atlas/plugins/platform_hip.so");
    return table;
  }
  // The machine's own memory, which a test machine may be short of, is not what is tested.
  static Device::Options options() { return {{"patience_ms", "20000"}, {"reserve_bytes", "0"}}; }
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
  return take(Device::open(Platform::api(), Platform::platform(), options));
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

// The platform that `--device PLATFORM` names, on the GPU of this machine, with the test pack built
// for it: for the device contract.
#pragma once

#include <filesystem>

#include "tests/support/arguments.h"
#include "tests/support/build_folder.h"
#include "tests/support/test_platform.h"

namespace atlas::test {

inline const OptionText kDeviceText("--device h200|gb10|strix-hip",
                                    "the GPU of this machine, with the packs of that platform");

struct RealPlatform {
  static std::string name() {
    const std::string platform = argument("device");
    REQUIRE_MESSAGE(!platform.empty(), "this program needs --device PLATFORM");
    return platform;
  }
  static std::string platform() { return name(); }
  static const AtlasPlatformApi* api() {
    static const AtlasPlatformApi* table =
        load_platform(build_folder() + "/lib/atlas/plugins/" +
                      (name() == "strix-hip" ? "platform_hip.so" : "platform_cuda.so"));
    return table;
  }
  static std::string pack() {
    return build_folder() + "/tests/gpu_test_pack/" + name() +
           (name() == "strix-hip" ? "/test_pack.hsaco" : "/test_pack.cubin");
  }
  static Device::Options options() { return {{"patience_ms", "60000"}}; }
};

}  // namespace atlas::test

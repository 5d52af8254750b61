// On a machine without a vendor's runtime its plugin loads, and says what is missing when it is
// asked for a device. In a program of its own: others load fakes of the runtimes.
#include <doctest/doctest.h>

#include "tests/support/test_platform.h"

namespace atlas::test {
namespace {

// Whether this machine has one of `libraries`, and so is not the machine that is meant.
bool has_any(const std::vector<const char*>& libraries) {
  for (const char* library : libraries) {
    if (::dlopen(library, RTLD_NOW | RTLD_LOCAL) != nullptr) return true;
  }
  return false;
}

std::string refusal(const char* plugin, const char* platform) {
  const AtlasPlatformApi* api =
      load_platform(std::string(ATLAS_BINARY_DIR "/lib/atlas/plugins/") + plugin);
  const auto opened = Device::open(api, platform, {});
  REQUIRE(!opened);
  CHECK(opened.error().code() == Code::kFailedPrecondition);
  return opened.error().message();
}

}  // namespace

TEST_SUITE_BEGIN("device");

TEST_CASE("absent: without NVIDIA's driver the plugin cuda says that it is missing") {
  if (has_any({"libcuda.so.1"})) return;
  for (const char* platform : {"h200", "gb10"}) {
    const std::string message = refusal("platform_cuda.so", platform);
    CHECK(message.find("libcuda.so.1") != std::string::npos);
    CHECK(message.find("R580") != std::string::npos);
  }
}

TEST_CASE("absent: without ROCm the plugin hip says that it is missing") {
  if (has_any({"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"})) return;
  const std::string message = refusal("platform_hip.so", "strix-hip");
  CHECK(message.find("libamdhip64.so.7") != std::string::npos);
  CHECK(message.find("libamdhip64.so.6") != std::string::npos);
  CHECK(message.find("ROCm 6 or 7") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace atlas::test

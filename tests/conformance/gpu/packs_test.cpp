// The GPU packs that this build has made: kernels and digests stand in their files' symbol tables.
#include "daemon/plugin_host/packs.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "daemon/plugin_host/audit.h"
#include "kernels/common/core_kernels.h"
#include "kernels/common/linear.h"

namespace atlas::test {

TEST_SUITE("conformance") {
  TEST_CASE("gpu packs: kernels are found with the digests that the host fills parameters for") {
    std::istringstream names(ATLAS_GPU_PACKS);
    for (std::string platform; names >> platform;) {
      CAPTURE(platform);
      const auto packs =
          plugin_host::PackIndex::read(platform, ATLAS_BINARY_DIR "/lib/atlas/kernels/" + platform);
      REQUIRE_MESSAGE(packs.has_value(), packs.error().message());
      for (const plugin_host::KernelNeed& need : plugin_host::core_needs(platform)) {
        CAPTURE(need.kernel);
        const plugin_host::PackKernel* found = packs->find(need.kernel);
        REQUIRE(found != nullptr);
        CHECK(found->digest == need.digest);
      }
      REQUIRE(packs->find("linear_bf16") != nullptr);
      CHECK(packs->find("linear_bf16")->digest == kernels::kLinearParamsDigest);
    }
  }
}

}  // namespace atlas::test

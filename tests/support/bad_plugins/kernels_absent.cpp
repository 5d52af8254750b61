// Three of its four required kernels are in no pack.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(
    stub::identity("kernels_absent"), stub::kCpu,
    std::array{sdk::required_kernel("cpu", "test_scale", stub::kTestScaleParamsDigest),
               sdk::required_kernel("cpu", "test_scael", stub::kTestScaleParamsDigest),
               sdk::required_kernel("cpu", "nowhere_to_be_seen", stub::kTestScaleParamsDigest),
               sdk::required_kernel("cpu", "absent_as_well", stub::kTestScaleParamsDigest)}));
ATLAS_STUB_GOOD_ENTRY

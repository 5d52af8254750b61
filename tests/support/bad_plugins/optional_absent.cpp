// An optional kernel is in no pack; the kernel that it falls back to is.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(
    stub::identity("optional_absent"), stub::kCpu,
    std::array{sdk::optional_kernel("cpu", "test_scale_fast", stub::kTestScaleParamsDigest,
                                    "needs a wider machine", "test_scale"),
               sdk::required_kernel("cpu", "test_scale", stub::kTestScaleParamsDigest)}));
ATLAS_STUB_GOOD_ENTRY

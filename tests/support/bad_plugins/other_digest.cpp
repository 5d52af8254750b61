// Fills its kernel's parameters as a changed declaration says; the pack was built from the old one.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(
    stub::identity("other_digest"), stub::kCpu,
    std::array{sdk::required_kernel("cpu", "test_scale", stub::changed::kTestScaleParamsDigest)}));
ATLAS_STUB_GOOD_ENTRY

// Nothing is wrong with this one. Built twice, as generations 1 and 2 of one plugin.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("good"), stub::kCpu,
                               std::array{sdk::required_kernel("cpu", "test_scale",
                                                               stub::kTestScaleParamsDigest)}));
ATLAS_STUB_GOOD_ENTRY

// A plugin that brings a kernel pack of its own, in the folder beside it.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity(STUB_NAME), stub::kCpu,
                               std::array{sdk::required_kernel("cpu", "packed_scale",
                                                               stub::kTestScaleParamsDigest)}));
ATLAS_STUB_GOOD_ENTRY

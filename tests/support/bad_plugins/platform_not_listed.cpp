// Lists platforms, but not cpu.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("platform_not_listed"),
                               std::array<std::string_view, 2>{"gb10", "h200"}, stub::kNoKernels));
ATLAS_STUB_GOOD_ENTRY

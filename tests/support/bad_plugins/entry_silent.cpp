// Its entry fails without a word.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("entry_silent"), stub::kCpu, stub::kNoKernels));
ATLAS_STUB_ENTRY { return nullptr; }

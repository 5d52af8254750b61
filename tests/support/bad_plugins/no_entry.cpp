// A descriptor, and no entry symbol.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("no_entry"), stub::kCpu, stub::kNoKernels));

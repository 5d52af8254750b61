// An exception leaves its entry.
#include <stdexcept>

#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("entry_throws"), stub::kCpu, stub::kNoKernels));
ATLAS_STUB_ENTRY { throw std::runtime_error("thrown in the entry"); }

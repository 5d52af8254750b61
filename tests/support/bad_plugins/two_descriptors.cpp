// Two descriptors, as when two plugins are linked into one file.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("one"), stub::kCpu, stub::kNoKernels));
#define atlas_descriptor_note atlas_second_note
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("two"), stub::kCpu, stub::kNoKernels));
ATLAS_STUB_GOOD_ENTRY

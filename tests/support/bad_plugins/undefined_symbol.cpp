// Calls a function that nobody defines.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("undefined_symbol"), stub::kCpu, stub::kNoKernels));
extern "C" void nobody_defines_this();
ATLAS_STUB_ENTRY {
  nobody_defines_this();
  return &stub::plugin_table;
}

// Its entry fails and says why, the first time it is called.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("entry_fails"), stub::kCpu, stub::kNoKernels));
ATLAS_STUB_ENTRY {
  static int calls = 0;
  if (++calls == 1) {
    sdk::fail(error, ATLAS_UNAVAILABLE, "the moon is not in the seventh house");
    return nullptr;
  }
  return &stub::plugin_table;
}

// Built for another major version of the ABI. Its constructor leaves a mark that must never appear.
#include <cstdio>

#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("other_abi"), stub::kCpu, stub::kNoKernels,
                               sdk::kToolchain, ATLAS_ABI_MAJOR + 1));
ATLAS_STUB_GOOD_ENTRY

__attribute__((constructor)) static void leave_mark() {
  if (std::FILE* mark = std::fopen(STUB_MARK, "w")) std::fclose(mark);
}

// Built by another compiler, with a sanitizer that the host lacks. Its constructor leaves a mark.
#include <cstdio>

#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("other_toolchain"), stub::kCpu, stub::kNoKernels,
                               "machine=" ATLAS_SDK_MACHINE " compiler=tcc-0 sanitizer=memory"));
ATLAS_STUB_GOOD_ENTRY

__attribute__((constructor)) static void leave_mark() {
  if (std::FILE* mark = std::fopen(STUB_MARK, "w")) std::fclose(mark);
}

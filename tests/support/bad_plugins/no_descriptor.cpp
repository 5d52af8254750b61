// A shared object with the right entry and no descriptor.
#include "tests/support/bad_plugins/stub.h"

ATLAS_STUB_GOOD_ENTRY

// Built for version 1.0: its table ends before the functions that came later.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;

namespace {
using Note = sdk::DescriptorNote<1, 0>;
// The note of `describe`, with the minor version of then.
consteval Note first_version() {
  Note note = sdk::describe(stub::identity("older_minor"), stub::kCpu, stub::kNoKernels);
  for (size_t i = 0; i < 4; ++i) note.bytes[offsetof(AtlasDescriptorHeader, abi_minor) + i] = 0;
  return note;
}
}  // namespace

ATLAS_DESCRIPTOR(first_version());
ATLAS_STUB_ENTRY {
  static AtlasQuantApi quant = stub::quant_table;
  quant.struct_size = offsetof(AtlasQuantApi, plan_grouped);
  static AtlasPlugin plugin = stub::plugin_table;
  plugin.abi_minor = 0;
  plugin.quant = &quant;
  return &plugin;
}

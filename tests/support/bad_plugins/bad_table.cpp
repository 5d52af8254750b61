// Its table lacks what STUB_FAULT says: functions, size, kind or the table itself.
#include "tests/support/bad_plugins/stub.h"

using namespace atlas;
ATLAS_DESCRIPTOR(sdk::describe(stub::identity("bad_table"), stub::kCpu, stub::kNoKernels));
ATLAS_STUB_ENTRY {
  static AtlasQuantApi quant = stub::quant_table;
  static AtlasPlugin plugin = stub::plugin_table;
  plugin.quant = &quant;
  enum { kFunctions, kSmallTable, kSmallPlugin, kKind, kVersion, kNoTable, kNoGrouped };
  switch (STUB_FAULT) {
    case kFunctions:
      quant.pack = nullptr, quant.plan_gather = nullptr;
      break;
    case kSmallTable:
      quant.struct_size = 24;
      break;
    case kSmallPlugin:
      plugin.struct_size = 0;
      break;
    case kKind:
      plugin.kind = ATLAS_KIND_PLATFORM;
      break;
    case kVersion:
      plugin.abi_minor = ATLAS_ABI_MINOR + 7;
      break;
    case kNoTable:
      plugin.quant = nullptr;
      break;
    case kNoGrouped:
      quant.plan_grouped = nullptr;
      break;
  }
  return &plugin;
}

// Its descriptor ends in the middle of the name.
#include "tests/support/bad_plugins/stub.h"

namespace {
struct alignas(4) CutNote {
  uint32_t name_size = 6;
  uint32_t descriptor_size = 40;
  uint32_t type = ATLAS_NOTE_DESCRIPTOR;
  char name[8] = "Atlas";
  uint32_t words[10] = {ATLAS_DESCRIPTOR_MAGIC, sizeof(AtlasDescriptorHeader),
                        ATLAS_ABI_MAJOR,        ATLAS_ABI_MINOR,
                        ATLAS_KIND_QUANT,       1};
};
}  // namespace
ATLAS_DESCRIPTOR(CutNote{});
ATLAS_STUB_GOOD_ENTRY

// Built for a later minor version: its descriptor and its tables are longer than the host's, which
// is fine, for versions only append.
#include <algorithm>

#include "tests/support/bad_plugins/stub.h"

using namespace atlas;

namespace {
constexpr uint32_t kMinor = ATLAS_ABI_MINOR + 1;
using ShortNote = sdk::DescriptorNote<1, 0>;
// The note of `describe`, with a later version's 16 bytes behind it.
struct alignas(4) LongNote {
  uint32_t name_size = 6;
  uint32_t descriptor_size = sizeof(ShortNote::bytes) + 16;
  uint32_t type = ATLAS_NOTE_DESCRIPTOR;
  char name[8] = "Atlas";
  std::array<unsigned char, sizeof(ShortNote::bytes) + 16> bytes{};
};
consteval LongNote lengthen() {
  const ShortNote from = sdk::describe(stub::identity("newer_minor"), stub::kCpu, stub::kNoKernels);
  LongNote note;
  std::copy(from.bytes.begin(), from.bytes.end(), note.bytes.begin());
  const auto put = [&note](size_t offset, uint32_t value) {
    for (size_t i = 0; i < 4; ++i) note.bytes[offset + i] = (value >> (8 * i)) & 0xff;
  };
  put(offsetof(AtlasDescriptorHeader, total_size), note.descriptor_size);
  put(offsetof(AtlasDescriptorHeader, abi_minor), kMinor);
  return note;
}
struct LongQuant {
  AtlasQuantApi known = stub::quant_table;
  void (*appended)() = nullptr;
};
}  // namespace

ATLAS_DESCRIPTOR(lengthen());
ATLAS_STUB_ENTRY {
  static LongQuant quant;
  quant.known.struct_size = sizeof(LongQuant);
  static AtlasPlugin plugin = stub::plugin_table;
  plugin.abi_minor = kMinor;
  plugin.quant = &quant.known;
  return &plugin;
}

// Everything that is read from a plugin or pack file before it is loaded: ELF, notes, the
// descriptor, symbols and their bytes.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "daemon/plugin_host/descriptor.h"
#include "daemon/plugin_host/elf_file.h"

using namespace atlas;

namespace {

// What packs.cpp does with an image.
size_t read_symbols(std::span<const std::byte> image) {
  const auto elf = plugin_host::ElfFile::open(image);
  if (!elf) return 0;
  const auto symbols = elf->symbols();
  if (!symbols) return 0;
  size_t sum = 0;
  for (const auto& symbol : *symbols) {
    const auto bytes = elf->bytes_of(symbol);
    if (bytes && !bytes->empty()) {
      sum += static_cast<size_t>(bytes->front()) + static_cast<size_t>(bytes->back());
    }
    sum += symbol.name.size();
  }
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> image(reinterpret_cast<const std::byte*>(data), size);
  const auto record = plugin_host::parse_descriptor(image);
  const auto plugin = plugin_host::descriptor_of_image(image, "fuzz.so");
  // What is accepted must be usable as it is: names are names, and every fallback leads somewhere.
  for (const auto* accepted : {&record, &plugin}) {
    if (*accepted && ((*accepted)->name.empty() || (*accepted)->platforms.empty())) std::abort();
  }
  volatile size_t sum = read_symbols(image);
  (void)sum;
  return 0;
}

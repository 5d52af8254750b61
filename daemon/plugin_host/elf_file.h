// What we read of ELF files (plugins, CPU packs, cubins, AMD code objects): notes, and symbols with
// their bytes. The only user of libelf; every offset and size is checked against the image.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"

struct Elf;

namespace atlas::plugin_host {

struct ElfNote {
  std::string owner;
  uint32_t type = 0;
  std::span<const std::byte> description;  // inside the image
};

/// A defined symbol that other files can see.
struct ElfSymbol {
  std::string_view name;  // lives as long as the ElfFile
  bool is_function = false;
  uint64_t section = 0;
  uint64_t value = 0;
  uint64_t size = 0;
};

/// A 64-bit little-endian ELF file of any machine. The image outlives it.
class ElfFile {
 public:
  /// Errors: kInvalidArgument saying what the bytes are instead (nothing, text, 32-bit,
  /// big-endian).
  static Result<ElfFile> open(std::span<const std::byte> image);

  uint16_t machine() const { return machine_; }
  uint16_t type() const { return type_; }
  /// What a machine's files say more of it: GPUs say their architecture here.
  uint32_t flags() const { return flags_; }
  /// "x86-64", "AArch64", "CUDA", "AMD GPU" or "machine 42".
  std::string machine_name() const;
  /// The machine that this process runs on.
  static uint16_t host_machine();
  static std::string machine_name(uint16_t machine);

  /// Whether all that the headers name lies in the file. A loader maps what does not, too, and the
  /// first look at it ends the process (SIGBUS). Errors: kInvalidArgument with both sizes.
  Status check_whole() const;
  /// All notes of all PT_NOTE segments, in order. Errors: a segment or note that leaves the file.
  Result<std::vector<ElfNote>> notes() const;
  /// Visible symbols: those a loader finds (.dynsym), or of .symtab where there is no .dynsym.
  Result<std::vector<ElfSymbol>> symbols() const;
  /// The bytes that `symbol` names. Errors: no data in the file, or a range that leaves its
  /// section.
  Result<std::span<const std::byte>> bytes_of(const ElfSymbol& symbol) const;

 private:
  struct End {
    void operator()(::Elf* elf) const;
  };
  std::unique_ptr<::Elf, End> elf_;
  std::span<const std::byte> image_;
  uint16_t machine_ = 0;
  uint16_t type_ = 0;
  uint32_t flags_ = 0;
};

}  // namespace atlas::plugin_host

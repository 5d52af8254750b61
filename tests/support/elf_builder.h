// Builds small ELF files for tests and fuzzing: a header, one PT_NOTE segment, and nothing else.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace atlas::testing {

inline void append(std::vector<std::byte>& to, const void* from, size_t bytes) {
  const size_t at = to.size();
  to.resize(at + bytes);
  if (bytes > 0) std::memcpy(to.data() + at, from, bytes);
}

/// A note as it stands in a segment: three words, the owner and the description, each padded to 4.
inline void append_note(std::vector<std::byte>& notes, std::string_view owner, uint32_t type,
                        std::span<const std::byte> description) {
  const uint32_t words[3] = {static_cast<uint32_t>(owner.size() + 1),
                             static_cast<uint32_t>(description.size()), type};
  append(notes, words, sizeof(words));
  append(notes, std::string(owner).c_str(), owner.size() + 1);
  notes.resize((notes.size() + 3) / 4 * 4);
  append(notes, description.data(), description.size());
  notes.resize((notes.size() + 3) / 4 * 4);
}

struct ElfOptions {
  uint16_t type = ET_DYN;
#if defined(__aarch64__)
  uint16_t machine = EM_AARCH64;
#else
  uint16_t machine = EM_X86_64;
#endif
};

inline std::vector<std::byte> elf_with_notes(std::span<const std::byte> notes,
                                             const ElfOptions& options = {}) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = options.type;
  header.e_machine = options.machine;
  header.e_version = EV_CURRENT;
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_phoff = sizeof(Elf64_Ehdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  Elf64_Phdr segment{};
  segment.p_type = PT_NOTE;
  segment.p_offset = sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr);
  segment.p_filesz = segment.p_memsz = notes.size();
  segment.p_align = 4;
  std::vector<std::byte> image;
  append(image, &header, sizeof(header));
  append(image, &segment, sizeof(segment));
  append(image, notes.data(), notes.size());
  return image;
}

}  // namespace atlas::testing

// libelf behind ElfFile.
#include "daemon/plugin_host/elf_file.h"

#include <gelf.h>
#include <libelf.h>

#include <algorithm>
#include <cstring>

namespace atlas::plugin_host {
namespace {

std::string elf_error() {
  const char* message = elf_errmsg(-1);
  return message != nullptr ? message : "unknown error of libelf";
}

// The first bytes as a reader would want to see them: "#!/bin/s" or hexadecimal.
std::string beginning(std::span<const std::byte> image) {
  const size_t count = std::min<size_t>(image.size(), 8);
  std::string text;
  for (size_t i = 0; i < count; ++i) text.push_back(static_cast<char>(image[i]));
  const auto printable = [](unsigned char c) { return c >= 0x20 && c < 0x7f; };
  if (std::all_of(text.begin(), text.end(), printable)) return fmt::format("'{}'", text);
  std::string hex;
  for (size_t i = 0; i < count; ++i) {
    hex += fmt::format("{}{:02x}", i == 0 ? "" : " ", static_cast<unsigned>(image[i]));
  }
  return hex;
}

}  // namespace

void ElfFile::End::operator()(::Elf* elf) const { elf_end(elf); }

uint16_t ElfFile::host_machine() {
#if defined(__x86_64__)
  return EM_X86_64;
#elif defined(__aarch64__)
  return EM_AARCH64;
#else
#error "name this machine's ELF number here"
#endif
}

std::string ElfFile::machine_name(uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86-64";
    case EM_AARCH64:
      return "AArch64";
    case EM_CUDA:
      return "CUDA";
    case EM_AMDGPU:
      return "AMD GPU";
    default:
      return fmt::format("machine {}", machine);
  }
}

std::string ElfFile::machine_name() const { return machine_name(machine_); }

Result<ElfFile> ElfFile::open(std::span<const std::byte> image) {
  if (image.empty()) return invalid_argument("it is empty");
  if (image.size() < SELFMAG || std::memcmp(image.data(), ELFMAG, SELFMAG) != 0) {
    return invalid_argument("it is not an ELF file (it begins with {})", beginning(image));
  }
  if (image.size() < sizeof(Elf64_Ehdr)) {
    return invalid_argument("it is an ELF file cut short ({} bytes)", image.size());
  }
  if (static_cast<int>(image[EI_CLASS]) != ELFCLASS64 ||
      static_cast<int>(image[EI_DATA]) != ELFDATA2LSB) {
    return invalid_argument("it is not a 64-bit little-endian ELF file");
  }
  elf_version(EV_CURRENT);
  ElfFile file;
  // libelf takes a non-const pointer for all modes; it only writes to files opened for writing.
  auto* bytes = reinterpret_cast<char*>(const_cast<std::byte*>(image.data()));
  file.elf_.reset(elf_memory(bytes, image.size()));
  file.image_ = image;
  GElf_Ehdr header;
  if (file.elf_ == nullptr || gelf_getehdr(file.elf_.get(), &header) == nullptr) {
    return invalid_argument("its ELF header is damaged ({})", elf_error());
  }
  file.machine_ = header.e_machine;
  file.type_ = header.e_type;
  file.flags_ = header.e_flags;
  return file;
}

Status ElfFile::check_whole() const {
  Elf64_Ehdr header;  // read by hand: libelf takes tables that leave the file for absent ones
  std::memcpy(&header, image_.data(), sizeof(header));
  const uint64_t segments = uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
  const uint64_t sections = uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
  if ((segments != 0 && header.e_phentsize != sizeof(Elf64_Phdr)) ||
      (sections != 0 && header.e_shentsize != sizeof(Elf64_Shdr))) {
    return invalid_argument("its ELF header is damaged (entries of {} and {} bytes)",
                            header.e_phentsize, header.e_shentsize);
  }
  const auto lies_inside = [&](const char* what, uint64_t offset, uint64_t bytes) -> Status {
    if (bytes == 0 || (offset <= image_.size() && bytes <= image_.size() - offset)) return {};
    return invalid_argument("its {} of {} bytes begin at byte {} of a file of {}: it is cut short",
                            what, bytes, offset, image_.size());
  };
  ATLAS_RETURN_IF_ERROR(lies_inside("program headers", header.e_phoff, segments));
  ATLAS_RETURN_IF_ERROR(lies_inside("section headers", header.e_shoff, sections));
  for (uint64_t at = 0; at < segments; at += sizeof(Elf64_Phdr)) {
    Elf64_Phdr segment;
    std::memcpy(&segment, image_.data() + header.e_phoff + at, sizeof(segment));
    ATLAS_RETURN_IF_ERROR(lies_inside("segment", segment.p_offset, segment.p_filesz));
  }
  for (uint64_t at = 0; at < sections; at += sizeof(Elf64_Shdr)) {
    Elf64_Shdr section;
    std::memcpy(&section, image_.data() + header.e_shoff + at, sizeof(section));
    // What only a processor's own tools know may have no bytes either.
    if (section.sh_type == SHT_NOBITS || section.sh_type >= SHT_LOPROC) continue;
    ATLAS_RETURN_IF_ERROR(lies_inside("section", section.sh_offset, section.sh_size));
  }
  return {};
}

Result<std::vector<ElfNote>> ElfFile::notes() const {
  size_t count = 0;
  if (elf_getphdrnum(elf_.get(), &count) != 0) {
    return invalid_argument("its program headers are damaged ({})", elf_error());
  }
  std::vector<ElfNote> notes;
  for (size_t i = 0; i < count; ++i) {
    GElf_Phdr segment;
    if (gelf_getphdr(elf_.get(), static_cast<int>(i), &segment) == nullptr) {
      return invalid_argument("its program header {} is damaged ({})", i, elf_error());
    }
    if (segment.p_type != PT_NOTE || segment.p_filesz == 0) continue;
    if (segment.p_offset > image_.size() || segment.p_filesz > image_.size() - segment.p_offset) {
      return invalid_argument("its notes end at byte {} of a file of {} bytes: it is cut short",
                              segment.p_offset + segment.p_filesz, image_.size());
    }
    Elf_Data* data =
        elf_getdata_rawchunk(elf_.get(), static_cast<int64_t>(segment.p_offset), segment.p_filesz,
                             segment.p_align == 8 ? ELF_T_NHDR8 : ELF_T_NHDR);
    if (data == nullptr) return invalid_argument("its notes cannot be read ({})", elf_error());
    size_t offset = 0;
    while (offset < data->d_size) {
      GElf_Nhdr note;
      size_t name = 0;
      size_t description = 0;
      const size_t next = gelf_getnote(data, offset, &note, &name, &description);
      if (next == 0) {
        return invalid_argument("its note at byte {} leaves its segment: it is damaged",
                                segment.p_offset + offset);
      }
      // d_buf may be libelf's own copy, so the spans are taken from the image.
      const size_t base = segment.p_offset;
      const auto* owner = reinterpret_cast<const char*>(image_.data() + base + name);
      notes.push_back({std::string(owner, strnlen(owner, note.n_namesz)), note.n_type,
                       image_.subspan(base + description, note.n_descsz)});
      offset = next;
    }
  }
  return notes;
}

Result<std::vector<ElfSymbol>> ElfFile::symbols() const {
  Elf_Scn* table = nullptr;
  GElf_Shdr header{};
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf_.get(), section)) != nullptr;) {
    GElf_Shdr candidate;
    if (gelf_getshdr(section, &candidate) == nullptr) {
      return invalid_argument("its section headers are damaged ({})", elf_error());
    }
    if (candidate.sh_type != SHT_DYNSYM && candidate.sh_type != SHT_SYMTAB) continue;
    if (table != nullptr && header.sh_type == SHT_DYNSYM) continue;
    table = section;
    header = candidate;
  }
  if (table == nullptr) return invalid_argument("it has no symbol table");
  Elf_Data* data = elf_getdata(table, nullptr);
  if (data == nullptr || header.sh_entsize != sizeof(Elf64_Sym)) {
    return invalid_argument("its symbol table is damaged ({})", elf_error());
  }
  std::vector<ElfSymbol> symbols;
  const size_t count = data->d_size / sizeof(Elf64_Sym);
  for (size_t i = 0; i < count; ++i) {
    GElf_Sym symbol;
    if (gelf_getsym(data, static_cast<int>(i), &symbol) == nullptr) {
      return invalid_argument("its symbol {} is damaged ({})", i, elf_error());
    }
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= SHN_LORESERVE) continue;
    const int binding = GELF_ST_BIND(symbol.st_info);
    const int visibility = GELF_ST_VISIBILITY(symbol.st_other);
    if (binding == STB_LOCAL || visibility == STV_HIDDEN || visibility == STV_INTERNAL) continue;
    const char* name = elf_strptr(elf_.get(), header.sh_link, symbol.st_name);
    if (name == nullptr) {
      return invalid_argument("the name of its symbol {} is damaged ({})", i, elf_error());
    }
    symbols.push_back({name, GELF_ST_TYPE(symbol.st_info) == STT_FUNC, symbol.st_shndx,
                       symbol.st_value, symbol.st_size});
  }
  return symbols;
}

Result<std::span<const std::byte>> ElfFile::bytes_of(const ElfSymbol& symbol) const {
  Elf_Scn* section = elf_getscn(elf_.get(), symbol.section);
  GElf_Shdr header;
  if (section == nullptr || gelf_getshdr(section, &header) == nullptr) {
    return invalid_argument("symbol '{}' names a section that does not exist", symbol.name);
  }
  if (header.sh_type == SHT_NOBITS) {
    return invalid_argument("symbol '{}' has no bytes in the file", symbol.name);
  }
  // sh_addr is 0 where values are offsets in their section (cubins, relocatable files).
  const uint64_t inside = symbol.value - header.sh_addr;
  if (symbol.value < header.sh_addr || inside > header.sh_size ||
      symbol.size > header.sh_size - inside) {
    return invalid_argument("symbol '{}' leaves its section", symbol.name);
  }
  if (header.sh_offset > image_.size() || header.sh_size > image_.size() - header.sh_offset) {
    return invalid_argument("the section of symbol '{}' leaves the file: it is cut short",
                            symbol.name);
  }
  return image_.subspan(header.sh_offset + inside, symbol.size);
}

}  // namespace atlas::plugin_host

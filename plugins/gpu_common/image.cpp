// ELF's own bookkeeping decides how far a reader goes: every part that it names must be there.
#include "plugins/gpu_common/image.h"

#include <elf.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "plugins/sdk/guard.h"

namespace atlas::gpu {
namespace {

using sdk::Failure;

constexpr uint64_t kMaxImageBytes = uint64_t{1} << 30;

Failure no_pack(const std::string& path, const std::string& reason) {
  return Failure(ATLAS_FAILED_PRECONDITION,
                 "kernel pack '" + path + "' cannot be loaded: " + reason);
}

bool inside(uint64_t offset, uint64_t bytes, uint64_t size) {
  return offset <= size && bytes <= size - offset;
}

template <typename T>
T read_at(const std::vector<char>& image, uint64_t offset) {
  T value;
  std::memcpy(&value, image.data() + offset, sizeof(value));
  return value;
}

// Whether every table and part that the headers name lies in the file.
bool is_whole(const std::vector<char>& image) {
  const uint64_t size = image.size();
  const auto head = read_at<Elf64_Ehdr>(image, 0);
  const bool sections = head.e_shnum == 0 || head.e_shentsize == sizeof(Elf64_Shdr);
  const bool segments = head.e_phnum == 0 || head.e_phentsize == sizeof(Elf64_Phdr);
  if (!sections || !segments) return false;
  if (!inside(head.e_shoff, uint64_t{head.e_shnum} * sizeof(Elf64_Shdr), size)) return false;
  if (!inside(head.e_phoff, uint64_t{head.e_phnum} * sizeof(Elf64_Phdr), size)) return false;
  for (uint32_t i = 0; i < head.e_shnum; ++i) {
    const auto part = read_at<Elf64_Shdr>(image, head.e_shoff + i * sizeof(Elf64_Shdr));
    if (part.sh_type != SHT_NOBITS && !inside(part.sh_offset, part.sh_size, size)) return false;
  }
  for (uint32_t i = 0; i < head.e_phnum; ++i) {
    const auto part = read_at<Elf64_Phdr>(image, head.e_phoff + i * sizeof(Elf64_Phdr));
    if (!inside(part.p_offset, part.p_filesz, size)) return false;
  }
  return true;
}

}  // namespace

std::vector<char> read_image(const std::string& path) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  if (error) {
    throw Failure(ATLAS_NOT_FOUND, "kernel pack '" + path + "': " + error.message());
  }
  if (size > kMaxImageBytes) throw no_pack(path, "it has more than 1 GiB");
  std::vector<char> image(size);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(image.data(), static_cast<std::streamsize>(size))) {
    throw Failure(ATLAS_NOT_FOUND, "kernel pack '" + path + "' cannot be read");
  }
  const bool elf = size >= sizeof(Elf64_Ehdr) && std::memcmp(image.data(), ELFMAG, SELFMAG) == 0 &&
                   image[EI_CLASS] == ELFCLASS64 && image[EI_DATA] == ELFDATA2LSB;
  if (!elf) throw no_pack(path, "it is no 64-bit ELF file");
  if (!is_whole(image)) throw no_pack(path, "the file is cut short; build or install it again");
  return image;
}

ImageHead image_head(const std::vector<char>& image) {
  const auto head = read_at<Elf64_Ehdr>(image, 0);
  return {head.e_machine, head.e_ident[EI_ABIVERSION], head.e_flags};
}

}  // namespace atlas::gpu

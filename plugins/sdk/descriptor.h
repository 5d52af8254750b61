// Writes a plugin's descriptor: a constant, pointer-free record in the ELF note section
// .note.atlas.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/sdk/toolchain.h"

namespace atlas::sdk {

/// Copies `text` into a fixed array; too long a text does not compile.
template <size_t N>
consteval void set_text(char (&array)[N], std::string_view text) {
  if (text.size() >= N) throw "text is too long for its field of the descriptor";
  for (size_t i = 0; i < text.size(); ++i) array[i] = text[i];
}

/// A kernel that must exist on `platform`.
consteval AtlasDescriptorKernel required_kernel(std::string_view platform, std::string_view kernel,
                                                uint64_t params_digest) {
  AtlasDescriptorKernel entry{};
  set_text(entry.platform, platform);
  set_text(entry.kernel, kernel);
  entry.params_digest = params_digest;
  entry.required = 1;
  return entry;
}

/// A kernel that may be absent: `reason` says why, `fallback` what runs then.
consteval AtlasDescriptorKernel optional_kernel(std::string_view platform, std::string_view kernel,
                                                uint64_t params_digest, std::string_view reason,
                                                std::string_view fallback) {
  AtlasDescriptorKernel entry = required_kernel(platform, kernel, params_digest);
  entry.required = 0;
  set_text(entry.reason, reason);
  set_text(entry.fallback, fallback);
  return entry;
}

/// The whole note: ELF's three words, the owner's name, then the descriptor.
template <size_t P, size_t K>
struct alignas(4) DescriptorNote {
  uint32_t name_size = 6;
  uint32_t descriptor_size = sizeof(AtlasDescriptorHeader) + P * sizeof(AtlasDescriptorPlatform) +
                             K * sizeof(AtlasDescriptorKernel);
  uint32_t type = ATLAS_NOTE_DESCRIPTOR;
  char name[8] = "Atlas";
  // Bytes, not members: kernel entries hold 64-bit digests, and a note's parts are 4-byte aligned.
  std::array<unsigned char, sizeof(AtlasDescriptorHeader) + P * sizeof(AtlasDescriptorPlatform) +
                                K * sizeof(AtlasDescriptorKernel)>
      bytes{};
};

struct Identity {
  AtlasPluginKind kind;
  std::string_view name;
  std::string_view version;
  std::string_view licence;
};

template <size_t P, size_t K>
consteval DescriptorNote<P, K> describe(const Identity& identity,
                                        const std::array<std::string_view, P>& platforms,
                                        const std::array<AtlasDescriptorKernel, K>& kernels,
                                        std::string_view toolchain = kToolchain,
                                        uint32_t abi_major = ATLAS_ABI_MAJOR) {
  DescriptorNote<P, K> note;
  AtlasDescriptorHeader header{};
  header.magic = ATLAS_DESCRIPTOR_MAGIC;
  header.total_size = note.descriptor_size;
  header.abi_major = abi_major;
  header.abi_minor = ATLAS_ABI_MINOR;
  header.kind = identity.kind;
  header.platform_count = P;
  header.kernel_count = K;
  set_text(header.name, identity.name);
  set_text(header.version, identity.version);
  set_text(header.licence, identity.licence);
  set_text(header.toolchain, toolchain);
  auto out = note.bytes.begin();
  const auto append = [&out](const auto& part) {
    using Bytes = std::array<unsigned char, sizeof(part)>;
    const Bytes bytes = __builtin_bit_cast(Bytes, part);
    out = std::copy(bytes.begin(), bytes.end(), out);
  };
  append(header);
  for (const std::string_view platform : platforms) {
    AtlasDescriptorPlatform entry{};
    set_text(entry.platform, platform);
    append(entry);
  }
  for (const AtlasDescriptorKernel& kernel : kernels) append(kernel);
  return note;
}

}  // namespace atlas::sdk

/// `ATLAS_DESCRIPTOR(describe(...))` once in a plugin places the note.
#define ATLAS_DESCRIPTOR(...)                                     \
  extern "C" __attribute__((section(".note.atlas"), used, retain, \
                            aligned(4))) constexpr auto atlas_descriptor_note = (__VA_ARGS__)

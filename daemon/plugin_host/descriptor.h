// A plugin's descriptor: who it is and what it needs, read from its file without loading it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::plugin_host {

enum class PluginKind : uint32_t { kQuant = 1, kAttention = 2, kPlatform = 3 };
/// "quantization", "attention" or "platform".
std::string_view kind_name(PluginKind kind);

/// A kernel that the plugin's records name on one platform.
struct DescriptorKernel {
  std::string platform;
  std::string kernel;
  uint64_t digest = 0;  // of the parameter struct that the plugin fills
  bool required = true;
  std::string reason;    // why it may be absent
  std::string fallback;  // what runs then: a kernel of the same plugin, or "core"
};

struct PluginDescriptor {
  std::string file;
  std::string name;
  std::string version;
  std::string licence;
  PluginKind kind = PluginKind::kQuant;
  uint32_t abi_major = 0;
  uint32_t abi_minor = 0;
  std::string toolchain;
  std::vector<std::string> platforms;
  std::vector<DescriptorKernel> kernels;

  bool lists(std::string_view platform) const;
};

/// Reads the descriptor note of a plugin file; runs nothing of it.
/// Errors: the file cannot be read; it is not an ELF shared object of this machine; it has no
/// descriptor or several; it was built for another major version of the ABI; the descriptor is cut
/// short or contradicts itself. Each message names the file, what was found and what to do.
Result<PluginDescriptor> read_descriptor(const std::string& path);

/// The same for a file's bytes. `path` is for messages.
Result<PluginDescriptor> descriptor_of_image(std::span<const std::byte> image,
                                             const std::string& path);

/// The bytes of one note, which is where every check of the record is made. Messages do not name
/// the file.
Result<PluginDescriptor> parse_descriptor(std::span<const std::byte> record);

/// Refuses a plugin built by another toolchain: kFailedPrecondition naming the fields that differ,
/// with both values. `host` is sdk::kToolchain except in tests.
Status check_toolchain(const PluginDescriptor& descriptor, std::string_view host);

}  // namespace atlas::plugin_host

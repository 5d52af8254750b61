// Note to PluginDescriptor: sizes first, then texts, then what must agree with what.
#include "daemon/plugin_host/descriptor.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "daemon/plugin_host/elf_file.h"
#include "daemon/plugin_host/file_image.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::plugin_host {
namespace {

// A record taken out of the note, where it may stand unaligned.
template <typename Record>
Record record_at(std::span<const std::byte> bytes, size_t offset) {
  Record record;
  std::memcpy(&record, bytes.data() + offset, sizeof(record));
  return record;
}

// A text of printable ASCII, terminated inside its array: it goes to logs, JSON and terminals.
template <size_t N>
Result<std::string> text_of(const char (&array)[N], std::string_view what) {
  const size_t length = strnlen(array, N);
  if (length == N) return invalid_argument("its {} is not terminated within {} bytes", what, N);
  const auto printable = [](char c) { return c >= 0x20 && c < 0x7f; };
  if (!std::all_of(array, array + length, printable)) {
    return invalid_argument("its {} holds bytes that are not printable ASCII", what);
  }
  return std::string(array, length);
}

// A name that files, settings and symbols can carry.
template <size_t N>
Result<std::string> name_of(const char (&array)[N], std::string_view what) {
  ATLAS_ASSIGN_OR_RETURN(std::string name, text_of(array, what));
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  if (name.empty()) return invalid_argument("its {} is empty", what);
  if (!std::all_of(name.begin(), name.end(), allowed)) {
    return invalid_argument("its {} is '{}': letters, digits, '_' and '-' only", what, name);
  }
  return name;
}

Result<DescriptorKernel> parse_kernel(const AtlasDescriptorKernel& record, size_t index) {
  const std::string at = fmt::format("kernel entry {}", index);
  DescriptorKernel kernel;
  ATLAS_ASSIGN_OR_RETURN(kernel.platform, name_of(record.platform, at + "'s platform"));
  ATLAS_ASSIGN_OR_RETURN(kernel.kernel, name_of(record.kernel, at + "'s name"));
  ATLAS_ASSIGN_OR_RETURN(kernel.reason, text_of(record.reason, at + "'s reason"));
  ATLAS_ASSIGN_OR_RETURN(kernel.fallback, text_of(record.fallback, at + "'s fallback"));
  if (record.required > 1 || record.reserved != 0) {
    return invalid_argument("its {} has required={} and reserved={}: they are 0 or 1, and 0", at,
                            record.required, record.reserved);
  }
  kernel.digest = record.params_digest;
  kernel.required = record.required == 1;
  if (!kernel.required && (kernel.reason.empty() || kernel.fallback.empty())) {
    return invalid_argument("its optional kernel '{}' says no reason or no fallback",
                            kernel.kernel);
  }
  return kernel;
}

// Fallbacks of optional kernels lead to "core" or to a required kernel and never in a circle. Every
// kernel is walked once, however the chains join.
Status check_fallbacks(const PluginDescriptor& descriptor) {
  enum class Mark { kUnknown, kOnPath, kGood };
  std::map<std::pair<std::string_view, std::string_view>, size_t> index;
  for (size_t i = 0; i < descriptor.kernels.size(); ++i) {
    index[{descriptor.kernels[i].platform, descriptor.kernels[i].kernel}] = i;
  }
  std::vector<Mark> marks(descriptor.kernels.size(), Mark::kUnknown);
  for (size_t start = 0; start < marks.size(); ++start) {
    std::vector<size_t> path;
    for (size_t at = start; marks[at] != Mark::kGood;) {
      const DescriptorKernel& kernel = descriptor.kernels[at];
      if (marks[at] == Mark::kOnPath) {
        return invalid_argument("the fallbacks of its kernel '{}' go in a circle", kernel.kernel);
      }
      marks[at] = Mark::kOnPath;
      path.push_back(at);
      if (kernel.required || kernel.fallback == "core") break;
      const auto next = index.find({kernel.platform, kernel.fallback});
      if (next == index.end()) {
        return invalid_argument(
            "its kernel '{}' falls back to '{}', which is neither 'core' nor a kernel that it "
            "lists for platform '{}'",
            kernel.kernel, kernel.fallback, kernel.platform);
      }
      // The fallback is launched in place of the kernel, with the parameters made for it.
      if (descriptor.kernels[next->second].digest != kernel.digest) {
        return invalid_argument("its kernel '{}' falls back to '{}', which has other parameters",
                                kernel.kernel, kernel.fallback);
      }
      at = next->second;
    }
    for (const size_t walked : path) marks[walked] = Mark::kGood;
  }
  return Status();
}

Status check_consistency(const PluginDescriptor& descriptor) {
  if (descriptor.platforms.empty()) return invalid_argument("it lists no platform");
  const std::set<std::string> platforms(descriptor.platforms.begin(), descriptor.platforms.end());
  if (platforms.size() != descriptor.platforms.size()) {
    return invalid_argument("it lists a platform twice");
  }
  std::set<std::pair<std::string, std::string>> kernels;
  for (const DescriptorKernel& kernel : descriptor.kernels) {
    if (!platforms.contains(kernel.platform)) {
      return invalid_argument("its kernel '{}' is for platform '{}', which it does not list",
                              kernel.kernel, kernel.platform);
    }
    if (!kernels.emplace(kernel.platform, kernel.kernel).second) {
      return invalid_argument("it lists kernel '{}' of platform '{}' twice", kernel.kernel,
                              kernel.platform);
    }
  }
  return check_fallbacks(descriptor);
}

// The counts must account for every byte; only a newer minor version may append more.
Status check_sizes(const AtlasDescriptorHeader& header, size_t record_bytes) {
  if (header.total_size != record_bytes) {
    return invalid_argument("its descriptor says {} bytes but its note holds {}", header.total_size,
                            record_bytes);
  }
  const uint64_t counted = sizeof(AtlasDescriptorHeader) +
                           uint64_t{header.platform_count} * sizeof(AtlasDescriptorPlatform) +
                           uint64_t{header.kernel_count} * sizeof(AtlasDescriptorKernel);
  const bool may_append = header.abi_minor > ATLAS_ABI_MINOR;
  if (counted > record_bytes || (counted < record_bytes && !may_append)) {
    return invalid_argument(
        "its descriptor counts {} platforms and {} kernels, which take {} bytes, but holds {}",
        header.platform_count, header.kernel_count, counted, record_bytes);
  }
  return Status();
}

std::map<std::string, std::string, std::less<>> toolchain_fields(std::string_view text) {
  std::map<std::string, std::string, std::less<>> fields;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view field = text.substr(0, end);
    const size_t equal = std::min(field.find('='), field.size());
    if (!field.empty()) {
      fields[std::string(field.substr(0, equal))] = field.substr(std::min(equal + 1, field.size()));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return fields;
}

Result<PluginDescriptor> find_and_parse(std::span<const std::byte> image) {
  ATLAS_ASSIGN_OR_RETURN(const ElfFile elf, ElfFile::open(image));
  if (elf.machine() != ElfFile::host_machine()) {
    return invalid_argument("it is built for {}, this machine is {}", elf.machine_name(),
                            ElfFile::machine_name(ElfFile::host_machine()));
  }
  if (elf.type() != ET_DYN) {
    return invalid_argument("it is not a shared object (its ELF type is {})", elf.type());
  }
  ATLAS_RETURN_IF_ERROR(elf.check_whole());
  ATLAS_ASSIGN_OR_RETURN(const std::vector<ElfNote> notes, elf.notes());
  const ElfNote* found = nullptr;
  for (const ElfNote& note : notes) {
    if (note.owner != ATLAS_NOTE_NAME || note.type != ATLAS_NOTE_DESCRIPTOR) continue;
    if (found != nullptr) return invalid_argument("it holds more than one Atlas descriptor");
    found = &note;
  }
  if (found == nullptr) {
    return invalid_argument(
        "it holds no Atlas descriptor, so it is no plugin (or was linked without its note "
        ".note.atlas)");
  }
  return parse_descriptor(found->description);
}

}  // namespace

std::string_view kind_name(PluginKind kind) {
  switch (kind) {
    case PluginKind::kQuant:
      return "quantization";
    case PluginKind::kAttention:
      return "attention";
    case PluginKind::kPlatform:
      return "platform";
  }
  return "unknown";
}

bool PluginDescriptor::lists(std::string_view platform) const {
  return std::find(platforms.begin(), platforms.end(), platform) != platforms.end();
}

Result<PluginDescriptor> parse_descriptor(std::span<const std::byte> record) {
  if (record.size() < sizeof(AtlasDescriptorHeader)) {
    return invalid_argument("its descriptor is cut short: {} bytes, the header alone has {}",
                            record.size(), sizeof(AtlasDescriptorHeader));
  }
  const auto header = record_at<AtlasDescriptorHeader>(record, 0);
  if (header.magic != ATLAS_DESCRIPTOR_MAGIC) {
    return invalid_argument("its descriptor begins with 0x{:08x} instead of 0x{:08x}", header.magic,
                            ATLAS_DESCRIPTOR_MAGIC);
  }
  // What follows is laid out as this version says, so the version is looked at before it.
  if (header.abi_major != ATLAS_ABI_MAJOR) {
    return failed_precondition(
        "it is built for plugin ABI {}.{}, this Atlas speaks {}.{}: build it with this Atlas's SDK",
        header.abi_major, header.abi_minor, ATLAS_ABI_MAJOR, ATLAS_ABI_MINOR);
  }
  ATLAS_RETURN_IF_ERROR(check_sizes(header, record.size()));
  if (header.kind < ATLAS_KIND_QUANT || header.kind > ATLAS_KIND_PLATFORM) {
    return invalid_argument("its kind is {}, which is none of 1 to 3", header.kind);
  }
  PluginDescriptor descriptor;
  descriptor.kind = static_cast<PluginKind>(header.kind);
  descriptor.abi_major = header.abi_major;
  descriptor.abi_minor = header.abi_minor;
  ATLAS_ASSIGN_OR_RETURN(descriptor.name, name_of(header.name, "name"));
  ATLAS_ASSIGN_OR_RETURN(descriptor.version, text_of(header.version, "version"));
  ATLAS_ASSIGN_OR_RETURN(descriptor.licence, text_of(header.licence, "licence"));
  ATLAS_ASSIGN_OR_RETURN(descriptor.toolchain, text_of(header.toolchain, "toolchain"));
  size_t offset = sizeof(AtlasDescriptorHeader);
  for (uint32_t i = 0; i < header.platform_count; ++i) {
    const auto platform = record_at<AtlasDescriptorPlatform>(record, offset);
    ATLAS_ASSIGN_OR_RETURN(std::string name,
                           name_of(platform.platform, fmt::format("platform entry {}", i)));
    descriptor.platforms.push_back(std::move(name));
    offset += sizeof(AtlasDescriptorPlatform);
  }
  for (uint32_t i = 0; i < header.kernel_count; ++i) {
    ATLAS_ASSIGN_OR_RETURN(DescriptorKernel kernel,
                           parse_kernel(record_at<AtlasDescriptorKernel>(record, offset), i));
    descriptor.kernels.push_back(std::move(kernel));
    offset += sizeof(AtlasDescriptorKernel);
  }
  ATLAS_RETURN_IF_ERROR(check_consistency(descriptor));
  return descriptor;
}

Result<PluginDescriptor> descriptor_of_image(std::span<const std::byte> image,
                                             const std::string& path) {
  Result<PluginDescriptor> descriptor = find_and_parse(image);
  if (descriptor) {
    descriptor->file = path;
    return descriptor;
  }
  const bool wrong_version = descriptor.error().code() == Code::kFailedPrecondition;
  return Status(
      descriptor.error().code(),
      fmt::format("plugin '{}' is refused: {}{}", path, descriptor.error().message(),
                  wrong_version ? "" : "; give the shared object that the plugin's build made"),
      descriptor.error().where());
}

Result<PluginDescriptor> read_descriptor(const std::string& path) {
  ATLAS_ASSIGN_OR_RETURN(const FileImage image, read_image(path));
  return descriptor_of_image(image.bytes, path);
}

Status check_toolchain(const PluginDescriptor& descriptor, std::string_view host) {
  if (descriptor.toolchain == host) return Status();
  const auto theirs = toolchain_fields(descriptor.toolchain);
  const auto ours = toolchain_fields(host);
  std::set<std::string, std::less<>> keys;
  for (const auto& [key, value] : theirs) keys.insert(key);
  for (const auto& [key, value] : ours) keys.insert(key);
  const auto value_of = [](const auto& fields, const std::string& key) -> std::string {
    const auto found = fields.find(key);
    return found == fields.end() ? "nothing" : "'" + found->second + "'";
  };
  std::string differing;
  for (const std::string& key : keys) {
    const std::string theirs_value = value_of(theirs, key);
    const std::string ours_value = value_of(ours, key);
    if (theirs_value == ours_value) continue;
    differing += fmt::format("{}{} is {} in the plugin and {} in this Atlas",
                             differing.empty() ? "" : ", ", key, theirs_value, ours_value);
  }
  if (differing.empty()) {
    differing = fmt::format("the plugin says '{}', this Atlas '{}'", descriptor.toolchain, host);
  }
  return failed_precondition(
      "plugin '{}' is refused: it is built by another toolchain: {}; build it with the same one",
      descriptor.file, differing);
}

}  // namespace atlas::plugin_host

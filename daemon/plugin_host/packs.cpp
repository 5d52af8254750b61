// Symbol tables to PackIndex.
#include "daemon/plugin_host/packs.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "daemon/base/nearest_name.h"
#include "daemon/plugin_host/elf_file.h"
#include "daemon/plugin_host/file_image.h"
#include "daemon/plugin_host/private_copy.h"
#include "kernels/common/platforms.h"

namespace atlas::plugin_host {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kKernelPrefix = "atlas_kernel_";
constexpr std::string_view kParamsPrefix = "atlas_params_";

bool is_pack_name(const fs::path& file) {
  const std::string extension = file.extension().string();
  return !file.filename().string().starts_with('.') &&
         (extension == ".so" || extension == ".cubin" || extension == ".hsaco");
}

// Names in a folder, sorted so that results and messages do not depend on the file system.
Result<std::vector<std::string>> list_folder(const std::string& folder, bool folders_only) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (!folders_only || at->is_directory(ignored)) names.push_back(at->path().filename().string());
  }
  if (error) return not_found("cannot list '{}': {}", folder, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

struct PackSymbols {
  std::set<std::string, std::less<>> functions;
  std::map<std::string, uint64_t, std::less<>> digests;
  uint16_t machine = 0;
  uint32_t flags = 0;  // of a GPU: its architecture
};

Result<PackSymbols> symbols_of(const ElfFile& elf) {
  PackSymbols found;
  ATLAS_ASSIGN_OR_RETURN(const std::vector<ElfSymbol> symbols, elf.symbols());
  for (const ElfSymbol& symbol : symbols) {
    // AMD code objects have `atlas_kernel_x.kd` (data) beside each function: not a function, so not
    // taken.
    if (symbol.name.starts_with(kKernelPrefix) && symbol.is_function) {
      found.functions.emplace(symbol.name.substr(kKernelPrefix.size()));
    } else if (symbol.name.starts_with(kParamsPrefix)) {
      ATLAS_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, elf.bytes_of(symbol));
      uint64_t digest = 0;
      if (bytes.size() != sizeof(digest)) {
        return invalid_argument("its symbol '{}' has {} bytes instead of {}", symbol.name,
                                bytes.size(), sizeof(digest));
      }
      std::memcpy(&digest, bytes.data(), sizeof(digest));
      found.digests.emplace(symbol.name.substr(kParamsPrefix.size()), digest);
    }
  }
  return found;
}

Result<PackSymbols> symbols_of_image(const FileImage& image) {
  ATLAS_ASSIGN_OR_RETURN(const ElfFile elf, ElfFile::open(image.bytes));
  ATLAS_RETURN_IF_ERROR(elf.check_whole());
  ATLAS_ASSIGN_OR_RETURN(PackSymbols found, symbols_of(elf));
  found.machine = elf.machine();
  found.flags = elf.flags();
  for (const std::string& name : found.functions) {
    if (!found.digests.contains(name)) {
      return invalid_argument("its kernel '{}' has no symbol '{}{}'", name, kParamsPrefix, name);
    }
  }
  for (const auto& [name, digest] : found.digests) {
    if (!found.functions.contains(name)) {
      return invalid_argument("its symbol '{}{}' has no kernel '{}{}'", kParamsPrefix, name,
                              kKernelPrefix, name);
    }
  }
  if (found.functions.empty()) return invalid_argument("it holds no kernel");
  return found;
}

}  // namespace

std::string how_to_build(std::string platform) {
  std::replace(platform.begin(), platform.end(), '-', '_');
  return fmt::format("target atlas_kernels_{} builds them", platform);
}

PackIndex PackIndex::none(const std::string& platform) {
  PackIndex index;
  index.platform_ = platform;
  return index;
}

Result<PackIndex> PackIndex::read(const std::string& platform, const std::string& folder) {
  PackIndex index = none(platform);
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    const std::string parent = fs::path(folder).parent_path().string();
    const auto platforms = list_folder(parent, true).value_or({});
    const bool known = kernels::find_platform(platform) != nullptr;
    return not_found("no kernel packs for platform '{}': no folder '{}' (there {}: {}){}", platform,
                     folder, platforms.size() == 1 ? "is" : "are",
                     platforms.empty() ? "none" : fmt::format("{}", fmt::join(platforms, ", ")),
                     known ? "; " + how_to_build(platform) : "");
  }
  ATLAS_RETURN_IF_ERROR(index.read_folder(folder, ""));
  if (index.files_.empty()) {
    return not_found(
        "no kernel packs for platform '{}': '{}' holds no .so, .cubin or .hsaco file; {}", platform,
        folder, how_to_build(platform));
  }
  return index;
}

Status PackIndex::add_plugin_packs(const std::string& plugin_file, const std::string& plugin_name) {
  fs::path folder = fs::path(plugin_file).replace_extension(".kernels") / platform_;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return Status();
  return read_folder(folder.string(), plugin_name);
}

Status PackIndex::read_folder(const std::string& folder, const std::string& plugin) {
  ATLAS_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_folder(folder, false));
  for (const std::string& name : names) {
    if (is_pack_name(name)) ATLAS_RETURN_IF_ERROR(add_pack(folder + "/" + name, plugin));
  }
  return Status();
}

Status PackIndex::add_pack(const std::string& path, const std::string& plugin) {
  ATLAS_ASSIGN_OR_RETURN(const FileImage image, read_image(path));
  const Result<PackSymbols> symbols = symbols_of_image(image);
  if (!symbols) {
    return Status(symbols.error().code(),
                  fmt::format("kernel pack '{}' cannot be used: {}; build the packs again", path,
                              symbols.error().message()));
  }
  if (files_.empty()) {
    machine_ = symbols->machine;
    flags_ = symbols->flags;
  } else if (machine_ != symbols->machine || flags_ != symbols->flags) {
    return invalid_argument(
        "kernel packs '{}' ({}, flags {:#x}) and '{}' ({}, flags {:#x}) are for different devices, "
        "and platform '{}' is one: build the packs again, or remove the one that is not its own",
        files_.front().path, ElfFile::machine_name(machine_), flags_, path,
        ElfFile::machine_name(symbols->machine), symbols->flags, platform_);
  }
  const std::string prefix = plugin.empty() ? "" : plugin + "_";
  for (const auto& [name, digest] : symbols->digests) {
    if (!name.starts_with(prefix)) {
      return invalid_argument(
          "kernel pack '{}' of plugin '{}' holds kernel '{}': the names of a plugin's kernels "
          "begin "
          "with '{}'",
          path, plugin, name, prefix);
    }
    const auto [where, added] = kernels_.emplace(name, PackKernel{name, digest, path});
    if (!added) {
      return already_exists("kernel '{}' is in two packs, '{}' and '{}': remove one", name,
                            where->second.file, path);
    }
  }
  files_.push_back({path, image.digest, plugin});
  return Status();
}

const PackKernel* PackIndex::find(std::string_view name) const {
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : &found->second;
}

std::vector<std::string> PackIndex::near(std::string_view name, size_t count) const {
  // A third of the letters may differ; beyond that a suggestion misleads.
  const size_t limit = std::max<size_t>(1, name.size() / 3);
  std::vector<std::pair<size_t, std::string>> candidates;
  for (const auto& [other, kernel] : kernels_) {
    const size_t distance = edit_distance(name, other);
    if (distance <= limit) candidates.emplace_back(distance, other);
  }
  std::sort(candidates.begin(), candidates.end());
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(count, candidates.size()); ++i) {
    names.push_back(candidates[i].second);
  }
  return names;
}

Result<std::string> PackIndex::copy_for_loading(const PackFile& pack,
                                                const std::string& cache_dir) const {
  ATLAS_ASSIGN_OR_RETURN(const FileImage image, read_image(pack.path));
  if (image.digest != pack.digest) {
    return failed_precondition(
        "kernel pack '{}' has changed since it was audited (content {} then, {} now): load again",
        pack.path, pack.digest, image.digest);
  }
  return private_copy(image, cache_dir);
}

}  // namespace atlas::plugin_host

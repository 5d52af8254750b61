// What the kernel packs of one platform hold, read from their symbol tables.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::plugin_host {

/// "target atlas_kernels_strix_hip builds them": packs, in the build that this program comes from.
std::string how_to_build(std::string platform);

struct PackKernel {
  std::string name;
  uint64_t digest = 0;  // of the parameter struct that it reads
  std::string file;
};

struct PackFile {
  std::string path;
  std::string digest;  // XXH64 of the file: the pack's part of a generation's name
  std::string plugin;  // whose pack it is; empty: the platform's own
};

/// Kernels by name, over the platform's packs and those that plugins bring. A kernel is a function
/// symbol `atlas_kernel_<name>` beside eight data bytes `atlas_params_<name>`.
class PackIndex {
 public:
  /// Reads every .so, .cubin and .hsaco file of `folder` (kernels/<platform>).
  /// Errors: kNotFound if there is no such folder, naming the platforms beside it; a damaged pack,
  /// a pack without kernels, a kernel without its digest or the reverse, a kernel in two packs,
  /// packs of two devices.
  static Result<PackIndex> read(const std::string& platform, const std::string& folder);
  /// No packs yet: for plugins that bring all of theirs.
  static PackIndex none(const std::string& platform);

  /// Adds the packs that a plugin file `foo.so` brings in `foo.kernels/<platform>/` beside it; none
  /// is fine. Errors: as read; a kernel whose name does not begin with the plugin's name and '_'.
  Status add_plugin_packs(const std::string& plugin_file, const std::string& plugin_name);

  const std::string& platform() const { return platform_; }
  const std::map<std::string, PackKernel, std::less<>>& kernels() const { return kernels_; }
  const std::vector<PackFile>& files() const { return files_; }
  /// Null if absent.
  const PackKernel* find(std::string_view name) const;
  /// Up to `count` names nearest to `name`, nearest first; only names that look like it.
  std::vector<std::string> near(std::string_view name, size_t count = 3) const;

  /// A private copy (private_copy.h) of a pack, for the platform to load, so that replacing the
  /// file touches nothing that runs. Errors: kFailedPrecondition if the file is not the one that
  /// was read.
  Result<std::string> copy_for_loading(const PackFile& pack, const std::string& cache_dir) const;

 private:
  Status read_folder(const std::string& folder, const std::string& plugin);
  Status add_pack(const std::string& path, const std::string& plugin);
  std::string platform_;
  std::map<std::string, PackKernel, std::less<>> kernels_;
  std::vector<PackFile> files_;
  // Of the first file, as its ELF header says: all packs of a platform are for one device.
  uint16_t machine_ = 0;
  uint32_t flags_ = 0;
};

}  // namespace atlas::plugin_host

// A loaded plugin: its tables, ready to be called, and how it comes and goes.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/status.h"
#include "daemon/plugin_host/descriptor.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::plugin_host {

/// One plugin in use. Its tables are our own copies, of this version's size: a function that the
/// plugin's shorter table (an older minor version) does not reach is null, what a longer one
/// appends is ignored. Call them through abi::call (abi_call.h). Thread safe; the addresses stay as
/// long as the Plugin does.
class Plugin {
 public:
  const std::string& name() const { return descriptor_.name; }
  const PluginDescriptor& descriptor() const { return descriptor_; }
  /// The file that was asked for, and the copy of it that is mapped.
  const std::string& file() const { return descriptor_.file; }
  const std::string& private_file() const { return private_file_; }
  /// XXH64 of the file's bytes, 16 hexadecimal digits: the plugin's part of a generation's name.
  const std::string& digest() const { return digest_; }

  /// The table of the descriptor's kind; all null for the other kinds.
  const AtlasQuantApi& quant() const { return quant_; }
  const AtlasAttentionApi& attention() const { return attention_; }
  const AtlasPlatformApi& platform() const { return platform_; }

 private:
  friend class PluginLoader;
  Plugin() = default;
  PluginDescriptor descriptor_;
  std::string private_file_;
  std::string digest_;
  AtlasQuantApi quant_{};
  AtlasAttentionApi attention_{};
  AtlasPlatformApi platform_{};
  void (*shutdown_)() = nullptr;
};

struct LoadOptions {
  std::string platform;   // that the plugin must list
  std::string cache_dir;  // for the private copy; empty: see private_copy.h
};

/// Loads a plugin. In this order, and nothing of it runs before all that can be checked without
/// running it is: the file is read once; its descriptor; ABI version; toolchain; platform; the
/// private copy; dlopen (RTLD_NOW | RTLD_LOCAL); the entry; the table that it returns.
///
/// Life: a content is mapped once and stays mapped until the process ends. Loads of the same
/// content share one Plugin. When its last reference goes, `shutdown` is called, once; a later load
/// of the same content calls the entry again (in the same mapping, so its statics keep their
/// values), after that shutdown has returned.
///
/// Errors: as read_descriptor; kFailedPrecondition for another ABI, toolchain or platform, an
/// undefined symbol, an entry that fails (with its message) or a table that lacks something (all
/// missing functions are named); kInternal for an exception in the entry. Thread safe.
Result<std::shared_ptr<Plugin>> load_plugin(const std::string& path, const LoadOptions& options);

}  // namespace atlas::plugin_host

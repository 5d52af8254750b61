// Which plugins a generation uses: those that the settings name, or all of a folder.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/plugin_host/plugin.h"

namespace atlas::plugin_host {

class PackIndex;

/// An entry of the settings. An empty path means `<directory>/<name>.so`; a relative one is taken
/// from the directory.
struct NamedPlugin {
  std::string name;
  std::string path;
};

struct RegistryOptions {
  std::string platform;
  std::vector<NamedPlugin> named;  // empty: all of the directory that list the platform
  std::string directory;           // lib/atlas/plugins; empty: only what is named
  std::string cache_dir;           // see private_copy.h
};

enum class PluginState { kLoaded, kSkipped, kFailed };
/// "loaded", "skipped" or "failed".
std::string_view state_name(PluginState state);

/// One line of `atlasctl plugins`. Fields of a descriptor that could not be read are empty.
struct PluginReport {
  std::string name;
  std::string version;
  std::string licence;
  std::string kind;
  std::string file;
  std::string digest;  // of a loaded one
  std::vector<std::string> platforms;
  bool named = false;  // in the settings
  PluginState state = PluginState::kFailed;
  std::string reason;  // why skipped or failed: one sentence
};

/// The plugins of one generation and the report on all that were looked at.
class PluginRegistry {
 public:
  /// Never stops at the first failure: each file gets its state. Named ones come first, in the
  /// order of the settings, then the rest of the directory by file name. Skipped: a file that the
  /// settings do not name, or (if they name none) that does not list the platform. Failed: anything
  /// else that kept it from loading; two files of one name fail both.
  static PluginRegistry load_all(const RegistryOptions& options);

  /// Not ok if a named plugin failed, two files have one name or the directory cannot be listed;
  /// holds every such reason. The generation must not be used then: nothing falls back.
  const Status& status() const { return status_; }
  const std::vector<PluginReport>& reports() const { return reports_; }
  const std::vector<std::shared_ptr<Plugin>>& plugins() const { return plugins_; }
  /// Null if no such plugin is loaded.
  std::shared_ptr<Plugin> find(std::string_view name) const;
  std::vector<PluginDescriptor> descriptors() const;
  /// Adds the packs that the loaded plugins bring.
  Status add_packs(PackIndex& packs) const;

 private:
  friend class RegistryLoader;
  Status status_;
  std::vector<PluginReport> reports_;
  std::vector<std::shared_ptr<Plugin>> plugins_;
};

}  // namespace atlas::plugin_host

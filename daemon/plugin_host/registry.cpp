// Candidates, their descriptors, one name one file, then loading.
#include "daemon/plugin_host/registry.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "daemon/plugin_host/packs.h"

namespace atlas::plugin_host {
namespace {

namespace fs = std::filesystem;

// The same file under two paths is one candidate. A path that leads nowhere stays as it is.
std::string identity(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  return error ? path : canonical.string();
}

}  // namespace

/// Fills a PluginRegistry step by step; every step writes into the reports.
class RegistryLoader {
 public:
  explicit RegistryLoader(const RegistryOptions& options) : options_(options) {}

  PluginRegistry run() {
    add_named();
    scan();
    for (PluginReport& report : reports()) describe(report);
    refuse_duplicates();
    for (PluginReport& report : reports()) load(report);
    conclude();
    return std::move(registry_);
  }

 private:
  std::vector<PluginReport>& reports() { return registry_.reports_; }

  void add_named() {
    for (const NamedPlugin& entry : options_.named) {
      const fs::path given =
          entry.path.empty() ? fs::path(entry.name + ".so") : fs::path(entry.path);
      PluginReport report;
      report.name = entry.name;
      report.file = (given.is_absolute() ? given : fs::path(options_.directory) / given).string();
      report.named = true;
      report.state = PluginState::kLoaded;  // until something speaks against it
      seen_.insert(identity(report.file));
      reports().push_back(std::move(report));
    }
  }

  void scan() {
    if (options_.directory.empty()) return;
    std::vector<std::string> files;
    std::error_code error;
    for (fs::directory_iterator at(options_.directory, error), end; !error && at != end;
         at.increment(error)) {
      if (at->path().extension() == ".so") files.push_back(at->path().string());
    }
    if (error) {
      failures_.push_back(fmt::format("the plugin folder '{}' cannot be listed: {}",
                                      options_.directory, error.message()));
    }
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
      if (!seen_.insert(identity(file)).second) continue;
      PluginReport report;
      report.file = file;
      report.state = PluginState::kLoaded;
      reports().push_back(std::move(report));
    }
  }

  void describe(PluginReport& report) {
    const Result<PluginDescriptor> descriptor = read_descriptor(report.file);
    if (!descriptor) return fail(report, descriptor.error().message());
    if (report.named && report.name != descriptor->name) {
      return fail(report,
                  fmt::format("the settings call '{}' plugin '{}', but its descriptor says '{}'",
                              report.file, report.name, descriptor->name));
    }
    report.name = descriptor->name;
    report.version = descriptor->version;
    report.licence = descriptor->licence;
    report.kind = kind_name(descriptor->kind);
    report.platforms = descriptor->platforms;
    if (report.named) return;
    if (!options_.named.empty()) {
      skip(report, "the settings do not name it");
    } else if (!descriptor->lists(options_.platform)) {
      skip(report, fmt::format("it does not list platform '{}' (it lists: {})", options_.platform,
                               fmt::join(descriptor->platforms, ", ")));
    }
  }

  void refuse_duplicates() {
    std::map<std::string, std::vector<PluginReport*>> by_name;
    for (PluginReport& report : reports()) {
      if (report.state == PluginState::kLoaded) by_name[report.name].push_back(&report);
    }
    for (const auto& [name, same] : by_name) {
      if (same.size() < 2) continue;
      std::string files;
      for (const PluginReport* report : same) {
        files += fmt::format("{}'{}'", files.empty() ? "" : " and ", report->file);
      }
      const std::string reason =
          fmt::format("plugin '{}' is there {} times, as {}: keep one", name, same.size(), files);
      failures_.push_back(reason);
      for (PluginReport* report : same) {
        report->state = PluginState::kFailed;
        report->reason = reason;
      }
    }
  }

  void load(PluginReport& report) {
    if (report.state != PluginState::kLoaded) return;
    auto plugin = load_plugin(report.file, {options_.platform, options_.cache_dir});
    if (!plugin) return fail(report, plugin.error().message());
    // The file may have been replaced since its descriptor was looked at.
    if ((*plugin)->name() != report.name) {
      return fail(report, fmt::format("'{}' changed from plugin '{}' to '{}' while it was loaded",
                                      report.file, report.name, (*plugin)->name()));
    }
    report.digest = (*plugin)->digest();
    registry_.plugins_.push_back(std::move(*plugin));
  }

  void conclude() {
    if (failures_.empty()) return;
    registry_.status_ = failed_precondition("{}", fmt::join(failures_, "; "));
  }

  void fail(PluginReport& report, std::string reason) {
    report.state = PluginState::kFailed;
    report.reason = std::move(reason);
    if (report.named) failures_.push_back(report.reason);
  }
  static void skip(PluginReport& report, std::string reason) {
    report.state = PluginState::kSkipped;
    report.reason = std::move(reason);
  }

  const RegistryOptions& options_;
  PluginRegistry registry_;
  std::set<std::string> seen_;
  std::vector<std::string> failures_;
};

std::string_view state_name(PluginState state) {
  switch (state) {
    case PluginState::kLoaded:
      return "loaded";
    case PluginState::kSkipped:
      return "skipped";
    case PluginState::kFailed:
      return "failed";
  }
  return "unknown";
}

PluginRegistry PluginRegistry::load_all(const RegistryOptions& options) {
  return RegistryLoader(options).run();
}

std::shared_ptr<Plugin> PluginRegistry::find(std::string_view name) const {
  for (const auto& plugin : plugins_) {
    if (plugin->name() == name) return plugin;
  }
  return nullptr;
}

std::vector<PluginDescriptor> PluginRegistry::descriptors() const {
  std::vector<PluginDescriptor> all;
  for (const auto& plugin : plugins_) all.push_back(plugin->descriptor());
  return all;
}

Status PluginRegistry::add_packs(PackIndex& packs) const {
  for (const auto& plugin : plugins_) {
    ATLAS_RETURN_IF_ERROR(packs.add_plugin_packs(plugin->file(), plugin->name()));
  }
  return Status();
}

}  // namespace atlas::plugin_host

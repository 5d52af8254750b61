// Boost.DLL behind load_plugin, and the table of what this process has mapped.
#include "daemon/plugin_host/plugin.h"

#define BOOST_DLL_USE_STD_FS
#include <dlfcn.h>

#include <boost/dll/shared_library.hpp>
#include <condition_variable>
#include <map>
#include <mutex>

#include "daemon/base/log.h"
#include "daemon/plugin_host/file_image.h"
#include "daemon/plugin_host/private_copy.h"
#include "daemon/plugin_host/tables.h"
#include "plugins/sdk/toolchain.h"

namespace atlas::plugin_host {
namespace {

using Entry = const AtlasPlugin*(const AtlasHost*, AtlasError*);

// What an exception that left a plugin becomes. Call inside a catch block.
Status status_of_exception(std::string_view plugin, std::string_view call) {
  try {
    throw;
  } catch (const std::exception& thrown) {
    return internal_error("plugin '{}', {}: threw an exception: {}", plugin, call, thrown.what());
  } catch (...) {
    return internal_error("plugin '{}', {}: threw something that is no std::exception", plugin,
                          call);
  }
}

// What plugins call; nothing may leave it, for its callers may be C.
void host_log(AtlasLogLevel level, const char* text) noexcept {
  try {
    const std::string_view line = text == nullptr ? "" : text;
    switch (level) {
      case ATLAS_LOG_DEBUG:
        return log_line(LogLevel::kDebug, line);
      case ATLAS_LOG_INFO:
        return log_line(LogLevel::kInfo, line);
      case ATLAS_LOG_WARNING:
        return log_line(LogLevel::kWarning, line);
      default:
        return log_line(LogLevel::kError, line);
    }
  } catch (...) {  // a line is lost; a plugin's call is not
  }
}

constexpr AtlasHost kHost = {sizeof(AtlasHost), ATLAS_ABI_MAJOR, ATLAS_ABI_MINOR, 0, host_log};

// One mapped content. Never destroyed: code of it may run until the process ends.
struct Mapping {
  std::mutex mutex;
  std::condition_variable changed;
  std::string private_file;
  boost::dll::shared_library library;
  Entry* entry = nullptr;
  std::weak_ptr<Plugin> plugin;
  bool in_use = false;  // from before the entry until after shutdown
};

Mapping& mapping_of(const std::string& content) {
  // Deliberately leaked, and with it every library: no dlclose, not even at exit.
  static auto& mutex = *new std::mutex;
  static auto& mappings = *new std::map<std::string, Mapping*>;
  const std::lock_guard guard(mutex);
  Mapping*& mapping = mappings[content];
  if (mapping == nullptr) mapping = new Mapping;
  return *mapping;
}

// Maps the private copy, which runs the plugin's constructors. A failed mapping may be tried again.
Status map_library(const std::string& file, Mapping& mapping) {
  if (mapping.entry != nullptr) return Status();
  std::error_code error;
  boost::dll::shared_library library(
      std::filesystem::path(mapping.private_file),
      boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local, error);
  if (error) {
    // At once: Boost.DLL's own code says "Bad file descriptor" whatever the reason.
    const char* reason = ::dlerror();
    return failed_precondition("plugin '{}' cannot be loaded: {}; link what it needs into it", file,
                               reason != nullptr ? reason : error.message());
  }
  if (!library.has(ATLAS_PLUGIN_ENTRY)) {
    // Its constructors have run and its code may be in use, so it stays mapped all the same.
    mapping.library = std::move(library);
    return failed_precondition(
        "plugin '{}' does not export '{}'; define it with extern \"C\" and "
        "default visibility",
        file, ATLAS_PLUGIN_ENTRY);
  }
  mapping.entry = &library.get<Entry>(ATLAS_PLUGIN_ENTRY);
  mapping.library = std::move(library);
  return Status();
}

Result<Tables> enter(const PluginDescriptor& descriptor, Entry* entry) {
  AtlasError error;
  error.struct_size = sizeof(error);
  error.message[0] = '\0';
  const AtlasPlugin* returned = nullptr;
  try {
    returned = entry(&kHost, &error);
  } catch (...) {
    return status_of_exception(descriptor.name, ATLAS_PLUGIN_ENTRY);
  }
  if (returned == nullptr) {
    const std::string_view reason(error.message, strnlen(error.message, sizeof(error.message)));
    return failed_precondition(
        "plugin '{}' failed to start: {}", descriptor.name,
        reason.empty() ? "its entry returned null and gave no reason" : reason);
  }
  Result<Tables> tables = take_tables(returned, descriptor);
  if (!tables) {
    return tables.error().with_context(
        fmt::format("plugin '{}' is refused, its tables do not fit the ABI", descriptor.name));
  }
  return tables;
}

void run_shutdown(const std::string& plugin, void (*shutdown)()) {
  if (shutdown == nullptr) return;
  try {
    shutdown();
  } catch (...) {
    log_error("{}", status_of_exception(plugin, "shutdown").message());
  }
}

Status check_before_loading(const PluginDescriptor& descriptor, const LoadOptions& options) {
  ATLAS_RETURN_IF_ERROR(check_toolchain(descriptor, sdk::kToolchain));
  if (!descriptor.lists(options.platform)) {
    return failed_precondition("plugin '{}' ({}) does not list platform '{}'; it lists: {}",
                               descriptor.name, descriptor.file, options.platform,
                               fmt::join(descriptor.platforms, ", "));
  }
  return Status();
}

}  // namespace

/// Fills a Plugin, and hands it back to its mapping when the last reference goes.
class PluginLoader {
 public:
  static Result<std::shared_ptr<Plugin>> load(const std::string& path, const LoadOptions& options) {
    ATLAS_ASSIGN_OR_RETURN(const FileImage image, read_image(path));
    ATLAS_ASSIGN_OR_RETURN(PluginDescriptor descriptor, descriptor_of_image(image.bytes, path));
    ATLAS_RETURN_IF_ERROR(check_before_loading(descriptor, options));
    // Size and digest together name a content.
    Mapping& mapping = mapping_of(fmt::format("{}-{}", image.digest, image.bytes.size()));
    std::unique_lock lock(mapping.mutex);
    if (auto shared = mapping.plugin.lock()) return shared;
    // Expired: its shutdown may still be running on another thread.
    mapping.changed.wait(lock, [&] { return !mapping.in_use; });
    if (mapping.entry == nullptr) {
      ATLAS_ASSIGN_OR_RETURN(mapping.private_file, private_copy(image, options.cache_dir));
    }
    ATLAS_RETURN_IF_ERROR(map_library(path, mapping));
    ATLAS_ASSIGN_OR_RETURN(const Tables tables, enter(descriptor, mapping.entry));
    std::shared_ptr<Plugin> plugin(new Plugin,
                                   [&mapping](Plugin* last) { release(mapping, last); });
    mapping.in_use = true;
    plugin->descriptor_ = std::move(descriptor);
    plugin->private_file_ = mapping.private_file;
    plugin->digest_ = image.digest;
    plugin->quant_ = tables.quant;
    plugin->attention_ = tables.attention;
    plugin->platform_ = tables.platform;
    plugin->shutdown_ = tables.shutdown;
    mapping.plugin = plugin;
    return plugin;
  }

 private:
  static void release(Mapping& mapping, Plugin* last) {
    const std::unique_ptr<Plugin> plugin(last);
    run_shutdown(plugin->name(), plugin->shutdown_);
    const std::lock_guard guard(mapping.mutex);
    mapping.in_use = false;
    mapping.changed.notify_all();
  }
};

Result<std::shared_ptr<Plugin>> load_plugin(const std::string& path, const LoadOptions& options) {
  try {
    return PluginLoader::load(path, options);
  } catch (const std::exception& thrown) {  // filesystem, Boost.DLL, memory
    return internal_error("loading plugin '{}' failed: {}", path, thrown.what());
  }
}

}  // namespace atlas::plugin_host

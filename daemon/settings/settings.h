// Settings: the YAML file as typed values. config/atlasd.yaml explains every key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/log.h"
#include "daemon/base/status.h"

namespace atlas::settings {

/// A plugin that the settings ask for: by name (looked up in `plugins.directory`) or by path.
struct PluginEntry {
  std::string name;
  std::string path;  // empty: <plugins.directory>/<kind>_<name>.so
  bool operator==(const PluginEntry&) const = default;
};

/// The format that weights must have, by the names of their modules.
struct FormatSettings {
  std::string all;  // of quantized weights that no pattern names; empty: any
  std::vector<std::pair<std::string, std::string>> modules;  // pattern, format; the first decides
  bool operator==(const FormatSettings&) const = default;
};

struct ModelSettings {
  std::string path;
  std::string name;  // empty: from the path
  FormatSettings formats;
  bool operator==(const ModelSettings&) const = default;
};

struct PlatformSettings {
  std::string name = "cpu";
  std::string plugin;  // empty: the runtime that the name implies
  std::vector<std::pair<std::string, std::string>> options;
  bool operator==(const PlatformSettings&) const = default;
};

struct PluginSettings {
  std::string directory;  // empty: ../lib/atlas/plugins beside the program
  std::string kernels;    // empty: ../lib/atlas/kernels beside the program
  std::vector<PluginEntry> quant{
      {"gguf", ""}, {"nvfp4", ""}, {"fp8", ""}, {"exl3", ""}, {"bf16", ""}};
  std::vector<PluginEntry> attention{{"gqa", ""}, {"qsa", ""}, {"gdn", ""}};
  bool operator==(const PluginSettings&) const = default;
};

struct EngineSettings {
  uint32_t max_sequences = 16;
  uint32_t context_tokens = 0;  // 0: what the model was made for
  uint64_t cache_tokens = 0;    // 0: two contexts
  uint32_t prefill_rows = 512;
  bool graphs = true;
  uint32_t queue_limit = 256;
  uint32_t latency_bound_ms = 100;
  uint32_t step_deadline_s = 60;
  uint64_t reserve_bytes = 256ull << 20;
  uint32_t drafts = 1;
  uint64_t snapshot_bytes = 1ull << 30;
  uint64_t row_cache_bytes = 256ull << 20;
  uint32_t feed_timeout_ms = 10000;
  bool operator==(const EngineSettings&) const = default;
};

struct SocketSettings {
  std::string path = "/run/atlas/atlasd.sock";
  uint32_t mode = 0660;
  std::string group;
  bool operator==(const SocketSettings&) const = default;
};

struct TcpSettings {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: no TCP
  std::string api_key_file;
  bool operator==(const TcpSettings&) const = default;
};

struct LimitSettings {
  uint64_t header_bytes = 64u << 10;
  uint64_t body_bytes = 16u << 20;
  uint32_t prompt_tokens = 0;  // 0: the context
  uint32_t connections = 1024;
  uint32_t header_timeout_s = 15;
  uint32_t idle_timeout_s = 300;
  uint64_t backlog_bytes = 4u << 20;
  bool operator==(const LimitSettings&) const = default;
};

struct ServerSettings {
  SocketSettings socket;
  TcpSettings tcp;
  LimitSettings limits;
  uint32_t drain_timeout_s = 30;
  bool operator==(const ServerSettings&) const = default;
};

struct Settings {
  ModelSettings model;
  PlatformSettings platform;
  PluginSettings plugins;
  EngineSettings engine;
  ServerSettings server;
  LogLevel log_level = LogLevel::kInfo;
  bool operator==(const Settings&) const = default;
};

/// Reads a file. Errors say file, line and column, what was found, and the nearest valid key.
Result<Settings> load(const std::string& path);
/// The same from text; `name` stands for the file in messages.
Result<Settings> parse(const std::string& yaml, const std::string& name);
/// `settings` with one key changed: "plugins.quant" and a YAML value, as `atlasctl swap --set` has
/// it. `directory`: where relative paths in the value begin; empty: they stay as they are.
Result<Settings> with(const Settings& settings, const std::string& key, const std::string& value,
                      const std::string& directory = "");

/// Keys whose values differ: those that a reload applies at once, those that a swap applies, and
/// those that need a restart.
struct Difference {
  std::vector<std::string> reloadable, swappable, restart;
};
Difference difference(const Settings& from, const Settings& to);

/// Every key with its default and what a change of it takes; for documentation and its test.
struct KeyInfo {
  std::string key;
  std::string default_value;
  enum class Change { kReload, kSwap, kRestart } change = Change::kRestart;
};
std::vector<KeyInfo> keys();

}  // namespace atlas::settings

// One table of keys drives reading, checking, comparing and documentation. The only yaml-cpp.
#include "daemon/settings/settings.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <type_traits>

#include "daemon/base/nearest_name.h"

namespace atlas::settings {

namespace {

using Change = KeyInfo::Change;

/// A key that takes a value: how it is read, shown and compared.
struct Key {
  std::string name;  // with dots
  Change change;
  std::function<Status(const YAML::Node&, Settings&)> read;
  std::function<std::string(const Settings&)> show;
};

/// "file:line:column" of a node; yaml-cpp counts from 0.
std::string place(const YAML::Node& node) {
  const YAML::Mark mark = node.Mark();
  return mark.is_null() ? std::string() : fmt::format("{}:{}", mark.line + 1, mark.column + 1);
}

Status wrong(const YAML::Node& node, const std::string& expected) {
  std::string found = "a map or a list";
  if (node.IsScalar()) found = fmt::format("'{}'", node.Scalar());
  if (!node.IsDefined() || node.IsNull()) found = "nothing";
  return invalid_argument("{}: expected {}, found {}", place(node), expected, found);
}

Status read_value(const YAML::Node& node, std::string& value) {
  if (node.IsNull()) {
    value.clear();
    return {};
  }
  if (!node.IsScalar()) return wrong(node, "a text");
  value = node.Scalar();
  return {};
}

Status read_value(const YAML::Node& node, bool& value) {
  if (!node.IsScalar()) return wrong(node, "on or off");
  const std::string& text = node.Scalar();
  value = text == "true" || text == "on" || text == "yes";
  const bool known = value || text == "false" || text == "off" || text == "no";
  return known ? Status() : wrong(node, "on or off");
}

/// Sizes may end in KiB, MiB or GiB.
template <typename T>
requires(std::is_unsigned_v<T> && !std::is_same_v<T, bool>) Status
    read_value(const YAML::Node& node, T& value) {
  const std::string expected =
      fmt::format("a whole number from 0 to {}", std::numeric_limits<T>::max());
  if (!node.IsScalar()) return wrong(node, expected);
  std::string text = node.Scalar();
  uint64_t unit = 1;
  for (const auto& [suffix, factor] : {std::pair<std::string, uint64_t>{"KiB", 1ull << 10},
                                       {"MiB", 1ull << 20},
                                       {"GiB", 1ull << 30}}) {
    if (!text.ends_with(suffix)) continue;
    unit = factor;
    text.resize(text.size() - suffix.size());
    while (text.ends_with(' ')) text.pop_back();
  }
  const bool digits =
      !text.empty() && text.size() <= 19 &&
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return wrong(node, expected);
  const uint64_t number = std::stoull(text);
  if (number > std::numeric_limits<T>::max() / unit) return wrong(node, expected);
  value = static_cast<T>(number * unit);
  return {};
}

Status read_value(const YAML::Node& node, LogLevel& level) {
  if (!node.IsScalar()) return wrong(node, "debug, info, warning, error or critical");
  auto parsed = parse_log_level(node.Scalar());
  if (!parsed) return wrong(node, "debug, info, warning, error or critical");
  level = *parsed;
  return {};
}

Status read_value(const YAML::Node& node,
                  std::vector<std::pair<std::string, std::string>>& options) {
  options.clear();
  if (node.IsNull()) return {};
  if (!node.IsMap()) return wrong(node, "a map of options");
  for (const auto& option : node) {
    if (!option.first.IsScalar()) return wrong(option.first, "an option's name");
    if (!option.second.IsScalar()) return wrong(option.second, "a single value");
    const std::string& name = option.first.Scalar();
    const bool twice = std::any_of(options.begin(), options.end(),
                                   [&](const auto& known) { return known.first == name; });
    if (twice) return invalid_argument("{}: option '{}' stands twice", place(option.first), name);
    options.emplace_back(name, option.second.Scalar());
  }
  return {};
}

Status read_value(const YAML::Node& node, FormatSettings& formats) {
  formats = {};
  if (node.IsScalar()) return read_value(node, formats.all);
  if (!node.IsNull() && !node.IsMap()) return wrong(node, "a format, or a map of patterns to them");
  ATLAS_RETURN_IF_ERROR(read_value(node, formats.modules));
  for (const auto& [pattern, format] : formats.modules) {
    if (!pattern.empty() && !format.empty()) continue;
    return invalid_argument("{}: pattern '{}' has format '{}'; both must be there", place(node),
                            pattern, format);
  }
  return {};
}

Status read_value(const YAML::Node& node, std::vector<PluginEntry>& plugins) {
  plugins.clear();
  if (!node.IsSequence()) return wrong(node, "a list of plugin names, or of {name, path}");
  for (const auto& item : node) {
    PluginEntry entry;
    if (item.IsScalar()) {
      entry.name = item.Scalar();
    } else if (item.IsMap()) {
      for (const auto& field : item) {
        const std::string name = field.first.Scalar();
        if (name != "name" && name != "path") {
          return invalid_argument("{}: a plugin has no key '{}'; it has name and path",
                                  place(field.first), name);
        }
        std::string& value = name == "name" ? entry.name : entry.path;
        if (!value.empty()) {
          return invalid_argument("{}: a plugin's '{}' stands twice", place(field.first), name);
        }
        ATLAS_RETURN_IF_ERROR(read_value(field.second, value));
      }
    }
    if (entry.name.empty()) return wrong(item, "a plugin name, or a map with one");
    const bool twice = std::any_of(plugins.begin(), plugins.end(),
                                   [&](const PluginEntry& one) { return one.name == entry.name; });
    if (twice) return invalid_argument("{}: plugin '{}' is listed twice", place(item), entry.name);
    plugins.push_back(std::move(entry));
  }
  return {};
}

std::string show_value(const std::string& value) { return value.empty() ? "\"\"" : value; }
std::string show_value(bool value) { return value ? "on" : "off"; }
std::string show_value(LogLevel level) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error", "critical"};
  return kNames[static_cast<int>(level)];
}
template <typename T>
requires(std::is_unsigned_v<T> && !std::is_same_v<T, bool>) std::string show_value(T value) {
  return fmt::format("{}", value);
}
std::string show_value(const std::vector<std::pair<std::string, std::string>>& options) {
  std::string text = "{";
  for (const auto& [key, value] : options) {
    text += fmt::format("{}{}: {}", text.size() > 1 ? ", " : "", key, value);
  }
  return text + "}";
}
std::string show_value(const FormatSettings& formats) {
  return formats.modules.empty() ? show_value(formats.all) : show_value(formats.modules);
}
std::string show_value(const std::vector<PluginEntry>& plugins) {
  std::string text = "[";
  for (const PluginEntry& one : plugins) {
    text += text.size() > 1 ? ", " : "";
    text += one.path.empty() ? one.name : fmt::format("{{name: {}, path: {}}}", one.name, one.path);
  }
  return text + "]";
}

/// A key for one member, found by `member(settings)`.
template <typename Member>
Key key(std::string name, Change change, Member member) {
  return {std::move(name), change,
          [member](const YAML::Node& node, Settings& s) { return read_value(node, member(s)); },
          [member](const Settings& s) { return show_value(member(const_cast<Settings&>(s))); }};
}

/// Socket modes are octal, as chmod takes them.
Key socket_mode_key() {
  return {"server.socket.mode", Change::kRestart,
          [](const YAML::Node& node, Settings& s) {
            const std::string text = node.IsScalar() ? node.Scalar() : std::string();
            const bool octal = !text.empty() && text.size() <= 5 &&
                               text.find_first_not_of("01234567") == std::string::npos;
            if (!octal) return wrong(node, "an octal mode such as 0660");
            s.server.socket.mode = static_cast<uint32_t>(std::stoul(text, nullptr, 8));
            return s.server.socket.mode <= 0777 ? Status()
                                                : wrong(node, "an octal mode up to 0777");
          },
          [](const Settings& s) { return fmt::format("{:04o}", s.server.socket.mode); }};
}

#define ATLAS_KEY(name, change, member) \
  key(                                  \
      name, Change::change, [](Settings & s) -> auto& { return s.member; })

const std::vector<Key>& table() {
  static const std::vector<Key> keys = {
      ATLAS_KEY("model.path", kSwap, model.path),
      ATLAS_KEY("model.name", kSwap, model.name),
      ATLAS_KEY("model.formats", kSwap, model.formats),
      ATLAS_KEY("platform.name", kRestart, platform.name),
      ATLAS_KEY("platform.plugin", kRestart, platform.plugin),
      ATLAS_KEY("platform.options", kRestart, platform.options),
      ATLAS_KEY("plugins.directory", kSwap, plugins.directory),
      ATLAS_KEY("plugins.kernels", kSwap, plugins.kernels),
      ATLAS_KEY("plugins.quant", kSwap, plugins.quant),
      ATLAS_KEY("plugins.attention", kSwap, plugins.attention),
      ATLAS_KEY("engine.max_sequences", kSwap, engine.max_sequences),
      ATLAS_KEY("engine.context_tokens", kSwap, engine.context_tokens),
      ATLAS_KEY("engine.cache_tokens", kSwap, engine.cache_tokens),
      ATLAS_KEY("engine.prefill_rows", kSwap, engine.prefill_rows),
      ATLAS_KEY("engine.drafts", kSwap, engine.drafts),
      ATLAS_KEY("engine.snapshot_bytes", kSwap, engine.snapshot_bytes),
      ATLAS_KEY("engine.row_cache_bytes", kSwap, engine.row_cache_bytes),
      ATLAS_KEY("engine.feed_timeout_ms", kSwap, engine.feed_timeout_ms),
      ATLAS_KEY("engine.graphs", kSwap, engine.graphs),
      ATLAS_KEY("engine.queue_limit", kRestart, engine.queue_limit),
      ATLAS_KEY("engine.latency_bound_ms", kRestart, engine.latency_bound_ms),
      ATLAS_KEY("engine.step_deadline_s", kRestart, engine.step_deadline_s),
      ATLAS_KEY("engine.reserve_bytes", kSwap, engine.reserve_bytes),
      ATLAS_KEY("server.socket.path", kRestart, server.socket.path),
      socket_mode_key(),
      ATLAS_KEY("server.socket.group", kRestart, server.socket.group),
      ATLAS_KEY("server.tcp.host", kRestart, server.tcp.host),
      ATLAS_KEY("server.tcp.port", kRestart, server.tcp.port),
      ATLAS_KEY("server.tcp.api_key_file", kRestart, server.tcp.api_key_file),
      ATLAS_KEY("server.limits.header_bytes", kRestart, server.limits.header_bytes),
      ATLAS_KEY("server.limits.body_bytes", kRestart, server.limits.body_bytes),
      ATLAS_KEY("server.limits.prompt_tokens", kRestart, server.limits.prompt_tokens),
      ATLAS_KEY("server.limits.connections", kRestart, server.limits.connections),
      ATLAS_KEY("server.limits.header_timeout_s", kRestart, server.limits.header_timeout_s),
      ATLAS_KEY("server.limits.idle_timeout_s", kRestart, server.limits.idle_timeout_s),
      ATLAS_KEY("server.limits.backlog_bytes", kRestart, server.limits.backlog_bytes),
      ATLAS_KEY("server.drain_timeout_s", kReload, server.drain_timeout_s),
      ATLAS_KEY("log.level", kReload, log_level),
  };
  return keys;
}
#undef ATLAS_KEY

const Key* find_key(const std::string& name) {
  const auto found = std::find_if(table().begin(), table().end(),
                                  [&](const Key& key) { return key.name == name; });
  return found == table().end() ? nullptr : &*found;
}

bool is_section(const std::string& name) {
  return std::any_of(table().begin(), table().end(),
                     [&](const Key& key) { return key.name.starts_with(name + "."); });
}

Status unknown_key(const std::string& where, const std::string& name) {
  std::string nearest = table().front().name;
  const auto consider = [&](const std::string& known) {
    if (edit_distance(known, name) < edit_distance(nearest, name)) nearest = known;
  };
  for (const Key& key : table()) {
    consider(key.name);
    for (size_t dot = key.name.find('.'); dot != std::string::npos;
         dot = key.name.find('.', dot + 1)) {
      consider(key.name.substr(0, dot));
    }
  }
  return invalid_argument("{}: there is no key '{}'; the nearest is '{}'", where, name, nearest);
}

Status read_map(const YAML::Node& node, const std::string& prefix, Settings& settings) {
  std::vector<std::string> seen;
  for (const auto& item : node) {
    if (!item.first.IsScalar()) return wrong(item.first, "a key");
    const std::string name = prefix + item.first.Scalar();
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      return invalid_argument("{}: key '{}' stands twice", place(item.first), name);
    }
    seen.push_back(name);
    if (const Key* key = find_key(name)) {
      Status status = key->read(item.second, settings);
      if (!status.ok()) {
        return invalid_argument("{} (key '{}')", status.message(), name);
      }
    } else if (!is_section(name)) {
      return unknown_key(place(item.first), name);
    } else if (item.second.IsMap()) {
      ATLAS_RETURN_IF_ERROR(read_map(item.second, name + ".", settings));
    } else if (!item.second.IsNull()) {
      return wrong(item.second, fmt::format("a map under '{}'", name));
    }
  }
  return {};
}

Status check(const Settings& s) {
  const auto at_least = [](const char* name, uint64_t value, uint64_t low, uint64_t high) {
    if (value >= low && value <= high) return Status();
    return invalid_argument("{} is {}: it must be from {} to {}", name, value, low, high);
  };
  if (s.model.path.empty()) {
    return invalid_argument(
        "model.path is missing: give a .gguf file or a folder with config.json");
  }
  ATLAS_RETURN_IF_ERROR(at_least("engine.max_sequences", s.engine.max_sequences, 1, 1024));
  ATLAS_RETURN_IF_ERROR(at_least("engine.prefill_rows", s.engine.prefill_rows, 16, 65536));
  ATLAS_RETURN_IF_ERROR(at_least("engine.drafts", s.engine.drafts, 0, 7));
  ATLAS_RETURN_IF_ERROR(at_least("engine.feed_timeout_ms", s.engine.feed_timeout_ms, 1, 600000));
  ATLAS_RETURN_IF_ERROR(at_least("engine.latency_bound_ms", s.engine.latency_bound_ms, 1, 60000));
  ATLAS_RETURN_IF_ERROR(at_least("engine.step_deadline_s", s.engine.step_deadline_s, 1, 86400));
  ATLAS_RETURN_IF_ERROR(
      at_least("server.limits.header_bytes", s.server.limits.header_bytes, 1024, 16u << 20));
  ATLAS_RETURN_IF_ERROR(
      at_least("server.limits.body_bytes", s.server.limits.body_bytes, 1024, 1ull << 32));
  ATLAS_RETURN_IF_ERROR(
      at_least("server.limits.connections", s.server.limits.connections, 1, 65536));
  if (s.server.socket.path.empty() && s.server.tcp.port == 0) {
    return invalid_argument(
        "server.socket.path is empty and server.tcp.port is 0: nothing to listen on");
  }
  // sun_path of sockaddr_un holds 107 characters and the NUL.
  if (s.server.socket.path.size() > 107) {
    return invalid_argument("server.socket.path has {} characters, and a Unix socket takes 107",
                            s.server.socket.path.size());
  }
  if (s.server.tcp.port != 0 && s.server.tcp.api_key_file.empty() &&
      s.server.tcp.host != "127.0.0.1" && s.server.tcp.host != "::1" &&
      s.server.tcp.host != "localhost") {
    return invalid_argument(
        "server.tcp.host is '{}', which others can reach: set "
        "server.tcp.api_key_file, or listen on 127.0.0.1",
        s.server.tcp.host);
  }
  return {};
}

/// The paths among a key's values.
std::vector<std::string*> paths_of(const std::string& key, Settings& s) {
  if (key == "model.path") return {&s.model.path};
  if (key == "plugins.directory") return {&s.plugins.directory};
  if (key == "plugins.kernels") return {&s.plugins.kernels};
  const bool is_quant = key == "plugins.quant";
  std::vector<std::string*> paths;
  if (is_quant || key == "plugins.attention") {
    for (PluginEntry& one : is_quant ? s.plugins.quant : s.plugins.attention) {
      paths.push_back(&one.path);
    }
  }
  return paths;
}

Result<Settings> read_document(const YAML::Node& root, const std::string& name) {
  Settings settings;
  if (!root.IsMap()) return invalid_argument("{}: the settings must be a map of keys", name);
  if (Status status = read_map(root, "", settings); !status.ok()) {
    return invalid_argument("{}:{}", name, status.message());
  }
  if (Status status = check(settings); !status.ok()) return status.with_context(name);
  return settings;
}

}  // namespace

Result<Settings> parse(const std::string& yaml, const std::string& name) {
  try {
    return read_document(YAML::Load(yaml), name);
  } catch (const YAML::Exception& error) {
    return invalid_argument("{}:{}:{}: {}", name, error.mark.line + 1, error.mark.column + 1,
                            error.msg);
  }
}

Result<Settings> load(const std::string& path) {
  try {
    return read_document(YAML::LoadFile(path), path);
  } catch (const YAML::BadFile&) {
    return not_found("cannot read settings file '{}': give one with --config", path);
  } catch (const YAML::Exception& error) {
    return invalid_argument("{}:{}:{}: {}", path, error.mark.line + 1, error.mark.column + 1,
                            error.msg);
  } catch (const std::exception& error) {  // a folder, for instance
    return invalid_argument("cannot read settings file '{}': {}", path, error.what());
  }
}

Result<Settings> with(const Settings& settings, const std::string& name, const std::string& value,
                      const std::string& directory) {
  const Key* key = find_key(name);
  if (key == nullptr && is_section(name)) {
    std::string keys;
    for (const Key& one : table()) {
      if (one.name.starts_with(name + ".")) keys += (keys.empty() ? "" : ", ") + one.name;
    }
    return invalid_argument("--set {}: this is a section; set one of {}", name, keys);
  }
  if (key == nullptr) return unknown_key("--set", name);
  Settings changed = settings;
  try {
    Status status = key->read(YAML::Load(value), changed);
    if (!status.ok()) return invalid_argument("--set {}: {}", name, status.message());
  } catch (const YAML::Exception& error) {
    return invalid_argument("--set {}: '{}' is no YAML value: {}", name, value, error.msg);
  }
  for (std::string* path : paths_of(name, changed)) {
    if (directory.empty() || path->empty() || path->front() == '/') continue;
    *path = (std::filesystem::path(directory) / *path).lexically_normal().string();
  }
  if (Status status = check(changed); !status.ok()) return status.with_context("--set " + name);
  return changed;
}

Difference difference(const Settings& from, const Settings& to) {
  Difference result;
  for (const Key& key : table()) {
    if (key.show(from) == key.show(to)) continue;
    switch (key.change) {
      case Change::kReload:
        result.reloadable.push_back(key.name);
        break;
      case Change::kSwap:
        result.swappable.push_back(key.name);
        break;
      case Change::kRestart:
        result.restart.push_back(key.name);
        break;
    }
  }
  return result;
}

std::vector<KeyInfo> keys() {
  std::vector<KeyInfo> result;
  for (const Key& key : table()) {
    result.push_back({key.name, key.show(Settings()), key.change});
  }
  return result;
}

}  // namespace atlas::settings

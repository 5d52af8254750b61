#include "daemon/app/control_service.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "daemon/app/reports.h"
#include "daemon/app/service_manager.h"
#include "daemon/base/log.h"

namespace atlas::app {

using Json = nlohmann::ordered_json;

namespace {

/// A JSON object whose keys are all among `known`; an empty text is an empty object.
Result<Json> parse_request(const std::string& text, std::initializer_list<const char*> known) {
  if (text.empty()) return Json::object();
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    return invalid_argument("the request must be a JSON object");
  }
  for (const auto& [key, value] : json.items()) {
    const bool is_known = std::any_of(known.begin(), known.end(),
                                      [&key = key](const char* one) { return key == one; });
    if (!is_known) {
      std::string list;
      for (const char* one : known) list += (list.empty() ? "" : ", ") + std::string(one);
      return invalid_argument("field '{}' is unknown here: there are {}", key, list);
    }
  }
  return json;
}

Result<bool> flag(const Json& json, const char* key) {
  if (!json.contains(key)) return false;
  if (!json[key].is_boolean()) return invalid_argument("field '{}' must be true or false", key);
  return json[key].get<bool>();
}

/// Where the caller's relative paths begin, or "" if it does not say.
Result<std::string> directory(const Json& json) {
  if (!json.contains("directory")) return std::string();
  if (!json["directory"].is_string() || !json["directory"].get<std::string>().starts_with('/')) {
    return invalid_argument("field 'directory' must be an absolute path");
  }
  return json["directory"].get<std::string>();
}

/// "key": value pairs of `set`; a value may be text (YAML) or any JSON, which is YAML as well.
Result<settings::Settings> apply_set(settings::Settings settings, const Json& json) {
  if (!json.contains("set")) return settings;
  if (!json["set"].is_object()) return invalid_argument("field 'set' must be an object of keys");
  ATLAS_ASSIGN_OR_RETURN(const std::string base, directory(json));
  for (const auto& [key, value] : json["set"].items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    ATLAS_ASSIGN_OR_RETURN(settings, settings::with(settings, key, text, base));
  }
  return settings;
}

}  // namespace

ControlService::ControlService(ModelHost& host, std::string settings_path)
    : host_(host), settings_path_(std::move(settings_path)) {}

std::vector<std::shared_ptr<engine::Engine>> ControlService::engines() const {
  return {host_.engine()};
}

std::string ControlService::status_json() const {
  const std::chrono::duration<double> uptime = std::chrono::steady_clock::now() - started_;
  return status_report(host_, uptime.count(), !accepting_.load());
}

std::string ControlService::plugins_json() const { return plugins_report(host_); }

void ControlService::plan(std::string request_json, serve::ControlReply reply) {
  host_.enqueue([this, request = std::move(request_json), reply = std::move(reply)] {
    reply(run_plan(request));
  });
}

void ControlService::swap(std::string request_json, serve::ControlReply reply) {
  host_.enqueue([this, request = std::move(request_json), reply = std::move(reply)] {
    reply(run_swap(request));
  });
}

void ControlService::reload(serve::ControlReply reply) {
  host_.enqueue([this, reply = std::move(reply)] { reply(run_reload()); });
}

void ControlService::drain(std::string request_json, serve::ControlReply reply) {
  auto json = parse_request(request_json, {"timeout_s"});
  if (!json) return reply(json.error());
  if (json->contains("timeout_s")) {
    const Json& timeout = (*json)["timeout_s"];
    if (!timeout.is_number_unsigned() || timeout.get<uint64_t>() == 0 ||
        timeout.get<uint64_t>() > 86400) {
      return reply(invalid_argument("field 'timeout_s' must be a number from 1 to 86400"));
    }
    drain_override_s_.store(timeout.get<uint32_t>());
  }
  stop_accepting();
  drain_requested_.store(true);
  reply(fmt::format("{{\"draining\":true,\"timeout_s\":{}}}", drain_timeout().count()));
}

std::chrono::seconds ControlService::drain_timeout() const {
  const uint32_t own = drain_override_s_.load();
  return std::chrono::seconds(own != 0 ? own : host_.state().settings.server.drain_timeout_s);
}

void ControlService::reload_from_signal() {
  host_.enqueue([this] {
    const auto result = run_reload();
    if (!result) log_error("reload: {}", result.error().message());
  });
}

Result<std::string> ControlService::run_plan(const std::string& request_json) {
  ATLAS_ASSIGN_OR_RETURN(const Json json,
                         parse_request(request_json, {"model", "set", "records", "directory"}));
  ATLAS_ASSIGN_OR_RETURN(const bool records, flag(json, "records"));
  settings::Settings wanted = host_.state().settings;
  if (json.contains("model")) {
    if (!json["model"].is_string()) return invalid_argument("field 'model' must be a path");
    ATLAS_ASSIGN_OR_RETURN(const std::filesystem::path base, directory(json));
    wanted.model = {(base / json["model"].get<std::string>()).string(), ""};
  }
  ATLAS_ASSIGN_OR_RETURN(wanted, apply_set(wanted, json));
  Plugins plugins;
  ATLAS_RETURN_IF_ERROR(load_plugins(wanted, plugins));
  ATLAS_ASSIGN_OR_RETURN(const Assembly assembly, assemble(wanted, plugins));
  return plan_report(assembly, records);
}

Result<std::string> ControlService::run_swap(const std::string& request_json) {
  ATLAS_ASSIGN_OR_RETURN(const Json json,
                         parse_request(request_json, {"set", "dry_run", "directory"}));
  ATLAS_ASSIGN_OR_RETURN(const bool dry_run, flag(json, "dry_run"));
  ATLAS_ASSIGN_OR_RETURN(const settings::Settings wanted, apply_set(host_.state().settings, json));
  ATLAS_ASSIGN_OR_RETURN(const SwapOutcome outcome, host_.swap(wanted, dry_run));
  return swap_report(outcome, dry_run);
}

Result<std::string> ControlService::run_reload() {
  ServiceManager::reloading();
  struct ReadyAgain {
    ~ReadyAgain() { ServiceManager::ready(); }
  } ready_again;
  ATLAS_ASSIGN_OR_RETURN(settings::Settings wanted, settings::load(settings_path_));
  const settings::Settings current = host_.state().settings;
  const settings::Difference difference = settings::difference(current, wanted);
  host_.set_reloadable(wanted);
  configure_log(wanted.log_level, log_style());
  for (const std::string& key : difference.restart) {
    log_warning("reload: key '{}' has changed and takes effect at a restart only", key);
  }
  Json json = {{"applied", difference.reloadable}, {"needs_restart", difference.restart}};
  if (!difference.swappable.empty()) {
    // Keys that need a restart keep their present values, so that the rest can be swapped.
    wanted.platform = current.platform;
    wanted.server = current.server;
    wanted.engine.queue_limit = current.engine.queue_limit;
    wanted.engine.latency_bound_ms = current.engine.latency_bound_ms;
    wanted.engine.step_deadline_s = current.engine.step_deadline_s;
    wanted.server.drain_timeout_s = host_.state().settings.server.drain_timeout_s;
    ATLAS_ASSIGN_OR_RETURN(const SwapOutcome outcome, host_.swap(wanted, false));
    json["swap"] = Json::parse(swap_report(outcome, false));
  }
  log_info("reloaded '{}': {}", settings_path_, json.dump());
  return json.dump();
}

}  // namespace atlas::app

// Verbs that ask and steer: status, models, plugins, plan, swap, reload, drain.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/atlasctl/json_answer.h"
#include "tools/atlasctl/terminal.h"
#include "tools/atlasctl/verbs.h"

namespace atlas::ctl {

using namespace std::chrono_literals;

namespace {

void print_ledger(const Json& ledger) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [line, bytes] : ledger.items()) {
    rows.push_back({line, human_bytes(bytes.get<uint64_t>())});
  }
  print_table({"LEDGER", "BYTES"}, rows);
}

void print_engine(const Json& engine) {
  const std::string state = text(engine, "state");
  const Style style = state == "serving"  ? Style::kGood
                      : state == "failed" ? Style::kBad
                                          : Style::kBold;
  fmt::print("engine    {}", styled(style, state));
  if (state == "loading")
    fmt::print(": {} {:.0f} %", text(engine, "phase"), 100 * fraction(engine, "progress"));
  if (engine.contains("failure")) fmt::print(": {}", text(engine, "failure"));
  fmt::print("\n");
  if (!engine.contains("model")) return;
  fmt::print("model     {} ({}, {}), context {} tokens\n", text(engine, "model"),
             text(engine, "architecture"), text(engine, "format"),
             number(engine, "context_tokens"));
  fmt::print("serving   generation {}, graphs {}\n", number(engine, "generation"),
             text(engine, "graphs"));
  fmt::print("requests  {} running, {} queued; slots {}/{}, pages {}/{}\n",
             number(engine, "running"), number(engine, "queued"), number(engine["slots"], "used"),
             number(engine["slots"], "total"), number(engine["pages"], "used"),
             number(engine["pages"], "total"));
  for (const Json& old : engine.value("old_generations", Json::array())) {
    const uint64_t requests = number(old, "requests");
    fmt::print("          generation {}: {} request{}, {} until {}\n", number(old, "generation"),
               requests, requests == 1 ? "" : "s", human_bytes(number(old, "bytes")),
               requests == 1 ? "it ends" : "they end");
  }
  print_ledger(engine["ledger_bytes"]);
}

/// {"set": {"key": "value", ...}, "directory": ...} of KEY=VALUE arguments: relative paths in them
/// begin where atlasctl runs.
Result<Json> set_request(const std::vector<std::string>& set) {
  Json request = {{"set", Json::object()}};
  std::error_code error;
  const auto directory = std::filesystem::current_path(error);
  if (!error) request["directory"] = directory.string();
  for (const std::string& one : set) {
    const size_t equals = one.find('=');
    if (equals == std::string::npos || equals == 0) {
      return invalid_argument("--set {}: write KEY=VALUE", one);
    }
    request["set"][one.substr(0, equals)] = one.substr(equals + 1);
  }
  return request;
}

/// The end of a swap that was done.
void print_swapped(const Json& done) {
  fmt::print("generation {} {} after {:.2f} s\n", number(done, "to_generation"),
             styled(Style::kGood, "serves new sequences"), fraction(done, "seconds"));
}

/// Asks /health until a daemon answers, for a daemon that was started just now has no socket yet.
Result<Response> wait_for_answer(const Client& client, std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    Result<Response> response = client.get("/health");
    if (response || response.error().code() != Code::kUnavailable ||
        std::chrono::steady_clock::now() >= deadline) {
      return response;
    }
    std::this_thread::sleep_for(100ms);
  }
}

/// Follows the load in /health until the daemon serves or fails; `timeout` is for its first answer.
Status wait_until_serving(const Client& client, std::chrono::seconds timeout) {
  ATLAS_ASSIGN_OR_RETURN(Response response, wait_for_answer(client, timeout));
  for (;;) {
    const Json json = Json::parse(response.body, nullptr, false);
    if (!json.is_object()) return internal_error("the daemon's /health is no JSON");
    const std::string status = text(json, "status");
    if (status != "loading") {
      draw_progress("", 0);
      return status == "serving" ? Status() : failed_precondition("the daemon is {}", status);
    }
    for (const Json& engine : json["engines"]) {
      draw_progress(text(engine, "phase"), fraction(engine, "progress"));
    }
    std::this_thread::sleep_for(100ms);
    ATLAS_ASSIGN_OR_RETURN(response, client.get("/health"));
  }
}

}  // namespace

int show_status(const Context& context, std::optional<uint32_t> wait_s) {
  if (wait_s) {
    const Status status = wait_until_serving(context.client, std::chrono::seconds(*wait_s));
    if (!status.ok()) return report(context, status);
  }
  Json json;
  if (int code = fetch(context, context.client.get("/atlas/v1/status"), json); code >= 0)
    return code;
  fmt::print("atlasd    {}, up {}{}\n", text(json, "version"),
             human_seconds(fraction(json, "uptime_s")),
             json.value("draining", false) ? ", draining" : "");
  const Json& device = json["device"];
  fmt::print("platform  {} on {} ({}), {} of {} free\n", text(json, "platform"),
             text(device, "name"), text(device, "architecture"),
             human_bytes(number(device, "available_bytes")),
             human_bytes(number(device, "memory_bytes")));
  for (const Json& engine : json["engines"]) print_engine(engine);
  return 0;
}

int show_models(const Context& context) {
  Json json;
  if (int code = fetch(context, context.client.get("/atlas/v1/models"), json); code >= 0)
    return code;
  std::vector<std::vector<std::string>> rows;
  for (const Json& model : json["models"]) {
    rows.push_back({text(model, "id"), text(model, "architecture"), text(model, "format"),
                    text(model, "context_tokens"), text(model, "generation")});
  }
  print_table({"MODEL", "ARCHITECTURE", "FORMAT", "CONTEXT", "GENERATION"}, rows);
  return 0;
}

int show_plugins(const Context& context) {
  Json json;
  if (int code = fetch(context, context.client.get("/atlas/v1/plugins"), json); code >= 0)
    return code;
  std::vector<std::vector<std::string>> rows;
  for (const Json& plugin : json["plugins"]) {
    std::string platforms;
    for (const Json& one : plugin["platforms"]) {
      platforms += (platforms.empty() ? "" : ",") + one.get<std::string>();
    }
    rows.push_back(
        {text(plugin, "name"), text(plugin, "version"), text(plugin, "kind"), platforms,
         text(plugin, "state"),
         text(plugin, "reason").empty() ? text(plugin, "file") : text(plugin, "reason")});
  }
  print_table({"PLUGIN", "VERSION", "KIND", "PLATFORMS", "STATE", "FILE OR REASON"}, rows);
  return 0;
}

int show_plan(const Context& context, const std::string& model, const std::vector<std::string>& set,
              bool records) {
  auto request = set_request(set);
  if (!request) return report(context, request.error());
  if (!model.empty()) (*request)["model"] = model;
  (*request)["records"] = records;
  Json json;
  if (int code = fetch(context, context.client.post("/atlas/v1/plan", request->dump()), json);
      code >= 0) {
    return code;
  }
  fmt::print("{} ({}, {}) on {}: context {}, {} sequences, {} pages of {} tokens\n",
             text(json, "model"), text(json, "architecture"), text(json, "format"),
             text(json, "platform"), number(json, "context_tokens"), number(json, "max_sequences"),
             number(json["pages"], "count"), number(json["pages"], "tokens"));
  std::vector<std::vector<std::string>> rows;
  for (const Json& step : json["steps"]) {
    rows.push_back({text(step, "kind"), text(step, "rows"), text(step, "logit_rows"),
                    text(step, "records"), human_bytes(number(step, "weight_bytes_read"))});
  }
  print_table({"STEP", "ROWS", "LOGIT ROWS", "RECORDS", "WEIGHTS READ"}, rows);
  if (records) {
    for (const Json& step : json["steps"]) {
      fmt::print("\n{} of {} rows\n", text(step, "kind"), text(step, "rows"));
      std::vector<std::vector<std::string>> lines;
      for (const Json& record : step["record_list"]) {
        lines.push_back({text(record, "operation"), text(record, "owner"), text(record, "kernel"),
                         record["grid"].dump(), human_bytes(number(record, "bytes_read"))});
      }
      print_table({"OPERATION", "OWNER", "KERNEL", "GRID", "BYTES READ"}, lines);
    }
  }
  print_ledger(json["ledger_bytes"]);
  return 0;
}

int swap(const Context& context, const std::vector<std::string>& set, bool dry_run) {
  auto request = set_request(set);
  if (!request) return report(context, request.error());
  (*request)["dry_run"] = true;
  Json verdict;
  if (int code =
          read_answer(context, context.client.post("/atlas/v1/swap", request->dump()), verdict);
      code >= 0) {
    return code;
  }
  if (context.json && dry_run) {
    fmt::print("{}\n", verdict.dump());
    return 0;
  }
  if (!context.json) {
    fmt::print("{}\n", text(verdict, "verdict"));
    std::fflush(stdout);  // before it is done
  }
  if (dry_run) return 0;
  (*request)["dry_run"] = false;
  Json done;
  if (int code = fetch(context, context.client.post("/atlas/v1/swap", request->dump()), done);
      code >= 0) {
    return code;
  }
  print_swapped(done);
  return 0;
}

int reload(const Context& context) {
  Json json;
  if (int code = fetch(context, context.client.post("/atlas/v1/reload", ""), json); code >= 0)
    return code;
  for (const Json& key : json["applied"]) fmt::print("applied        {}\n", key.get<std::string>());
  for (const Json& key : json["needs_restart"])
    fmt::print("needs restart  {}\n", key.get<std::string>());
  if (json.contains("swap")) {
    fmt::print("swapped        {}\n", text(json["swap"], "verdict"));
    print_swapped(json["swap"]);
  }
  if (json["applied"].empty() && json["needs_restart"].empty() && !json.contains("swap")) {
    fmt::print("nothing has changed\n");
  }
  return 0;
}

int drain(const Context& context, std::optional<uint32_t> timeout_s) {
  Json request = Json::object();
  if (timeout_s) request["timeout_s"] = *timeout_s;
  Json json;
  if (int code = fetch(context, context.client.post("/atlas/v1/drain", request.dump()), json);
      code >= 0) {
    return code;
  }
  fmt::print("draining: requests at hand have {} s, then the daemon stops\n",
             number(json, "timeout_s"));
  return 0;
}

}  // namespace atlas::ctl

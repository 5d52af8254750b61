// The verb stats: counters of engines and server as tables of name, value and unit.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/atlasctl/json_answer.h"
#include "tools/atlasctl/terminal.h"
#include "tools/atlasctl/verbs.h"

namespace atlas::ctl {

namespace {

using Rows = std::vector<std::vector<std::string>>;

/// One row a counter: its name for people, its key in `json`, its unit.
struct Counter {
  const char* name;
  const char* key;
  const char* unit;
};

void add(Rows& rows, const Json& json, std::initializer_list<Counter> counters) {
  for (const Counter& one : counters) {
    rows.push_back({one.name, fmt::format("{}", number(json, one.key)), one.unit});
  }
}

/// "34.5", "MiB" of 36175872.
void add_bytes(Rows& rows, const char* name, uint64_t bytes) {
  const std::string shown = human_bytes(bytes);
  const size_t space = shown.find(' ');
  rows.push_back({name, shown.substr(0, space), shown.substr(space + 1)});
}

void add_steps(Rows& rows, const Json& steps, const char* kind) {
  const uint64_t count = number(steps, kind);
  const double seconds = fraction(steps, fmt::format("{}_seconds", kind).c_str());
  rows.push_back({fmt::format("{} steps", kind), fmt::format("{}", count), "steps"});
  rows.push_back({fmt::format("time of {} steps", kind), fmt::format("{:.3f}", seconds), "s"});
  if (count == 0) return;
  rows.push_back({fmt::format("mean {} step", kind),
                  fmt::format("{:.3f}", 1000 * seconds / static_cast<double>(count)), "ms"});
}

void print_engine_stats(const Json& engine) {
  fmt::print("{} is {}: generation {}, graphs {}\n",
             text(engine, "model").empty() ? "the engine" : text(engine, "model"),
             text(engine, "state"), number(engine, "generation"), text(engine, "graphs"));
  Rows rows;
  add(rows, engine, {{"running", "running", "requests"}, {"queued", "queued", "requests"}});
  add(rows, engine["requests"],
      {{"finished", "finished", "requests"},
       {"failed", "failed", "requests"},
       {"cancelled", "cancelled", "requests"},
       {"refused", "refused", "requests"}});
  add(rows, engine["tokens"],
      {{"prompt", "prompt", "tokens"},
       {"prompt, from the cache", "cached", "tokens"},
       {"generated", "generated", "tokens"},
       {"drafts checked", "drafted", "tokens"},
       {"drafts accepted", "accepted", "tokens"}});
  add(rows, engine["prefix"],
      {{"prompts cached whole", "exact", "requests"},
       {"cached in part", "anchor", "requests"},
       {"cached without a state", "pages", "requests"},
       {"not cached", "miss", "requests"},
       {"computed again for want of a state", "recomputed_tokens", "tokens"}});
  add_steps(rows, engine["steps"], "prefill");
  add_steps(rows, engine["steps"], "decode");
  add(rows, engine["pages"],
      {{"cache in use", "used", "pages"}, {"cache in all", "total", "pages"}});
  add(rows, engine["prefix"], {{"of it for later requests", "pages_held", "pages"}});
  add(rows, engine["anchors"],
      {{"states in use", "used", "states"}, {"states in all", "total", "states"}});
  add(rows, engine["slots"],
      {{"slots in use", "used", "sequences"}, {"slots in all", "total", "sequences"}});
  for (const Json& old : engine.value("old_generations", Json::array())) {
    const std::string name = fmt::format("generation {}, until it ends", number(old, "generation"));
    rows.push_back({name, fmt::format("{}", number(old, "requests")), "requests"});
    add_bytes(rows, ("memory: " + name).c_str(), number(old, "bytes"));
  }
  for (const Json& line : engine["ledger"]) {
    std::string name = text(line, "line");
    std::replace(name.begin(), name.end(), '_', ' ');
    add_bytes(rows, ("memory: " + name).c_str(), number(line, "bytes"));
  }
  print_table({"ENGINE", "VALUE", "UNIT"}, rows);
}

void print_server_stats(const Json& server) {
  Rows rows = {{"up", human_seconds(fraction(server, "uptime_seconds")), ""}};
  add(rows, server["connections"],
      {{"connections now", "open", "connections"}, {"accepted", "accepted", "connections"}});
  add(rows, server,
      {{"failed accepts", "accept_errors", "connections"},
       {"left during an answer", "clients_gone", "clients"},
       {"cut off for not reading", "slow_readers", "clients"}});
  add_bytes(rows, "sent", number(server, "bytes_sent"));
  add_bytes(rows, "received", number(server, "bytes_received"));
  add_bytes(rows, "resident memory", number(server, "resident_bytes"));
  print_table({"SERVER", "VALUE", "UNIT"}, rows);
  Rows routes;
  for (const Json& one : server["requests"]) {
    routes.push_back({text(one, "route"), text(one, "status"), text(one, "count")});
  }
  if (!routes.empty()) {
    fmt::print("\n");
    print_table({"ROUTE", "STATUS", "REQUESTS"}, routes);
  }
  Rows refused;
  for (const auto& [code, count] : server["refused"].items()) {
    refused.push_back({code, count.dump()});
  }
  if (!refused.empty()) {
    fmt::print("\n");
    print_table({"REFUSED WITH", "REQUESTS"}, refused);
  }
}

}  // namespace

int show_stats(const Context& context) {
  Json json;
  if (int code = fetch(context, context.client.get("/atlas/v1/stats"), json); code >= 0)
    return code;
  for (const Json& engine : json["engines"]) {
    print_engine_stats(engine);
    fmt::print("\n");
  }
  print_server_stats(json["server"]);
  return 0;
}

}  // namespace atlas::ctl

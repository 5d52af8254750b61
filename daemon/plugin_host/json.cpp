// The only file of the room that sees nlohmann's header.
#include "daemon/plugin_host/json.h"

#include <nlohmann/json.hpp>

namespace atlas::plugin_host {
namespace {

using Json = nlohmann::ordered_json;

std::string hex(uint64_t digest) { return fmt::format("0x{:016x}", digest); }

// Paths may hold any bytes; a damaged character becomes U+FFFD instead of an exception.
std::string text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const AuditProblem& problem) {
  Json json = {{"kind", problem_name(problem.kind)}, {"plugin", problem.plugin}};
  if (problem.kind != ProblemKind::kPlatformNotListed) json["kernel"] = problem.kernel;
  if (problem.kind == ProblemKind::kDigestDiffers) {
    json["wanted"] = hex(problem.wanted);
    json["found"] = hex(problem.found);
    json["file"] = problem.file;
  } else {
    json["available"] = problem.available;
  }
  json["message"] = problem.text();
  return json;
}

}  // namespace

std::string to_json(const AuditReport& report) {
  Json json = {{"platform", report.platform}, {"ok", report.ok()}, {"plugins", report.plugins}};
  json["packs"] = Json::array();
  for (const PackFile& pack : report.packs) {
    json["packs"].push_back(
        {{"file", pack.path}, {"digest", "0x" + pack.digest}, {"plugin", pack.plugin}});
  }
  json["kernels_checked"] = report.kernels_checked;
  json["problems"] = Json::array();
  for (const AuditProblem& problem : report.problems) json["problems"].push_back(json_of(problem));
  json["fallbacks"] = Json::array();
  for (const AuditFallback& fallback : report.fallbacks) {
    json["fallbacks"].push_back({{"plugin", fallback.plugin},
                                 {"kernel", fallback.kernel},
                                 {"reason", fallback.reason},
                                 {"fallback", fallback.fallback}});
  }
  return text(json);
}

std::string to_json(std::span<const PluginReport> reports) {
  Json json = Json::array();
  for (const PluginReport& report : reports) {
    json.push_back({{"name", report.name},
                    {"version", report.version},
                    {"licence", report.licence},
                    {"kind", report.kind},
                    {"file", report.file},
                    {"digest", report.digest},
                    {"platforms", report.platforms},
                    {"named", report.named},
                    {"state", state_name(report.state)},
                    {"reason", report.reason}});
  }
  return text(json);
}

}  // namespace atlas::plugin_host

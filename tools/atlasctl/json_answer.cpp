#include "tools/atlasctl/json_answer.h"

#include <fmt/format.h>

#include <cstdio>

namespace atlas::ctl {

namespace {

/// The message of an error body ({"error": {"message": ...}}), or the body itself.
std::string error_message(const Response& response, const Json& json) {
  if (json.is_object() && json.contains("error") && json["error"].is_object() &&
      json["error"].contains("message") && json["error"]["message"].is_string()) {
    return json["error"]["message"].get<std::string>();
  }
  return response.body.empty() ? fmt::format("HTTP {}", response.status) : response.body;
}

}  // namespace

std::string text(const Json& json, const char* key) {
  if (!json.contains(key) || json[key].is_null()) return "";
  return json[key].is_string() ? json[key].get<std::string>() : json[key].dump();
}

uint64_t number(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_number() ? json[key].get<uint64_t>() : 0;
}

double fraction(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0;
}

std::string error_json(const std::string& message, std::string_view code) {
  const Json json = {{"error", {{"message", message}, {"code", code}}}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

int report(const Context& context, const Status& status) {
  if (context.json) {
    fmt::print("{}\n", error_json(status.message(), code_name(status.code())));
  } else {
    fmt::print(stderr, "atlasctl: {}\n", status.message());
  }
  return 1;
}

int report(const Context& context, const Response& response) {
  const Json json = Json::parse(response.body, nullptr, false);
  if (context.json && json.is_object() && json.contains("error")) {
    fmt::print("{}\n", response.body);
    return 1;
  }
  return report(context, Status(Code::kUnknown, error_message(response, json)));
}

int read_answer(const Context& context, const Result<Response>& response, Json& json) {
  if (!response) return report(context, response.error());
  if (response->status < 200 || response->status > 299) return report(context, *response);
  json = Json::parse(response->body, nullptr, false);
  if (!json.is_discarded()) return -1;
  return report(context, internal_error("the daemon's answer is no JSON"));
}

int fetch(const Context& context, const Result<Response>& response, Json& json) {
  const int code = read_answer(context, response, json);
  if (code >= 0 || !context.json) return code;
  fmt::print("{}\n", response->body);
  return 0;
}

}  // namespace atlas::ctl

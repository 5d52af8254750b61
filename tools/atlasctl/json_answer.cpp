#include "tools/atlasctl/json_answer.h"

#include <fmt/format.h>

#include <cstdio>

namespace atlas::ctl {

int report(const Status& status) {
  fmt::print(stderr, "atlasctl: {}\n", status.message());
  return 1;
}

std::string error_message(const Response& response) {
  const Json json = Json::parse(response.body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_object() &&
      json["error"].contains("message") && json["error"]["message"].is_string()) {
    return json["error"]["message"].get<std::string>();
  }
  return response.body.empty() ? fmt::format("HTTP {}", response.status) : response.body;
}

int fetch(const Context& context, const Result<Response>& response, Json& json) {
  if (!response) return report(response.error());
  if (response->status < 200 || response->status > 299) {
    if (context.json) fmt::print("{}\n", response->body);
    return report(Status(Code::kUnknown, error_message(*response)));
  }
  if (context.json) {
    fmt::print("{}\n", response->body);
    return 0;
  }
  json = Json::parse(response->body, nullptr, false);
  if (json.is_discarded()) return report(internal_error("the daemon's answer is no JSON"));
  return -1;
}

}  // namespace atlas::ctl

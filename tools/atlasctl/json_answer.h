// Answers of the daemon as JSON, and how failures are said.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tools/atlasctl/verbs.h"

namespace atlas::ctl {

using Json = nlohmann::ordered_json;

/// A field as text, "" where it is absent or null; as a number, 0 where it is none.
std::string text(const Json& json, const char* key);
uint64_t number(const Json& json, const char* key);
double fraction(const Json& json, const char* key);

/// Says an error: as text to standard error, for --json as {"error": {"message", "code"}} to
/// standard output. Returns 1.
int report(const Context& context, const Status& status);
/// Says the error of an answer with another status than 2xx: its own JSON for --json, if it has
/// any. Returns 1.
int report(const Context& context, const Response& response);
/// {"error": {"message", "code"}} as a text.
std::string error_json(const std::string& message, std::string_view code);
/// Puts a good answer into `json` and returns -1, or says the error and returns 1.
int read_answer(const Context& context, const Result<Response>& response, Json& json);
/// The same; but for --json a good answer is printed as it is, and 0 returned.
int fetch(const Context& context, const Result<Response>& response, Json& json);

}  // namespace atlas::ctl

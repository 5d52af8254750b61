// Answers of the daemon as JSON, and how failures are said.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/atlasctl/verbs.h"

namespace atlas::ctl {

using Json = nlohmann::ordered_json;

/// Prints an error to standard error; returns 1.
int report(const Status& status);
/// The message of an error body ({"error": {"message": ...}}), or the body itself.
std::string error_message(const Response& response);
/// Puts a good answer into `json` and returns -1. Otherwise returns the exit code at once: 0 after
/// printing the raw answer for --json, 1 after printing an error.
int fetch(const Context& context, const Result<Response>& response, Json& json);

}  // namespace atlas::ctl

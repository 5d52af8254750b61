// ApiError: an answer that is no success, in the shape that OpenAI's clients read.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "daemon/base/status.h"

namespace atlas::serve {

/// Becomes {"error": {"message", "type", "param", "code"}} with an HTTP status.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param;      // the field at fault; empty: null
  std::string code;       // a word for programs; empty: null
  int retry_after_s = 0;  // > 0: a Retry-After header
};

/// Nothing, or why the request is refused.
using Refusal = std::optional<ApiError>;

/// The JSON text of an error's body.
std::string error_json(const ApiError& error);
/// "invalid_request_error", "rate_limit_error" or "server_error".
std::string_view error_type(int status);
/// What a client is told when a room below answered with an error.
ApiError to_api_error(const Status& status);

/// 400 about a field.
ApiError bad_field(std::string_view param, std::string message);

}  // namespace atlas::serve

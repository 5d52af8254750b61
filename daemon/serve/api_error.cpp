// How errors of every room become HTTP statuses and OpenAI-shaped bodies.
#include "daemon/serve/api_error.h"

#include <utility>

#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

void append_nullable(std::string& out, std::string_view text) {
  if (text.empty()) {
    out += "null";
  } else {
    append_json_string(out, text);
  }
}

constexpr int kRetryQueueFullS = 1;
constexpr int kRetryUnavailableS = 5;

}  // namespace

std::string_view error_type(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

std::string error_json(const ApiError& error) {
  std::string out = R"({"error":{"message":)";
  append_json_string(out, error.message);
  out += R"(,"type":)";
  append_json_string(out, error_type(error.status));
  out += R"(,"param":)";
  append_nullable(out, error.param);
  out += R"(,"code":)";
  append_nullable(out, error.code);
  out += "}}";
  return out;
}

ApiError to_api_error(const Status& status) {
  ApiError error{.message = status.message()};
  error.code = code_name(status.code());
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
    case Code::kUnimplemented:
      error.status = 400;
      break;
    case Code::kUnauthenticated:
      error.status = 401;
      break;
    case Code::kPermissionDenied:
      error.status = 403;
      break;
    case Code::kNotFound:
      error.status = 404;
      break;
    case Code::kAlreadyExists:
    case Code::kFailedPrecondition:
    case Code::kAborted:
      error.status = 409;
      break;
    case Code::kResourceExhausted:
      error.status = 429;
      error.retry_after_s = kRetryQueueFullS;
      break;
    case Code::kUnavailable:
    case Code::kCancelled:
      error.status = 503;
      error.retry_after_s = kRetryUnavailableS;
      break;
    case Code::kDeadlineExceeded:
      error.status = 504;
      break;
    case Code::kOk:
    case Code::kUnknown:
    case Code::kInternal:
    case Code::kDataLoss:
      error.status = 500;
      break;
  }
  return error;
}

ApiError bad_field(std::string_view param, std::string message) {
  return {.message = std::move(message), .param = std::string(param), .code = "invalid_value"};
}

}  // namespace atlas::serve

// Names of codes and the two ways a Status becomes text.
#include "daemon/base/status.h"

#include <cstdio>
#include <cstdlib>

namespace atlas {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kCancelled:
      return "cancelled";
    case Code::kUnknown:
      return "unknown";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kNotFound:
      return "not_found";
    case Code::kAlreadyExists:
      return "already_exists";
    case Code::kPermissionDenied:
      return "permission_denied";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kFailedPrecondition:
      return "failed_precondition";
    case Code::kAborted:
      return "aborted";
    case Code::kOutOfRange:
      return "out_of_range";
    case Code::kUnimplemented:
      return "unimplemented";
    case Code::kInternal:
      return "internal";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kDataLoss:
      return "data_loss";
    case Code::kUnauthenticated:
      return "unauthenticated";
  }
  return "unknown";
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, fmt::format("{}: {}", context, message_), where_);
}

std::string Status::to_string() const {
  return ok() ? std::string("ok") : fmt::format("{}: {}", code_name(code_), message_);
}

void check_failed(const char* condition, std::string_view message, std::source_location where) {
  std::fprintf(stderr, "atlas: bug at %s:%u: %.*s (%s)\n", where.file_name(),
               static_cast<unsigned>(where.line()), static_cast<int>(message.size()),
               message.data(), condition);
  std::abort();
}

}  // namespace atlas

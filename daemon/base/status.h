// Status and Result<T>: how every room of Atlas reports that something did not work.
// A message says what was asked, what was found and what to change; the location is for the log.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

namespace atlas {

/// The usual sixteen codes (the numbers of gRPC and of the plugin ABI), and ok.
enum class Code : int32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

/// The code's name as logs and JSON spell it, for instance "invalid_argument".
std::string_view code_name(Code code);

/// Success, or a code with a message. Must be looked at: ignoring one is a compile error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message,
         std::source_location where = std::source_location::current())
      : code_(code), message_(std::move(message)), where_(where) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::source_location& where() const { return where_; }

  /// The same error with "`context`: " in front of its message. A success stays a success.
  Status with_context(std::string_view context) const;
  /// "invalid_argument: message" or "ok".
  std::string to_string() const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
  std::source_location where_;
};

/// A format string that remembers where it was written, so that helpers below can note the place.
template <typename... Args>
struct MessageFormat {
  fmt::format_string<Args...> text;
  std::source_location where;
  template <typename S>
  consteval MessageFormat(const S& s, std::source_location w = std::source_location::current())
      : text(s), where(w) {}
};

#define ATLAS_STATUS_HELPER(name, code)                                                       \
  template <typename... Args>                                                                 \
  Status name(MessageFormat<std::type_identity_t<Args>...> format, Args&&... args) {          \
    return Status(code, fmt::format(format.text, std::forward<Args>(args)...), format.where); \
  }
ATLAS_STATUS_HELPER(cancelled, Code::kCancelled)
ATLAS_STATUS_HELPER(invalid_argument, Code::kInvalidArgument)
ATLAS_STATUS_HELPER(deadline_exceeded, Code::kDeadlineExceeded)
ATLAS_STATUS_HELPER(not_found, Code::kNotFound)
ATLAS_STATUS_HELPER(already_exists, Code::kAlreadyExists)
ATLAS_STATUS_HELPER(permission_denied, Code::kPermissionDenied)
ATLAS_STATUS_HELPER(resource_exhausted, Code::kResourceExhausted)
ATLAS_STATUS_HELPER(failed_precondition, Code::kFailedPrecondition)
ATLAS_STATUS_HELPER(out_of_range, Code::kOutOfRange)
ATLAS_STATUS_HELPER(unimplemented, Code::kUnimplemented)
ATLAS_STATUS_HELPER(internal_error, Code::kInternal)
ATLAS_STATUS_HELPER(unavailable, Code::kUnavailable)
ATLAS_STATUS_HELPER(data_loss, Code::kDataLoss)
#undef ATLAS_STATUS_HELPER

/// A value or the Status that says why there is none. Member names follow std::expected.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by design

  bool has_value() const { return value_.has_value(); }
  explicit operator bool() const { return has_value(); }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const Status& error() const { return status_; }
  T value_or(T other) const& { return value_ ? *value_ : std::move(other); }

 private:
  std::optional<T> value_;
  Status status_;
};

/// Ends the process with file and line: for our own bugs only, never for input of any kind.
[[noreturn]] void check_failed(const char* condition, std::string_view message,
                               std::source_location where = std::source_location::current());

#define ATLAS_CHECK(condition, message)                           \
  do {                                                            \
    if (!(condition)) ::atlas::check_failed(#condition, message); \
  } while (false)

/// Returns the error of `expression` (a Status) from the enclosing function.
#define ATLAS_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                           \
    if (::atlas::Status atlas_status_ = (expression); !atlas_status_.ok()) return atlas_status_; \
  } while (false)

#define ATLAS_CONCAT_INNER(a, b) a##b
#define ATLAS_CONCAT(a, b) ATLAS_CONCAT_INNER(a, b)

/// `ATLAS_ASSIGN_OR_RETURN(auto x, expression)`: x is the value, or the error is returned.
#define ATLAS_ASSIGN_OR_RETURN(declaration, expression) \
  ATLAS_ASSIGN_OR_RETURN_IMPL(ATLAS_CONCAT(atlas_result_, __LINE__), declaration, expression)
#define ATLAS_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                        \
  if (!result) return result.error();                                \
  declaration = std::move(*result)

}  // namespace atlas

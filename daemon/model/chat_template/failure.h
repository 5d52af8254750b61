// How the interpreter stops: one exception type that never leaves the library.
// An expression may fail at any depth; parse() and render() turn what arrives there into a Status.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "daemon/base/status.h"

namespace atlas::model::jinja {

struct Failure {
  Code code = Code::kInvalidArgument;
  std::string message;
  /// 0: the line that the runtime is at.
  uint32_t line = 0;
  /// The message stands alone: no template name and line in front (raise_exception).
  bool verbatim = false;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{Code::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename... Args>
[[noreturn]] void fail_at(uint32_t line, fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{Code::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...), line};
}

/// A construct of Jinja or Python that exists but that this interpreter does not have.
template <typename... Args>
[[noreturn]] void fail_unsupported(uint32_t line, fmt::format_string<Args...> format,
                                   Args&&... args) {
  throw Failure{Code::kUnimplemented, fmt::format(format, std::forward<Args>(args)...), line};
}

template <typename... Args>
[[noreturn]] void fail_limit(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{Code::kResourceExhausted, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace atlas::model::jinja

// Logging: levels say what happened to the service, not how worried the author was.
//   critical: cannot serve; error: a request failed through us; warning: a request or peer failed
//   by itself; info: one line a phase or a request; debug: the rest.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "daemon/base/status.h"

namespace atlas {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kCritical };

/// Where log lines go. `kJournal` prefixes lines with the <N> priorities that systemd reads.
enum class LogStyle { kPlain, kJournal };

/// Sets level and style of the process's log on standard error. Thread safe.
void configure_log(LogLevel level, LogStyle style);
LogStyle log_style();
/// kJournal if standard error is the journal (systemd sets JOURNAL_STREAM), otherwise kPlain.
LogStyle detect_log_style();
/// Parses "debug", "info", "warning", "error" or "critical".
Result<LogLevel> parse_log_level(std::string_view text);
/// Writes one line; callers use the level functions below.
void log_line(LogLevel level, std::string_view text);
bool log_enabled(LogLevel level);

template <typename... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}
#define ATLAS_LOG_FUNCTION(name, level)                           \
  template <typename... Args>                                     \
  void name(fmt::format_string<Args...> format, Args&&... args) { \
    log_at(level, format, std::forward<Args>(args)...);           \
  }
ATLAS_LOG_FUNCTION(log_debug, LogLevel::kDebug)
ATLAS_LOG_FUNCTION(log_info, LogLevel::kInfo)
ATLAS_LOG_FUNCTION(log_warning, LogLevel::kWarning)
ATLAS_LOG_FUNCTION(log_error, LogLevel::kError)
ATLAS_LOG_FUNCTION(log_critical, LogLevel::kCritical)
#undef ATLAS_LOG_FUNCTION

}  // namespace atlas

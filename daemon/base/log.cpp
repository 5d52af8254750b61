// The one place that knows spdlog.
#include "daemon/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace atlas {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kCritical:
      return spdlog::level::critical;
  }
  return spdlog::level::info;
}

// sd-daemon(3): a line that starts with <N> carries that syslog priority into the journal.
const char* journal_prefix(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "<7>";
    case LogLevel::kInfo:
      return "<6>";
    case LogLevel::kWarning:
      return "<4>";
    case LogLevel::kError:
      return "<3>";
    case LogLevel::kCritical:
      return "<2>";
  }
  return "<6>";
}

struct Log {
  std::shared_ptr<spdlog::logger> logger;
  LogStyle style = LogStyle::kPlain;
  Log() : logger(spdlog::stderr_logger_mt("atlas")) { set_style(LogStyle::kPlain); }
  void set_style(LogStyle wanted) {
    style = wanted;
    logger->set_pattern(style == LogStyle::kJournal ? "%v" : "%Y-%m-%dT%H:%M:%S.%e %l %v");
  }
};

Log& log() {
  static Log* instance = new Log;  // never destroyed: threads may log while statics go away
  return *instance;
}

}  // namespace

void configure_log(LogLevel level, LogStyle style) {
  log().set_style(style);
  log().logger->set_level(to_spdlog(level));
}

LogStyle log_style() { return log().style; }

LogStyle detect_log_style() {
  // systemd.exec(5): the variable holds "device:inode" of the stream that leads to the journal. It
  // changes how a line is written, nothing else.
  const char* journal = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  if (journal == nullptr || ::fstat(STDERR_FILENO, &info) != 0) return LogStyle::kPlain;
  const std::string here = fmt::format("{}:{}", info.st_dev, info.st_ino);
  return here == journal ? LogStyle::kJournal : LogStyle::kPlain;
}

Result<LogLevel> parse_log_level(std::string_view text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  if (text == "critical") return LogLevel::kCritical;
  return invalid_argument("log level '{}' is unknown: use debug, info, warning, error or critical",
                          text);
}

bool log_enabled(LogLevel level) { return log().logger->should_log(to_spdlog(level)); }

void log_line(LogLevel level, std::string_view text) {
  if (log().style == LogStyle::kJournal) {
    log().logger->log(to_spdlog(level), "{}{}", journal_prefix(level), text);
  } else {
    log().logger->log(to_spdlog(level), "{}", text);
  }
}

}  // namespace atlas

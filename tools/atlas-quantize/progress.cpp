#include "tools/atlas-quantize/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace atlas::quantize {

Progress::Progress(bool quiet, uint64_t total_cost)
    : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1), total_(total_cost) {}

Progress::~Progress() {
  if (line_open_) std::fputs("\n", stderr);
}

void Progress::advance(uint64_t cost, const std::string& what) {
  done_ += cost;
  if (quiet_) return;
  const auto now = Clock::now();
  const bool last = skipped_ + done_ >= total_;
  const double interval = terminal_ ? 0.2 : 20.0;
  if (!last && std::chrono::duration<double>(now - shown_).count() < interval) return;
  shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const uint64_t left = total_ - std::min(total_, skipped_ + done_);
  std::string rest = "";
  if (done_ > 0 && left > 0) {
    rest =
        ", " + duration(elapsed / static_cast<double>(done_) * static_cast<double>(left)) + " left";
  }
  const double percent =
      total_ == 0 ? 100.0
                  : 100.0 * static_cast<double>(total_ - left) / static_cast<double>(total_);
  const std::string line = fmt::format("{:5.1f} %{}  {}", percent, rest, what);
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}", line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
  line_open_ = terminal_;
}

void Progress::say(const std::string& line) {
  if (quiet_) return;
  fmt::print(stderr, "{}{}\n", line_open_ ? "\n" : "", line);
  line_open_ = false;
}

std::string Progress::duration(double seconds) {
  const auto whole = static_cast<uint64_t>(std::max(0.0, seconds) + 0.5);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

}  // namespace atlas::quantize

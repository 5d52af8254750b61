#include "tools/atlasctl/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace atlas::ctl {

namespace {

/// Characters of UTF-8, which is what a column is made of here.
size_t width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string styled(Style style, std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  constexpr const char* kCodes[] = {"0", "1", "2", "32", "31"};
  if (!terminal || style == Style::kPlain) return std::string(text);
  return fmt::format("\033[{}m{}\033[0m", kCodes[static_cast<int>(style)], text);
}

std::string human_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  auto left = static_cast<uint64_t>(seconds);
  std::string result;
  for (const auto& [unit, size] :
       {std::pair<const char*, uint64_t>{"d", 86400}, {"h", 3600}, {"m", 60}}) {
    if (left >= size) result += fmt::format("{}{} ", left / size, unit);
    left %= size;
  }
  return result + fmt::format("{}s", left);
}

void print_table(const std::vector<std::string>& header,
                 const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::string& cell : header) widths.push_back(width(cell));
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  const auto print = [&](const std::vector<std::string>& row, Style style) {
    for (size_t i = 0; i < row.size(); ++i) {
      const size_t padding = i + 1 == row.size() ? 0 : widths[i] - width(row[i]) + 2;
      std::fputs((styled(style, row[i]) + std::string(padding, ' ')).c_str(), stdout);
    }
    std::fputc('\n', stdout);
  };
  print(header, Style::kBold);
  for (const auto& row : rows) print(row, Style::kPlain);
}

void draw_progress(std::string_view label, double fraction) {
  if (::isatty(STDERR_FILENO) != 1) return;
  if (label.empty()) {
    std::fputs("\r\033[K", stderr);
    return;
  }
  constexpr int kWidth = 30;
  const int filled = std::clamp(static_cast<int>(fraction * kWidth), 0, kWidth);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
  std::fputs(fmt::format("\r\033[K{} {} {:3.0f} %", bar, label, 100 * fraction).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace atlas::ctl

// Reads /proc and /sys. A file that is missing or odd only makes an answer less exact.
#include "plugins/platform_cpu/machine.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

namespace atlas::platform_cpu {
namespace {

std::optional<uint64_t> parse_number(std::string_view text) {
  const size_t first = text.find_first_of("0123456789");
  if (first == std::string_view::npos) return std::nullopt;
  uint64_t number = 0;
  const auto [stop, error] =
      std::from_chars(text.data() + first, text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> number_in(const std::string& path) {
  const std::optional<std::string> line = first_line(path);
  return line ? parse_number(*line) : std::nullopt;
}

// The value after the first line that begins with `key`, blanks and colon dropped.
std::string value_of(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

// This process's control group (version 2) and its parents, innermost first.
std::vector<std::string> control_groups() {
  std::vector<std::string> groups;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) continue;
    std::string path = line.substr(3);
    while (!path.empty()) {
      groups.push_back("/sys/fs/cgroup" + path);
      const size_t slash = path.find_last_of('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
    groups.emplace_back("/sys/fs/cgroup");
  }
  return groups;
}

// Bytes of the group's page cache, which the kernel gives back before it refuses memory.
uint64_t page_cache_bytes(const std::string& group) {
  std::ifstream file(group + "/memory.stat");
  uint64_t bytes = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("inactive_file ") || line.starts_with("active_file ")) {
      bytes += parse_number(line).value_or(0);
    }
  }
  return bytes;
}

std::optional<uint32_t> quota_threads() {
  std::optional<uint32_t> least;
  for (const std::string& group : control_groups()) {
    // "max 100000" or "150000 100000": microseconds of CPU in each period.
    const std::optional<std::string> line = first_line(group + "/cpu.max");
    if (!line || line->starts_with("max")) continue;
    const std::optional<uint64_t> quota = parse_number(*line);
    const size_t blank = line->find(' ');
    const std::optional<uint64_t> period =
        blank == std::string::npos ? std::nullopt : parse_number(line->substr(blank));
    if (!quota || !period || *period == 0) continue;
    const auto threads = static_cast<uint32_t>(std::max<uint64_t>(*quota / *period, 1));
    least = std::min(least.value_or(threads), threads);
  }
  return least;
}

}  // namespace

std::vector<int> usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int> cores;
  std::set<std::pair<uint64_t, uint64_t>> seen;  // package, core
  if (::sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &mask)) continue;
      const std::string topology =
          "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
      const std::optional<uint64_t> package = number_in(topology + "physical_package_id");
      const std::optional<uint64_t> core = number_in(topology + "core_id");
      // Without topology every logical CPU counts as a core of its own.
      const std::pair<uint64_t, uint64_t> key =
          package && core ? std::pair(*package, *core)
                          : std::pair(std::numeric_limits<uint64_t>::max(), uint64_t(cpu));
      if (seen.insert(key).second) cores.push_back(cpu);
    }
  }
  if (cores.empty()) {
    const unsigned count = std::max(std::thread::hardware_concurrency(), 1u);
    for (unsigned cpu = 0; cpu < count; ++cpu) cores.push_back(static_cast<int>(cpu));
  }
  return cores;
}

uint32_t default_threads() {
  const auto cores = static_cast<uint32_t>(usable_cores().size());
  return std::min(cores, quota_threads().value_or(cores));
}

std::string processor_name() {
  const std::string name = value_of("/proc/cpuinfo", "model name");
  return name.empty() ? "CPU" : name;
}

std::string instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx3 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512cd");
  if (avx3 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bitalg") &&
      __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("vpclmulqdq") &&
      __builtin_cpu_supports("gfni")) {
    return "avx3_dl";
  }
  if (avx3) return "avx3";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
  if (__builtin_cpu_supports("sse4.2")) return "sse4";
  return "portable";
#elif defined(__aarch64__)
  return "neon";
#else
  return "portable";
#endif
}

Memory memory() {
  Memory memory;
  // /proc/meminfo counts in KiB.
  memory.total_bytes = parse_number(value_of("/proc/meminfo", "MemTotal")).value_or(0) * 1024;
  memory.available_bytes =
      parse_number(value_of("/proc/meminfo", "MemAvailable")).value_or(0) * 1024;
  for (const std::string& group : control_groups()) {
    const std::optional<uint64_t> limit = number_in(group + "/memory.max");  // none for "max"
    if (!limit) continue;
    const uint64_t current = number_in(group + "/memory.current").value_or(0);
    const uint64_t used = std::min(current - std::min(current, page_cache_bytes(group)), *limit);
    memory.total_bytes = std::min(memory.total_bytes, *limit);
    memory.available_bytes = std::min(memory.available_bytes, *limit - used);
  }
  return memory;
}

}  // namespace atlas::platform_cpu

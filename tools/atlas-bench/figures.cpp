#include "tools/atlas-bench/figures.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fstream>

namespace atlas::bench {

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(std::floor(place));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
}

Percentiles percentiles(const std::vector<double>& values) {
  return {percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99)};
}

namespace {

/// The first line "KEY: VALUE" of a file below /proc; empty if there is none.
std::string proc_value(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

unsigned usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<unsigned>(CPU_COUNT(&set));
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu = proc_value("/proc/cpuinfo", "model name");
  if (machine.cpu.empty()) machine.cpu = "unknown";
  machine.cores = usable_cores();
  utsname names{};
  if (::uname(&names) == 0) {
    machine.kernel = fmt::format("{} {} {}", names.sysname, names.release, names.machine);
  }
  machine.date = utc_now();
  return machine;
}

Result<uint64_t> resident_bytes(int pid) {
  const std::string text = proc_value(fmt::format("/proc/{}/status", pid), "VmRSS");
  const uint64_t kibibytes = std::strtoull(text.c_str(), nullptr, 10);
  if (kibibytes == 0) return not_found("process {} shows no resident memory", pid);
  return kibibytes * 1024;
}

Result<int> listener_pid(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) {
    return invalid_argument("'{}' is too long for the path of a socket", socket_path);
  }
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  const int file = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0) return internal_error("no socket can be made: {}", std::strerror(errno));
  ucred peer{};
  socklen_t size = sizeof(peer);
  const bool known =
      ::connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  const int error = errno;
  ::close(file);
  if (!known) return unavailable("no daemon on '{}': {}", socket_path, std::strerror(error));
  return static_cast<int>(peer.pid);
}

}  // namespace atlas::bench

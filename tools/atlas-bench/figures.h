// Medians, percentiles and what a report says of the machine.
#pragma once

#include <string>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::bench {

/// The value below which `share` (0..1) of the values lie, between the two nearest by proportion.
/// 0 for no values.
double percentile(std::vector<double> values, double share);
inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

/// p50, p90 and p99.
struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};
Percentiles percentiles(const std::vector<double>& values);

struct Machine {
  std::string cpu;     // as /proc/cpuinfo names it; "unknown" if it does not
  unsigned cores = 0;  // that this process may use
  std::string kernel;  // of the operating system
  std::string date;    // UTC, "2026-01-31T12:00:00Z"
};
Machine this_machine();

/// Resident memory of a process in bytes. kNotFound if there is no such process.
Result<uint64_t> resident_bytes(int pid);
/// The process that listens on a Unix socket, by the socket's peer credentials.
Result<int> listener_pid(const std::string& socket_path);

}  // namespace atlas::bench

// Metrics: what the server counts, and the Prometheus text of it and of the engines.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/serve/control.h"

namespace atlas::serve {

/// Counts of values by upper bounds, in seconds.
class Histogram {
 public:
  static constexpr std::array<double, 18> kBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                                     0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                                     1,      2.5,     5,      10,    30,     120};
  void add(double seconds);
  void append(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::array<uint64_t, kBounds.size() + 1> counts_{};  // the last: beyond all bounds
  uint64_t count_ = 0;
  double sum_ = 0;
};

/// Loop thread only. Labels come from fixed sets, so that clients cannot make them grow.
struct Metrics {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  uint64_t connections_accepted = 0;
  uint64_t connections_open = 0;
  uint64_t accept_errors = 0;
  uint64_t streams_cancelled = 0;  // clients that went away during an answer
  uint64_t slow_readers = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  std::map<std::pair<std::string_view, int>, uint64_t> requests;  // by route label and status
  std::map<std::string_view, Histogram> seconds;                  // by route label
  std::map<std::string, uint64_t> refused;                        // by error code
  Histogram first_token, between_tokens;

  void count_request(std::string_view route, int status, double request_seconds);
  /// `code`: a word of ours, never of a client.
  void count_refused(std::string_view code) { ++refused[std::string(code)]; }
};

std::string prometheus_text(const Metrics& metrics, const Control& control);
/// The same for `atlasctl stats`, as JSON.
std::string stats_json(const Metrics& metrics, const Control& control);
/// "loading", "serving", ...: what every report calls an engine's state.
std::string_view state_word(engine::EngineState state);

}  // namespace atlas::serve

// What server, socket and SSE add to a token: the daemon's pace less the pace of the same engine in
// this process, one request at a time, in turns.
#pragma once

#include "tools/atlas-bench/engine_bench.h"
#include "tools/atlas-bench/socket_bench.h"

namespace atlas::bench {

struct OverheadOptions {
  std::string socket = "/run/atlas/atlasd.sock";
  uint32_t prompt_tokens = 16, generate = 256, repeat = 7;
};

/// Microseconds. One value a repeat: the mean time between tokens, and the time to the first.
struct Overhead {
  std::vector<double> socket_token, engine_token, socket_first, engine_first;

  /// Medians of the differences of neighbouring runs.
  double token() const;
  double first() const;
  /// Half the distance between quartiles of the differences: what the machine's noise leaves open.
  double token_spread() const;
  std::string text() const;
  std::string json(const tools::LocalModel& model, const Machine& machine) const;
};

/// The daemon must serve the same model with the same settings, and be idle.
/// Errors: kFailedPrecondition if it serves another model.
Result<Overhead> measure_overhead(const tools::LocalModel& model, const OverheadOptions& options);

}  // namespace atlas::bench

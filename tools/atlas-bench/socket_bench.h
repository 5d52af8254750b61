// Latency and throughput of a running daemon, as streaming clients on its Unix socket see them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/atlas-bench/figures.h"
#include "tools/common/client.h"
#include "tools/common/local_model.h"

namespace atlas::bench {

struct SocketBenchOptions {
  std::string socket = "/run/atlas/atlasd.sock";
  uint32_t clients = 1;
  uint32_t requests = 16;  // of all clients together
  uint32_t prompt_tokens = 128, max_tokens = 64;
  int pid = 0;  // the daemon's; 0: who listens on the socket
};

/// One streamed answer. Tokens that came in one event share its time.
struct Streamed {
  std::chrono::steady_clock::time_point sent;
  std::vector<std::chrono::steady_clock::time_point> tokens;
};

/// What the daemon serves.
struct ServedModel {
  std::string id, architecture, format;
  uint32_t vocab = 0, context_tokens = 0;
};
Result<ServedModel> served_model(const tools::Client& client);

/// Streams one completion of these ids, greedily and past ends of generation.
/// Errors: what the daemon refused, or an answer that broke off.
Result<Streamed> stream_completion(const tools::Client& client, const std::string& model,
                                   const std::vector<engine::TokenId>& prompt, uint32_t max_tokens);

struct SocketBench {
  ServedModel model;
  uint64_t requests = 0, failed = 0, tokens = 0;
  Status first_failure;
  double seconds = 0;
  Percentiles first_token_ms, inter_token_ms;
  // Resident memory of the daemon: before the first request, after a tenth of them, after the last.
  std::optional<uint64_t> resident_before, resident_warm, resident_after;

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
};

Result<SocketBench> bench_socket(const SocketBenchOptions& options);

std::string socket_text(const SocketBench& result);
std::string socket_json(const SocketBench& result, const SocketBenchOptions& options,
                        const Machine& machine);

}  // namespace atlas::bench

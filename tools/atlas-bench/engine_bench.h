// How fast the engine is in this process, without daemon and socket.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/atlas-bench/figures.h"
#include "tools/common/local_model.h"

namespace atlas::bench {

struct EngineBenchOptions {
  std::vector<uint32_t> prompt_tokens{128, 512};
  std::vector<uint32_t> batch{1, 2, 4, 8};
  uint32_t generate = 64;
  uint32_t repeat = 3;
};

/// One batch size and prompt length. Every repeat is kept; reports take medians.
struct EnginePoint {
  uint32_t batch = 0, prompt_tokens = 0, generate = 0;
  std::vector<double> prefill;  // prompt tokens a second, of the whole batch
  std::vector<double> decode;   // generated tokens a second, of the whole batch
};

/// When a request's tokens came out of the engine.
struct TokenTimes {
  std::vector<std::chrono::steady_clock::time_point> times;
};

/// Runs requests of these prompts at once to their end, greedily and past ends of generation.
/// `started` is when the first was submitted. Errors: what the engine refused, or what failed.
Result<std::vector<TokenTimes>> run_batch(engine::EngineCore& engine,
                                          const std::vector<std::vector<engine::TokenId>>& prompts,
                                          uint32_t max_tokens,
                                          std::chrono::steady_clock::time_point& started);

/// `tokens` ids below `vocab` that no other seed gives.
std::vector<engine::TokenId> random_prompt(uint32_t tokens, uint32_t vocab, uint64_t seed);

/// Prefill: from submission to the last request's first token. Decode: while all requests generate.
Result<std::vector<EnginePoint>> bench_engine(const tools::LocalModel& model,
                                              const EngineBenchOptions& options);

std::string engine_text(const std::vector<EnginePoint>& points);
std::string engine_json(const std::vector<EnginePoint>& points, const tools::LocalModel& model,
                        const Machine& machine);

}  // namespace atlas::bench

#include "tools/atlas-bench/engine_bench.h"

#include <algorithm>
#include <future>
#include <random>

#include "tools/atlas-bench/report.h"

namespace atlas::bench {

using engine::RequestSpec;
using engine::TokenId;
using tools::Json;
using Clock = std::chrono::steady_clock;

namespace {

/// What the engine's thread notes of one request.
struct Record {
  TokenTimes times;
  Status error;
  std::promise<void> ended;
};

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

RequestSpec request(const std::vector<TokenId>& prompt, uint32_t max_tokens) {
  RequestSpec spec;
  spec.prompt = prompt;
  spec.sampling.temperature = 0;
  spec.max_tokens = max_tokens;
  spec.ignore_end_of_generation = true;
  return spec;
}

}  // namespace

std::vector<TokenId> random_prompt(uint32_t tokens, uint32_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> prompt(tokens);
  for (TokenId& id : prompt) id = static_cast<TokenId>(random() % vocab);
  return prompt;
}

Result<std::vector<TokenTimes>> run_batch(engine::EngineCore& engine,
                                          const std::vector<std::vector<TokenId>>& prompts,
                                          uint32_t max_tokens, Clock::time_point& started) {
  // Shared with the engine's thread, which may outlive an early return here.
  auto records = std::make_shared<std::vector<Record>>(prompts.size());
  Status refused;
  started = Clock::now();
  size_t submitted = 0;
  for (; submitted < prompts.size() && refused.ok(); ++submitted) {
    const auto sink = [records, submitted](engine::RequestId, engine::Update update) {
      Record& record = (*records)[submitted];
      const auto now = Clock::now();
      record.times.times.insert(record.times.times.end(), update.tokens.size(), now);
      if (!update.finish) return;
      record.error = std::move(update.finish->error);
      record.ended.set_value();
    };
    const auto id = engine.submit(request(prompts[submitted], max_tokens), sink);
    if (!id) refused = id.error();
  }
  if (!refused.ok()) return refused;
  std::vector<TokenTimes> result;
  for (Record& record : *records) {
    record.ended.get_future().wait();
    ATLAS_RETURN_IF_ERROR(record.error);
    result.push_back(record.times);
  }
  return result;
}

namespace {

std::vector<std::vector<TokenId>> prompts(const EnginePoint& point, uint32_t vocab,
                                          uint64_t& seed) {
  std::vector<std::vector<TokenId>> result;
  for (uint32_t i = 0; i < point.batch; ++i) {
    result.push_back(random_prompt(point.prompt_tokens, vocab, ++seed));
  }
  return result;
}

/// Tokens a second while all requests of the batch generate.
Result<double> decode_rate(const std::vector<TokenTimes>& batch) {
  Clock::time_point from = Clock::time_point::min(), to = Clock::time_point::max();
  for (const TokenTimes& one : batch) {
    if (one.times.empty()) return internal_error("a request gave no tokens");
    from = std::max(from, one.times.front());
    to = std::min(to, one.times.back());
  }
  uint64_t tokens = 0;
  for (const TokenTimes& one : batch) {
    tokens += static_cast<uint64_t>(std::count_if(one.times.begin(), one.times.end(),
                                                  [&](auto t) { return t > from && t <= to; }));
  }
  if (tokens < 2 * batch.size()) {
    return invalid_argument(
        "the requests hardly generated at the same time: give more with --generate");
  }
  return static_cast<double>(tokens) / seconds_between(from, to);
}

Status measure(engine::EngineCore& engine, uint32_t vocab, uint32_t repeat, uint64_t& seed,
               EnginePoint& point) {
  Clock::time_point started;
  // Graphs are compared before their first use; that is not to be measured.
  constexpr uint32_t kWarmUpTokens = 3;
  ATLAS_ASSIGN_OR_RETURN(auto warm,
                         run_batch(engine, prompts(point, vocab, seed), kWarmUpTokens, started));
  for (uint32_t i = 0; i < repeat; ++i) {
    ATLAS_ASSIGN_OR_RETURN(const auto first,
                           run_batch(engine, prompts(point, vocab, seed), 1, started));
    Clock::time_point last = started;
    for (const TokenTimes& one : first) {
      if (!one.times.empty()) last = std::max(last, one.times.front());
    }
    point.prefill.push_back(double{1} * point.batch * point.prompt_tokens /
                            seconds_between(started, last));
    ATLAS_ASSIGN_OR_RETURN(const auto all,
                           run_batch(engine, prompts(point, vocab, seed), point.generate, started));
    ATLAS_ASSIGN_OR_RETURN(const double rate, decode_rate(all));
    point.decode.push_back(rate);
  }
  return {};
}

}  // namespace

Result<std::vector<EnginePoint>> bench_engine(const tools::LocalModel& model,
                                              const EngineBenchOptions& options) {
  ATLAS_ASSIGN_OR_RETURN(const auto engine, model.engine());
  std::vector<EnginePoint> points;
  uint64_t seed = 0;
  for (const uint32_t prompt_tokens : options.prompt_tokens) {
    ATLAS_RETURN_IF_ERROR(model.check_length("a request", prompt_tokens + options.generate));
    for (const uint32_t batch : options.batch) {
      EnginePoint point{batch, prompt_tokens, options.generate, {}, {}};
      const Status status = measure(*engine, model.info().vocab, options.repeat, seed, point);
      if (!status.ok()) {
        return status.with_context(fmt::format("batch {}, prompt of {}", batch, prompt_tokens));
      }
      points.push_back(std::move(point));
    }
  }
  return points;
}

std::string engine_text(const std::vector<EnginePoint>& points) {
  std::string text = fmt::format("{:>6} {:>8} {:>15} {:>14} {:>18}\n", "batch", "prompt",
                                 "prefill tok/s", "decode tok/s", "ms a decode step");
  for (const EnginePoint& point : points) {
    const double decode = median(point.decode);
    text +=
        fmt::format("{:>6} {:>8} {:>15.1f} {:>14.1f} {:>18.3f}\n", point.batch, point.prompt_tokens,
                    median(point.prefill), decode, 1000 * point.batch / decode);
  }
  return text;
}

std::string engine_json(const std::vector<EnginePoint>& points, const tools::LocalModel& model,
                        const Machine& machine) {
  Json json = {
      {"benchmark", "engine"}, {"machine", machine_json(machine)}, {"model", model_json(model)}};
  json["results"] = Json::array();
  for (const EnginePoint& point : points) {
    json["results"].push_back({{"batch", point.batch},
                               {"prompt_tokens", point.prompt_tokens},
                               {"generate", point.generate},
                               {"prefill_tokens_per_s", median(point.prefill)},
                               {"decode_tokens_per_s", median(point.decode)},
                               {"prefill_repeats", point.prefill},
                               {"decode_repeats", point.decode}});
  }
  return tools::json_text(json);
}

}  // namespace atlas::bench

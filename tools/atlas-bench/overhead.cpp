#include "tools/atlas-bench/overhead.h"

#include "tools/atlas-bench/report.h"

namespace atlas::bench {

using engine::TokenId;
using Clock = std::chrono::steady_clock;

namespace {

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

double mean_gap(const std::vector<Clock::time_point>& tokens) {
  return microseconds(tokens.front(), tokens.back()) / static_cast<double>(tokens.size() - 1);
}

std::vector<double> differences(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(a[i] - b[i]);
  return result;
}

/// The pair of runs that a repeat is.
Status measure_once(engine::EngineCore& engine, const tools::Client& client,
                    const ServedModel& served, const OverheadOptions& options,
                    const std::vector<TokenId>& prompt, Overhead& result) {
  ATLAS_ASSIGN_OR_RETURN(const Streamed streamed,
                         stream_completion(client, served.id, prompt, options.generate));
  Clock::time_point started;
  ATLAS_ASSIGN_OR_RETURN(const auto batch, run_batch(engine, {prompt}, options.generate, started));
  const auto& tokens = batch.front().times;
  if (tokens.size() != options.generate) return internal_error("the engine gave too few tokens");
  result.socket_token.push_back(mean_gap(streamed.tokens));
  result.socket_first.push_back(microseconds(streamed.sent, streamed.tokens.front()));
  result.engine_token.push_back(mean_gap(tokens));
  result.engine_first.push_back(microseconds(started, tokens.front()));
  return {};
}

}  // namespace

double Overhead::token() const { return median(differences(socket_token, engine_token)); }
double Overhead::first() const { return median(differences(socket_first, engine_first)); }
double Overhead::token_spread() const {
  const std::vector<double> added = differences(socket_token, engine_token);
  return (percentile(added, 0.75) - percentile(added, 0.25)) / 2;
}

std::string Overhead::text() const {
  return fmt::format(
      "a token       {:.1f} us over the socket, {:.1f} us in process: {:+.1f} us (spread {:.1f})\n"
      "first token   {:.1f} us over the socket, {:.1f} us in process: {:+.1f} us\n",
      median(socket_token), median(engine_token), token(), token_spread(), median(socket_first),
      median(engine_first), first());
}

std::string Overhead::json(const tools::LocalModel& model, const Machine& machine) const {
  return tools::json_text({{"benchmark", "overhead"},
                           {"machine", machine_json(machine)},
                           {"model", model_json(model)},
                           {"added_us_a_token", token()},
                           {"added_us_a_token_spread", token_spread()},
                           {"added_us_to_first_token", first()},
                           {"socket_us_a_token", socket_token},
                           {"engine_us_a_token", engine_token},
                           {"socket_us_to_first_token", socket_first},
                           {"engine_us_to_first_token", engine_first}});
}

Result<Overhead> measure_overhead(const tools::LocalModel& model, const OverheadOptions& options) {
  const tools::Client client(options.socket);
  ATLAS_ASSIGN_OR_RETURN(const ServedModel served, served_model(client));
  const engine::ModelInfo& info = model.info();
  if (served.format != info.format || served.architecture != info.architecture ||
      served.vocab != info.vocab) {
    return failed_precondition("the daemon serves '{}' ({}, {}), and --model is '{}' ({}, {})",
                               served.id, served.architecture, served.format, info.id,
                               info.architecture, info.format);
  }
  ATLAS_RETURN_IF_ERROR(model.check_length("a request", options.prompt_tokens + options.generate));
  ATLAS_ASSIGN_OR_RETURN(const auto engine, model.engine());
  Overhead result, warm_up;
  for (uint32_t i = 0; i <= options.repeat; ++i) {
    const auto prompt = random_prompt(options.prompt_tokens, info.vocab, i + 1);
    ATLAS_RETURN_IF_ERROR(
        measure_once(*engine, client, served, options, prompt, i == 0 ? warm_up : result));
  }
  return result;
}

}  // namespace atlas::bench

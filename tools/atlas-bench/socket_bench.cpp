#include "tools/atlas-bench/socket_bench.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "tools/atlas-bench/engine_bench.h"
#include "tools/atlas-bench/report.h"

namespace atlas::bench {

using engine::TokenId;
using tools::Client;
using tools::Json;
using tools::Response;
using Clock = std::chrono::steady_clock;

namespace {

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// The message of an error body, or the body.
Status refusal(const Response& response) {
  const Json json = Json::parse(response.body, nullptr, false);
  std::string message = response.body;
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    message = json["error"].value("message", message);
  }
  return unavailable("the daemon answered {}: {}", response.status, message);
}

/// Adds an event's tokens; errors are those that the daemon reports in mid-stream.
Status take_event(const std::string& data, Clock::time_point time, Streamed& streamed) {
  const Json json = Json::parse(data, nullptr, false);
  if (!json.is_object()) return data_loss("an event is no JSON: {}", data);
  if (json.contains("error")) {
    return unavailable("the answer broke off: {}", json["error"].value("message", data));
  }
  if (!json.contains("choices") || json["choices"].empty()) return {};
  const Json& choice = json["choices"][0];
  if (!choice.contains("token_ids") || !choice["token_ids"].is_array()) return {};
  streamed.tokens.insert(streamed.tokens.end(), choice["token_ids"].size(), time);
  return {};
}

}  // namespace

Result<ServedModel> served_model(const Client& client) {
  ATLAS_ASSIGN_OR_RETURN(const Response response, client.get("/atlas/v1/models"));
  if (response.status != 200) return refusal(response);
  const Json json = Json::parse(response.body, nullptr, false);
  if (!json.is_object() || !json.contains("models") || !json["models"].is_array()) {
    return data_loss("the daemon's list of models is no such list: {}", response.body);
  }
  if (json["models"].empty()) return unavailable("the daemon serves no model yet");
  const Json& first = json["models"][0];
  ServedModel model;
  model.id = first.value("id", "");
  model.architecture = first.value("architecture", "");
  model.format = first.value("format", "");
  model.vocab = first.value("vocab", 0u);
  model.context_tokens = first.value("context_tokens", 0u);
  if (model.vocab == 0) return data_loss("the daemon does not say how large its vocabulary is");
  return model;
}

Result<Streamed> stream_completion(const Client& client, const std::string& model,
                                   const std::vector<TokenId>& prompt, uint32_t max_tokens) {
  const Json request = {{"model", model},          {"prompt", prompt}, {"max_tokens", max_tokens},
                        {"temperature", 0},        {"stream", true},   {"ignore_eos", true},
                        {"return_token_ids", true}};
  const std::string body = request.dump();
  // Events are only kept while the stream runs: reading them would slow down what is measured.
  std::vector<std::pair<Clock::time_point, std::string>> events;
  events.reserve(max_tokens + 4);
  Streamed streamed;
  streamed.sent = Clock::now();
  const auto response = client.stream("/v1/completions", body, [&](std::string_view data) {
    events.emplace_back(Clock::now(), data);
    return true;
  });
  if (!response) return response.error();
  if (response->status != 200) return refusal(*response);
  bool done = false;
  for (const auto& [time, data] : events) {
    done = data == "[DONE]";
    if (!done) ATLAS_RETURN_IF_ERROR(take_event(data, time, streamed));
  }
  if (!done) return unavailable("the answer broke off");
  if (streamed.tokens.size() != max_tokens) {
    return data_loss("the answer has {} tokens and not {}", streamed.tokens.size(), max_tokens);
  }
  return streamed;
}

namespace {

/// All clients together.
class Load {
 public:
  Load(const SocketBenchOptions& options, SocketBench& result, int pid)
      : options_(options), result_(result), pid_(pid) {}

  void run() {
    if (pid_ != 0) result_.resident_before = resident(pid_);
    const auto start = Clock::now();
    {
      std::vector<std::jthread> clients;
      for (uint32_t i = 0; i < options_.clients; ++i) clients.emplace_back([this] { serve(); });
    }
    result_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (pid_ != 0) result_.resident_after = resident(pid_);
    result_.first_token_ms = percentiles(first_token_ms_);
    result_.inter_token_ms = percentiles(inter_token_ms_);
  }

 private:
  static std::optional<uint64_t> resident(int pid) {
    const auto bytes = resident_bytes(pid);
    return bytes ? std::optional(*bytes) : std::nullopt;
  }

  /// One client: a request after the other, until all have been sent.
  void serve() {
    const Client client(options_.socket);
    for (uint32_t number = next_++; number < options_.requests; number = next_++) {
      const auto prompt = random_prompt(options_.prompt_tokens, result_.model.vocab, number + 1);
      note(stream_completion(client, result_.model.id, prompt, options_.max_tokens));
    }
  }

  void note(const Result<Streamed>& streamed) {
    const std::scoped_lock lock(mutex_);
    if (++result_.requests == std::max(1u, options_.requests / 10) && pid_ != 0) {
      result_.resident_warm = resident(pid_);
    }
    if (!streamed) {
      if (result_.failed++ == 0) result_.first_failure = streamed.error();
      return;
    }
    const auto& tokens = streamed->tokens;
    result_.tokens += tokens.size();
    first_token_ms_.push_back(milliseconds(streamed->sent, tokens.front()));
    for (size_t i = 1; i < tokens.size(); ++i) {
      inter_token_ms_.push_back(milliseconds(tokens[i - 1], tokens[i]));
    }
  }

  const SocketBenchOptions& options_;
  SocketBench& result_;
  const int pid_;
  std::atomic<uint32_t> next_{0};
  std::mutex mutex_;  // guards the result and the two lists
  std::vector<double> first_token_ms_, inter_token_ms_;
};

}  // namespace

Result<SocketBench> bench_socket(const SocketBenchOptions& options) {
  SocketBench result;
  ATLAS_ASSIGN_OR_RETURN(result.model, served_model(Client(options.socket)));
  if (options.prompt_tokens + options.max_tokens > result.model.context_tokens) {
    return invalid_argument("{} + {} tokens, and the context of '{}' ends at {}",
                            options.prompt_tokens, options.max_tokens, result.model.id,
                            result.model.context_tokens);
  }
  int pid = options.pid;
  if (pid == 0) {
    ATLAS_ASSIGN_OR_RETURN(pid, listener_pid(options.socket));
  }
  Load(options, result, pid).run();
  if (result.failed == result.requests) {
    return result.first_failure.with_context(fmt::format("all {} requests failed", result.failed));
  }
  return result;
}

namespace {

std::string mib(const std::optional<uint64_t>& bytes) {
  return bytes ? fmt::format("{:.1f} MiB", static_cast<double>(*bytes) / (1u << 20)) : "unknown";
}

std::string percentiles_text(const Percentiles& p) {
  return fmt::format("p50 {:.2f}, p90 {:.2f}, p99 {:.2f} ms", p.p50, p.p90, p.p99);
}

Json bytes_json(const std::optional<uint64_t>& bytes) { return bytes ? Json(*bytes) : Json(); }

}  // namespace

std::string socket_text(const SocketBench& result) {
  std::string text = fmt::format(
      "requests      {} in {:.2f} s, {} failed\n"
      "tokens        {}, {:.1f} a second\n"
      "first token   {}\n"
      "inter-token   {}\n"
      "daemon's RSS  {} before, {} after a tenth, {} after all\n",
      result.requests, result.seconds, result.failed, result.tokens, result.tokens_per_second(),
      percentiles_text(result.first_token_ms), percentiles_text(result.inter_token_ms),
      mib(result.resident_before), mib(result.resident_warm), mib(result.resident_after));
  return text;
}

std::string socket_json(const SocketBench& result, const SocketBenchOptions& options,
                        const Machine& machine) {
  return tools::json_text({{"benchmark", "socket"},
                           {"machine", machine_json(machine)},
                           {"model",
                            {{"id", result.model.id},
                             {"architecture", result.model.architecture},
                             {"format", result.model.format}}},
                           {"clients", options.clients},
                           {"requests", result.requests},
                           {"failed", result.failed},
                           {"prompt_tokens", options.prompt_tokens},
                           {"max_tokens", options.max_tokens},
                           {"seconds", result.seconds},
                           {"tokens", result.tokens},
                           {"tokens_per_s", result.tokens_per_second()},
                           {"first_token_ms", percentiles_json(result.first_token_ms)},
                           {"inter_token_ms", percentiles_json(result.inter_token_ms)},
                           {"daemon_resident_bytes",
                            {{"before", bytes_json(result.resident_before)},
                             {"after_a_tenth", bytes_json(result.resident_warm)},
                             {"after", bytes_json(result.resident_after)}}}});
}

}  // namespace atlas::bench

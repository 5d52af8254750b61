// Models, health, readiness and metrics: what the daemon is and how it does.
#include <fmt/format.h>

#include <iterator>

#include "daemon/serve/http_text.h"
#include "daemon/serve/json_text.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/routes.h"

namespace atlas::serve {
namespace {

void append_model(std::string& out, const engine::ModelInfo& model) {
  out += R"({"id":)";
  append_json_string(out, model.id);
  fmt::format_to(std::back_inserter(out),
                 R"(,"object":"model","created":{},"owned_by":"atlas","max_model_len":{}}})",
                 model.created_unix_s, model.context_tokens);
}

// The worst state that some engine is in; they are ordered by how much they hinder.
std::string_view overall_state(const Control& control, bool& failed, bool& ready) {
  failed = false;
  ready = control.accepting();
  bool loading = false;
  for (const auto& engine : control.engines()) {
    const engine::EngineState state = engine->stats().state;
    failed |= state == engine::EngineState::kFailed || state == engine::EngineState::kStopped;
    loading |= state == engine::EngineState::kLoading;
    ready &= state == engine::EngineState::kServing;
  }
  if (failed) return "failed";
  if (!control.accepting()) return "draining";
  if (loading) return "loading";
  return ready ? "serving" : "draining";
}

std::string health_json(const Control& control, std::string_view state) {
  std::string out = fmt::format(R"({{"status":"{}","engines":[)", state);
  bool first = true;
  for (const auto& engine : control.engines()) {
    const auto model = engine->model();
    const engine::EngineStats stats = engine->stats();
    if (!first) out += ',';
    first = false;
    out += R"({"model":)";
    if (model != nullptr) {
      append_json_string(out, model->id);
    } else {
      out += "null";
    }
    fmt::format_to(std::back_inserter(out), R"(,"state":"{}","phase":)", state_word(stats.state));
    append_json_string(out, stats.phase);
    out += R"(,"progress":)";
    append_json_number(out, stats.progress);
    out += R"(,"failure":)";
    if (stats.failure.empty()) {
      out += "null";
    } else {
      append_json_string(out, stats.failure);
    }
    fmt::format_to(std::back_inserter(out),
                   R"(,"generation":{},"running":{},"queued":{},"progress_ticks":{}}})",
                   stats.generation, stats.running, stats.queued, stats.progress_ticks);
  }
  out += "]}";
  return out;
}

}  // namespace

void handle_models(Services& services, const std::shared_ptr<Exchange>& exchange) {
  std::string out = R"({"object":"list","data":[)";
  bool first = true;
  for (const auto& engine : services.control.engines()) {
    const auto model = engine->model();
    if (model == nullptr) continue;
    if (!first) out += ',';
    first = false;
    append_model(out, *model);
  }
  out += "]}";
  exchange->reply_json(std::move(out));
}

void handle_model(Services& services, const std::shared_ptr<Exchange>& exchange) {
  constexpr std::string_view kPrefix = "/v1/models/";
  std::string name;
  if (!percent_decode(std::string_view(exchange->head.path).substr(kPrefix.size()), name)) {
    return refuse(services, exchange, bad_field("model", "the path has a '%' without two digits"));
  }
  for (const auto& engine : services.control.engines()) {
    const auto model = engine->model();
    if (model == nullptr || model->id != name) continue;
    std::string out;
    append_model(out, *model);
    return exchange->reply_json(std::move(out));
  }
  refuse(services, exchange,
         {.status = 404,
          .message = fmt::format("no model is called \"{}\"", to_utf8(name.substr(0, 128))),
          .param = "model",
          .code = "model_not_found"});
}

void handle_health(Services& services, const std::shared_ptr<Exchange>& exchange) {
  bool failed = false;
  bool ready = false;
  const std::string_view state = overall_state(services.control, failed, ready);
  exchange->reply({.status = failed ? 503 : 200, .body = health_json(services.control, state)});
}

void handle_ready(Services& services, const std::shared_ptr<Exchange>& exchange) {
  bool failed = false;
  bool ready = false;
  const std::string_view state = overall_state(services.control, failed, ready);
  HttpResponse response{.status = ready ? 200 : 503,
                        .body = fmt::format(R"({{"ready":{},"status":"{}"}})", ready, state)};
  if (!ready) response.headers.emplace_back("Retry-After", "5");
  exchange->reply(std::move(response));
}

void handle_metrics(Services& services, const std::shared_ptr<Exchange>& exchange) {
  exchange->reply({.body = prometheus_text(services.metrics, services.control),
                   .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

}  // namespace atlas::serve

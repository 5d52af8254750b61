// /atlas/v1/: the control API. The app does the work; here are its bodies checked and passed on.
#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/serve/json.h"
#include "daemon/serve/json_text.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/routes.h"

namespace atlas::serve {
namespace {

// Answers may come from any thread and much later; the loop drops them once the server is gone.
ControlReply reply_to(Services& services, const std::shared_ptr<Exchange>& exchange) {
  return [&services, loop = services.loop, exchange](Result<std::string> json) {
    loop->post([&services, exchange, json = std::move(json)] {
      if (!exchange->open()) return;
      if (json) return exchange->reply_json(*json);
      ApiError error = to_api_error(json.error());
      if (json.error().code() == Code::kResourceExhausted) {
        error.status = 507;  // memory, not a queue: asking again later does not help
        error.retry_after_s = 0;
      }
      refuse(services, exchange, error);
    });
  };
}

// No body means no wishes.
Refusal check_object(std::string& body) {
  if (body.empty()) body = "{}";
  Json json;
  if (Refusal refusal = parse_json(body, json)) return refusal;
  if (json.is_object()) return std::nullopt;
  return bad_field("", fmt::format("the body must be an object, not {}", type_word(json)));
}

template <typename Call>
void with_body(Services& services, const std::shared_ptr<Exchange>& exchange, Call call) {
  on_worker<std::string>(
      services, exchange,
      [exchange](std::string& body) {
        body = std::move(exchange->body);
        return check_object(body);
      },
      [&services, exchange, call](std::string body) {
        call(std::move(body), reply_to(services, exchange));
      });
}

}  // namespace

void handle_status(Services& services, const std::shared_ptr<Exchange>& exchange) {
  exchange->reply_json(services.control.status_json());
}

void handle_plugins(Services& services, const std::shared_ptr<Exchange>& exchange) {
  exchange->reply_json(services.control.plugins_json());
}

void handle_stats(Services& services, const std::shared_ptr<Exchange>& exchange) {
  exchange->reply_json(stats_json(services.metrics, services.control));
}

void handle_control_models(Services& services, const std::shared_ptr<Exchange>& exchange) {
  std::string out = R"({"models":[)";
  bool first = true;
  for (const auto& engine : services.control.engines()) {
    const auto model = engine->model();
    if (model == nullptr) continue;
    if (!first) out += ',';
    first = false;
    out += R"({"id":)";
    append_json_string(out, model->id);
    out += R"(,"architecture":)";
    append_json_string(out, model->architecture);
    out += R"(,"format":)";
    append_json_string(out, model->format);
    out += R"(,"fingerprint":)";
    append_json_string(out, model->fingerprint);
    fmt::format_to(std::back_inserter(out),
                   R"(,"context_tokens":{},"vocab":{},"generation":{},"created":{},)"
                   R"("tokenizer":{},"chat_template":{}}})",
                   model->context_tokens, model->vocab, model->generation, model->created_unix_s,
                   model->tokenizer != nullptr, model->chat_template != nullptr);
  }
  out += "]}";
  exchange->reply_json(std::move(out));
}

void handle_plan(Services& services, const std::shared_ptr<Exchange>& exchange) {
  with_body(services, exchange, [&services](std::string body, ControlReply reply) {
    services.control.plan(std::move(body), std::move(reply));
  });
}

void handle_swap(Services& services, const std::shared_ptr<Exchange>& exchange) {
  with_body(services, exchange, [&services](std::string body, ControlReply reply) {
    services.control.swap(std::move(body), std::move(reply));
  });
}

void handle_reload(Services& services, const std::shared_ptr<Exchange>& exchange) {
  if (!exchange->body.empty() && exchange->body != "{}") {
    return refuse(services, exchange, bad_field("", "a reload takes no fields: send no body"));
  }
  services.control.reload(reply_to(services, exchange));
}

void handle_drain(Services& services, const std::shared_ptr<Exchange>& exchange) {
  with_body(services, exchange, [&services](std::string body, ControlReply reply) {
    services.control.drain(std::move(body), std::move(reply));
  });
}

}  // namespace atlas::serve

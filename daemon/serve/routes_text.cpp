// /tokenize and /detokenize.
#include <fmt/format.h>

#include <iterator>

#include "daemon/serve/generate_request.h"
#include "daemon/serve/json_text.h"
#include "daemon/serve/routes.h"

namespace atlas::serve {
namespace {

std::string tokenize_json(const TokenizeAnswer& answer) {
  std::string out = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[)", answer.ids.size(),
                                answer.max_model_len);
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? "," : "", answer.ids[i]);
  }
  out += ']';
  if (answer.with_texts) {
    out += R"(,"token_strs":[)";
    for (size_t i = 0; i < answer.texts.size(); ++i) {
      if (i > 0) out += ',';
      append_json_string(out, answer.texts[i]);
    }
    out += ']';
  }
  out += '}';
  return out;
}

}  // namespace

void handle_tokenize(Services& services, const std::shared_ptr<Exchange>& exchange) {
  on_worker<std::string>(
      services, exchange,
      [&services, exchange](std::string& json) -> Refusal {
        TokenizeAnswer answer;
        if (Refusal refusal = read_tokenize_request(exchange->body, services.control, answer)) {
          return refusal;
        }
        json = tokenize_json(answer);
        return std::nullopt;
      },
      [exchange](std::string json) { exchange->reply_json(std::move(json)); });
}

void handle_detokenize(Services& services, const std::shared_ptr<Exchange>& exchange) {
  on_worker<std::string>(
      services, exchange,
      [&services, exchange](std::string& json) -> Refusal {
        std::string text;
        if (Refusal refusal = read_detokenize_request(exchange->body, services.control, text)) {
          return refusal;
        }
        json = R"({"prompt":)";
        append_json_string(json, text);
        json += '}';
        return std::nullopt;
      },
      [exchange](std::string json) { exchange->reply_json(std::move(json)); });
}

}  // namespace atlas::serve

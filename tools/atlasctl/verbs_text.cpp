// Verbs that make text: chat and complete.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "tools/atlasctl/json_answer.h"
#include "tools/atlasctl/terminal.h"
#include "tools/atlasctl/verbs.h"

namespace atlas::ctl {

namespace {

void set_options(Json& request, const GenerateOptions& options) {
  if (options.max_tokens) request["max_tokens"] = *options.max_tokens;
  if (options.temperature) request["temperature"] = *options.temperature;
  if (options.top_p) request["top_p"] = *options.top_p;
  if (options.seed) request["seed"] = *options.seed;
}

/// The served model's name, for requests that name none.
Result<std::string> served_model(const Client& client) {
  ATLAS_ASSIGN_OR_RETURN(const Response response, client.get("/v1/models"));
  const Json json = Json::parse(response.body, nullptr, false);
  if (response.status != 200 || !json.is_object() || json["data"].empty()) {
    return unavailable("the daemon serves no model yet: see `atlasctl status`");
  }
  return json["data"][0]["id"].get<std::string>();
}

void print_part(const std::string& text, Style style) {
  std::fputs(styled(style, text).c_str(), stdout);
  std::fflush(stdout);
}

/// Streams one answer to standard output. `answer` gets the text; the result is the exit code.
int stream_answer(const Context& context, const std::string& path, const Json& request,
                  std::string& answer) {
  std::string failure;
  const auto handler = [&](std::string_view data) {
    if (data == "[DONE]") return true;
    if (context.json) {
      fmt::print("{}\n", data);
      std::fflush(stdout);
    }
    const Json event = Json::parse(data, nullptr, false);
    if (!event.is_object()) return true;
    if (event.contains("error")) {
      failure = event["error"].value("message", event["error"].dump());
      return false;
    }
    if (!event.contains("choices") || event["choices"].empty()) return true;
    const Json& choice = event["choices"][0];
    const Json& delta = choice.contains("delta") ? choice["delta"] : choice;
    const auto take = [&](const char* key, Style style) {
      if (!delta.contains(key) || !delta[key].is_string()) return;
      const auto part = delta[key].get<std::string>();
      if (!context.json) print_part(part, style);
      if (style == Style::kPlain) answer += part;
    };
    take("reasoning_content", Style::kDim);
    take("content", Style::kPlain);
    take("text", Style::kPlain);
    return true;
  };
  const auto response = context.client.stream(path, request.dump(), handler);
  if (!context.json) fmt::print("\n");
  if (!response) return report(context, response.error());
  if (!failure.empty()) {  // with --json its event has been printed
    return context.json ? 1 : report(context, Status(Code::kUnknown, failure));
  }
  return response->status == 200 ? 0 : report(context, *response);
}

}  // namespace

int complete(const Context& context, const std::string& prompt, const GenerateOptions& options) {
  Json request = {{"prompt", prompt}, {"stream", true}, {"max_tokens", 256}};
  if (options.model.empty()) {
    auto model = served_model(context.client);
    if (!model) return report(context, model.error());
    request["model"] = *model;
  } else {
    request["model"] = options.model;
  }
  set_options(request, options);
  std::string answer;
  return stream_answer(context, "/v1/completions", request, answer);
}

int chat(const Context& context, const std::optional<std::string>& prompt,
         const GenerateOptions& options) {
  Json request = {{"messages", Json::array()}, {"stream", true}};
  if (options.model.empty()) {
    auto model = served_model(context.client);
    if (!model) return report(context, model.error());
    request["model"] = *model;
  } else {
    request["model"] = options.model;
  }
  set_options(request, options);
  if (!options.system.empty()) {
    request["messages"].push_back({{"role", "system"}, {"content", options.system}});
  }
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  std::string line = prompt.value_or("");
  while (true) {
    if (!prompt) {
      if (terminal) print_part("> ", Style::kBold);
      if (!std::getline(std::cin, line)) return 0;
      if (line.empty()) continue;
    }
    request["messages"].push_back({{"role", "user"}, {"content", line}});
    std::string answer;
    if (int code = stream_answer(context, "/v1/chat/completions", request, answer); code != 0)
      return code;
    if (prompt) return 0;
    request["messages"].push_back({{"role", "assistant"}, {"content", answer}});
  }
}

}  // namespace atlas::ctl

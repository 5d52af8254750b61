// A real atlasd on the trained qwen4_exp test model: chats, tool calls, drafts and the prefix
// cache, as a client sees them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/live_daemon.h"

using namespace atlas;
using namespace atlas::testing;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("daemon");

namespace {

LiveDaemon::Options flash_mini(const std::string& engine = "drafts: 2") {
  LiveDaemon::Options options;
  options.own_model = false;
  options.yaml = "model: {path: " ATLAS_SOURCE_DIR "/tests/data/flash-mini}\nengine: {" + engine +
                 ", max_sequences: 4, cache_tokens: 16384, reserve_bytes: 0}\n";
  return options;
}

Json two_tools() {
  return Json::parse(R"([
    {"type": "function", "function": {"name": "get_weather", "description": "Weather in a city",
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                    "required": ["city"]}}},
    {"type": "function", "function": {"name": "calculator", "description": "Evaluate an expression",
     "parameters": {"type": "object", "properties": {"expression": {"type": "string"}},
                    "required": ["expression"]}}}])");
}

Json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

/// One chat answer at temperature 0.
Json chat(const LiveDaemon& daemon, const Json& messages, Json more = Json::object()) {
  more["model"] = "flash-mini";
  more["messages"] = messages;
  more["temperature"] = 0;
  const auto response = daemon.client().post("/v1/chat/completions", more.dump());
  REQUIRE_MESSAGE(response, response.error().message());
  REQUIRE_MESSAGE(response->status == 200, response->body);
  return Json::parse(response->body);
}

std::string content(const Json& answer) { return answer["choices"][0]["message"]["content"]; }

}  // namespace

TEST_CASE("flash-mini: facts and sums are answered, with any number of drafts the same") {
  std::vector<std::string> answers;
  for (const char* engine : {"drafts: 0", "drafts: 3"}) {
    LiveDaemon daemon(flash_mini(engine));
    daemon.start();
    daemon.wait_ready();
    std::string all;
    for (const char* question :
         {"What is the capital of Japan?", "What is 7 + 5?", "What is the capital of France?"}) {
      all += content(chat(daemon, Json::array({user(question)}))) + "\n";
    }
    answers.push_back(all);
  }
  CHECK(answers[0].find("Tokyo") != std::string::npos);
  CHECK(answers[0].find("12") != std::string::npos);
  CHECK(answers[0].find("Paris") != std::string::npos);
  CHECK(answers[0] == answers[1]);
}

TEST_CASE(
    "flash-mini: a tool is called, whole and streamed, and its result used in the next turn") {
  LiveDaemon daemon(flash_mini());
  daemon.start();
  daemon.wait_ready();
  Json messages = Json::array({user("What is the weather in Osaka?")});
  const Json first = chat(daemon, messages, {{"tools", two_tools()}});
  CHECK(first["choices"][0]["finish_reason"] == "tool_calls");
  const Json call = first["choices"][0]["message"]["tool_calls"][0];
  CHECK(call["function"]["name"] == "get_weather");
  CHECK(Json::parse(call["function"]["arguments"].get<std::string>()) == Json{{"city", "Osaka"}});

  std::string name, arguments, finish;
  Json request = {{"model", "flash-mini"},
                  {"messages", messages},
                  {"tools", two_tools()},
                  {"temperature", 0},
                  {"stream", true}};
  const auto streamed =
      daemon.client().stream("/v1/chat/completions", request.dump(), [&](std::string_view data) {
        if (data == "[DONE]") return true;
        const Json choice = Json::parse(data)["choices"][0];
        for (const Json& delta : choice["delta"].value("tool_calls", Json::array())) {
          name += delta["function"].value("name", "");
          arguments += delta["function"].value("arguments", "");
        }
        CHECK(choice["delta"].value("content", Json()).dump().find("tool_call") ==
              std::string::npos);
        if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
        return true;
      });
  REQUIRE(streamed);
  CHECK(name == "get_weather");
  CHECK(Json::parse(arguments) == Json{{"city", "Osaka"}});
  CHECK(finish == "tool_calls");

  messages.push_back(first["choices"][0]["message"]);
  messages.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "sunny, 31 C"}});
  const Json second = chat(daemon, messages, {{"tools", two_tools()}});
  CHECK(second["choices"][0]["finish_reason"] == "stop");
  CHECK(content(second) == "It is sunny in Osaka, 31 degrees.");
  // The conversation so far came from the cache.
  CHECK(second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128);
}

TEST_CASE(
    "flash-mini: a warm answer has the cold one's bytes, and the counters say what happened") {
  LiveDaemon daemon(flash_mini());
  daemon.start();
  daemon.wait_ready();
  Json messages =
      Json::array({{{"role", "system"}, {"content", std::string(600, 'a') + " Answer briefly."}},
                   user("What is 12 + 30?")});
  const Json more = {{"logprobs", true}, {"max_tokens", 30}};
  const Json cold = chat(daemon, messages, more), warm = chat(daemon, messages, more);
  CHECK(cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0);
  CHECK(warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64);
  CHECK(cold["choices"] == warm["choices"]);
  const auto stats = daemon.client().get("/atlas/v1/stats");
  REQUIRE(stats);
  const Json engine = Json::parse(stats->body)["engines"][0];
  CHECK(engine["prefix"]["exact"] == 1);
  CHECK(engine["prefix"]["miss"] == 1);
  CHECK(engine["tokens"]["drafted"] > 0);
  CHECK(engine["tokens"]["accepted"] > 0);
  const auto metrics = daemon.client().get("/metrics");
  REQUIRE(metrics);
  CHECK(
      metrics->body.find("atlas_prefix_lookups_total{model=\"flash-mini\",outcome=\"exact\"} 1") !=
      std::string::npos);
}

TEST_SUITE_END();

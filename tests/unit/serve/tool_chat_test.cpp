// Tool calls over /v1/chat/completions: answers, streams, choices of the client, and the next turn.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/serve/fixture.h"

using namespace atlas;
using namespace atlas::serve::testing;
using Json = nlohmann::ordered_json;

TEST_SUITE_BEGIN("serve");

namespace {

// Both forms print calls as their families' templates do: arguments are a mapping.
const char* const kJsonTemplate =
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% "
    "endif %}"
    "{% endif %}";
const char* const kXmlTemplate =
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}";

const Json kTools = Json::parse(R"([{"type": "function", "function": {"name": "look",
  "parameters": {"type": "object", "properties": {
    "place": {"type": "string"}, "days": {"type": "integer"}}}}}])");

// The answer in pieces of a few bytes, each whole characters, as the engine gives them.
std::vector<std::string> cut(const std::string& text, size_t bytes) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.size(), at + bytes);
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

void say(Fixture& fixture, const std::vector<std::string>& pieces) {
  fixture.engine->set_script(
      [pieces](const engine::RequestSpec& spec) { return speak(pieces, spec); });
}

Json ask(Fixture& fixture, Json body, int status = 200) {
  if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "Hi"}}};
  if (!body.contains("tools")) body["tools"] = kTools;
  const HttpAnswer answer = fixture.client().post("/v1/chat/completions", body.dump());
  CHECK_MESSAGE(answer.status == status, answer.body);
  return Json::parse(answer.body);
}

struct Streamed {
  std::string content, reasoning, finish;
  Json calls = Json::array();  // put together as OpenAI's clients do
};

Streamed ask_streaming(Fixture& fixture, Json body) {
  if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "Hi"}}};
  if (!body.contains("tools")) body["tools"] = kTools;
  body["stream"] = true;
  const HttpAnswer answer = fixture.client().post("/v1/chat/completions", body.dump());
  Streamed out;
  for (const std::string& event : events_of(answer.body)) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    const Json& delta = choice["delta"];
    if (delta.contains("content")) out.content += delta["content"].get<std::string>();
    if (delta.contains("reasoning_content"))
      out.reasoning += delta["reasoning_content"].get<std::string>();
    if (!choice["finish_reason"].is_null()) out.finish = choice["finish_reason"];
    if (!delta.contains("tool_calls")) continue;
    REQUIRE(delta["tool_calls"].size() == 1);
    const Json& call = delta["tool_calls"][0];
    const size_t index = call["index"];
    if (call.contains("id")) {
      REQUIRE(index == out.calls.size());
      CHECK(call["type"] == "function");
      CHECK(call["function"]["arguments"] == "");
      out.calls.push_back(call);
    } else {
      REQUIRE(index + 1 == out.calls.size());
      CHECK_FALSE(call["function"].contains("name"));
      Json& arguments = out.calls[index]["function"]["arguments"];
      arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
    }
  }
  return out;
}

std::string last_prompt(const Fixture& fixture) {
  std::string text;
  const std::vector<engine::RequestSpec> specs = fixture.engine->specs();
  for (const engine::TokenId id : specs.back().prompt) {
    if (id < 256) text += static_cast<char>(id);
    if (id == kImEnd) text += "{end}";
  }
  return text;
}

const std::string kJsonAnswer =
    "I look 🙂.\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"</tool_call> "
    "🙂\"}}\n"
    "</tool_call>\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"days\": 2}}\n</tool_call>";
const std::string kXmlAnswer =
    "I look 🙂.\n\n<tool_call>\n<function=look>\n<parameter=place>\n</parameter> "
    "🙂\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=look>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>";

}  // namespace

TEST_CASE("tools: two calls in one turn, in both forms, whole and streamed") {
  struct Case {
    const char* chat_template;
    const std::string& answer;
    const char* place;
  };
  for (const Case& one : {Case{kJsonTemplate, kJsonAnswer, "</tool_call> 🙂"},
                          Case{kXmlTemplate, kXmlAnswer, "</parameter> 🙂"}}) {
    Fixture fixture({}, {.chat_template = one.chat_template});
    for (const size_t bytes : {1, 4, 11, 1000}) {
      say(fixture, cut(one.answer, bytes));
      const Json choice = ask(fixture, Json::object())["choices"][0];
      CHECK(choice["finish_reason"] == "tool_calls");
      CHECK(choice["message"]["content"] == "I look 🙂.");
      const Json& calls = choice["message"]["tool_calls"];
      REQUIRE(calls.size() == 2);
      CHECK(calls[0]["type"] == "function");
      CHECK(calls[0]["id"] != calls[1]["id"]);
      CHECK(calls[0]["id"].get<std::string>().starts_with("call_"));
      CHECK_FALSE(calls[0].contains("index"));
      CHECK(calls[0]["function"]["name"] == "look");
      CHECK(Json::parse(calls[0]["function"]["arguments"].get<std::string>()) ==
            Json{{"place", one.place}});
      CHECK(Json::parse(calls[1]["function"]["arguments"].get<std::string>()) == Json{{"days", 2}});

      const Streamed streamed = ask_streaming(fixture, Json::object());
      CHECK(streamed.finish == "tool_calls");
      CHECK(streamed.content == "I look 🙂.");
      CHECK(streamed.reasoning == "");
      REQUIRE(streamed.calls.size() == 2);
      for (size_t i = 0; i < 2; ++i) CHECK(streamed.calls[i]["function"] == calls[i]["function"]);
    }
  }
}

TEST_CASE("tools: flash-mini's own template teaches JSON and takes calls back") {
  std::ifstream file(ATLAS_SOURCE_DIR "/tests/golden/chat_template/templates/flash_mini.jinja");
  const std::string source((std::istreambuf_iterator<char>(file)), {});
  REQUIRE(source.size() > 100);
  Fixture fixture({}, {.chat_template = source});
  say(fixture, cut(kJsonAnswer, 6));
  const Json message = ask(fixture, Json::object())["choices"][0]["message"];
  REQUIRE(message["tool_calls"].size() == 2);
  ask(fixture, {{"messages",
                 {{{"role", "user"}, {"content", "Hi"}},
                  message,
                  {{"role", "tool"}, {"tool_call_id", "x"}, {"content", "rain"}}}}});
  const std::string prompt = last_prompt(fixture);
  // The turn as the model wrote it, but for the blank line that the template does not print.
  std::string turn = kJsonAnswer;
  turn.erase(turn.find("\n\n"), 1);
  CHECK(prompt.find("assistant\n" + turn + "{end}") != prompt.npos);
  CHECK(prompt.find("<tool_response>\nrain\n</tool_response>{end}") != prompt.npos);
}

TEST_CASE("tools: an answer of calls alone has no content") {
  Fixture fixture({}, {.chat_template = kJsonTemplate});
  say(fixture, {"<tool_call>", "{\"name\": \"look\"}", "</tool_call>", "\n"});
  const Json choice = ask(fixture, Json::object())["choices"][0];
  CHECK(choice["message"]["content"].is_null());
  CHECK(choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}");
  const Streamed streamed = ask_streaming(fixture, Json::object());
  CHECK(streamed.content == "");
  CHECK(streamed.calls[0]["function"]["arguments"] == "{}");
}

TEST_CASE("tools: without tools, with tool_choice none or an unknown form, markup is content") {
  const std::vector<std::string> answer = {"<tool_call>", "{\"name\": \"look\"}", "</tool_call>\n"};
  const std::string text = "<tool_call>{\"name\": \"look\"}</tool_call>\n";
  Fixture fixture({}, {.chat_template = kJsonTemplate});
  say(fixture, answer);
  for (const Json& body :
       {Json{{"tools", nullptr}}, Json{{"tools", Json::array()}}, Json{{"tool_choice", "none"}}}) {
    const Json choice = ask(fixture, body)["choices"][0];
    CHECK(choice["message"]["content"] == text);
    CHECK_FALSE(choice["message"].contains("tool_calls"));
    CHECK(choice["finish_reason"] == "stop");
    CHECK(ask_streaming(fixture, body).content == text);
  }
  CHECK(last_prompt(fixture).find("look") == std::string::npos);
  CHECK(ask(fixture, {{"tool_choice", "auto"}})["choices"][0]["finish_reason"] == "tool_calls");

  Fixture other;  // its template has tools and another markup
  say(other, answer);
  CHECK(ask(other, Json::object())["choices"][0]["message"]["content"] == text);
}

TEST_CASE("tools: a choice that would need constrained decoding is a 400") {
  Fixture fixture({}, {.chat_template = kJsonTemplate});
  for (const Json& choice :
       {Json("required"), Json(7), Json{{"type", "function"}, {"function", {{"name", "look"}}}}}) {
    const Json error = ask(fixture, {{"tool_choice", choice}}, 400)["error"];
    CHECK(error["param"] == "tool_choice");
    CHECK(error["message"].get<std::string>().find("constrained decoding") != std::string::npos);
  }
}

TEST_CASE("tools: a call that the end of the answer cuts is content, and the reason is length") {
  Fixture fixture({}, {.chat_template = kXmlTemplate});
  const std::string text = kXmlAnswer.substr(0, kXmlAnswer.size() - 5);
  fixture.engine->set_script([&](const engine::RequestSpec& spec) {
    std::vector<Beat> beats = speak(cut(text, 3), spec);
    beats.back().update.finish->reason = engine::FinishReason::kLength;
    return beats;
  });
  const Json choice = ask(fixture, Json::object())["choices"][0];
  CHECK(choice["finish_reason"] == "length");
  CHECK(choice["message"]["tool_calls"].size() == 1);
  const std::string content = choice["message"]["content"];
  CHECK(content == "I look 🙂.\n\n\n" + text.substr(text.rfind("<tool_call>")));
}

TEST_CASE("tools: calls after reasoning, and calls inside of it that are none") {
  Fixture fixture({}, {.chat_template = kJsonTemplate});
  const std::string call = "<tool_call>{\"name\": \"look\"}</tool_call>";
  say(fixture, {"Shall I ", call, "\n", "</think>", "\n\n", call});
  const Json body = {{"chat_template_kwargs", {{"enable_thinking", true}}}};
  const Json message = ask(fixture, body)["choices"][0]["message"];
  CHECK(message["reasoning_content"] == "Shall I " + call);
  CHECK(message["tool_calls"].size() == 1);
  CHECK(message["content"].is_null());
  const Streamed streamed = ask_streaming(fixture, body);
  CHECK(streamed.reasoning == "Shall I " + call);
  CHECK(streamed.calls.size() == 1);
  CHECK(streamed.finish == "tool_calls");
}

TEST_CASE("tools: calls go back to the template as they came, with their results") {
  for (const char* chat_template : {kJsonTemplate, kXmlTemplate}) {
    const bool json = chat_template == kJsonTemplate;
    const std::string& answer = json ? kJsonAnswer : kXmlAnswer;
    Fixture fixture({}, {.chat_template = chat_template});
    say(fixture, cut(answer, 5));
    const Json message = ask(fixture, Json::object())["choices"][0]["message"];
    say(fixture, {"It rains."});
    const Json& calls = message["tool_calls"];
    Json messages = {{{"role", "user"}, {"content", "Hi"}}, message};
    for (const Json& call : calls) {
      messages.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "rain"}});
    }
    const Json next = ask(fixture, {{"messages", messages}})["choices"][0]["message"];
    CHECK(next["content"] == "It rains.");
    CHECK_FALSE(next.contains("tool_calls"));
    const std::string prompt = last_prompt(fixture);
    for (const Json& call : calls) {
      const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>());
      const std::string shown =
          arguments.contains("days") ? "2" : arguments["place"].get<std::string>();
      CHECK(prompt.find(shown) != prompt.npos);
    }
    CHECK(prompt.find(json ? R"({"name": "look", "arguments": {"days": 2}})"
                           : "<parameter=days>\n2\n</parameter>") != prompt.npos);
    CHECK(prompt.find("tool\nrain{end}") != prompt.npos);
  }
}

TEST_CASE("tools: log-probabilities of a call's tokens come once, with the call") {
  Fixture fixture({}, {.chat_template = kJsonTemplate});
  const std::string call = "<tool_call>{\"name\": \"look\"}</tool_call>";
  say(fixture, cut(call, 3));
  Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
               {"tools", kTools},
               {"logprobs", true},
               {"stream", true}};
  size_t tokens = 0;
  for (const std::string& event :
       events_of(fixture.client().post("/v1/chat/completions", body.dump()).body)) {
    if (event == "[DONE]") continue;
    const Json logprobs = Json::parse(event)["choices"][0]["logprobs"];
    if (!logprobs.is_null()) tokens += logprobs["content"].size();
  }
  CHECK(tokens == call.size());
}

TEST_SUITE_END();

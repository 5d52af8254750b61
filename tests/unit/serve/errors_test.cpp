// Every way to be refused: the status, the shape, and the field that is named.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "daemon/serve/generate_request.h"
#include "tests/unit/serve/fixture.h"

using namespace atlas;
using namespace atlas::serve::testing;
using Json = nlohmann::ordered_json;

TEST_SUITE_BEGIN("serve");

namespace {

struct Refused {
  int status;
  std::string message, param, code, type;
  HttpAnswer answer;
};

Refused refused(const HttpAnswer& answer) {
  const Json body = Json::parse(answer.body, nullptr, false);
  REQUIRE_MESSAGE((body.is_object() && body.contains("error")), answer.body);
  const Json& error = body["error"];
  const auto text = [&](const char* name) {
    return error.at(name).is_null() ? std::string() : error.at(name).get<std::string>();
  };
  return {answer.status, text("message"), text("param"), text("code"), text("type"), answer};
}

Refused post(const Fixture& fixture, std::string_view path, std::string_view body) {
  return refused(fixture.client().post(path, body));
}

void check_fields(const Fixture& fixture, std::string_view path, std::string_view required,
                  const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [fields, param] : cases) {
    const std::string body = "{" + std::string(required) + fields + "}";
    const Refused error = post(fixture, path, body);
    CHECK_MESSAGE(error.status == 400, body);
    CHECK_MESSAGE(error.param == param, body << " -> " << error.message);
    CHECK(error.type == "invalid_request_error");
    CHECK_FALSE(error.message.empty());
  }
}

}  // namespace

TEST_CASE("errors: fields of completions that are wrong are named") {
  Fixture fixture;
  check_fields(
      fixture, "/v1/completions", R"("prompt":"x",)",
      {{R"("temperature":-1)", "temperature"},
       {R"("temperature":"hot")", "temperature"},
       {R"("temperature":true)", "temperature"},
       {R"("top_p":1.5)", "top_p"},
       {R"("top_k":2.5)", "top_k"},
       {R"("top_k":-2)", "top_k"},
       {R"("min_p":2)", "min_p"},
       {R"("repetition_penalty":0)", "repetition_penalty"},
       {R"("presence_penalty":3)", "presence_penalty"},
       {R"("frequency_penalty":-3)", "frequency_penalty"},
       {R"("max_tokens":-1)", "max_tokens"},
       {R"("max_tokens":99999999999)", "max_tokens"},
       {R"("seed":18446744073709551615)", "seed"},
       {R"("seed":1e300)", "seed"},
       {R"("seed":-9223372036854775809)", "seed"},
       {R"("seed":-1e300)", "seed"},
       {R"("seed":1.5)", "seed"},
       {R"("n":0)", "n"},
       {R"("n":129)", "n"},
       {R"("best_of":2)", "best_of"},
       {R"("logprobs":21)", "logprobs"},
       {R"("logprobs":true)", "logprobs"},
       {R"("echo":1)", "echo"},
       {R"("stop":"")", "stop"},
       {R"("stop":[1])", "stop"},
       {R"("stop":{})", "stop"},
       {R"("stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"])", "stop"},
       {R"("stream":"yes")", "stream"},
       {R"("stream_options":{"include_usage":true})", "stream_options"},
       {R"("stream":true,"stream_options":{"include_usag":true})", "stream_options.include_usag"},
       {R"("stream":true,"stream_options":3)", "stream_options."},
       {R"("logit_bias":{"x":1})", "logit_bias"},
       {R"("logit_bias":{"260":1})", "logit_bias"},
       {R"("logit_bias":{"1":101})", "logit_bias"},
       {R"("logit_bias":[])", "logit_bias"},
       {R"("suffix":"end")", "suffix"},
       {R"("response_format":{"type":"json_object"})", "response_format"},
       {R"("service_tier":"flex")", "service_tier"},
       {R"("min_tokens":3)", "min_tokens"},
       {R"("temprature":1)", "temprature"},
       {R"("model":3)", "model"}});
  CHECK(post(fixture, "/v1/completions", R"({"prompt":"x","temprature":1})")
            .message.find("`temperature`") != std::string::npos);
}

TEST_CASE("errors: prompts that are none are named") {
  Fixture fixture;
  check_fields(fixture, "/v1/completions", "",
               {{R"("max_tokens":1)", "prompt"},
                {R"("prompt":"")", "prompt"},
                {R"("prompt":null)", "prompt"},
                {R"("prompt":[])", "prompt"},
                {R"("prompt":{})", "prompt"},
                {R"("prompt":3)", "prompt"},
                {R"("prompt":[""])", "prompt"},
                {R"("prompt":[[]])", "prompt"},
                {R"("prompt":["a",[1]])", "prompt[1]"},
                {R"("prompt":[true])", "prompt[0]"},
                {R"("prompt":[260])", "prompt"},
                {R"("prompt":[-1])", "prompt"},
                {R"("prompt":[1.5])", "prompt"},
                {R"("prompt":[1,"a"])", "prompt"},
                {R"("prompt":[[1],[260]])", "prompt[1]"}});
  const Refused longer =
      post(fixture, "/v1/completions", Json{{"prompt", std::string(kContext, 'a')}}.dump());
  CHECK(longer.code == "context_length_exceeded");
  CHECK(longer.message.find("2048") != std::string::npos);
}

TEST_CASE("errors: neutral values, nulls and fields without effect are fine") {
  Fixture fixture;
  const HttpAnswer answer = fixture.client().post(
      "/v1/completions",
      R"({"prompt":"x","n":1,"best_of":1,"suffix":"","stop":null,"logprobs":null,"user":"u",
          "store":true,"metadata":{"a":"b"},"service_tier":"auto","min_tokens":0,"seed":null,
          "response_format":{"type":"text"},"stream_options":null,"safety_identifier":"s",
          "prompt_cache_key":"k","parallel_tool_calls":false,"logit_bias":null,"top_k":-1})");
  CHECK_MESSAGE(answer.status == 200, answer.body);
  const HttpAnswer chat = fixture.client().post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"x"}],"modalities":["text"],"logprobs":false,
          "tools":[],"tool_choice":"auto","functions":null,"audio":null,"verbosity":"medium",
          "top_logprobs":0,"max_tokens":4,"max_completion_tokens":4})");
  CHECK_MESSAGE(chat.status == 200, chat.body);
}

TEST_CASE("errors: fields of chats that are wrong are named") {
  Fixture fixture;
  check_fields(
      fixture, "/v1/chat/completions", R"("messages":[{"role":"user","content":"x"}],)",
      {{R"("max_tokens":0)", "max_tokens"},
       {R"("max_tokens":1,"max_completion_tokens":2)", "max_tokens"},
       {R"("logprobs":1)", "logprobs"},
       {R"("top_logprobs":3)", "top_logprobs"},
       {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
       {R"("tool_choice":"required")", "tool_choice"},
       {R"("tools":[{"type":"x"}])", "tools[0].type"},
       {R"("tools":[{"type":"function","function":{}}])", "tools[0].function"},
       {R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])",
        "tools[0].function.strict"},
       {R"("functions":[])", "functions"},
       {R"("response_format":{"type":"json_schema"})", "response_format"},
       {R"("reasoning_effort":"high")", "reasoning_effort"},
       {R"("chat_template_kwargs":{"enable_thinkin":true})", "chat_template_kwargs.enable_thinkin"},
       {R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs.messages"},
       {R"("chat_template_kwargs":3)", "chat_template_kwargs"},
       {R"("continue_final_message":true)", "continue_final_message"},
       {R"("modalities":["audio"])", "modalities"},
       {R"("prompt":"x")", "prompt"},
       {R"("echo":true)", "echo"}});
}

TEST_CASE("errors: messages that are wrong are named with their place") {
  Fixture fixture;
  check_fields(
      fixture, "/v1/chat/completions", "",
      {{R"("n":1)", "messages"},
       {R"("messages":[])", "messages"},
       {R"("messages":"x")", "messages"},
       {R"("messages":[3])", "messages[0]."},
       {R"("messages":[{"role":"user"}])", "messages[0].content"},
       {R"("messages":[{"role":"user","content":null}])", "messages[0].content"},
       {R"("messages":[{"role":"user","content":[]}])", "messages[0].content"},
       {R"("messages":[{"role":"user","content":3}])", "messages[0].content"},
       {R"("messages":[{"role":"robot","content":"x"}])", "messages[0].role"},
       {R"("messages":[{"content":"x"}])", "messages[0].role"},
       {R"("messages":[{"role":"user","content":"x","colour":1}])", "messages[0].colour"},
       {R"("messages":[{"role":"user","content":"x"},{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
        "messages[1].content[0].type"},
       {R"("messages":[{"role":"user","content":[{"type":"text"}]}])",
        "messages[0].content[0].text"},
       {R"("messages":[{"role":"assistant","content":"x","tool_calls":[{"function":{}}]}])",
        "messages[0].tool_calls[0].function.name"},
       {R"("messages":[{"role":"assistant","content":"x","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])",
        "messages[0].tool_calls[0].function.arguments"},
       {R"("messages":[{"role":"user","content":"x","tool_calls":[]}])",
        "messages[0].tool_calls"}});
}

TEST_CASE("errors: a template without tools refuses tools, and only those") {
  Fixture fixture({}, {.chat_template = "{{ messages[0].content }}"});
  check_fields(
      fixture, "/v1/chat/completions", "",
      {{R"("messages":[{"role":"user","content":"x"}],
                    "tools":[{"type":"function","function":{"name":"f"}}])",
        "tools"},
       {R"("messages":[{"role":"assistant","content":"x","tool_calls":[{"function":{"name":"f"}}]}])",
        "messages[0].tool_calls"}});
}

TEST_CASE("errors: bodies that are no JSON of ours") {
  Fixture fixture;
  for (const std::string body : {"", "x", "[]", "\"x\"", R"({"prompt":"x","seed":NaN})",
                                 R"({"prompt":"x","prompt":"y"})", R"({"prompt":"\ud800"})"}) {
    CHECK(post(fixture, "/v1/completions", body).status == 400);
  }
  std::string deep = R"({"prompt":)" + std::string(10'000, '[');
  CHECK(post(fixture, "/v1/completions", deep).code == "invalid_json");
  CHECK(post(fixture, "/v1/completions", "{\"prompt\":\"\xff\"}").code == "invalid_json");
}

TEST_CASE("errors: requests with flipped bytes are read or refused, and nothing else happens") {
  Fixture fixture;
  const std::string whole =
      R"({"model":"test/model","messages":[{"role":"system","content":"a"},{"role":"user",)"
      R"("content":[{"type":"text","text":"\u00e9\ud83d\ude42"}]},{"role":"assistant","content":null,)"
      R"("tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}],)"
      R"("tools":[{"type":"function","function":{"name":"f"}}],"temperature":0.5,"seed":-1,)"
      R"("logit_bias":{"5":-1e2},"stop":["x"],"n":2,"stream":true,"logprobs":true,)"
      R"("chat_template_kwargs":{"enable_thinking":true},"stream_options":{"include_usage":true}})";
  serve::GenerateRequest fine;
  REQUIRE_FALSE(serve::read_chat_request(whole, fixture.control, {}, fine));
  uint32_t state = 7;
  const auto random = [&state](size_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % below;
  };
  size_t taken = 0;
  const std::string_view letters("{}[]\",:0-.eE\\untrfals \x01\x80\xff");
  for (int round = 0; round < 5000; ++round) {
    std::string body = whole;
    for (size_t i = 0; i <= random(3); ++i) {
      body[random(body.size())] = letters[random(letters.size())];
    }
    if (random(4) == 0) body.resize(random(body.size()));
    serve::GenerateRequest request;
    const serve::Refusal refusal = serve::read_chat_request(body, fixture.control, {}, request);
    if (!refusal) ++taken;
    if (refusal) CHECK_FALSE(refusal->message.empty());
  }
  CHECK(taken > 0);
}

TEST_CASE("errors: models and routes that do not exist") {
  Fixture fixture;
  const Refused model = post(fixture, "/v1/completions", R"({"prompt":"x","model":"no"})");
  CHECK(model.status == 404);
  CHECK(model.code == "model_not_found");
  CHECK(model.param == "model");
  CHECK(model.message.find("test/model") != std::string::npos);
  const Refused route = post(fixture, "/chat/completions", "{}");
  CHECK(route.status == 404);
  CHECK(route.code == "unknown_url");
  CHECK(route.message.find("/v1/chat/completions") != std::string::npos);
  CHECK(refused(fixture.client().get("/v1/models/other")).status == 404);
  CHECK(refused(fixture.client().get("/v1/models/a%2")).status == 400);
  CHECK(refused(fixture.client().get("/v1/model?x=1")).status == 404);
  CHECK(refused(fixture.client().get("/v1/models?limit=1")).status == 400);
}

TEST_CASE("errors: methods that a path does not take") {
  Fixture fixture;
  const Refused get = refused(fixture.client().get("/v1/completions"));
  CHECK(get.status == 405);
  CHECK(get.answer.headers.at("allow") == "POST, OPTIONS");
  HttpClient client = fixture.client();
  client.send("DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
  const HttpAnswer removed = client.read_answer();
  CHECK(removed.status == 405);
  CHECK(removed.headers.at("allow") == "GET, HEAD, OPTIONS");
  client.send("OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.read_answer().status == 204);
}

TEST_CASE("errors: content that is not JSON, encoded, or without a length") {
  Fixture fixture;
  HttpClient form = fixture.client();
  form.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
      "Content-Length: 2\r\n\r\n{}");
  CHECK(refused(form.read_answer()).status == 415);
  HttpClient zipped = fixture.client();
  zipped.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
      "Content-Length: 2\r\n\r\n{}");
  CHECK(refused(zipped.read_answer()).status == 415);
  HttpClient bare = fixture.client();
  bare.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(refused(bare.read_answer()).status == 411);
}

TEST_CASE("errors: what the engine refuses has its own status") {
  Fixture fixture;
  const auto complete = [&] { return post(fixture, "/v1/completions", R"({"prompt":"x"})"); };
  fixture.engine->refuse_with(resource_exhausted("8 requests are waiting"));
  const Refused full = complete();
  CHECK(full.status == 429);
  CHECK(full.code == "queue_full");
  CHECK(full.type == "rate_limit_error");
  CHECK(full.answer.headers.at("retry-after") == "1");
  fixture.engine->refuse_with(unavailable("draining"));
  CHECK(complete().status == 503);
  fixture.engine->refuse_with(invalid_argument("top_k is too large"));
  CHECK(complete().status == 400);
  fixture.engine->refuse_with(internal_error("lost"));
  CHECK(complete().status == 500);
}

TEST_CASE("errors: a queue that fills in the middle of a request cancels what it had") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec&) { return std::vector<Beat>(); });
  fixture.engine->set_queue_limit(1);
  // The fake engine takes requests off its queue quickly: ask until it was too slow once.
  bool refused_once = false;
  for (int i = 0; i < 200 && !refused_once; ++i) {
    HttpClient client = fixture.client();
    client.send(HttpClient::text_of("POST", "/v1/completions", R"({"prompt":"x","n":100})"));
    const size_t before = fixture.engine->specs().size();
    eventually([&] { return fixture.engine->specs().size() > before; });
    pollfd poll_fd{.fd = client.fd(), .events = POLLIN, .revents = 0};
    if (poll(&poll_fd, 1, 50) == 1) {
      CHECK(client.read_answer().status == 429);
      refused_once = true;
    }
  }
  CHECK(refused_once);
  CHECK(eventually([&] { return fixture.engine->cancelled() == fixture.engine->specs().size(); }));
}

TEST_CASE("errors: loading, failed and draining are 503 and say so") {
  Fixture fixture;
  fixture.engine->set_model(nullptr);
  engine::EngineStats stats;
  stats.state = engine::EngineState::kLoading;
  stats.phase = "reading weights";
  stats.progress = 0.5;
  fixture.engine->set_stats(stats);
  const Refused loading = post(fixture, "/v1/completions", R"({"prompt":"x","model":"any"})");
  CHECK(loading.status == 503);
  CHECK(loading.code == "loading");
  CHECK(loading.message.find("reading weights, 50 %") != std::string::npos);
  CHECK(loading.answer.headers.contains("retry-after"));
  stats.state = engine::EngineState::kFailed;
  stats.failure = "no kernel";
  fixture.engine->set_stats(stats);
  CHECK(post(fixture, "/v1/completions", R"({"prompt":"x"})").message.find("no kernel") !=
        std::string::npos);
  fixture.control.accepting_ = false;
  const Refused draining = post(fixture, "/v1/completions", R"({"prompt":"x"})");
  CHECK(draining.status == 503);
  CHECK(draining.code == "draining");
}

TEST_CASE("errors: a failure before the first token is a 500, later an event and never a stop") {
  Fixture fixture;
  const auto failing = [](size_t words) {
    return [words](const engine::RequestSpec& spec) {
      auto beats =
          speak(std::vector<std::string>(words, "a"), spec, std::chrono::microseconds(2000));
      beats.back().update.finish->reason = engine::FinishReason::kError;
      beats.back().update.finish->error = internal_error("the device is lost");
      return beats;
    };
  };
  fixture.engine->set_script(failing(3));
  CHECK(post(fixture, "/v1/completions", R"({"prompt":"x"})").message == "the device is lost");
  HttpClient client = fixture.client();
  const HttpAnswer answer = client.post("/v1/completions", R"({"prompt":"x","stream":true})");
  CHECK(answer.status == 200);
  const std::vector<std::string> events = events_of(answer.body);
  REQUIRE(events.size() == 4);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(Json::parse(events[i])["choices"][0]["finish_reason"] == nullptr);
  }
  const Json last = Json::parse(events[3]);
  CHECK(last["error"]["message"] == "the device is lost");
  CHECK(last["error"]["type"] == "server_error");
  CHECK(client.at_end());

  fixture.engine->set_script(failing(0));
  CHECK(post(fixture, "/v1/completions", R"({"prompt":"x","stream":true})").status == 500);
}

TEST_CASE("errors: one failed sequence of many ends the others") {
  Fixture fixture;
  std::atomic<int> number = 0;
  fixture.engine->set_script([&](const engine::RequestSpec& spec) {
    auto beats = speak({"a"}, spec);
    if (++number == 2) {
      beats.back().update.finish->reason = engine::FinishReason::kError;
      beats.back().update.finish->error = internal_error("broken");
    } else {
      beats.pop_back();  // plays until it is cancelled
    }
    return beats;
  });
  CHECK(post(fixture, "/v1/completions", R"({"prompt":"x","n":3})").status == 500);
  CHECK(eventually([&] { return fixture.engine->cancelled() >= 2; }));
}

TEST_SUITE_END();

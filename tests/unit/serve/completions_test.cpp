// /v1/completions over a socket: prompts, answers, streams, echo, log-probabilities.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/serve/fixture.h"

using namespace atlas;
using namespace atlas::serve::testing;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("serve");

namespace {

Json complete(Fixture& fixture, const Json& body, int status = 200) {
  const HttpAnswer answer = fixture.client().post("/v1/completions", body.dump());
  CHECK_MESSAGE(answer.status == status, answer.body);
  CHECK(answer.complete);
  return Json::parse(answer.body);
}

std::vector<Json> chunks_of(const HttpAnswer& answer) {
  std::vector<Json> chunks;
  std::vector<std::string> events = events_of(answer.body);
  REQUIRE_FALSE(events.empty());
  CHECK(events.back() == "[DONE]");
  events.pop_back();
  for (const std::string& event : events) chunks.push_back(Json::parse(event));
  return chunks;
}

std::vector<engine::TokenId> bytes_of(std::string_view text) {
  return {reinterpret_cast<const unsigned char*>(text.data()),
          reinterpret_cast<const unsigned char*>(text.data()) + text.size()};
}

}  // namespace

TEST_CASE("completions: a whole answer has every field that OpenAI's has") {
  Fixture fixture;
  const Json answer = complete(fixture, {{"model", "test/model"}, {"prompt", "Hi"}, {"seed", 5}});
  CHECK(answer["id"].get<std::string>().starts_with("cmpl-"));
  CHECK(answer["object"] == "text_completion");
  CHECK(answer["model"] == "test/model");
  CHECK(answer["system_fingerprint"] == "fp_test");
  CHECK(answer["seed"] == 5);
  CHECK(answer["choices"].size() == 1);
  CHECK(answer["choices"][0]["text"] == "Hello!");
  CHECK(answer["choices"][0]["finish_reason"] == "stop");
  CHECK(answer["choices"][0]["logprobs"] == nullptr);
  CHECK(answer["usage"]["prompt_tokens"] == 2);
  CHECK(answer["usage"]["completion_tokens"] == 6);
  CHECK(answer["usage"]["total_tokens"] == 8);
  CHECK(fixture.engine->specs()[0].prompt == bytes_of("Hi"));
  CHECK(fixture.engine->specs()[0].max_tokens == 16);
}

TEST_CASE("completions: sampling fields reach the engine") {
  Fixture fixture;
  complete(fixture, {{"prompt", "x"},
                     {"max_tokens", 3},
                     {"temperature", 0.25},
                     {"top_p", 0.5},
                     {"top_k", 7},
                     {"min_p", 0.125},
                     {"repetition_penalty", 1.5},
                     {"presence_penalty", -1},
                     {"frequency_penalty", 2},
                     {"seed", -3},
                     {"stop", {"a", "b"}},
                     {"ignore_eos", true},
                     {"skip_special_tokens", false},
                     {"logit_bias", {{"65", -100}, {"66", 1.5}}}});
  const engine::RequestSpec spec = fixture.engine->specs().at(0);
  CHECK(spec.max_tokens == 3);
  CHECK(spec.sampling.temperature == 0.25f);
  CHECK(spec.sampling.top_p == 0.5f);
  CHECK(spec.sampling.top_k == 7);
  CHECK(spec.sampling.min_p == 0.125f);
  CHECK(spec.sampling.repetition_penalty == 1.5f);
  CHECK(spec.sampling.presence_penalty == -1.0f);
  CHECK(spec.sampling.frequency_penalty == 2.0f);
  CHECK(spec.sampling.seed == static_cast<uint64_t>(-3));
  CHECK(spec.stop == std::vector<std::string>{"a", "b"});
  CHECK(spec.ignore_end_of_generation);
  CHECK_FALSE(spec.skip_special);
  CHECK(spec.sampling.logit_bias ==
        std::vector<std::pair<engine::TokenId, float>>{{65, -100.0f}, {66, 1.5f}});
}

TEST_CASE("completions: without a seed one is drawn and told") {
  Fixture fixture;
  const Json first = complete(fixture, {{"prompt", "x"}});
  const Json second = complete(fixture, {{"prompt", "x"}});
  CHECK(first["seed"] != second["seed"]);
  CHECK(fixture.engine->specs()[0].sampling.seed == first["seed"]);
}

TEST_CASE("completions: special tokens of a prompt are parsed unless the request says otherwise") {
  Fixture fixture;
  complete(fixture, {{"prompt", "<|im_start|>a"}});
  complete(fixture, {{"prompt", "<|im_start|>a"}, {"parse_special_tokens", false}});
  CHECK(fixture.engine->specs()[0].prompt == std::vector<engine::TokenId>{kImStart, 'a'});
  CHECK(fixture.engine->specs()[1].prompt == bytes_of("<|im_start|>a"));
}

TEST_CASE("completions: prompts come as text, texts, ids and lists of ids, each n times") {
  Fixture fixture;
  const Json answer =
      complete(fixture, {{"prompt", {"ab", "c"}}, {"n", 2}, {"best_of", 2}, {"seed", 10}});
  REQUIRE(answer["choices"].size() == 4);
  for (int i = 0; i < 4; ++i) CHECK(answer["choices"][i]["index"] == i);
  CHECK(answer["usage"]["prompt_tokens"] == 3);
  CHECK(answer["usage"]["completion_tokens"] == 24);
  const auto specs = fixture.engine->specs();
  CHECK(specs[0].prompt == bytes_of("ab"));
  CHECK(specs[1].prompt == bytes_of("ab"));
  CHECK(specs[2].prompt == bytes_of("c"));
  CHECK(specs[0].sampling.seed == 10);
  CHECK(specs[1].sampling.seed == 11);
  CHECK(specs[2].sampling.seed == 10);

  complete(fixture, {{"prompt", {1, 2, 3}}});
  complete(fixture, {{"prompt", {{1, 2}, {259}}}});
  CHECK(fixture.engine->specs()[4].prompt == std::vector<engine::TokenId>{1, 2, 3});
  CHECK(fixture.engine->specs()[6].prompt == std::vector<engine::TokenId>{259});
}

TEST_CASE(
    "completions: a stream is chunks, their texts together the answer, then usage, then DONE") {
  Fixture fixture;
  const HttpAnswer answer = fixture.client().post(
      "/v1/completions",
      R"({"prompt":"x","stream":true,"stream_options":{"include_usage":true},"n":2})");
  CHECK(answer.status == 200);
  CHECK(answer.complete);
  CHECK(answer.headers.at("content-type") == "text/event-stream");
  std::string texts[2];
  std::string finish[2];
  const std::vector<Json> chunks = chunks_of(answer);
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    const Json& choice = chunks[i]["choices"].at(0);
    const size_t index = choice["index"];
    texts[index] += choice["text"].get<std::string>();
    CHECK(finish[index].empty());
    if (!choice["finish_reason"].is_null()) finish[index] = choice["finish_reason"];
    CHECK(chunks[i]["usage"] == nullptr);
    CHECK(chunks[i]["id"] == chunks[0]["id"]);
  }
  CHECK(texts[0] == "Hello!");
  CHECK(texts[1] == "Hello!");
  CHECK(finish[0] == "stop");
  CHECK(finish[1] == "stop");
  CHECK(chunks.back()["choices"].empty());
  CHECK(chunks.back()["usage"]["completion_tokens"] == 12);
}

TEST_CASE("completions: every finish reason is told as it is") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) {
    auto beats = speak({"abc"}, spec);
    beats.back().update.finish->reason = engine::FinishReason::kLength;
    return beats;
  });
  CHECK(complete(fixture, {{"prompt", "x"}})["choices"][0]["finish_reason"] == "length");
}

TEST_CASE("completions: log-probabilities are four aligned lists") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) {
    return speak({"a", "\xc3\xa9", "b"}, spec);
  });
  const Json answer = complete(fixture, {{"prompt", "x"}, {"logprobs", 2}});
  const Json& logprobs = answer["choices"][0]["logprobs"];
  CHECK(logprobs["tokens"] == Json{"a", "bytes:\\xc3", "bytes:\\xa9", "b"});
  CHECK(logprobs["token_logprobs"] == Json{-0.5, -0.5, -0.5, -0.5});
  // The second half of a character is where the character is.
  CHECK(logprobs["text_offset"] == Json{0, 1, 1, 2});
  CHECK(logprobs["top_logprobs"][0] == Json{{"a", -0.5}, {"b", -1.5}});
  CHECK(fixture.engine->specs()[0].top_logprobs == 2);
}

TEST_CASE("completions: echo puts the prompt in front, scored, the first token without a score") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) {
    auto beats = speak({"c"}, spec);
    CHECK(spec.prompt_logprobs);
    for (size_t i = 1; i < spec.prompt.size(); ++i) {
      beats[0].update.prompt.push_back({spec.prompt[i], -2.0f, 3, {{'z', -1.0f}}});
    }
    return beats;
  });
  for (const bool stream : {false, true}) {
    const Json body = {{"prompt", "ab"}, {"echo", true}, {"logprobs", 1}, {"stream", stream}};
    const HttpAnswer answer = fixture.client().post("/v1/completions", body.dump());
    std::string text;
    Json lists = {{"tokens", Json::array()},
                  {"token_logprobs", Json::array()},
                  {"top_logprobs", Json::array()},
                  {"text_offset", Json::array()}};
    const std::vector<Json> parts =
        stream ? chunks_of(answer) : std::vector<Json>{Json::parse(answer.body)};
    for (const Json& part : parts) {
      const Json& choice = part["choices"][0];
      text += choice["text"].get<std::string>();
      if (choice["logprobs"].is_null()) continue;
      for (auto& [name, list] : lists.items()) {
        for (const Json& entry : choice["logprobs"][name]) list.push_back(entry);
      }
    }
    CHECK(text == "abc");
    CHECK(lists["tokens"] == Json{"a", "b", "c"});
    CHECK(lists["token_logprobs"] == Json{nullptr, -2.0, -0.5});
    CHECK(lists["text_offset"] == Json{0, 1, 2});
    CHECK(lists["top_logprobs"][0] == nullptr);
    CHECK(lists["top_logprobs"][1] == Json{{"z", -1.0}, {"b", -2.0}});
  }
}

TEST_CASE("completions: a long prompt's scores come in order with the answer behind them") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) {
    auto beats = speak({"c", "d", "e"}, spec);
    for (size_t i = 1; i < spec.prompt.size(); ++i) {
      beats[0].update.prompt.push_back({spec.prompt[i], -2.0f, 3, {}});
    }
    return beats;
  });
  const Json answer = complete(
      fixture, {{"prompt", std::string(1000, 'a')}, {"echo", true}, {"logprobs", 0}, {"n", 3}});
  for (const Json& choice : answer["choices"]) {
    CHECK(choice["text"] == std::string(1000, 'a') + "cde");
    CHECK(choice["logprobs"]["tokens"].size() == 1003);
    CHECK(choice["logprobs"]["text_offset"][1002] == 1002);
    CHECK(choice["logprobs"]["tokens"][1002] == "e");
  }
}

TEST_CASE("completions: no tokens asked for gives an empty answer, with echo the prompt") {
  Fixture fixture;
  const Json empty = complete(fixture, {{"prompt", "ab"}, {"max_tokens", 0}});
  CHECK(empty["choices"][0]["text"] == "");
  CHECK(empty["choices"][0]["finish_reason"] == "length");
  CHECK(empty["usage"]["prompt_tokens"] == 2);
  CHECK(fixture.engine->specs().empty());
  const Json echo = complete(fixture, {{"prompt", "ab"}, {"max_tokens", 0}, {"echo", true}});
  CHECK(echo["choices"][0]["text"] == "ab");
}

TEST_CASE("completions: ids are returned if asked for, and always where there is no tokenizer") {
  Fixture fixture;
  const Json asked = complete(fixture, {{"prompt", "a"}, {"return_token_ids", true}});
  CHECK(asked["choices"][0]["token_ids"] == Json{'H', 'e', 'l', 'l', 'o', '!'});

  Fixture bare({}, {.tokenizer = false});
  bare.engine->set_script([](const engine::RequestSpec& spec) {
    auto beats = speak({"ab", "c"}, spec);
    for (Beat& beat : beats) beat.update.text.clear();
    return beats;
  });
  const Json ids = complete(bare, {{"prompt", {1, 2}}});
  CHECK(ids["choices"][0]["token_ids"] == Json{'a', 'b', 'c'});
  CHECK(ids["choices"][0]["text"] == "");
  const HttpAnswer stream =
      bare.client().post("/v1/completions", R"({"prompt":[1,2],"stream":true})");
  Json streamed = Json::array();
  for (const Json& chunk : chunks_of(stream)) {
    for (const Json& id : chunk["choices"][0]["token_ids"]) streamed.push_back(id);
  }
  CHECK(streamed == Json{'a', 'b', 'c'});
  CHECK(complete(bare, {{"prompt", "text"}}, 400)["error"]["param"] == "prompt");
}

TEST_SUITE_END();

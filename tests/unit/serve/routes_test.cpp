// The routes around generation: models, tokens, health, metrics, control.
#include "daemon/serve/routes.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "daemon/serve/fields.h"
#include "daemon/serve/generate_request.h"
#include "tests/unit/serve/fixture.h"

using namespace atlas;
using namespace atlas::serve::testing;
using Json = nlohmann::ordered_json;

TEST_SUITE_BEGIN("serve");

namespace {
Json get(const Fixture& fixture, std::string_view path, int status = 200) {
  const HttpAnswer answer = fixture.client().get(path);
  CHECK_MESSAGE(answer.status == status, answer.body);
  return Json::parse(answer.body);
}
Json post(const Fixture& fixture, std::string_view path, const Json& body, int status = 200) {
  const HttpAnswer answer = fixture.client().post(path, body.dump());
  CHECK_MESSAGE(answer.status == status, answer.body);
  return Json::parse(answer.body);
}
}  // namespace

TEST_CASE("routes: models are listed and found, with a slash in their names too") {
  Fixture fixture;
  const Json models = get(fixture, "/v1/models");
  CHECK(models["object"] == "list");
  CHECK(models["data"][0]["id"] == "test/model");
  CHECK(models["data"][0]["object"] == "model");
  CHECK(get(fixture, "/v1/models/test/model")["max_model_len"] == kContext);
  CHECK(get(fixture, "/v1/models/test%2Fmodel")["created"] == 1700000000);
}

TEST_CASE("routes: HEAD has the head of GET and no body") {
  Fixture fixture;
  HttpClient client = fixture.client();
  client.send("HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
  const HttpAnswer head = client.read_answer(true);
  CHECK(head.status == 200);
  CHECK(std::stoul(head.headers.at("content-length")) > 0);
  CHECK(client.get("/health").status == 200);
}

TEST_CASE("routes: tokens of prompts and chats, and their text") {
  Fixture fixture;
  const Json tokens =
      post(fixture, "/tokenize", {{"prompt", "a<|im_end|>é"}, {"return_token_strs", true}});
  CHECK(tokens["tokens"] == Json{'a', kImEnd, 0xc3, 0xa9});
  CHECK(tokens["count"] == 4);
  CHECK(tokens["max_model_len"] == kContext);
  CHECK(tokens["token_strs"][1] == "<|im_end|>");
  CHECK(post(fixture, "/tokenize",
             {{"prompt", "<|im_end|>"}, {"parse_special_tokens", false}})["count"] == 10);
  const Json chat =
      post(fixture, "/tokenize", {{"messages", {{{"role", "user"}, {"content", "x"}}}}});
  CHECK(chat["tokens"][0] == kImStart);
  CHECK(post(fixture, "/detokenize", {{"tokens", {'a', kImEnd, 0xc3}}})["prompt"] ==
        "a<|im_end|>\xef\xbf\xbd");
  CHECK(post(fixture, "/detokenize",
             {{"tokens", {'a', kImEnd}}, {"skip_special_tokens", true}})["prompt"] == "a");
  CHECK(post(fixture, "/tokenize", {{"prompt", ""}})["count"] == 0);
  CHECK(post(fixture, "/detokenize", {{"tokens", Json::array()}})["prompt"] == "");
  for (const Json& bad : {Json{{"prompt", 3}}, Json::object(), Json{{"prompt", "a"}, {"x", 1}}}) {
    CHECK(post(fixture, "/tokenize", bad, 400)["error"]["param"] != nullptr);
  }
  CHECK(post(fixture, "/detokenize", {{"tokens", {260}}}, 400)["error"]["param"] == "tokens");
}

TEST_CASE("routes: health and readiness follow the engines") {
  Fixture fixture;
  CHECK(get(fixture, "/health")["status"] == "serving");
  CHECK(get(fixture, "/ready")["ready"] == true);
  engine::EngineStats stats;
  stats.phase = "reading weights";
  stats.progress = 0.25;
  fixture.engine->set_stats(stats);
  const Json loading = get(fixture, "/health");
  CHECK(loading["status"] == "loading");
  CHECK(loading["engines"][0]["phase"] == "reading weights");
  CHECK(loading["engines"][0]["progress"] == 0.25);
  CHECK(get(fixture, "/ready", 503)["ready"] == false);
  stats.state = engine::EngineState::kFailed;
  stats.failure = "no \"kernel\"";
  fixture.engine->set_stats(stats);
  CHECK(get(fixture, "/health", 503)["engines"][0]["failure"] == "no \"kernel\"");
  stats.state = engine::EngineState::kServing;
  fixture.engine->set_stats(stats);
  fixture.control.accepting_ = false;
  CHECK(get(fixture, "/health")["status"] == "draining");
  CHECK(get(fixture, "/ready", 503)["status"] == "draining");
}

TEST_CASE("routes: metrics are Prometheus text that counts what happened") {
  Fixture fixture;
  engine::EngineStats stats;
  stats.state = engine::EngineState::kServing;
  stats.generated_tokens = 42;
  stats.ledger = {{"weights", 1000}};
  stats.old_generations = {{.generation = 2, .requests = 1, .bytes = 500},
                           {.generation = 3, .requests = 2, .bytes = 700}};
  fixture.engine->set_stats(stats);
  fixture.client().post("/v1/completions", R"({"prompt":"x"})");
  fixture.client().post("/v1/completions", R"({"prompt":"x","bad":1})");
  const HttpAnswer answer = fixture.client().get("/metrics");
  CHECK(answer.headers.at("content-type").starts_with("text/plain; version=0.0.4"));
  for (const char* line :
       {"atlas_generated_tokens_total{model=\"test/model\"} 42\n",
        "atlas_memory_ledger_bytes{model=\"test/model\",line=\"weights\"} 1000\n",
        "atlas_engine_old_generation_requests{model=\"test/model\"} 3\n",
        "atlas_engine_old_generation_bytes{model=\"test/model\"} 1200\n",
        "atlas_http_requests_total{route=\"/v1/completions\",status=\"200\"} 1\n",
        "atlas_http_requests_total{route=\"/v1/completions\",status=\"400\"} 1\n",
        "atlas_http_refused_total{code=\"unknown_field\"} 1\n",
        "atlas_time_to_first_token_seconds_count 1\n", "atlas_inter_token_seconds_count 2\n",
        "atlas_http_request_seconds_bucket{route=\"/v1/completions\",le=\"+Inf\"} 2\n"}) {
    CHECK_MESSAGE(answer.body.find(line) != std::string::npos, line << answer.body);
  }
  const Json json = get(fixture, "/atlas/v1/stats");
  CHECK(json["engines"][0]["tokens"]["generated"] == 42);
  CHECK(json["engines"][0]["old_generations"][1] ==
        Json({{"generation", 3}, {"requests", 2}, {"bytes", 700}}));
  CHECK(json["server"]["refused"]["unknown_field"] == 1);
}

TEST_CASE("routes: the control API passes bodies on and answers from other threads") {
  Fixture fixture;
  CHECK(get(fixture, "/atlas/v1/status")["version"] == "test");
  CHECK(get(fixture, "/atlas/v1/plugins")["plugins"].empty());
  CHECK(get(fixture, "/atlas/v1/models")["models"][0]["fingerprint"] == "fp_test");
  CHECK(post(fixture, "/atlas/v1/plan", {{"model", "m"}})["asked"]["model"] == "m");
  CHECK(post(fixture, "/atlas/v1/plan", Json::array(), 400)["error"]["type"] ==
        "invalid_request_error");
  const Json swap = post(fixture, "/atlas/v1/swap", Json::object(), 409);
  CHECK(swap["error"]["message"] == "the new plugin has another ABI");
  HttpClient client = fixture.client();
  client.send("POST /atlas/v1/reload HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.read_answer().body == R"({"reloaded":true})");
  CHECK(post(fixture, "/atlas/v1/reload", {{"x", 1}}, 400)["error"]["code"] == "invalid_value");
  CHECK(post(fixture, "/atlas/v1/drain", Json::object())["draining"] == true);
  CHECK_FALSE(fixture.control.accepting());
}

TEST_CASE("routes: over TCP the key is asked for, and the daemon is not driven") {
  Fixture fixture([](serve::ServerOptions& options) {
    options.tcp = serve::TcpAddress{"127.0.0.1", 0};
    options.api_key = "secret";
  });
  CHECK(fixture.tcp_client().get("/health").status == 200);
  CHECK(fixture.tcp_client().get("/v1/models").status == 401);
  CHECK(fixture.tcp_client().get("/v1/models", "Authorization: Bearer secreT\r\n").status == 401);
  CHECK(fixture.tcp_client().get("/v1/models", "Authorization: secret\r\n").status == 401);
  CHECK(fixture.tcp_client().get("/v1/models", "Authorization: Bearer secret\r\n").status == 200);
  CHECK(fixture.tcp_client().get("/v1/models", "Authorization: Bearer \r\n").status == 401);
  CHECK(fixture.tcp_client().post("/atlas/v1/drain", "{}").status == 401);
  const HttpAnswer drain =
      fixture.tcp_client().post("/atlas/v1/drain", "{}", "Authorization: Bearer secret\r\n");
  CHECK(drain.status == 403);
  CHECK(fixture.client().get("/v1/models").status == 200);
}

TEST_CASE("docs: every route and every known field is in docs/api.md") {
  std::ifstream file(ATLAS_SOURCE_DIR "/docs/api.md");
  REQUIRE(file.good());
  const std::string docs((std::istreambuf_iterator<char>(file)), {});
  for (const serve::Route& route : serve::all_routes()) {
    std::string path(route.path);
    if (path.ends_with('*')) path.replace(path.size() - 1, 1, "{id}");
    const std::string text = "`" + std::string(route.method) + " " + path + "`";
    CHECK_MESSAGE(docs.find(text) != std::string::npos, text);
  }
  Fixture fixture;
  const char* const treatments[] = {"honoured", "neutral", "no effect"};
  for (const auto& fields :
       {serve::completion_fields(fixture.control), serve::chat_fields(fixture.control)}) {
    CHECK(fields.size() > 30);
    for (const serve::KnownField& field : fields) {
      const std::string row = "| `" + field.name + "` | " + treatments[field.treatment] + " |";
      CHECK_MESSAGE(docs.find(row) != std::string::npos, row);
    }
  }
}

TEST_SUITE_END();

// Swaps and reloads on a live daemon: class first, old requests to their end, failure leaves the
// old.
#include <doctest/doctest.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/live_daemon.h"

using namespace atlas;
using namespace atlas::testing;
using namespace std::chrono_literals;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("daemon");

namespace {

Json post(const LiveDaemon& daemon, const std::string& path, const std::string& body,
          long expected = 200) {
  const auto response = daemon.client().post(path, body);
  REQUIRE_MESSAGE(response, response.error().message());
  CHECK_MESSAGE(response->status == expected, response->body);
  return Json::parse(response->body, nullptr, false);
}

std::string answer(const LiveDaemon& daemon) {
  const auto response =
      daemon.complete(R"("prompt":"A fixed prompt","max_tokens":40,"temperature":1,"seed":7)");
  REQUIRE(response);
  CHECK_MESSAGE(response->status == 200, response->body);
  return completion_text(*response);
}

uint64_t generation(const LiveDaemon& daemon) {
  const auto response = daemon.client().get("/atlas/v1/status");
  return Json::parse(response->body)["engines"][0]["generation"];
}

}  // namespace

TEST_CASE("swap: a dry run says the class and touches nothing") {
  LiveDaemon daemon;
  daemon.start();
  daemon.wait_ready();
  const auto verdict = [&](const std::string& set) {
    return post(daemon, "/atlas/v1/swap", "{\"dry_run\":true,\"set\":" + set + "}");
  };
  CHECK(verdict(R"({"engine.graphs":"off"})")["class"] == "steps");
  CHECK(verdict(R"({"engine.max_sequences":"3"})")["class"] == "state");
  CHECK(verdict("{}")["class"] == "steps");
  CHECK(generation(daemon) == 1);
  CHECK(daemon.log().find("dry run of a swap of generation 1: class 'steps'") != std::string::npos);
  CHECK(daemon.log().find(" info swap of generation 1: ") == std::string::npos);
}

TEST_CASE("swap: steps change under running requests, and bytes stay the same") {
  for (const std::string platform : {"cpu", "imitation"}) {
    CAPTURE(platform);
    LiveDaemon daemon({.platform = platform});
    daemon.start();
    daemon.wait_ready();
    const std::string before = answer(daemon);
    std::vector<std::string> during(8);
    std::vector<std::jthread> clients;
    for (std::string& text : during) clients.emplace_back([&] { text = answer(daemon); });
    const Json done = post(daemon, "/atlas/v1/swap", R"({"set":{"engine.graphs":"off"}})");
    CHECK(done["class"] == "steps");
    CHECK(done["to_generation"] == 2);
    clients.clear();
    for (const std::string& text : during) CHECK(text == before);
    CHECK(answer(daemon) == before);
  }
}

TEST_CASE("swap: another model takes the place of the first, and back") {
  LiveDaemon daemon;
  TinyLlama other;
  other.dtype = ATLAS_Q8_0;
  other.embedding_dtype = ATLAS_Q8_0;
  other.seed = 2;
  write_tiny_llama_gguf(other, daemon.file("other.gguf"));
  daemon.start();
  daemon.wait_ready();
  const std::string before = answer(daemon);
  const auto text = [&](const std::string& set) {
    return post(daemon, "/atlas/v1/swap", "{\"dry_run\":true,\"set\":{" + set + "}}")["verdict"]
        .get<std::string>();
  };
  const std::string path = fmt::format(R"("model.path":"{}")", daemon.file("other.gguf"));
  CHECK(text(path + R"(,"model.name":"")")
            .ends_with("; the model is then called 'other' (model.name is not set)"));
  CHECK(text(path + R"(,"model.name":"tiny")").find("is then called") == std::string::npos);
  const Json there = post(daemon, "/atlas/v1/swap",
                          fmt::format(R"({{"set":{{"model.path":"{}","model.name":"tiny"}}}})",
                                      daemon.file("other.gguf")));
  CHECK(there["class"] == "weights");
  CHECK(daemon.log().find(" info swap of generation 1: ") != std::string::npos);
  CHECK(answer(daemon) != before);
  post(daemon, "/atlas/v1/swap",
       fmt::format(R"({{"set":{{"model.path":"{}"}}}})", daemon.file("tiny.gguf")));
  CHECK(answer(daemon) == before);
}

TEST_CASE("swap: without room for both, the old generation drains first") {
  // Device memory of the imitation: room for one generation, not for two.
  LiveDaemon daemon({.yaml = "engine: {cache_tokens: 16384, max_sequences: 4, reserve_bytes: 0}\n",
                     .platform = "imitation",
                     .platform_options = {{"memory_bytes", "16777216"}}});
  daemon.start();
  daemon.wait_ready();
  const std::string before = answer(daemon);
  const Json done = post(daemon, "/atlas/v1/swap", R"({"set":{"engine.max_sequences":"3"}})");
  CAPTURE(done.dump());
  CHECK(done["class"] == "state");
  CHECK(done["beside"] == false);
  CHECK(answer(daemon) == before);
  const Json failed =
      post(daemon, "/atlas/v1/swap", R"({"set":{"engine.cache_tokens":"900000"}})", 507);
  CHECK(failed.contains("error"));
  CHECK(answer(daemon) == before);
}

TEST_CASE("swap: a model of the same shapes brings its own weights") {
  LiveDaemon daemon;
  TinyLlama other;
  other.dtype = ATLAS_Q4_1;
  other.embedding_dtype = ATLAS_Q8_0;
  other.max_positions = 2048;
  other.seed = 99;
  write_tiny_llama_gguf(other, daemon.file("other.gguf"));
  daemon.start();
  daemon.wait_ready();
  const std::string before = answer(daemon);
  const Json done = post(daemon, "/atlas/v1/swap",
                         fmt::format(R"({{"set":{{"model.path":"{}","model.name":"tiny"}}}})",
                                     daemon.file("other.gguf")));
  CHECK(done["class"] == "weights");
  CHECK(answer(daemon) != before);
}

TEST_CASE("swap: if the new generation fails after the old was released, the old comes back") {
  // The tiny model takes about 40 allocations; the 60th is one of the second load.
  LiveDaemon daemon({.yaml = "engine: {cache_tokens: 16384, max_sequences: 4, reserve_bytes: 0}\n",
                     .platform = "imitation",
                     .platform_options = {{"memory_bytes", "16777216"}, {"fail_alloc_at", "60"}}});
  daemon.start();
  daemon.wait_ready();
  const std::string before = answer(daemon);
  const Json failed =
      post(daemon, "/atlas/v1/swap", R"({"set":{"engine.max_sequences":"3"}})", 507);
  CHECK(failed["error"]["message"].get<std::string>().find("goes on serving") != std::string::npos);
  CHECK(answer(daemon) == before);
  const Json done = post(daemon, "/atlas/v1/swap", R"({"set":{"engine.max_sequences":"3"}})");
  CHECK(done["beside"] == false);
  CHECK(answer(daemon) == before);
}

TEST_CASE("swap: what fails leaves the old generation serving, and says why") {
  LiveDaemon daemon;
  daemon.start();
  daemon.wait_ready();
  const std::string before = answer(daemon);
  const auto refuse = [&](const std::string& set) {
    const auto response = daemon.client().post("/atlas/v1/swap", "{\"set\":" + set + "}");
    REQUIRE(response);
    CHECK(response->status >= 400);
    CHECK(generation(daemon) == 1);
    return response->body;
  };
  const std::string bad = std::string(ATLAS_BINARY_DIR) + "/lib/atlas/test-plugins/";
  CHECK(refuse(R"({"plugins.quant":"[nope]"})").find("quant_nope.so") != std::string::npos);
  CHECK(refuse(R"({"plugins.quant":"[bf16]"})").find("no quantization plugin") !=
        std::string::npos);
  CHECK(refuse(R"({"model.path":"/etc/passwd"})").find("/etc/passwd") != std::string::npos);
  CHECK(refuse(R"({"platform.options":"{threads: 1}"})").find("restart") != std::string::npos);
  CHECK(refuse(R"({"engine.graph":"on"})").find("engine.graphs") != std::string::npos);
  for (const auto& entry : std::filesystem::directory_iterator(bad)) {
    // Every plugin that is wrong on purpose, put beside the good ones: none may hurt the daemon.
    if (entry.path().extension() != ".so" ||
        entry.path().filename().string().starts_with("platform_"))
      continue;
    const std::string name = entry.path().stem().string();
    const auto response = daemon.client().post(
        "/atlas/v1/swap",
        fmt::format(
            R"({{"dry_run":true,"set":{{"plugins.quant":"[gguf, {{name: {}, path: {}}}]"}}}})",
            name, entry.path().string()));
    CHECK_MESSAGE(response, name);
  }
  CHECK(answer(daemon) == before);
}

TEST_CASE("swap: many of them leave no memory behind") {
  LiveDaemon daemon({.yaml = "engine: {cache_tokens: 4096, max_sequences: 2}\n"});
  daemon.start();
  daemon.wait_ready();
  const std::string before = answer(daemon);
  const auto swap_some = [&](int count) {
    for (int i = 0; i < count; ++i) {
      post(daemon, "/atlas/v1/swap",
           fmt::format(R"({{"set":{{"engine.graphs":"{}"}}}})", i % 2 == 0 ? "off" : "on"));
      post(daemon, "/atlas/v1/swap",
           fmt::format(R"({{"set":{{"engine.max_sequences":"{}"}}}})", 2 + i % 2));
    }
    (void)answer(daemon);
  };
  swap_some(6);
  const uint64_t warm = resident_bytes(daemon.pid());
  swap_some(12);
  CHECK(answer(daemon) == before);
  CHECK(resident_bytes(daemon.pid()) < warm + (8u << 20));
}

TEST_CASE("reload: reloadable keys apply, swappable ones swap, others are named") {
  LiveDaemon daemon;
  daemon.start();
  daemon.wait_ready();
  const std::string before = answer(daemon);
  CHECK(post(daemon, "/atlas/v1/reload", "")["applied"].empty());
  daemon.write_settings("log: {level: debug}\nengine: {graphs: off, queue_limit: 7}\n");
  const Json result = post(daemon, "/atlas/v1/reload", "");
  CHECK(result["applied"] == Json::array({"log.level"}));
  CHECK(result["needs_restart"] == Json::array({"engine.queue_limit"}));
  CHECK(result["swap"]["class"] == "steps");
  CHECK(answer(daemon) == before);
  daemon.write_settings("engine: {graphs: maybe}\n");
  const Json bad = post(daemon, "/atlas/v1/reload", "", 400);
  CHECK(bad["error"]["message"].get<std::string>().find("engine.graphs") != std::string::npos);
  CHECK(answer(daemon) == before);
}

TEST_SUITE_END();

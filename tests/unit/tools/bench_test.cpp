// Figures and measurements: right on known numbers, and honest about what failed.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/unit/tools/sse_server.h"
#include "tests/unit/tools/tools_fixture.h"
#include "tools/atlas-bench/engine_bench.h"
#include "tools/atlas-bench/overhead.h"
#include "tools/atlas-bench/socket_bench.h"
#include "tools/atlas-bench/step_bench.h"

using namespace atlas;
using namespace atlas::bench;
using namespace atlas::testing;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("tools bench");

namespace {

constexpr const char* kModels =
    R"({"models":[{"id":"tiny","architecture":"llama","format":"q","vocab":280,"context_tokens":64}]})";

/// Events of an answer that has `tokens` tokens, two in the second event.
std::string events(uint32_t tokens, const std::string& last = "data: [DONE]\n\n") {
  std::string text;
  for (uint32_t i = 0; i < tokens; ++i) {
    const bool two = i == 1 && tokens > 2;
    text += std::string("data: {\"choices\":[{\"index\":0,\"text\":\"x\",\"token_ids\":") +
            (two ? "[5,6]" : "[5]") + "}]}\n\n";
    if (two) ++i;
  }
  return text +
         "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n" +
         last;
}

/// A daemon that gives every completion this answer.
SseServer::Answer daemon(int status, const std::string& type, const std::string& body) {
  return [=](const std::string& line, const std::string&) {
    if (line.find("/atlas/v1/models") != std::string::npos) {
      return http_answer(200, "application/json", kModels);
    }
    return http_answer(status, type, body);
  };
}

SocketBenchOptions small_load(const std::string& socket) {
  SocketBenchOptions options;
  options.socket = socket;
  options.clients = 3;
  options.requests = 20;
  options.prompt_tokens = 5;
  options.max_tokens = 4;
  return options;
}

}  // namespace

TEST_CASE("percentile: between the two nearest values, by proportion") {
  CHECK(percentile({}, 0.5) == 0);
  CHECK(percentile({7}, 0.99) == 7);
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 2, 3}) == 2.5);
  CHECK(percentile({0, 10, 20, 30, 40}, 0.9) == doctest::Approx(36));
  CHECK(percentiles({0, 100}).p99 == doctest::Approx(99));
}

TEST_CASE(
    "machine: it has a processor, cores and a date; a process has memory, an absent one not") {
  const Machine machine = this_machine();
  CHECK_FALSE(machine.cpu.empty());
  CHECK(machine.cores >= 1);
  CHECK(machine.date.size() == std::string("2026-01-31T12:00:00Z").size());
  const auto mine = resident_bytes(::getpid());
  REQUIRE(mine);
  CHECK(*mine > 1u << 20);
  CHECK_FALSE(resident_bytes(0x7ffffff0));
}

TEST_CASE("random prompts: the same for a seed, different for others, inside the vocabulary") {
  const auto prompt = random_prompt(200, 50, 1);
  CHECK(prompt == random_prompt(200, 50, 1));
  CHECK(prompt != random_prompt(200, 50, 2));
  CHECK(*std::max_element(prompt.begin(), prompt.end()) == 49);
}

TEST_CASE("engine: every batch and length has as many figures as repeats") {
  const auto model = open_model(tiny_options(), {.sequences = 3, .sequence_tokens = 64});
  EngineBenchOptions options;
  options.prompt_tokens = {8, 40};
  options.batch = {1, 3};
  options.generate = 20;
  options.repeat = 2;
  const auto points = bench_engine(*model, options);
  REQUIRE_MESSAGE(points, points.error().message());
  REQUIRE(points->size() == 4);
  for (const EnginePoint& point : *points) {
    CHECK(point.prefill.size() == 2);
    CHECK(point.decode.size() == 2);
    CHECK(median(point.prefill) > 0);
    CHECK(median(point.decode) > 0);
  }
  const Json json = Json::parse(engine_json(*points, *model, this_machine()));
  CHECK(json["results"].size() == 4);
  CHECK(json["results"][3]["batch"] == 3);
  CHECK(json["results"][3]["prompt_tokens"] == 40);
  CHECK(json["model"]["architecture"] == "llama");
}

TEST_CASE("engine: a length beyond the context is refused before anything is measured") {
  const auto model = open_model(tiny_options(), {.sequences = 1, .sequence_tokens = 32});
  EngineBenchOptions options;
  options.prompt_tokens = {30};
  options.batch = {1};
  options.generate = 8;
  const auto points = bench_engine(*model, options);
  REQUIRE_FALSE(points);
  CHECK(points.error().message().find("38 positions") != std::string::npos);
}

TEST_CASE("socket: requests, tokens and memory are counted; the listener is found by its socket") {
  const TempDir folder;
  const SseServer server(folder.file("s"), daemon(200, "text/event-stream", events(4)));
  CHECK(*listener_pid(folder.file("s")) == ::getpid());
  const auto result = bench_socket(small_load(folder.file("s")));
  REQUIRE_MESSAGE(result, result.error().message());
  CHECK(result->requests == 20);
  CHECK(result->failed == 0);
  CHECK(result->tokens == 80);
  CHECK(result->first_token_ms.p50 > 0);
  CHECK(result->resident_before);
  CHECK(result->resident_warm);
  CHECK(result->resident_after);
  const Json json = Json::parse(socket_json(*result, small_load("s"), this_machine()));
  CHECK(json["tokens"] == 80);
  CHECK(json["clients"] == 3);
  CHECK(json["daemon_resident_bytes"]["after"].get<uint64_t>() > 0);
}

TEST_CASE(
    "socket: an answer that breaks off, fails in mid-stream or has too few tokens is a failure") {
  const auto failure = [](const std::string& type, int status, const std::string& body) {
    const TempDir folder;
    const SseServer server(folder.file("s"), daemon(status, type, body));
    const auto result = bench_socket(small_load(folder.file("s")));
    REQUIRE_FALSE(result);
    CHECK(result.error().message().find("all 20 requests failed") != std::string::npos);
    return result.error().message();
  };
  const std::string stream = "text/event-stream";
  CHECK(failure(stream, 200, events(4, "")).find("broke off") != std::string::npos);
  CHECK(failure(stream, 200, events(3)).find("3 tokens and not 4") != std::string::npos);
  CHECK(failure(stream, 200, "data: {\"error\":{\"message\":\"device lost\"}}\n\n")
            .find("device lost") != std::string::npos);
  CHECK(failure(stream, 200, "data: {nonsense\n\n").find("no JSON") != std::string::npos);
  CHECK(failure("application/json", 429, "{\"error\":{\"message\":\"queue is full\"}}")
            .find("429: queue is full") != std::string::npos);
}

TEST_CASE("socket: some failures are counted and told, and the others measured") {
  const TempDir folder;
  std::atomic<uint32_t> count{0};
  const auto good = daemon(200, "text/event-stream", events(4));
  const SseServer server(folder.file("s"), [&](const std::string& line, const std::string& body) {
    const bool refuse = line.find("/v1/completions") != std::string::npos && count++ == 5;
    return refuse ? http_answer(503, "application/json", "{}") : good(line, body);
  });
  const auto result = bench_socket(small_load(folder.file("s")));
  REQUIRE(result);
  CHECK(result->failed == 1);
  CHECK(result->tokens == 76);
  CHECK_FALSE(result->first_failure.ok());
}

TEST_CASE("socket: the request asks for what is measured") {
  const TempDir folder;
  Json request;
  const auto good = daemon(200, "text/event-stream", events(4));
  const SseServer server(folder.file("s"), [&](const std::string& line, const std::string& body) {
    if (line.find("POST /v1/completions") == 0) request = Json::parse(body);
    return good(line, body);
  });
  SocketBenchOptions options = small_load(folder.file("s"));
  options.requests = 1;
  REQUIRE(bench_socket(options));
  CHECK(request["model"] == "tiny");
  CHECK(request["prompt"].size() == 5);
  CHECK(request["max_tokens"] == 4);
  CHECK(request["stream"] == true);
  CHECK(request["ignore_eos"] == true);
  CHECK(request["temperature"] == 0);
}

TEST_CASE(
    "socket: no daemon, a daemon without a model, and lengths beyond its context are errors") {
  const TempDir folder;
  CHECK(bench_socket(small_load(folder.file("absent"))).error().code() == Code::kUnavailable);
  {
    const SseServer server(folder.file("s"), [](const std::string&, const std::string&) {
      return http_answer(200, "application/json", R"({"models":[]})");
    });
    CHECK(bench_socket(small_load(folder.file("s"))).error().message().find("no model") !=
          std::string::npos);
  }
  const SseServer server(folder.file("t"), daemon(200, "text/event-stream", events(4)));
  SocketBenchOptions options = small_load(folder.file("t"));
  options.prompt_tokens = 61;
  CHECK(bench_socket(options).error().message().find("ends at 64") != std::string::npos);
  CHECK(server.requests() == 1);  // nothing was asked but what it serves
}

TEST_CASE("overhead: pairs of runs, and another model in the daemon is refused") {
  Overhead known;
  known.socket_token = {110, 130, 120};
  known.engine_token = {100, 100, 105};
  known.socket_first = {500, 600, 700};
  known.engine_first = {400, 400, 400};
  CHECK(known.token() == 15);  // the median of 10, 30, 15
  CHECK(known.token_spread() == 5);
  CHECK(known.first() == 200);

  const TempDir folder;
  const SseServer server(folder.file("s"), daemon(200, "text/event-stream", events(4)));
  const auto model = open_model(tiny_options(), {.sequence_tokens = 32});
  OverheadOptions options;
  options.socket = folder.file("s");
  options.generate = 4;
  const auto refused = measure_overhead(*model, options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Code::kFailedPrecondition);

  const std::string models = Json{{"models", Json::array({{{"id", "tiny"},
                                                           {"architecture", "llama"},
                                                           {"format", model->info().format},
                                                           {"vocab", 280},
                                                           {"context_tokens", 64}}})}}
                                 .dump();
  const SseServer same(folder.file("t"), [&](const std::string& line, const std::string&) {
    const bool list = line.find("/atlas/v1/models") != std::string::npos;
    return list ? http_answer(200, "application/json", models)
                : http_answer(200, "text/event-stream", events(4));
  });
  options.socket = folder.file("t");
  options.repeat = 3;
  const auto overhead = measure_overhead(*model, options);
  REQUIRE_MESSAGE(overhead, overhead.error().message());
  CHECK(overhead->socket_token.size() == 3);
  CHECK(overhead->engine_token.size() == 3);
  CHECK(Json::parse(overhead->json(*model, this_machine()))["socket_us_a_token"].size() == 3);
}

TEST_CASE("the program: lists of numbers are taken, and wrong ones are wrong usage") {
  const ProgramRun run = run_program(
      "atlas-bench",
      "engine --json --threads 1 --set engine.reserve_bytes=0 --prompt-tokens 4,8 --batch 1 "
      "--generate 8 --repeat 1 --model " +
          tiny_gguf());
  CHECK_MESSAGE(run.code == 0, run.out);
  CHECK(Json::parse(run.out)["results"].size() == 2);
  CHECK(run_program("atlas-bench", "").code == 2);
  CHECK(run_program("atlas-bench", "engine --model x --batch 1,0").code == 2);
  CHECK(run_program("atlas-bench", "engine --model x --batch two").code == 2);
  CHECK(run_program("atlas-bench", "engine --model /absent").code == 1);
  CHECK(run_program("atlas-bench", "socket --socket /absent").code == 1);
  for (const std::string verb : {"engine", "socket", "overhead"}) {
    const ProgramRun help = run_program("atlas-bench", verb + " --help");
    CHECK(help.code == 0);
    CHECK(help.out.find("--json") != std::string::npos);
  }
}

TEST_CASE("bench steps: every launch of a step is in one group, and each has a time") {
  const auto model = open_model(tiny_options(), {.sequences = 3, .sequence_tokens = 60});
  StepBenchOptions options;
  options.decode = {1, 3};
  options.prefill = {20};
  options.context = 16;
  options.min_ms = 0.1;
  const auto profiles = bench_steps(*model, options);
  REQUIRE_MESSAGE(profiles, profiles.error().message());
  REQUIRE(profiles->size() == 3);
  CHECK((*profiles)[1].rows == 3);
  CHECK((*profiles)[2].bucket.kind == plan::StepKind::kPrefill);
  for (const StepProfile& profile : *profiles) {
    uint32_t launches = 2;  // the frame's
    bool attends = false;
    for (const RecordGroup& group : profile.groups) {
      CHECK(group.us >= 0);
      CHECK(group.operation.find_first_of("0123456789") == std::string::npos);
      launches += group.launches;
      attends = attends || (group.kernel == "gqa_attend" && group.launches > 1);
    }
    CHECK(launches == profile.launches);
    CHECK(attends);
    CHECK(profile.us > 0);
  }
  const Json json = Json::parse(steps_json(*profiles, *model, this_machine()));
  CHECK(json["results"].size() == 3);
  CHECK(steps_text(*profiles).find("gqa_attend") != std::string::npos);
  CHECK(steps_text(*profiles).find("drafts") == std::string::npos);
  StepProfile verify;
  verify.bucket = {plan::StepKind::kVerify, 2, 2};
  verify.rows = 1;
  CHECK(steps_text({verify}).find("verify of 2 rows, 2 with logits: 1 used, ") == 0);
  CHECK(steps_text({verify}).find("rows that would hold drafts are idle") != std::string::npos);
}

TEST_SUITE_END();

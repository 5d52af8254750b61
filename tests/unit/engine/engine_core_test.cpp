// The whole engine on a tiny model, on the CPU and on the strict imitation of a GPU: the same bytes
// whatever runs beside a request and however it is cut; ends of every kind; failures of the device.
#include "daemon/engine/engine_core.h"

#include <doctest/doctest.h>

#include <random>
#include <thread>

#include "tests/support/engine_fixture.h"
#include "tests/support/tiny_llama.h"

using namespace atlas;
using namespace atlas::engine;
using namespace atlas::testing;
using namespace std::chrono_literals;

TEST_SUITE_BEGIN("engine core");

namespace {

/// One tiny model for all cases of this file.
const std::string& tiny_model() {
  static const TempDir* folder = [] {
    auto* made = new TempDir;
    TinyLlama model;
    model.dtype = ATLAS_Q4_1;
    model.embedding_dtype = ATLAS_Q8_0;
    write_tiny_llama_gguf(model, made->file("tiny.gguf"));
    return made;
  }();
  static const std::string path = folder->file("tiny.gguf");
  return path;
}

RequestSpec request(uint32_t prompt_tokens, uint32_t max_tokens, uint32_t seed,
                    float temperature = 0) {
  RequestSpec spec;
  std::mt19937 random(seed);
  for (uint32_t i = 0; i < prompt_tokens; ++i)
    spec.prompt.push_back(kTinyFirstByte + random() % 256);
  spec.max_tokens = max_tokens;
  spec.ignore_end_of_generation = true;
  spec.sampling.temperature = temperature;
  spec.sampling.seed = seed;
  spec.logprobs = true;
  spec.top_logprobs = 3;
  return spec;
}

/// Requests of many kinds: greedy, sampled, filtered, penalised, biased, scored.
std::vector<RequestSpec> mixed_requests() {
  std::vector<RequestSpec> specs{request(1, 20, 1),         request(63, 20, 2),
                                 request(64, 20, 3, 1.0f),  request(65, 20, 4, 0.7f),
                                 request(200, 30, 5, 1.0f), request(97, 10, 6)};
  specs[2].sampling.top_p = 0.8f;
  specs[3].sampling.top_k = 12;
  specs[4].sampling.repetition_penalty = 1.3f;
  specs[4].sampling.frequency_penalty = 0.5f;
  specs[1].sampling.presence_penalty = 1.0f;
  specs[5].sampling.logit_bias = {{kTinyFirstByte + 'x', 3.0f}};
  specs[5].prompt_logprobs = true;
  return specs;
}

void check_same(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(a[i].tokens == b[i].tokens);
    CHECK(a[i] == b[i]);
  }
}

std::vector<Answer> one_by_one(EngineFixture& engine, const std::vector<RequestSpec>& specs) {
  std::vector<Answer> answers;
  for (const RequestSpec& spec : specs) answers.push_back(engine.run(spec));
  return answers;
}

/// What everything is compared with: one request at a time on one CPU thread, walked eagerly.
const std::vector<Answer>& reference() {
  static const std::vector<Answer> answers = [] {
    settings::PlatformSettings platform = test_platforms()[0].settings;
    if (platform.name == "cpu") platform.options = {{"threads", "1"}};
    settings::Settings settings = small_settings(tiny_model(), platform);
    settings.engine.graphs = false;
    EngineFixture engine(settings);
    return one_by_one(engine, mixed_requests());
  }();
  return answers;
}

/// Pages and slots of ended sequences come back when the last step that names them has finished;
/// the prefix cache has the pages that are left.
void check_all_free(EngineFixture& engine) {
  for (int i = 0; i < 1000; ++i) {
    const EngineStats stats = engine.engine().stats();
    if (stats.pages_used == stats.prefix_pages && stats.slots_used == 0) break;
    std::this_thread::sleep_for(1ms);
  }
  const EngineStats stats = engine.engine().stats();
  CHECK(stats.pages_used == stats.prefix_pages);
  CHECK(engine.engine().stats().slots_used == 0);
}

template <typename Body>
void on_each_platform(Body body) {
  for (const TestPlatform& platform : test_platforms()) {
    CAPTURE(platform.name);
    body(platform.settings);
  }
}

}  // namespace

TEST_CASE("engine: answers have their tokens, text and log-probabilities") {
  const Answer& answer = reference()[5];
  REQUIRE(answer.finish);
  CHECK(answer.finish->reason == FinishReason::kLength);
  CHECK(answer.finish->usage.prompt_tokens == 97);
  CHECK(answer.finish->usage.completion_tokens == 10);
  CHECK(answer.tokens.size() == 10);
  CHECK(answer.logprobs.size() == 10);
  REQUIRE(answer.prompt.size() == 96);
  const auto spec = mixed_requests()[5];
  for (size_t i = 0; i < answer.prompt.size(); ++i)
    CHECK(answer.prompt[i].token == spec.prompt[i + 1]);
  for (const TokenLogprob& one : answer.logprobs) {
    CHECK(one.logprob <= 0.0f);
    REQUIRE(one.top.size() == 3);
    CHECK(one.top[0].second >= one.top[1].second);
  }
}

TEST_CASE("engine: the same bytes batched, with two threads, as graphs, on both platforms") {
  on_each_platform([](const settings::PlatformSettings& platform) {
    EngineFixture engine(small_settings(tiny_model(), platform));
    check_same(engine.run(mixed_requests()), reference());
  });
}

TEST_CASE("engine: the same bytes in any chunk of the prompt") {
  for (const uint32_t rows : {16u, 33u, 256u}) {
    CAPTURE(rows);
    settings::Settings settings = small_settings(tiny_model(), test_platforms()[0].settings);
    settings.engine.prefill_rows = rows;
    settings.engine.max_sequences = 3;
    EngineFixture engine(settings);
    check_same(engine.run(mixed_requests()), reference());
  }
}

TEST_CASE(
    "engine: the same bytes when sequences give their pages to others and are computed again") {
  on_each_platform([](const settings::PlatformSettings& platform) {
    settings::Settings settings = small_settings(tiny_model(), platform);
    settings.engine.context_tokens = 320;
    settings.engine.cache_tokens = 448;  // seven pages; four sequences want about twelve
    EngineFixture engine(settings);
    std::vector<RequestSpec> specs = mixed_requests();
    for (RequestSpec& spec : specs) {
      spec.max_tokens = 90;
      spec.prompt_logprobs = false;
    }
    EngineFixture roomy(small_settings(tiny_model(), platform));
    check_same(engine.run(specs), one_by_one(roomy, specs));
    check_all_free(engine);
  });
}

TEST_CASE("engine: a stop string ends an answer, and nothing of it is shown") {
  EngineFixture engine(small_settings(tiny_model(), test_platforms()[0].settings));
  RequestSpec spec = request(20, 40, 9, 1.0f);
  const Answer whole = engine.run(spec);
  REQUIRE(whole.text.size() > 12);
  // Cut somewhere in the middle, across tokens, at whole characters.
  size_t begin = 6;
  while ((whole.text[begin] & 0xc0) == 0x80) ++begin;
  spec.stop = {whole.text.substr(begin, 5), "never said"};
  const Answer cut = engine.run(spec);
  CHECK(cut.finish->reason == FinishReason::kStop);
  CHECK(cut.finish->stop_string == spec.stop[0]);
  CHECK(cut.text == whole.text.substr(0, whole.text.find(spec.stop[0])));
  CHECK(cut.tokens.size() == cut.logprobs.size());
}

TEST_CASE("engine: an end-of-generation token ends an answer and is not shown") {
  EngineFixture engine(small_settings(tiny_model(), test_platforms()[0].settings));
  RequestSpec spec = request(10, 40, 3);
  spec.ignore_end_of_generation = false;
  spec.sampling.logit_bias = {{kTinyImEnd, 100.0f}};
  const Answer answer = engine.run(spec);
  CHECK(answer.finish->reason == FinishReason::kStop);
  CHECK(answer.tokens.empty());
  CHECK(answer.text.empty());
  CHECK(answer.finish->usage.completion_tokens == 1);
}

TEST_CASE("engine: a prompt is scored without an answer") {
  EngineFixture engine(small_settings(tiny_model(), test_platforms()[0].settings));
  RequestSpec spec = mixed_requests()[5];
  spec.max_tokens = 0;
  const Answer answer = engine.run(spec);
  CHECK(answer.finish->reason == FinishReason::kLength);
  CHECK(answer.tokens.empty());
  REQUIRE(answer.prompt.size() == reference()[5].prompt.size());
  for (size_t i = 0; i < answer.prompt.size(); ++i) {
    CHECK(answer.prompt[i].logprob == reference()[5].prompt[i].logprob);
  }
}

TEST_CASE("engine: the context ends an answer") {
  settings::Settings settings = small_settings(tiny_model(), test_platforms()[0].settings);
  settings.engine.context_tokens = 64;
  EngineFixture engine(settings);
  const Answer answer = engine.run(request(50, 1000, 4));
  CHECK(answer.finish->reason == FinishReason::kLength);
  CHECK(answer.tokens.size() == 14);
}

TEST_CASE("engine: a cancelled request ends, frees its pages, and others go on") {
  on_each_platform([](const settings::PlatformSettings& platform) {
    EngineFixture engine(small_settings(tiny_model(), platform));
    const auto doomed = engine.submit(request(20, 400, 1));
    REQUIRE(doomed);
    while (engine.tokens_so_far(*doomed) < 3) std::this_thread::sleep_for(1ms);
    engine.engine().cancel(*doomed);
    const Answer answer = engine.answer(*doomed);
    CHECK(answer.finish->reason == FinishReason::kCancelled);
    CHECK(answer.tokens.size() < 400);
    check_same(engine.run(mixed_requests()), reference());
    check_all_free(engine);
  });
}

TEST_CASE("engine: requests that are cancelled at once leave nothing taken and nothing counted") {
  EngineFixture engine(small_settings(tiny_model(), test_platforms()[0].settings));
  for (int i = 0; i < 400; ++i) {
    const auto id = engine.submit(request(40, 200, 1));
    if (id) engine.engine().cancel(*id);
  }
  for (int i = 0; i < 2000 && engine.engine().stats().queued != 0; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(engine.engine().stats().queued == 0);
  check_all_free(engine);
  check_same(engine.run(mixed_requests()), reference());
}

TEST_CASE("engine: queued requests that no longer fit after a swap end with the reason") {
  settings::PlatformSettings slow = imitation();
  slow.options = {{"delay_us", "3000"}};  // so that the first request outlasts the swap
  settings::Settings settings = small_settings(tiny_model(), slow);
  settings.engine.max_sequences = 1;
  EngineFixture engine(settings);
  const auto running = engine.submit(request(8, 300, 1));
  const auto queued = engine.submit(request(200, 10, 2));
  const auto fits = engine.submit(request(20, 1000, 3));
  REQUIRE((running && queued && fits));
  settings.engine.context_tokens = 128;
  const Status swapped = engine.swap(settings);
  REQUIRE_MESSAGE(swapped.ok(), swapped.message());
  CHECK(engine.answer(*queued).finish->reason == FinishReason::kError);
  CHECK(engine.answer(*queued).finish->error.message().find("context") != std::string::npos);
  // The first request is told of as the old generation's until it ends.
  const auto old_generations = [&](size_t count) {
    std::vector<OldGeneration> old;
    for (int i = 0; i < 1000; ++i) {
      old = engine.engine().stats().old_generations;
      if (old.size() == count) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    REQUIRE(old.size() == count);
    return old;
  };
  const OldGeneration old = old_generations(1).front();
  CHECK(old.generation < engine.generation().id());
  CHECK(old.requests == 1);
  CHECK(old.bytes > 0);
  CHECK(engine.answer(*running).tokens.size() == 300);
  CHECK(engine.answer(*fits).tokens.size() == 108);
  old_generations(0);
}

TEST_CASE("engine: bad requests are refused with the field's name") {
  EngineFixture engine(small_settings(tiny_model(), test_platforms()[0].settings));
  const auto refused = [&](const std::function<void(RequestSpec&)>& spoil) {
    RequestSpec spec = request(4, 4, 1);
    spoil(spec);
    const auto id = engine.submit(spec);
    REQUIRE_FALSE(id);
    CHECK(id.error().code() == Code::kInvalidArgument);
    return id.error().message();
  };
  CHECK(refused([](RequestSpec& s) { s.prompt.clear(); }).find("empty") != std::string::npos);
  CHECK(refused([](RequestSpec& s) { s.prompt[2] = 280; }).find("token 280") != std::string::npos);
  CHECK(refused([](RequestSpec& s) { s.prompt.assign(512, 5); }).find("512") != std::string::npos);
  CHECK(refused([](RequestSpec& s) { s.sampling.temperature = NAN; }).find("temperature") !=
        std::string::npos);
  CHECK(refused([](RequestSpec& s) { s.sampling.top_p = 1.5f; }).find("top_p") !=
        std::string::npos);
  CHECK(refused([](RequestSpec& s) {
          s.sampling.logit_bias = {{999, 1}};
        }).find("999") != std::string::npos);
  CHECK(refused([](RequestSpec& s) { s.top_logprobs = 21; }).find("top_logprobs") !=
        std::string::npos);
  CHECK(refused([](RequestSpec& s) { s.max_tokens = 0; }).find("max_tokens") != std::string::npos);
}

TEST_CASE("engine: a full queue refuses, and takes again when it has room") {
  EngineOptions options;
  options.queue_limit = 2;
  settings::Settings settings = small_settings(tiny_model(), test_platforms()[0].settings);
  settings.engine.max_sequences = 1;
  EngineFixture engine(settings, options);
  std::vector<RequestId> accepted;
  bool refused = false;
  for (int i = 0; i < 12; ++i) {
    const auto id = engine.submit(request(8, 60, 7));
    if (id) {
      accepted.push_back(*id);
    } else {
      CHECK(id.error().code() == Code::kResourceExhausted);
      refused = true;
    }
  }
  CHECK(refused);
  for (const RequestId id : accepted) CHECK(engine.answer(id).tokens.size() == 60);
  CHECK(engine.submit(request(8, 2, 7)));
}

TEST_CASE(
    "engine: a generation of the same layouts takes over while old sequences end on the old") {
  on_each_platform([](const settings::PlatformSettings& platform) {
    const settings::Settings settings = small_settings(tiny_model(), platform);
    EngineFixture engine(settings);
    const uint64_t first = engine.generation().id();
    const auto running = engine.submit(request(30, 300, 11, 1.0f));
    REQUIRE(running);
    settings::Settings eager = settings;
    eager.engine.graphs = false;
    const Status swapped = engine.swap(eager);
    REQUIRE_MESSAGE(swapped.ok(), swapped.message());
    CHECK(engine.generation().id() > first);
    check_same(engine.run(mixed_requests()), reference());
    const Answer old = engine.answer(*running);
    CHECK(old.tokens.size() == 300);
    CHECK(old == engine.run(request(30, 300, 11, 1.0f)));
    check_all_free(engine);
  });
}

TEST_CASE("engine: a generation with other state runs beside the old one") {
  settings::Settings settings = small_settings(tiny_model(), test_platforms()[0].settings);
  EngineFixture engine(settings);
  const auto running = engine.submit(request(30, 300, 11, 1.0f));
  REQUIRE(running);
  settings.engine.max_sequences = 2;
  const Status swapped = engine.swap(settings);
  REQUIRE_MESSAGE(swapped.ok(), swapped.message());
  check_same(engine.run(mixed_requests()), reference());
  CHECK(engine.answer(*running).tokens.size() == 300);
}

TEST_CASE("engine: a drain lets requests end and refuses new ones") {
  EngineFixture engine(small_settings(tiny_model(), test_platforms()[0].settings));
  const auto running = engine.submit(request(5, 50, 1));
  auto drained = engine.engine().drain();
  CHECK_FALSE(engine.submit(request(5, 5, 1)));
  CHECK(drained.get().ok());
  CHECK(engine.answer(*running).tokens.size() == 50);
}

TEST_CASE("engine: a device that fails, hangs or goes away ends every request with an error") {
  for (const std::string failure : {"fail_launch_at", "lose_at", "hang_at"}) {
    CAPTURE(failure);
    settings::PlatformSettings platform = imitation();
    platform.options = {{failure, "12"}, {"patience_ms", "500"}};
    EngineOptions options;
    options.step_deadline = 1s;
    EngineFixture engine(small_settings(tiny_model(), platform), options);
    std::vector<RequestId> ids;
    for (uint32_t i = 0; i < 3; ++i) {
      if (const auto id = engine.submit(request(20, 100, i))) ids.push_back(*id);
    }
    REQUIRE(!ids.empty());
    for (const RequestId id : ids) {
      const Answer answer = engine.answer(id);
      CHECK(answer.finish->reason == FinishReason::kError);
      CHECK_FALSE(answer.finish->error.message().empty());
    }
    CHECK(engine.engine().stats().state == EngineState::kFailed);
    const auto refused = engine.submit(request(2, 2, 1));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Code::kUnavailable);
  }
}

TEST_CASE("engine: too little device memory is an error that names the buffer, not a crash") {
  settings::PlatformSettings platform = imitation();
  platform.options = {{"memory_bytes", "1048576"}};
  const auto engine = EngineFixture::create(small_settings(tiny_model(), platform));
  REQUIRE_FALSE(engine);
  CHECK(engine.error().code() == Code::kResourceExhausted);
  CHECK_MESSAGE(engine.error().message().find("buffer '") != std::string::npos,
                engine.error().message());
}

TEST_CASE("engine: a device without graphs, or with wrong ones, serves the same bytes eagerly") {
  const auto expected =
      EngineFixture(small_settings(tiny_model(), imitation())).run(mixed_requests());
  for (const std::string option : {"refuse_graphs", "corrupt_graphs"}) {
    CAPTURE(option);
    settings::PlatformSettings platform = imitation();
    platform.options = {{option, "true"}};
    EngineFixture engine(small_settings(tiny_model(), platform));
    check_same(engine.run(mixed_requests()), expected);
    CHECK(engine.engine().stats().graphs.starts_with("on but for"));
  }
}

TEST_SUITE_END();

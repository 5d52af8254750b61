// Whole engines on platforms h200 and gb10 without a GPU: the plan, the plugin cuda and the real
// packs over a driver whose kernels run in the emulator. What they answer is what the CPU answers.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <string>

#include "tests/support/build_folder.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/fake_gpu/script.h"
#include "tests/support/tiny_llama.h"

namespace atlas::testing {
namespace {

/// A tiny llama as a folder of bf16, or as a GGUF file of `dtype`.
struct ModelFiles {
  explicit ModelFiles(AtlasDType dtype)
      : folder("/tmp/atlas-emulated-" + std::to_string(::getpid())), path(folder) {
    std::filesystem::create_directories(folder);
    TinyLlama model;
    model.dtype = dtype;
    if (dtype == ATLAS_BF16) {
      write_tiny_llama_folder(model, folder);
    } else {
      path += "/model.gguf";
      write_tiny_llama_gguf(model, path);
    }
  }
  ~ModelFiles() { std::filesystem::remove_all(folder); }
  std::string folder, path;
};

settings::Settings settings_for(const std::string& path, const std::string& platform) {
  settings::PlatformSettings chosen;
  chosen.name = platform;
  if (platform == "cpu") chosen.options = {{"threads", "2"}};
  // A launch takes the emulator longer than a GPU.
  if (platform != "cpu") chosen.options = {{"patience_ms", "600000"}, {"reserve_bytes", "0"}};
  settings::Settings settings = small_settings(path, chosen);
  settings.plugins.quant = {{"gguf", ""}, {"bf16", ""}};
  settings.plugins.attention = {{"gqa", ""}};
  settings.engine.max_sequences = 2;
  settings.engine.prefill_rows = 16;
  settings.engine.cache_tokens = 1024;
  return settings;
}

/// The driver that runs kernels in the emulator, with one device of a platform's architecture.
void be_platform(const std::string& platform) {
  static void* const driver = ::dlopen(
      (test::build_folder() + "/tests/emulated_gpu/libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(driver != nullptr, ::dlerror());
  const auto set = reinterpret_cast<fake_gpu::SetScript>(::dlsym(driver, fake_gpu::kSetScript));
  fake_gpu::Script script{};
  script.version = 13000;
  script.device_count = 1;
  script.devices[0] = {"emulated", "sm_90", 0, uint64_t{4} << 30};
  if (platform == "gb10") script.devices[0] = {"emulated", "sm_121", 1, uint64_t{4} << 30};
  set(&script);
}

engine::RequestSpec request(const std::string& text, uint32_t tokens) {
  engine::RequestSpec spec;
  for (const char c : text) {
    spec.prompt.push_back(static_cast<engine::TokenId>(kTinyFirstByte) +
                          static_cast<unsigned char>(c));
  }
  spec.max_tokens = tokens;
  spec.sampling.temperature = 0;
  spec.logprobs = true;
  spec.top_logprobs = 3;
  return spec;
}

}  // namespace

TEST_CASE("emulated GPU: engines on h200 and gb10 answer as on the CPU, by graphs") {
  const std::vector<engine::RequestSpec> requests = {
      request("The quick brown fox jumps over the lazy dog", 6), request("over", 12)};
  for (const AtlasDType dtype : {ATLAS_BF16, ATLAS_Q4_1}) {
    const ModelFiles model(dtype);
    EngineFixture cpu(settings_for(model.path, "cpu"));
    const std::vector<Answer> expected = cpu.run(requests);
    for (const char* platform : {"h200", "gb10"}) {
      CAPTURE(dtype);
      CAPTURE(platform);
      be_platform(platform);
      EngineFixture gpu(settings_for(model.path, platform));
      CHECK(gpu.generation().steps().graph_report() == "on");
      const std::vector<Answer> answers = gpu.run(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        CHECK(answers[i].tokens == expected[i].tokens);
        REQUIRE(answers[i].logprobs.size() == expected[i].logprobs.size());
        for (size_t t = 0; t < expected[i].logprobs.size(); ++t) {
          // Keys and values are bf16 there.
          CHECK(std::abs(answers[i].logprobs[t].logprob - expected[i].logprobs[t].logprob) < 0.02f);
        }
      }
      // A row's answer does not depend on its neighbours: alone it is the same, to the bit.
      for (size_t i = 0; i < requests.size(); ++i) CHECK(gpu.run(requests[i]) == answers[i]);
    }
  }
}

// Gated DeltaNet, sparse attention, n-grams, residual streams, experts and drafts.
TEST_CASE("emulated GPU: models of the Qwen family answer as on the CPU") {
  for (const std::string name : {"qwen4_base", "qwen3_5_moe_base"}) {
    CAPTURE(name);
    const std::string path = std::string(ATLAS_SOURCE_DIR) + "/tests/golden/qwen/" + name;
    engine::RequestSpec spec = request("", 6);
    for (engine::TokenId id = 1; id <= 40; ++id) spec.prompt.push_back(id);
    settings::Settings on_cpu = settings_for(path, "cpu");
    on_cpu.plugins = {};
    EngineFixture cpu(on_cpu);
    const Answer expected = cpu.run(spec);
    for (const std::string platform : {"h200", "gb10"}) {
      CAPTURE(platform);
      be_platform(platform);
      settings::Settings on_gpu = settings_for(path, platform);
      on_gpu.plugins = {};
      EngineFixture gpu(on_gpu);
      CHECK(gpu.generation().steps().graph_report() == "on");
      const Answer answer = gpu.run(spec);
      CHECK(answer.tokens == expected.tokens);
      REQUIRE(answer.logprobs.size() == expected.logprobs.size());
      for (size_t t = 0; t < expected.logprobs.size(); ++t) {
        // Activations of products are bf16 there, in small random models.
        CHECK(std::abs(answer.logprobs[t].logprob - expected.logprobs[t].logprob) < 0.05f);
      }
    }
  }
}

// What is one record for the few rows of a decode step is several for a prefill step's.
TEST_CASE("emulated GPU: records of few rows and of many give a token the same bits") {
  for (const std::string name : {"qwen4_base", "qwen3_5_moe_base"}) {
    CAPTURE(name);
    be_platform("h200");
    settings::Settings settings =
        settings_for(std::string(ATLAS_SOURCE_DIR) + "/tests/golden/qwen/" + name, "h200");
    settings.plugins = {};
    settings.engine.prefill_rows = 128;
    EngineFixture engine(settings);
    engine::RequestSpec spec = request("", 4);
    for (engine::TokenId id = 0; id < 90; ++id) spec.prompt.push_back(1 + id % 40);
    const Answer decoded = engine.run(spec);
    REQUIRE(decoded.tokens.size() == 4);
    REQUIRE(decoded.logprobs.size() == 4);
    spec.prompt.insert(spec.prompt.end(), decoded.tokens.begin(), decoded.tokens.end() - 1);
    spec.max_tokens = 1;
    const Answer prefilled = engine.run(spec);
    Answer last = prefilled;
    last.tokens = {decoded.tokens.back()};
    last.logprobs = {decoded.logprobs.back()};
    last.text = prefilled.text;
    CHECK(prefilled == last);
    std::set<std::string> kernels;  // of steps that had to be different
    for (const plan::StepPlan& step : engine.generation().model().plan.steps) {
      const bool few = step.bucket.kind != plan::StepKind::kPrefill;
      if (!few && step.bucket.rows < 90) continue;
      for (const plan::Record& record : step.records) {
        kernels.insert(record.kernel + (few ? "" : " many"));
      }
    }
    CHECK(kernels.contains("choose_experts"));
    CHECK(kernels.contains("route many"));
    CHECK(kernels.contains("combine_inject_norm") == (name == "qwen4_base"));
    CHECK(kernels.contains("combine_experts many"));
    for (const char* apart : {"gdn_conv", "gdn_attend", "gdn_keep"}) {
      CAPTURE(apart);
      CHECK(!kernels.contains(apart));
      CHECK(kernels.contains(std::string(apart) + " many"));
    }
    CHECK(kernels.contains("gdn_step"));
  }
}

}  // namespace atlas::testing

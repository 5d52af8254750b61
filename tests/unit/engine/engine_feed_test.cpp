// The n-gram table behind a running engine: a slow disk, a disk that fails, a disk that recovers. A
// request gets its answer or an error, and never hangs.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "daemon/engine/stepper.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/tiny_llama.h"

using namespace atlas;
using namespace atlas::engine;
using namespace atlas::testing;
using namespace std::chrono_literals;

TEST_SUITE_BEGIN("engine feed");

namespace {

const std::string kFlashMini = std::string(ATLAS_SOURCE_DIR) + "/tests/data/flash-mini";

settings::Settings flash_mini(const settings::PlatformSettings& platform,
                              const std::string& path = kFlashMini) {
  settings::Settings settings = small_settings(path, platform);
  settings.engine.context_tokens = 512;
  return settings;
}

RequestSpec request(uint32_t seed, uint32_t prompt_tokens = 40) {
  RequestSpec spec;
  for (uint32_t i = 0; i < prompt_tokens; ++i) spec.prompt.push_back((seed * 37 + i * 101) % 4000);
  spec.max_tokens = 12;
  spec.ignore_end_of_generation = true;
  return spec;
}

/// What the disk does, as a test wants it.
struct Disk {
  std::atomic<uint32_t> slow_reads{0};  // so many reads from now on take `delay`
  std::chrono::milliseconds delay{0};
  std::atomic<bool> failing{false};
};

class TestedSource final : public exec::RowSource {
 public:
  TestedSource(std::unique_ptr<exec::RowSource> inner, std::shared_ptr<Disk> disk)
      : inner_(std::move(inner)), disk_(std::move(disk)) {}
  uint32_t width() const override { return inner_->width(); }
  Status read(std::span<const uint64_t> keys, float* out) override {
    if (disk_->slow_reads != 0) {
      --disk_->slow_reads;
      std::this_thread::sleep_for(disk_->delay);
    }
    if (disk_->failing) return data_loss("the test's disk fails");
    return inner_->read(keys, out);
  }

 private:
  std::unique_ptr<exec::RowSource> inner_;
  std::shared_ptr<Disk> disk_;
};

/// Puts `disk` between the model and its table.
auto behind(const std::shared_ptr<Disk>& disk) {
  return [disk](PlannedModel& model) {
    const auto open = model.open_table;
    model.open_table = [open, disk]() -> Result<std::unique_ptr<exec::RowSource>> {
      ATLAS_ASSIGN_OR_RETURN(auto inner, open());
      return std::unique_ptr<exec::RowSource>(
          std::make_unique<TestedSource>(std::move(inner), disk));
    };
  };
}

}  // namespace

TEST_CASE("feed: rows that come late are waited for again, and the answer is the same") {
  for (const TestPlatform& platform : test_platforms()) {
    CAPTURE(platform.name);
    settings::Settings settings = flash_mini(platform.settings);
    const Answer expected = EngineFixture(settings).run(request(1));
    settings.engine.feed_timeout_ms = 50;
    const auto disk = std::make_shared<Disk>();
    EngineFixture fixture(settings, behind(disk));
    disk->delay = 150ms;
    disk->slow_reads = 1;
    const Answer answer = fixture.run(request(1));
    CHECK(answer.finish->reason == FinishReason::kLength);
    CHECK(answer == expected);
    // The step that was late is the one that a graph is compared in, and says nothing of the graph.
    CHECK(fixture.generation().steps().graph_report() == "on");
  }
}

TEST_CASE(
    "feed: a disk that stays slow ends the request with an error, and later ones are served") {
  settings::Settings settings = flash_mini(test_platforms()[0].settings);
  settings.engine.feed_timeout_ms = 20;
  const auto disk = std::make_shared<Disk>();
  EngineFixture fixture(settings, behind(disk));
  disk->delay = 100ms;
  disk->slow_reads = 1000;
  const Answer answer = fixture.run(request(1));
  REQUIRE(answer.finish->reason == FinishReason::kError);
  CHECK(answer.finish->error.message().find("in time") != std::string::npos);
  disk->slow_reads = 0;
  const Answer later = fixture.run(request(2));
  CHECK(later.finish->reason == FinishReason::kLength);
}

TEST_CASE("feed: a step by hand whose rows come late begins again, with the same logits") {
  settings::Settings settings = flash_mini(test_platforms()[0].settings);
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < 90; ++i) tokens.push_back((i * 101) % 4000);
  /// Logits of a chunk of 70 tokens (past an anchor), one token, and two.
  const auto logits = [&](const std::shared_ptr<Disk>& disk, const std::vector<uint32_t>& slow) {
    EngineFixture fixture(settings, behind(disk));
    const auto stepper = Stepper::create(fixture.shared_generation(), fixture.device());
    REQUIRE(stepper);
    std::vector<float> all;
    uint32_t first = 0, step = 0;
    for (const uint32_t count : {64u, 6u, 1u, 2u}) {
      disk->slow_reads = slow[step++];
      const StepRows rows{0, std::span(tokens).subspan(first, count), 1, first == 0, {}};
      const auto some = (*stepper)->run(
          count == 1 ? (*stepper)->decode_kind() : plan::StepKind::kPrefill, {&rows, 1});
      if (!some) {
        CHECK(some.error().code() == Code::kUnavailable);
        CHECK(some.error().message().find("in time, 3 times") != std::string::npos);
        return std::vector<float>();
      }
      all.insert(all.end(), some->begin(), some->end());
      first += count;
    }
    return all;
  };
  const auto disk = std::make_shared<Disk>();
  const std::vector<float> expected = logits(disk, {0, 0, 0, 0});
  settings.engine.feed_timeout_ms = 50;
  disk->delay = 100ms;  // over before the third wait is
  CHECK(logits(disk, {1, 0, 1, 1}) == expected);
  disk->delay = 150ms;
  CHECK(logits(disk, {0, 0, 1000, 0}).empty());
}

TEST_CASE("feed: a disk that fails is an error of the requests that need it, until it recovers") {
  for (const TestPlatform& platform : test_platforms()) {
    CAPTURE(platform.name);
    const settings::Settings settings = flash_mini(platform.settings);
    const Answer expected = EngineFixture(settings).run(request(3));
    const auto disk = std::make_shared<Disk>();
    EngineFixture fixture(settings, behind(disk));
    disk->failing = true;
    const Answer failed = fixture.run(request(3));
    REQUIRE(failed.finish->reason == FinishReason::kError);
    CHECK(failed.finish->error.code() == Code::kUnavailable);
    CHECK(failed.finish->error.message().find("n-gram") != std::string::npos);
    disk->failing = false;
    // Nothing of the failed computation was kept.
    CHECK(fixture.run(request(3)) == expected);
  }
}

TEST_CASE(
    "feed: a table that is cut short under a running daemon fails requests and nothing else") {
  TempDir folder;
  std::filesystem::copy(kFlashMini, folder.file("model"), std::filesystem::copy_options::recursive);
  const std::string weights = folder.file("model/model.safetensors");
  const settings::Settings settings =
      flash_mini(test_platforms()[0].settings, folder.file("model"));
  EngineFixture fixture(settings);
  const auto bytes = std::filesystem::file_size(weights);
  std::filesystem::resize_file(weights, 4096);
  const Answer failed = fixture.run(request(4));
  CHECK(failed.finish->reason == FinishReason::kError);
  // Written again in place, as the file that is open.
  std::ifstream from(kFlashMini + "/model.safetensors", std::ios::binary);
  std::fstream to(weights, std::ios::binary | std::ios::in | std::ios::out);
  to << from.rdbuf();
  to.close();
  REQUIRE(std::filesystem::file_size(weights) == bytes);
  CHECK(fixture.run(request(4)).finish->reason == FinishReason::kLength);
}

TEST_SUITE_END();

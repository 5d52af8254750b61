#include "tests/support/engine_fixture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "tests/support/arguments.h"

namespace atlas::testing {

using engine::Generation;

namespace {

// How many times as long a step may take as on a processor that is not emulated.
#if defined(ATLAS_PROCESSOR_EMULATED)
constexpr int kSlower = 12;
#else
constexpr int kSlower = 1;
#endif

bool same_floats(float a, float b) { return std::memcmp(&a, &b, sizeof(float)) == 0; }

bool same(const std::vector<engine::TokenLogprob>& a, const std::vector<engine::TokenLogprob>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.token == y.token && same_floats(x.logprob, y.logprob) && x.rank == y.rank &&
           std::equal(x.top.begin(), x.top.end(), y.top.begin(), y.top.end(),
                      [](const auto& p, const auto& q) {
                        return p.first == q.first && same_floats(p.second, q.second);
                      });
  });
}

Result<std::shared_ptr<Generation>> build(const app::Assembly& assembly,
                                          const app::Plugins& plugins,
                                          const std::shared_ptr<Device>& device,
                                          const Generation* share) {
  ATLAS_ASSIGN_OR_RETURN(const auto modules, app::load_modules(device, plugins.packs));
  return Generation::build(
      assembly.model, device, modules, share, [](const std::string&, double) {},
      [] { return false; });
}

}  // namespace

bool Answer::operator==(const Answer& other) const {
  return text == other.text && tokens == other.tokens && same(logprobs, other.logprobs) &&
         same(prompt, other.prompt) && finish && other.finish &&
         finish->reason == other.finish->reason;
}

namespace {
const test::OptionText kDevice("--device h200|gb10|strix-hip",
                               "engines run on the GPU of this machine instead of the CPU");
}  // namespace

std::vector<TestPlatform> test_platforms() {
  if (const std::string device = test::argument("device"); !device.empty()) {
    TestPlatform real{device, {}};
    real.settings.name = device;
    return {real};
  }
  TestPlatform cpu{"cpu", {}};
  cpu.settings.options = {{"threads", "2"}};
  return {cpu, {"imitation", imitation()}};
}

settings::PlatformSettings imitation() {
  settings::PlatformSettings settings;
  settings.plugin = std::string(ATLAS_BINARY_DIR) + "/lib/atlas/test-plugins/platform_imitation.so";
  return settings;
}

settings::Settings small_settings(const std::string& path,
                                  const settings::PlatformSettings& platform) {
  settings::Settings settings;
  settings.model.path = path;
  settings.platform = platform;
  settings.engine.max_sequences = 4;
  settings.engine.prefill_rows = 96;
  settings.engine.cache_tokens = 2048;
  settings.engine.reserve_bytes = 0;
  return settings;
}

EngineFixture::EngineFixture(const settings::Settings& settings, engine::EngineOptions options) {
  const Status status = open(settings, options);
  REQUIRE_MESSAGE(status.ok(), status.message());
}

EngineFixture::EngineFixture(const settings::Settings& settings,
                             std::function<void(engine::PlannedModel&)> adjust) {
  const Status status = open(settings, {}, adjust);
  REQUIRE_MESSAGE(status.ok(), status.message());
}

Result<std::unique_ptr<EngineFixture>> EngineFixture::create(const settings::Settings& settings,
                                                             engine::EngineOptions options) {
  std::unique_ptr<EngineFixture> fixture(new EngineFixture);
  ATLAS_RETURN_IF_ERROR(fixture->open(settings, options));
  return fixture;
}

EngineFixture::~EngineFixture() { engine_.reset(); }

Status EngineFixture::open(const settings::Settings& settings, engine::EngineOptions options,
                           const std::function<void(engine::PlannedModel&)>& adjust) {
  ATLAS_RETURN_IF_ERROR(app::load_plugins(settings, plugins_));
  ATLAS_ASSIGN_OR_RETURN(device_, app::open_device(settings, plugins_));
  ATLAS_ASSIGN_OR_RETURN(const app::Assembly assembly, app::assemble(settings, plugins_));
  if (adjust) adjust(*assembly.model);
  ATLAS_ASSIGN_OR_RETURN(generation_, build(assembly, plugins_, device_, nullptr));
  options.step_deadline *= kSlower;
  engine_ = std::make_unique<engine::EngineCore>(device_, options);
  return engine_->install(generation_).get();
}

Result<engine::RequestId> EngineFixture::submit(engine::RequestSpec spec) {
  return engine_->submit(std::move(spec), [this](engine::RequestId id, engine::Update update) {
    const std::scoped_lock lock(mutex_);
    Answer& answer = answers_[id];
    CHECK_MESSAGE(!answer.finish, "an update after the last one");
    answer.text += update.text;
    answer.tokens.insert(answer.tokens.end(), update.tokens.begin(), update.tokens.end());
    const auto append = [](auto& to, auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(answer.logprobs, update.logprobs);
    append(answer.prompt, update.prompt);
    if (update.finish) answer.finish = std::move(update.finish);
    news_.notify_all();
  });
}

Answer EngineFixture::answer(engine::RequestId id) {
  // A busy machine may be slow; an engine that makes no step for a minute hangs.
  for (uint64_t seen = 0;;) {
    {
      std::unique_lock lock(mutex_);
      if (news_.wait_for(lock, std::chrono::seconds(60 * kSlower),
                         [&] { return answers_[id].finish.has_value(); })) {
        return answers_[id];
      }
    }
    const engine::EngineStats stats = engine_->stats();
    const uint64_t steps = stats.steps_prefill + stats.steps_decode;
    REQUIRE_MESSAGE(steps != seen, "a request had no end, and the engine no step within a minute");
    seen = steps;
  }
}

size_t EngineFixture::tokens_so_far(engine::RequestId id) {
  const std::scoped_lock lock(mutex_);
  return answers_[id].tokens.size();
}

std::vector<Answer> EngineFixture::run(const std::vector<engine::RequestSpec>& specs) {
  std::vector<engine::RequestId> ids;
  for (const engine::RequestSpec& spec : specs) {
    const auto id = submit(spec);
    REQUIRE_MESSAGE(id, id.error().message());
    ids.push_back(*id);
  }
  std::vector<Answer> all;
  for (const engine::RequestId id : ids) all.push_back(answer(id));
  return all;
}

Status EngineFixture::swap(const settings::Settings& settings) {
  later_plugins_.push_back(std::make_shared<app::Plugins>());
  ATLAS_RETURN_IF_ERROR(app::load_plugins(settings, *later_plugins_.back()));
  ATLAS_ASSIGN_OR_RETURN(const app::Assembly assembly,
                         app::assemble(settings, *later_plugins_.back()));
  ATLAS_ASSIGN_OR_RETURN(auto generation,
                         build(assembly, *later_plugins_.back(), device_, generation_.get()));
  ATLAS_RETURN_IF_ERROR(engine_->install(generation).get());
  generation_ = std::move(generation);
  return {};
}

}  // namespace atlas::testing

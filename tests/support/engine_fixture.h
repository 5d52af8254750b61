// A whole engine in a test: plugins, device, tiny model, EngineCore; requests run to their end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/app/assembly.h"
#include "daemon/engine/engine_core.h"
#include "daemon/settings/settings.h"

namespace atlas::testing {

/// Everything that one request was told.
struct Answer {
  std::string text;
  std::vector<engine::TokenId> tokens;
  std::vector<engine::TokenLogprob> logprobs, prompt;
  std::optional<engine::Finish> finish;
  bool operator==(const Answer& other) const;  // bytes of ids, text and log-probabilities
};

/// The platforms that every engine test runs on: the CPU, and the strict imitation of a GPU; or,
/// with
/// `--device PLATFORM` on the command line, that platform's device alone.
struct TestPlatform {
  std::string name;  // for messages
  settings::PlatformSettings settings;
};
std::vector<TestPlatform> test_platforms();
/// The strict imitation, for tests that need its failures.
settings::PlatformSettings imitation();

/// Settings for a model at `path` with small limits.
settings::Settings small_settings(const std::string& path,
                                  const settings::PlatformSettings& platform);

class EngineFixture {
 public:
  /// Ends the test with a message if the model cannot be loaded.
  explicit EngineFixture(const settings::Settings& settings, engine::EngineOptions options = {});
  /// `adjust` changes the model between planning and loading.
  EngineFixture(const settings::Settings& settings,
                std::function<void(engine::PlannedModel&)> adjust);
  /// The same, but returns what failed.
  static Result<std::unique_ptr<EngineFixture>> create(const settings::Settings& settings,
                                                       engine::EngineOptions options = {});
  ~EngineFixture();

  /// Submits without waiting; `answer(id)` waits.
  Result<engine::RequestId> submit(engine::RequestSpec spec);
  Answer answer(engine::RequestId id);
  /// Submits all at once and waits for all, in order.
  std::vector<Answer> run(const std::vector<engine::RequestSpec>& specs);
  Answer run(const engine::RequestSpec& spec) { return run(std::vector{spec}).front(); }
  /// Tokens that a request has been told so far.
  size_t tokens_so_far(engine::RequestId id);

  /// Builds a generation of other settings beside the serving one and installs it.
  Status swap(const settings::Settings& settings);

  engine::EngineCore& engine() { return *engine_; }
  engine::Generation& generation() { return *generation_; }
  const std::shared_ptr<engine::Generation>& shared_generation() { return generation_; }
  const std::shared_ptr<Device>& device() { return device_; }

 private:
  EngineFixture() = default;
  Status open(const settings::Settings& settings, engine::EngineOptions options,
              const std::function<void(engine::PlannedModel&)>& adjust = {});

  app::Plugins plugins_;
  std::vector<std::shared_ptr<app::Plugins>> later_plugins_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<engine::Generation> generation_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::map<engine::RequestId, Answer> answers_;
  std::unique_ptr<engine::EngineCore> engine_;
};

}  // namespace atlas::testing

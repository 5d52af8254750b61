// LocalModel: plugins, device and generation in this process, for tools that need no daemon.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/app/assembly.h"
#include "daemon/engine/engine_core.h"
#include "daemon/engine/stepper.h"
#include "daemon/exec/step_walk.h"
#include "daemon/settings/settings.h"

namespace atlas::tools {

/// Which model on what, as the command line says it.
struct ModelOptions {
  std::string model;             // a .gguf file or a folder
  std::string config;            // settings to begin with; empty: the defaults
  std::string platform;          // empty: the settings' own
  uint32_t threads = 0;          // the platform's option `threads`; 0: as the settings have it
  std::vector<std::string> set;  // KEY=VALUE of the settings
};

/// What a second model has that the first one has not. It begins as the first one does; with a
/// config of its own, that file stands for the first one's config and keys.
struct AgainstOptions {
  std::string model;             // empty: the first one's
  std::string config;            // empty: the first one's
  std::vector<std::string> set;  // KEY=VALUE, after everything else
  bool empty() const { return model.empty() && config.empty() && set.empty(); }
};

/// What a command needs of the engine. Keys that `set` names win over it.
struct EngineNeeds {
  uint32_t sequences = 1;                   // live at once
  uint32_t sequence_tokens = 0;             // of the longest; 0: as long as the model allows
  uint32_t scored_rows = app::kScoredRows;  // of the largest step that gives all rows' logits
};

/// The second model's options.
ModelOptions against(const ModelOptions& first, const AgainstOptions& second);

/// Settings for a tool: the file or the defaults, then the needs, then the options.
/// Errors: kInvalidArgument for a text of `set` without '=' or with an unknown key.
Result<settings::Settings> tool_settings(const ModelOptions& options, const EngineNeeds& needs);
/// The tokenizer of a model that is not opened yet. Error kFailedPrecondition if it has none.
Result<std::shared_ptr<const model::Tokenizer>> model_tokenizer(const ModelOptions& options);
/// The same settings with the platform's option `threads` at `threads`.
settings::Settings with_threads(settings::Settings settings, uint32_t threads);

/// A model that is loaded and ready to run. Stepper or EngineCore use its state, one at a time.
class LocalModel {
 public:
  /// Where weights are read from, given where they would be read from.
  using Weights = std::function<std::shared_ptr<const plan::WeightSource>(
      std::shared_ptr<const plan::WeightSource>)>;

  /// `scored_rows`: rows of the largest step that gives logits for every row. `weights`: reads them
  /// from elsewhere; their shapes are the checkpoint's.
  static Result<std::unique_ptr<LocalModel>> open(const settings::Settings& settings,
                                                  uint32_t scored_rows = app::kScoredRows,
                                                  const Weights& weights = {});

  const settings::Settings& settings() const { return settings_; }
  const engine::ModelInfo& info() const { return *generation_->info(); }
  Result<DeviceInfo> device_info() const { return device_->info(); }
  engine::Generation& generation() { return *generation_; }

  /// Error kInvalidArgument, with `what` in front, if so many positions do not fit the context.
  Status check_length(const std::string& what, uint64_t tokens) const;
  /// Error kFailedPrecondition if the checkpoint has no tokenizer.
  Result<std::shared_ptr<const model::Tokenizer>> tokenizer() const;

  Result<std::unique_ptr<engine::Stepper>> stepper() const;
  /// A step of the plan to be run operation by operation.
  Result<exec::StepWalk> walk(const plan::Bucket& bucket) const;
  /// Some records of a bucket's step, a graph where the device has graphs.
  Result<StepExecutable> records(const plan::Bucket& bucket, std::span<const size_t> records) const;
  /// An engine that serves the model, with its graphs compared.
  Result<std::unique_ptr<engine::EngineCore>> engine() const;

 private:
  LocalModel() = default;
  settings::Settings settings_;
  app::Plugins plugins_;
  std::shared_ptr<Device> device_;
  std::vector<Module> modules_;
  std::shared_ptr<engine::Generation> generation_;
};

}  // namespace atlas::tools

#include "tools/common/local_model.h"

#include <algorithm>

namespace atlas::tools {

using engine::Generation;

namespace {

/// Pages hold less than this; a sequence's last page is seldom full.
constexpr uint64_t kPageSlack = 256;

void apply(const EngineNeeds& needs, settings::EngineSettings& engine) {
  engine.max_sequences = needs.sequences;
  // A prompt of one token needs two: an engine serves no context without a place for an answer.
  engine.context_tokens = needs.sequence_tokens == 1 ? 2 : needs.sequence_tokens;
  engine.cache_tokens = 0;  // two contexts, and the model's own limit bounds a context
  if (needs.sequence_tokens != 0 && needs.sequences > 1) {
    engine.cache_tokens = uint64_t{needs.sequences} * (needs.sequence_tokens + kPageSlack);
  }
  engine.prefill_rows = std::max(engine.prefill_rows, needs.scored_rows);
}

}  // namespace

ModelOptions against(const ModelOptions& first, const AgainstOptions& second) {
  ModelOptions options = first;
  if (!second.model.empty()) options.model = second.model;
  if (!second.config.empty()) {
    options.config = second.config;
    options.set.clear();
  }
  options.set.insert(options.set.end(), second.set.begin(), second.set.end());
  return options;
}

Result<settings::Settings> tool_settings(const ModelOptions& options, const EngineNeeds& needs) {
  settings::Settings settings;
  if (!options.config.empty()) {
    ATLAS_ASSIGN_OR_RETURN(settings, settings::load(options.config));
  }
  if (!options.model.empty()) {
    settings.model.path = options.model;
    settings.model.name.clear();
  }
  if (!options.platform.empty()) settings.platform.name = options.platform;
  apply(needs, settings.engine);
  for (const std::string& pair : options.set) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return invalid_argument("a setting is given as KEY=VALUE, and '{}' is not", pair);
    }
    ATLAS_ASSIGN_OR_RETURN(
        settings, settings::with(settings, pair.substr(0, equals), pair.substr(equals + 1)));
  }
  return options.threads == 0 ? settings : with_threads(std::move(settings), options.threads);
}

Result<std::shared_ptr<const model::Tokenizer>> model_tokenizer(const ModelOptions& options) {
  ATLAS_ASSIGN_OR_RETURN(const settings::Settings settings, tool_settings(options, {}));
  ATLAS_ASSIGN_OR_RETURN(const model::Checkpoint checkpoint,
                         model::Checkpoint::open(settings.model.path));
  ATLAS_ASSIGN_OR_RETURN(auto tokenizer, app::load_tokenizer(checkpoint));
  if (tokenizer != nullptr) return tokenizer;
  return failed_precondition("'{}' has no tokenizer: give token ids, not text",
                             app::model_name(settings));
}

settings::Settings with_threads(settings::Settings settings, uint32_t threads) {
  auto& options = settings.platform.options;
  std::erase_if(options, [](const auto& option) { return option.first == "threads"; });
  options.emplace_back("threads", std::to_string(threads));
  return settings;
}

Result<std::unique_ptr<LocalModel>> LocalModel::open(const settings::Settings& settings,
                                                     uint32_t scored_rows, const Weights& weights) {
  std::unique_ptr<LocalModel> local(new LocalModel);
  local->settings_ = settings;
  ATLAS_RETURN_IF_ERROR(app::load_plugins(settings, local->plugins_));
  ATLAS_ASSIGN_OR_RETURN(local->device_, app::open_device(settings, local->plugins_));
  ATLAS_ASSIGN_OR_RETURN(const app::Assembly assembly,
                         app::assemble(settings, local->plugins_, scored_rows));
  if (weights) assembly.model->weights = weights(assembly.model->weights);
  ATLAS_ASSIGN_OR_RETURN(const DeviceInfo info, local->device_->info());
  ATLAS_RETURN_IF_ERROR(
      assembly.model->plan.ledger.check(info.available_bytes, info.unified_memory));
  ATLAS_ASSIGN_OR_RETURN(local->modules_, app::load_modules(local->device_, local->plugins_.packs));
  ATLAS_ASSIGN_OR_RETURN(local->generation_,
                         Generation::build(
                             assembly.model, local->device_, local->modules_, nullptr,
                             [](const std::string&, double) {}, [] { return false; }));
  return local;
}

Status LocalModel::check_length(const std::string& what, uint64_t tokens) const {
  if (tokens <= info().context_tokens) return {};
  return invalid_argument("{} needs {} positions, and the context of '{}' ends at {}", what, tokens,
                          info().id, info().context_tokens);
}

Result<std::shared_ptr<const model::Tokenizer>> LocalModel::tokenizer() const {
  if (info().tokenizer != nullptr) return info().tokenizer;
  return failed_precondition("'{}' has no tokenizer: give token ids, not text", info().id);
}

Result<std::unique_ptr<engine::Stepper>> LocalModel::stepper() const {
  return engine::Stepper::create(generation_, device_);
}

Result<exec::StepWalk> LocalModel::walk(const plan::Bucket& bucket) const {
  const plan::Plan& plan = generation_->plan();
  ATLAS_ASSIGN_OR_RETURN(const exec::KernelTable kernels, exec::resolve_kernels(plan, modules_));
  return exec::StepWalk::build(device_, plan, bucket, kernels, generation_->steps().buffers());
}

Result<StepExecutable> LocalModel::records(const plan::Bucket& bucket,
                                           std::span<const size_t> records) const {
  const plan::Plan& plan = generation_->plan();
  ATLAS_ASSIGN_OR_RETURN(const exec::KernelTable kernels, exec::resolve_kernels(plan, modules_));
  ATLAS_ASSIGN_OR_RETURN(const DeviceInfo info, device_->info());
  return exec::step_of_records(device_, plan, bucket, kernels, generation_->steps().buffers(),
                               records, info.supports_graphs ? StepMode::kGraph : StepMode::kEager);
}

Result<std::unique_ptr<engine::EngineCore>> LocalModel::engine() const {
  engine::EngineOptions options;
  options.queue_limit = settings_.engine.queue_limit;
  options.latency_bound_s = settings_.engine.latency_bound_ms / 1000.0;
  options.step_deadline = std::chrono::seconds(settings_.engine.step_deadline_s);
  auto engine = std::make_unique<engine::EngineCore>(device_, options);
  ATLAS_RETURN_IF_ERROR(engine->install(generation_).get());
  return engine;
}

}  // namespace atlas::tools

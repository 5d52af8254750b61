// Assembly: from settings to a planned and audited model, and everything it needs to run.
// The daemon, `atlasctl plan` and the tools all come through here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/device/device.h"
#include "daemon/engine/generation.h"
#include "daemon/model/checkpoint/checkpoint.h"
#include "daemon/plugin_host/audit.h"
#include "daemon/plugin_host/registry.h"
#include "daemon/settings/settings.h"

namespace atlas::app {

/// Plugins, packs and the platform's own plugin, as the settings name them.
struct Plugins {
  plugin_host::PluginRegistry registry;
  plugin_host::PackIndex packs;
  std::shared_ptr<plugin_host::Plugin> platform;
};

/// Loads the plugins that the settings name and reads the packs of their platform. `registry` is
/// filled for reports even if this fails.
Status load_plugins(const settings::Settings& settings, Plugins& plugins);

/// Looks up every kernel that the plugins and the core name, before a device is opened; `assemble`
/// looks up what the plan names, too. Errors: kFailedPrecondition with every one that is missing.
Status audit_plugins(const settings::Settings& settings, const Plugins& plugins);

/// A checkpoint as the planner reads it.
std::shared_ptr<const plan::WeightSource> weight_source(std::shared_ptr<const model::Checkpoint>);

/// The checkpoint's tokenizer, or null if it has none.
Result<std::shared_ptr<const model::Tokenizer>> load_tokenizer(const model::Checkpoint& checkpoint);

struct Assembly {
  settings::Settings settings;
  std::shared_ptr<const model::Checkpoint> checkpoint;
  std::shared_ptr<engine::PlannedModel> model;
  plugin_host::AuditReport audit;
};

/// Rows of the prefill step that gives logits for every row, for echo and evaluation.
inline constexpr uint32_t kScoredRows = 64;

/// Opens the checkpoint, plans every step and audits every kernel. Reads no weight. A step with
/// logits for every row has `scored_rows` rows, or those of the largest prefill step if it is
/// smaller.
Result<Assembly> assemble(const settings::Settings& settings, const Plugins& plugins,
                          uint32_t scored_rows = kScoredRows);

/// Looks up every kernel that `plan` names, and puts what its plugin names instead in the place of
/// an optional one that is absent. Errors: kFailedPrecondition with every one that is missing.
Status settle_kernels(const Plugins& plugins, plan::Plan& plan);

/// Opens the device of the settings' platform.
Result<std::shared_ptr<Device>> open_device(const settings::Settings& settings,
                                            const Plugins& plugins);

/// Loads private copies of all packs onto the device.
Result<std::vector<Module>> load_modules(const std::shared_ptr<Device>& device,
                                         const plugin_host::PackIndex& packs);

/// What `/v1/models` calls the model if the settings give no name: the file or folder name.
std::string model_name(const settings::Settings& settings);

}  // namespace atlas::app

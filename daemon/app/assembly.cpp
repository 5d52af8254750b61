#include "daemon/app/assembly.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>
#include <thread>

#include "daemon/base/log.h"
#include "daemon/model/chat_template/chat_template.h"
#include "daemon/model/checkpoint/ngram_table.h"
#include "daemon/model/programs/programs.h"
#include "daemon/model/tokenizer/tokenizer.h"
#include "daemon/plugin_host/file_image.h"

namespace atlas::app {

namespace fs = std::filesystem;
using plugin_host::Plugin;
using plugin_host::PluginKind;

namespace {

/// The folder lib/atlas beside the folder of the running program.
fs::path library_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "lib" / "atlas";
}

fs::path plugin_folder(const settings::Settings& s) {
  return s.plugins.directory.empty() ? library_folder() / "plugins" : fs::path(s.plugins.directory);
}

fs::path kernel_folder(const settings::Settings& s) {
  const fs::path base =
      s.plugins.kernels.empty() ? library_folder() / "kernels" : fs::path(s.plugins.kernels);
  return base / s.platform.name;
}

/// The plugin of a platform's runtime, if the settings do not name another.
std::string platform_plugin(const settings::Settings& s) {
  if (!s.platform.plugin.empty()) return s.platform.plugin;
  if (s.platform.name == "gb10" || s.platform.name == "h200") return "cuda";
  if (s.platform.name == "strix-hip") return "hip";
  return s.platform.name;
}

/// Whether a checkpoint is so large that a second copy of it in the page cache would be felt; a
/// small one stays there, and the next start is quick.
bool is_large(const model::Checkpoint& checkpoint) {
  const auto memory = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                      static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return checkpoint.total_bytes() > memory / 8;
}

class CheckpointSource final : public plan::WeightSource {
 public:
  explicit CheckpointSource(std::shared_ptr<const model::Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)), large_(is_large(*checkpoint_)) {}

  std::vector<AtlasTensor> module_tensors(const std::string& module) const override {
    std::vector<AtlasTensor> tensors;
    for (const model::TensorInfo& info : checkpoint_->with_prefix(module)) {
      if (auto tensor = model::to_abi_tensor(info)) tensors.push_back(*tensor);
    }
    return tensors;
  }
  Result<AtlasTensor> tensor(const std::string& name) const override {
    const model::TensorInfo* info = checkpoint_->find(name);
    if (info == nullptr) return not_found("the checkpoint has no tensor '{}'", name);
    return model::to_abi_tensor(*info);
  }
  Status read(const AtlasTensor& tensor, uint64_t offset, std::span<std::byte> out) const override {
    const model::TensorInfo* info = checkpoint_->find(tensor.name);
    if (info == nullptr) return not_found("the checkpoint has no tensor '{}'", tensor.name);
    return checkpoint_->read(*info, offset, out);
  }
  std::string identity() const override {
    std::string text;
    for (const std::string& path : checkpoint_->files()) {
      struct stat info {};
      (void)::stat(path.c_str(), &info);
      text += fmt::format("{}:{}:{}:{}.{:09} ", info.st_dev, info.st_ino, info.st_size,
                          info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    }
    return text;
  }
  void drop_cache(const AtlasTensor& tensor) const override {
    if (!large_) return;
    if (const model::TensorInfo* info = checkpoint_->find(tensor.name)) {
      checkpoint_->drop_cache(*info);
    }
  }

 private:
  std::shared_ptr<const model::Checkpoint> checkpoint_;
  bool large_;
};

/// Decode steps of 1, 2, 4, ... sequences, each with its drafts; prefill steps of 64 rows and of
/// the settings' rows; one prefill step with logits for every row, for echo and evaluation.
std::vector<plan::Bucket> buckets(const settings::EngineSettings& engine, uint32_t drafts,
                                  uint32_t scored_rows) {
  using plan::StepKind;
  std::vector<plan::Bucket> result;
  const auto add_decode = [&](uint32_t sequences) {
    const uint32_t rows = sequences * (1 + drafts);
    result.push_back({drafts == 0 ? StepKind::kDecode : StepKind::kVerify, rows, rows});
  };
  for (uint32_t rows = 1; rows < engine.max_sequences; rows *= 2) add_decode(rows);
  add_decode(engine.max_sequences);
  constexpr uint32_t kSmallPrefill = 64;
  const uint32_t logits = std::min(engine.max_sequences, engine.prefill_rows);
  if (engine.prefill_rows > kSmallPrefill) {
    result.push_back({StepKind::kPrefill, kSmallPrefill, std::min(logits, kSmallPrefill)});
  }
  result.push_back({StepKind::kPrefill, engine.prefill_rows, logits});
  const uint32_t scored = std::min(engine.prefill_rows, scored_rows);
  if (logits < scored) result.push_back({StepKind::kPrefill, scored, scored});
  return result;
}

plan::Shape shape(const settings::EngineSettings& engine, const model::ModelConfig& config,
                  uint32_t drafts, uint32_t scored_rows) {
  plan::Shape shape;
  shape.max_sequences = engine.max_sequences;
  shape.context_tokens = engine.context_tokens == 0
                             ? config.max_positions
                             : std::min(engine.context_tokens, config.max_positions);
  shape.cache_tokens =
      engine.cache_tokens == 0 ? 2 * uint64_t{shape.context_tokens} : engine.cache_tokens;
  shape.buckets = buckets(engine, drafts, scored_rows);
  shape.snapshot_bytes = engine.snapshot_bytes;
  shape.row_cache_bytes = engine.row_cache_bytes;
  shape.feed_timeout_ns = uint64_t{engine.feed_timeout_ms} * 1'000'000;
  // What the daemon itself takes beside the model: measured at start with tokenizer and
  // connections.
  shape.host_heap_bytes = 64u << 20;
  shape.reserve_bytes = engine.reserve_bytes;
  return shape;
}

/// Every request has a token of prompt and one of answer at least.
Status check_context(const settings::Settings& settings, const model::ModelConfig& config,
                     uint32_t context_tokens) {
  if (context_tokens >= 2) return {};
  return invalid_argument(
      "'{}' would be served with a context of {} token, and a prompt with an answer takes 2 at "
      "least: its configuration has {} positions, engine.context_tokens is {} (0: as many as the "
      "model has)",
      settings.model.path, context_tokens, config.max_positions, settings.engine.context_tokens);
}

exec::RowTableFiles table_files(const model::NgramTable& table) {
  exec::RowTableFiles files;
  for (const model::NgramShard& shard : table.shards) {
    files.shards.push_back({shard.path, shard.offset, shard.rows});
  }
  files.shard_rows = table.shard_rows;
  files.rows = table.rows;
  files.row_width = table.row_width;
  files.dtype = table.dtype;
  files.scale = table.scale;
  files.trellis_bits = table.trellis_bits;
  files.head_offsets = table.head_offsets;
  files.head_bias = table.head_bias;
  return files;
}

Status describe_model(const settings::Settings& settings, const model::Checkpoint& checkpoint,
                      engine::ModelInfo& info) {
  const model::ModelConfig& config = checkpoint.config();
  info.id = model_name(settings);
  info.architecture = config.architecture;
  info.vocab = config.vocab;
  info.created_unix_s = std::chrono::duration_cast<std::chrono::seconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
  ATLAS_ASSIGN_OR_RETURN(info.tokenizer, load_tokenizer(checkpoint));
  if (info.tokenizer != nullptr && info.tokenizer->vocab_size() > config.vocab) {
    return invalid_argument("the tokenizer has {} tokens and the model's embedding {} rows",
                            info.tokenizer->vocab_size(), config.vocab);
  }
  info.end_of_generation = config.eos_ids;
  if (info.tokenizer != nullptr) {
    const auto& ends = info.tokenizer->end_of_generation();
    info.end_of_generation.insert(info.end_of_generation.end(), ends.begin(), ends.end());
  }
  if (info.tokenizer != nullptr && checkpoint.chat_template()) {
    auto parsed = model::ChatTemplate::parse(*checkpoint.chat_template(), info.id);
    if (!parsed) return parsed.error();
    info.chat_template = std::make_shared<const model::ChatTemplate>(std::move(*parsed));
  }
  info.bos_text = checkpoint.special_tokens().bos.value_or("");
  info.eos_text = checkpoint.special_tokens().eos.value_or("");
  return {};
}

/// "q4_1 + q8_0", by bytes.
std::string weight_formats(const plan::Plan& plan) {
  std::vector<std::pair<std::string, uint64_t>> formats;
  for (const plan::Weight& weight : plan.weights) {
    const auto known = std::find_if(formats.begin(), formats.end(),
                                    [&](const auto& one) { return one.first == weight.format; });
    const uint64_t bytes = plan.buffers[weight.buffer].bytes;
    if (known == formats.end()) {
      formats.emplace_back(weight.format, bytes);
    } else {
      known->second += bytes;
    }
  }
  std::sort(formats.begin(), formats.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [format, bytes] : formats) text += (text.empty() ? "" : " + ") + format;
  return text;
}

/// Names what decides the bytes of an answer: plugins, packs, weights and their layouts.
Result<std::string> fingerprint(const model::Checkpoint& checkpoint, const plan::Plan& plan,
                                const Plugins& plugins) {
  std::string text =
      fmt::format("{} {} {};", plan.platform, checkpoint.format_name(), checkpoint.total_bytes());
  const model::ModelConfig& config = checkpoint.config();
  text +=
      fmt::format("{} {} {} {} {};", config.rms_eps, config.rope.theta, config.rope.interleaved,
                  fmt::join(config.rope.inverse_frequencies, ","), fmt::join(config.eos_ids, ","));
  // The beginning of every tensor: another training of the same shapes differs in all of them.
  constexpr uint64_t kSample = 256;
  for (const model::TensorInfo& tensor : checkpoint.tensors()) {
    text += tensor.name;
    const size_t end = text.size();
    text.resize(end + std::min(tensor.bytes, kSample));
    ATLAS_RETURN_IF_ERROR(
        checkpoint.read(tensor, 0, std::as_writable_bytes(std::span(text)).subspan(end)));
  }
  for (const auto& plugin : plugins.registry.plugins()) text += plugin->digest() + ";";
  for (const plugin_host::PackFile& pack : plugins.packs.files()) text += pack.digest + ";";
  for (const plan::Weight& weight : plan.weights) text += weight.format + weight.contract;
  const auto bytes = std::as_bytes(std::span(text));
  return "atlas-" + plugin_host::content_digest({bytes.begin(), bytes.end()});
}

/// What weights must be: the settings' word first, then the checkpoint's own.
std::vector<plan::DeclaredFormats> declared_formats(const settings::Settings& settings,
                                                    const model::ModelConfig& config) {
  std::vector<plan::DeclaredFormats> all;
  const settings::FormatSettings& formats = settings.model.formats;
  if (!formats.all.empty() || !formats.modules.empty()) {
    plan::DeclaredFormats& one = all.emplace_back();
    one.source = "model.formats of the settings";
    one.remedy = "the tensors decide what runs: change the setting or take another checkpoint";
    one.all_match = true;
    one.word = formats.all;
    if (!formats.all.empty()) one.formats = {formats.all};
    for (const auto& [pattern, format] : formats.modules) {
      one.modules.push_back({pattern, format, {format}});
    }
  }
  if (config.declared_formats) all.push_back(*config.declared_formats);
  return all;
}

plugin_host::AuditReport audit_plan(const plan::Plan& plan, const Plugins& plugins) {
  std::vector<plugin_host::KernelNeed> needs = plugin_host::core_needs(plan.platform);
  for (const plan::StepPlan& step : plan.steps) {
    for (const plan::Record& record : step.records) {
      needs.push_back({record.owner, record.kernel, record.params_digest, true, "", ""});
    }
  }
  return plugin_host::audit(plan.platform, plugins.registry.descriptors(), needs, plugins.packs);
}

/// Records that name an optional kernel which is absent take what its descriptor names instead.
Status apply_fallbacks(const plugin_host::AuditReport& audit, plan::Plan& plan) {
  for (plan::StepPlan& step : plan.steps) {
    for (plan::Record& record : step.records) {
      const std::string kernel = audit.kernel_to_run(record.owner, record.kernel);
      if (kernel == "core") {
        return failed_precondition(
            "{}: plugin '{}' leaves kernel '{}' to the core, which has no such "
            "operation",
            record.operation, record.owner, record.kernel);
      }
      record.kernel = kernel;
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const model::Tokenizer>> load_tokenizer(
    const model::Checkpoint& checkpoint) {
  using Made = Result<model::Tokenizer>;
  ATLAS_ASSIGN_OR_RETURN(const model::TokenizerSource source, checkpoint.tokenizer_source());
  if (std::holds_alternative<std::monostate>(source)) {
    return std::shared_ptr<const model::Tokenizer>();
  }
  const auto* files = std::get_if<model::HuggingfaceTokenizer>(&source);
  Made made =
      files != nullptr
          ? model::Tokenizer::from_tokenizer_json(
                files->tokenizer_json, files->tokenizer_config_json, files->generation_config_json)
          : model::Tokenizer::from_gguf(std::get<model::GgufVocabulary>(source));
  if (!made) return made.error().with_context("tokenizer");
  return std::make_shared<const model::Tokenizer>(std::move(*made));
}

std::string model_name(const settings::Settings& settings) {
  if (!settings.model.name.empty()) return settings.model.name;
  fs::path path = fs::path(settings.model.path).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

std::shared_ptr<const plan::WeightSource> weight_source(
    std::shared_ptr<const model::Checkpoint> checkpoint) {
  return std::make_shared<CheckpointSource>(std::move(checkpoint));
}

Status load_plugins(const settings::Settings& settings, Plugins& plugins) {
  const fs::path folder = plugin_folder(settings);
  plugin_host::RegistryOptions options;
  options.platform = settings.platform.name;
  options.directory = folder.string();
  const auto name = [&](const std::string& kind, const settings::PluginEntry& entry) {
    options.named.push_back({entry.name, entry.path.empty()
                                             ? (folder / (kind + "_" + entry.name + ".so")).string()
                                             : entry.path});
  };
  const std::string platform = platform_plugin(settings);
  const bool is_path = platform.find('/') != std::string::npos;
  const std::string platform_name =
      is_path ? fs::path(platform).stem().string().substr(std::string("platform_").size())
              : platform;
  name("platform", {platform_name, is_path ? platform : ""});
  for (const settings::PluginEntry& entry : settings.plugins.quant) name("quant", entry);
  for (const settings::PluginEntry& entry : settings.plugins.attention) name("attn", entry);
  plugins.registry = plugin_host::PluginRegistry::load_all(options);
  ATLAS_RETURN_IF_ERROR(plugins.registry.status());
  plugins.platform = plugins.registry.find(platform_name);

  const fs::path kernels = kernel_folder(settings);
  ATLAS_ASSIGN_OR_RETURN(plugins.packs,
                         plugin_host::PackIndex::read(settings.platform.name, kernels.string()));
  return plugins.registry.add_packs(plugins.packs);
}

Status audit_plugins(const settings::Settings& settings, const Plugins& plugins) {
  return plugin_host::audit(settings.platform.name, plugins.registry.descriptors(),
                            plugin_host::core_needs(settings.platform.name), plugins.packs)
      .to_status();
}

Result<Assembly> assemble(const settings::Settings& settings, const Plugins& plugins,
                          uint32_t scored_rows) {
  Assembly assembly{settings, nullptr, std::make_shared<engine::PlannedModel>(), {}};
  engine::PlannedModel& model = *assembly.model;
  auto opened = model::Checkpoint::open(settings.model.path);
  if (!opened) return opened.error();
  assembly.checkpoint = std::make_shared<const model::Checkpoint>(std::move(*opened));
  const model::ModelConfig& config = assembly.checkpoint->config();

  ATLAS_RETURN_IF_ERROR(describe_model(settings, *assembly.checkpoint, model.info));
  ATLAS_ASSIGN_OR_RETURN(model.program, model::model_program(config, settings.engine.drafts));
  model.weights = weight_source(assembly.checkpoint);
  model.info.source = model.weights->identity();
  for (const std::shared_ptr<Plugin>& plugin : plugins.registry.plugins()) {
    model.keep_alive.push_back(plugin);
    switch (plugin->descriptor().kind) {
      case PluginKind::kQuant:
        model.quant.push_back({plugin->name(), &plugin->quant()});
        break;
      case PluginKind::kAttention:
        model.attention.push_back({plugin->name(), &plugin->attention()});
        break;
      case PluginKind::kPlatform:
        break;
    }
  }
  model.declared = declared_formats(settings, config);
  model.shape = shape(settings.engine, config, model.program.drafts, scored_rows);
  if (config.ngram) {
    ATLAS_ASSIGN_OR_RETURN(const model::NgramTable table,
                           model::ngram_table(*assembly.checkpoint, config));
    model.shape.row_cache_bytes =
        std::min(model.shape.row_cache_bytes, table.rows * table.row_bytes);
    model.open_table =
        [files = table_files(table),
         bytes = model.shape.row_cache_bytes]() -> Result<std::unique_ptr<exec::RowSource>> {
      ATLAS_ASSIGN_OR_RETURN(std::unique_ptr<exec::RowTable> rows,
                             exec::RowTable::open(files, bytes));
      return std::unique_ptr<exec::RowSource>(std::move(rows));
    };
  }
  ATLAS_RETURN_IF_ERROR(check_context(settings, config, model.shape.context_tokens));
  model.info.context_tokens = model.shape.context_tokens;
  model.graphs = settings.engine.graphs ? exec::GraphPolicy::kOn : exec::GraphPolicy::kOff;
  model.load_threads = std::max(1u, std::thread::hardware_concurrency());
  if (Status status = engine::plan_model(model, settings.platform.name); !status.ok()) {
    return status.with_context(fmt::format("planning '{}'", settings.model.path));
  }
  model.info.format = weight_formats(model.plan);
  ATLAS_ASSIGN_OR_RETURN(model.info.fingerprint,
                         fingerprint(*assembly.checkpoint, model.plan, plugins));
  assembly.audit = audit_plan(model.plan, plugins);
  ATLAS_RETURN_IF_ERROR(assembly.audit.to_status());
  ATLAS_RETURN_IF_ERROR(apply_fallbacks(assembly.audit, model.plan));
  return assembly;
}

Status settle_kernels(const Plugins& plugins, plan::Plan& plan) {
  const plugin_host::AuditReport audit = audit_plan(plan, plugins);
  ATLAS_RETURN_IF_ERROR(audit.to_status());
  return apply_fallbacks(audit, plan);
}

Result<std::shared_ptr<Device>> open_device(const settings::Settings& settings,
                                            const Plugins& plugins) {
  auto device = Device::open(&plugins.platform->platform(), settings.platform.name,
                             settings.platform.options, plugins.platform);
  if (!device) {
    return device.error().with_context(fmt::format("platform '{}'", settings.platform.name));
  }
  return device;
}

Result<std::vector<Module>> load_modules(const std::shared_ptr<Device>& device,
                                         const plugin_host::PackIndex& packs) {
  std::vector<Module> modules;
  for (const plugin_host::PackFile& file : packs.files()) {
    ATLAS_ASSIGN_OR_RETURN(const std::string copy, packs.copy_for_loading(file, ""));
    ATLAS_ASSIGN_OR_RETURN(Module module, device->load_module(copy));
    modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace atlas::app

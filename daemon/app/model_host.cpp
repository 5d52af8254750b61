#include "daemon/app/model_host.h"

#include <chrono>

#include "daemon/base/log.h"

namespace atlas::app {

using engine::Generation;
using engine::SwapClass;

namespace {

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

std::string layout_text(SwapClass swap) {
  switch (swap) {
    case SwapClass::kSteps:
      return "same weight and state layouts";
    case SwapClass::kState:
      return "same weights, another state layout";
    case SwapClass::kWeights:
      return "other weights";
  }
  return {};
}

/// A log line for every tenth of a phase, and the engine's report for /health.
engine::BuildProgress report_progress(engine::EngineCore& engine) {
  auto last_tenth = std::make_shared<int>(-1);
  return [&engine, last_tenth](const std::string& phase, double progress) {
    engine.report_loading(phase, progress);
    const int tenth = static_cast<int>(progress * 10);
    if (tenth == *last_tenth) return;
    *last_tenth = tenth;
    log_debug("{}: {:.0f} %", phase, 100 * progress);
  };
}

void log_notes(const Assembly& assembly) {
  for (const std::string& note : assembly.checkpoint->notes()) {
    log_info("the model's files: {}", note);
  }
}

}  // namespace

std::string SwapVerdict::text() const {
  std::string text = fmt::format(
      "class '{}' ({}): needs {:.1f} MiB of {:.1f} MiB free, {}", engine::swap_class_name(swap),
      layout_text(swap), mib(bytes_needed), mib(bytes_available),
      beside ? "beside the old generation, which goes on until its sequences end"
             : "after the old generation has drained and been released");
  if (!renamed.empty()) {
    text += fmt::format("; the model is then called '{}' (model.name is not set)", renamed);
  }
  return text;
}

ModelHost::ModelHost(settings::Settings settings) : settings_(std::move(settings)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run_tasks(stop); });
}

ModelHost::~ModelHost() { shutdown(); }

void ModelHost::shutdown() {
  request_stop();
  thread_.request_stop();
  tasks_wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ModelHost::request_stop() { stop_.store(true); }

Status ModelHost::open() {
  auto plugins = std::make_shared<Plugins>();
  const Status loaded = load_plugins(settings_, *plugins);
  {
    const std::scoped_lock lock(mutex_);
    plugins_ = plugins;  // refused ones are reported even if the start fails
  }
  ATLAS_RETURN_IF_ERROR(loaded);
  ATLAS_RETURN_IF_ERROR(audit_plugins(settings_, *plugins));
  ATLAS_ASSIGN_OR_RETURN(device_, open_device(settings_, *plugins));
  ATLAS_ASSIGN_OR_RETURN(const DeviceInfo info, device_->info());
  log_info("platform '{}' on {} ({})", settings_.platform.name, info.name, info.architecture);
  engine::EngineOptions options;
  options.queue_limit = settings_.engine.queue_limit;
  options.latency_bound_s = settings_.engine.latency_bound_ms / 1000.0;
  options.step_deadline = std::chrono::seconds(settings_.engine.step_deadline_s);
  engine_ = std::make_shared<engine::EngineCore>(device_, options);
  return {};
}

Status ModelHost::load() {
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<Plugins> plugins = plugins_;
  engine_->report_loading("planning", 0);
  ATLAS_ASSIGN_OR_RETURN(const Assembly assembly, assemble(settings_, *plugins));
  log_notes(assembly);
  ATLAS_ASSIGN_OR_RETURN(const DeviceInfo info, device_->info());
  ATLAS_RETURN_IF_ERROR(
      assembly.model->plan.ledger.check(info.available_bytes, info.unified_memory));
  ATLAS_ASSIGN_OR_RETURN(auto generation, build(assembly, *plugins, nullptr));
  ATLAS_RETURN_IF_ERROR(install(generation, assembly, plugins));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  log_info("model '{}' ({}, {}) is ready after {:.2f} s: {:.1f} MiB planned, graphs {}",
           generation->info()->id, generation->info()->architecture, generation->info()->format,
           seconds.count(), mib(assembly.model->plan.ledger.total()),
           generation->steps().graph_report());
  return {};
}

Result<std::shared_ptr<Generation>> ModelHost::build(const Assembly& assembly,
                                                     const Plugins& plugins,
                                                     const Generation* share) {
  ATLAS_ASSIGN_OR_RETURN(modules_, load_modules(device_, plugins.packs));
  return Generation::build(assembly.model, device_, modules_, share, report_progress(*engine_),
                           [this] { return stop_.load(); });
}

Status ModelHost::install(std::shared_ptr<Generation> generation, const Assembly& assembly,
                          std::shared_ptr<Plugins> plugins) {
  engine_->report_loading("checking graphs", 0);
  ATLAS_RETURN_IF_ERROR(engine_->install(generation).get());
  const std::scoped_lock lock(mutex_);
  settings_ = assembly.settings;
  plugins_ = std::move(plugins);
  generation_ = std::move(generation);
  return {};
}

ServingState ModelHost::state() const {
  ServingState state;
  {
    const std::scoped_lock lock(mutex_);
    state.settings = settings_;
    if (plugins_ != nullptr) state.plugins = plugins_->registry.reports();
    state.generation = generation_;
  }
  if (device_ != nullptr) {
    if (auto info = device_->info()) state.device = *info;
  }
  return state;
}

void ModelHost::set_reloadable(const settings::Settings& from) {
  const std::scoped_lock lock(mutex_);
  settings_.log_level = from.log_level;
  settings_.server.drain_timeout_s = from.server.drain_timeout_s;
}

Result<SwapVerdict> ModelHost::judge(const settings::Settings& wanted,
                                     const Assembly& assembly) const {
  ATLAS_ASSIGN_OR_RETURN(const DeviceInfo info, device_->info());
  SwapVerdict verdict;
  verdict.changed = settings::difference(settings_, wanted).swappable;
  const plan::Plan* old = generation_ == nullptr ? nullptr : &generation_->plan();
  const plan::Plan& plan = assembly.model->plan;
  verdict.swap = old == nullptr ? SwapClass::kWeights : engine::swap_class(*old, plan);
  verdict.bytes_needed = Generation::bytes_beside(plan, old);
  verdict.bytes_available =
      info.available_bytes - std::min(info.available_bytes, wanted.engine.reserve_bytes);
  verdict.beside = verdict.bytes_needed <= verdict.bytes_available;
  const std::string& name = assembly.model->info.id;
  if (wanted.model.name.empty() && generation_ != nullptr && name != generation_->info()->id) {
    verdict.renamed = name;
  }
  if (!verdict.beside) {
    // With the old one gone, its bytes are free as well.
    const uint64_t freed = old == nullptr ? 0 : Generation::bytes_beside(*old, nullptr);
    ATLAS_RETURN_IF_ERROR(plan.ledger.check(info.available_bytes + freed, info.unified_memory));
  }
  return verdict;
}

Result<SwapOutcome> ModelHost::swap(const settings::Settings& wanted, bool dry_run) {
  const auto start = std::chrono::steady_clock::now();
  const settings::Difference difference = settings::difference(settings_, wanted);
  if (!difference.restart.empty()) {
    return failed_precondition("key '{}' takes effect at a restart of the daemon, not by a swap",
                               difference.restart.front());
  }
  // Plugins are loaded even if no key changed: their files may have.
  auto plugins = std::make_shared<Plugins>();
  ATLAS_RETURN_IF_ERROR(load_plugins(wanted, *plugins));
  ATLAS_ASSIGN_OR_RETURN(const Assembly assembly, assemble(wanted, *plugins));
  SwapOutcome outcome;
  ATLAS_ASSIGN_OR_RETURN(outcome.verdict, judge(wanted, assembly));
  outcome.from_generation = generation_ == nullptr ? 0 : generation_->id();
  log_info("{} of generation {}: {}", dry_run ? "dry run of a swap" : "swap",
           outcome.from_generation, outcome.verdict.text());
  log_notes(assembly);
  if (dry_run) return outcome;
  if (Status status = replace(assembly, std::move(plugins), outcome.verdict); !status.ok()) {
    const bool serving = generation_ != nullptr;
    return status.with_context(serving
                                   ? fmt::format("generation {} goes on serving", generation_->id())
                                   : std::string("no generation serves any more"));
  }
  outcome.to_generation = generation_->id();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("generation {} serves new sequences after {:.2f} s", outcome.to_generation,
           outcome.seconds);
  return outcome;
}

Status ModelHost::replace(const Assembly& assembly, std::shared_ptr<Plugins> plugins,
                          const SwapVerdict& verdict) {
  if (verdict.beside) {
    ATLAS_ASSIGN_OR_RETURN(auto generation, build(assembly, *plugins, generation_.get()));
    return install(std::move(generation), assembly, std::move(plugins));
  }
  if (generation_ == nullptr) {
    return failed_precondition("no generation serves that could make room: restart the daemon");
  }
  // No room for both: the old one ends first, and comes back if the new one cannot be had.
  const std::shared_ptr<engine::PlannedModel> old_model = generation_->shared_model();
  const std::shared_ptr<Plugins> old_plugins = plugins_;
  ATLAS_RETURN_IF_ERROR(engine_->release().get());
  {
    const std::scoped_lock lock(mutex_);
    generation_ = nullptr;
  }
  auto generation = build(assembly, *plugins, nullptr);
  Status failed = generation ? install(std::move(*generation), assembly, std::move(plugins))
                             : generation.error();
  if (failed.ok()) return failed;
  if (stop_.load()) return failed;  // the daemon is ending: there is nobody to serve
  log_error("the new generation failed, the old one is loaded again: {}", failed.message());
  const Assembly old_assembly{settings_, nullptr, old_model, {}};
  auto restored = build(old_assembly, *old_plugins, nullptr);
  const Status back =
      restored ? install(std::move(*restored), old_assembly, old_plugins) : restored.error();
  // Nothing serves and nothing will: the daemon ends, and systemd starts it anew.
  if (!back.ok() && !stop_.load()) engine_->report_failure(back);
  return failed;
}

void ModelHost::enqueue(std::function<void()> task) {
  {
    const std::scoped_lock lock(tasks_mutex_);
    tasks_.push_back(std::move(task));
  }
  tasks_wake_.notify_one();
}

void ModelHost::run_tasks(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::function<void()> task;
    {
      std::unique_lock lock(tasks_mutex_);
      tasks_wake_.wait_for(lock, std::chrono::milliseconds(500),
                           [&] { return !tasks_.empty() || stop.stop_requested(); });
      if (tasks_.empty()) continue;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace atlas::app

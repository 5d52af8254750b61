// ModelHost: loads a model into an engine and swaps it for another, one change at a time.
// Owns the device, the plugins of the serving generation, and the thread that such changes run on.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/app/assembly.h"
#include "daemon/engine/engine_core.h"
#include "daemon/settings/settings.h"

namespace atlas::app {

/// What a swap is going to do, known before anything is touched.
struct SwapVerdict {
  engine::SwapClass swap = engine::SwapClass::kSteps;
  bool beside = true;         // the new generation fits beside the old
  uint64_t bytes_needed = 0;  // beside the old
  uint64_t bytes_available = 0;
  std::vector<std::string> changed;  // keys
  std::string renamed;  // what the model is then called, if that follows from another path
  std::string text() const;
};

struct SwapOutcome {
  SwapVerdict verdict;
  uint64_t from_generation = 0, to_generation = 0;  // to: 0 for a dry run
  double seconds = 0;
};

/// A copy of what the host serves with, for reports.
struct ServingState {
  settings::Settings settings;
  std::vector<plugin_host::PluginReport> plugins;
  std::shared_ptr<engine::Generation> generation;  // null while loading
  DeviceInfo device;
};

/// Thread safe but for `run_here`. Changes queue up behind each other.
class ModelHost {
 public:
  explicit ModelHost(settings::Settings settings);
  ~ModelHost();
  /// Stops a load that is under way and ends the host's thread; tasks that wait are dropped.
  /// Whoever tasks refer to must live until then.
  void shutdown();

  /// Loads plugins and opens the device: the part of a start that must not fail later.
  Status open();
  /// Plans, audits, loads and installs the first model, on the calling thread.
  Status load();

  const std::shared_ptr<engine::EngineCore>& engine() const { return engine_; }
  ServingState state() const;

  /// Runs `task` on the host's thread, after those before it.
  void enqueue(std::function<void()> task);
  /// Only on the host's thread: swaps to other settings, or says what that would do.
  Result<SwapOutcome> swap(const settings::Settings& wanted, bool dry_run);
  /// Only on the host's thread: applies keys that need no swap.
  void set_reloadable(const settings::Settings& from);
  /// Ends a load or swap that is under way with kCancelled.
  void request_stop();

 private:
  Result<std::shared_ptr<engine::Generation>> build(const Assembly& assembly,
                                                    const Plugins& plugins,
                                                    const engine::Generation* share);
  Result<SwapVerdict> judge(const settings::Settings& wanted, const Assembly& assembly) const;
  Status replace(const Assembly& assembly, std::shared_ptr<Plugins> plugins,
                 const SwapVerdict& verdict);
  Status install(std::shared_ptr<engine::Generation> generation, const Assembly& assembly,
                 std::shared_ptr<Plugins> plugins);
  void run_tasks(const std::stop_token& stop);

  mutable std::mutex mutex_;  // guards what state() copies
  settings::Settings settings_;
  std::shared_ptr<Plugins> plugins_;
  std::shared_ptr<engine::Generation> generation_;

  std::shared_ptr<Device> device_;
  std::vector<Module> modules_;  // of the last build: packs that have not changed stay loaded
  std::shared_ptr<engine::EngineCore> engine_;
  std::atomic<bool> stop_{false};

  std::mutex tasks_mutex_;
  std::condition_variable tasks_wake_;
  std::deque<std::function<void()>> tasks_;
  std::jthread thread_;  // last: ends before anything else goes
};

}  // namespace atlas::app

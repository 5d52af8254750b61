#include "daemon/app/daemon.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <thread>

#include "daemon/app/control_service.h"
#include "daemon/app/model_host.h"
#include "daemon/app/reports.h"
#include "daemon/app/service_manager.h"
#include "daemon/base/log.h"
#include "daemon/serve/server.h"

namespace atlas::app {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

namespace {

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

/// The next signal, or 0 after `timeout`.
int wait_signal(std::chrono::milliseconds timeout) {
  const sigset_t set = handled_signals();
  const timespec limit{timeout.count() / 1000, (timeout.count() % 1000) * 1000000};
  const int signal = sigtimedwait(&set, nullptr, &limit);
  return signal > 0 ? signal : 0;
}

Result<std::string> read_api_key(const std::string& path) {
  std::ifstream file(path);
  std::string key;
  if (!std::getline(file, key) || key.empty()) {
    return invalid_argument("server.tcp.api_key_file: '{}' has no key in its first line", path);
  }
  return key;
}

Result<serve::ServerOptions> server_options(const settings::ServerSettings& s) {
  serve::ServerOptions options;
  options.socket_path = s.socket.path;
  options.socket_mode = s.socket.mode;
  options.socket_group = s.socket.group;
  if (s.tcp.port != 0) options.tcp = serve::TcpAddress{s.tcp.host, s.tcp.port};
  if (!s.tcp.api_key_file.empty()) {
    ATLAS_ASSIGN_OR_RETURN(options.api_key, read_api_key(s.tcp.api_key_file));
  }
  options.inherited_fds = ServiceManager::listening_sockets();
  options.limits.header_bytes = s.limits.header_bytes;
  options.limits.body_bytes = s.limits.body_bytes;
  options.limits.prompt_tokens = s.limits.prompt_tokens;
  options.limits.connections = s.limits.connections;
  options.limits.backlog_bytes = s.limits.backlog_bytes;
  options.timeouts.header = std::chrono::seconds(s.limits.header_timeout_s);
  options.timeouts.idle = std::chrono::seconds(s.limits.idle_timeout_s);
  return options;
}

/// What the main thread does while the daemon lives: signals, watchdog, readiness.
class Supervisor {
 public:
  Supervisor(ModelHost& host, ControlService& control) : host_(host), control_(control) {}

  /// Returns the exit code once the daemon has drained or failed.
  int run() {
    std::future<Status> loaded = start_loading();
    while (true) {
      const int signal = wait_signal(100ms);
      if (signal == SIGHUP) control_.reload_from_signal();
      if (signal == SIGTERM || signal == SIGINT) {
        if (signalled_) {
          log_warning("second signal: stopping at once");
          return 0;
        }
        // The first signal after a drain that was asked for: an orderly stop, which is under way.
        signalled_ = true;
        if (!stopping_) begin_drain();
      }
      if (control_.drain_requested() && !stopping_) begin_drain();
      if (loaded.valid() && loaded.wait_for(0s) == std::future_status::ready) {
        if (Status status = loaded.get(); !status.ok() && !stopping_) {
          log_critical("the model could not be loaded: {}", status.message());
          return 1;
        }
        if (!stopping_) ServiceManager::ready();
      }
      const engine::EngineStats stats = host_.engine()->stats();
      feed_watchdog(stats);
      report_status(stats);
      if (stats.state == engine::EngineState::kFailed) return 1;
      if (stopping_ && drained()) return 0;
    }
  }

 private:
  std::future<Status> start_loading() {
    auto promise = std::make_shared<std::promise<Status>>();
    auto future = promise->get_future();
    host_.enqueue([this, promise] { promise->set_value(host_.load()); });
    return future;
  }

  void begin_drain() {
    stopping_ = true;
    const auto timeout = control_.drain_timeout();
    deadline_ = steady_clock::now() + timeout;
    log_info("draining: requests at hand have {} s to finish", timeout.count());
    ServiceManager::stopping();
    control_.stop_accepting();
    host_.request_stop();
    drained_ = host_.engine()->drain();
  }

  bool drained() {
    if (drained_.wait_for(0s) == std::future_status::ready) return true;
    if (steady_clock::now() < deadline_) return false;
    if (cancelled_) return steady_clock::now() > deadline_ + 5s;
    log_warning("the drain's deadline has passed: requests still running are cancelled");
    host_.engine()->cancel_all();
    cancelled_ = true;
    return false;
  }

  /// The watchdog lives on the progress of the engine's thread, not on ours.
  void feed_watchdog(const engine::EngineStats& stats) {
    if (!watchdog_ || steady_clock::now() < next_feed_) return;
    if (stats.progress_ticks != last_ticks_) ServiceManager::alive();
    last_ticks_ = stats.progress_ticks;
    next_feed_ = steady_clock::now() + *watchdog_;
  }

  void report_status(const engine::EngineStats& stats) {
    std::string text;
    if (stopping_) {
      text = fmt::format("draining, {} requests left", stats.running + stats.queued);
    } else if (stats.state == engine::EngineState::kLoading) {
      text = fmt::format("loading: {} {:.0f} %", stats.phase, 100 * stats.progress);
    } else {
      text = fmt::format("serving generation {}, {} running, {} queued", stats.generation,
                         stats.running, stats.queued);
    }
    if (text == last_status_) return;
    ServiceManager::status(text);
    last_status_ = std::move(text);
  }

  ModelHost& host_;
  ControlService& control_;
  bool stopping_ = false, signalled_ = false, cancelled_ = false;
  std::future<Status> drained_;
  steady_clock::time_point deadline_, next_feed_;
  const std::optional<std::chrono::milliseconds> watchdog_ = ServiceManager::watchdog_interval();
  uint64_t last_ticks_ = 0;
  std::string last_status_;
};

}  // namespace

void block_signals() {
  const sigset_t set = handled_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

int run_daemon(DaemonOptions options) {
  const auto fail = [](const Status& status) {
    log_critical("{}", status.message());
    return 1;
  };
  log_info("atlasd {} with settings '{}'", kVersion, options.settings_path);
  auto server_settings = server_options(options.settings.server);
  if (!server_settings) return fail(server_settings.error());

  ModelHost host(options.settings);
  if (Status status = host.open(); !status.ok()) return fail(status);
  ControlService control(host, options.settings_path);
  serve::Server server(*server_settings, control);
  if (Status status = server.start(); !status.ok()) return fail(status);

  Supervisor supervisor(host, control);
  const int code = supervisor.run();
  host.shutdown();  // its tasks refer to the control service and answer through the server
  server.stop(1s);
  log_info("stopped");
  return code;
}

}  // namespace atlas::app

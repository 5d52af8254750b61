// ControlService: the control API over the model host.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "daemon/app/model_host.h"
#include "daemon/serve/control.h"

namespace atlas::app {

class ControlService final : public serve::Control {
 public:
  ControlService(ModelHost& host, std::string settings_path);

  // serve::Control
  std::vector<std::shared_ptr<engine::Engine>> engines() const override;
  std::string status_json() const override;
  std::string plugins_json() const override;
  void plan(std::string request_json, serve::ControlReply reply) override;
  void swap(std::string request_json, serve::ControlReply reply) override;
  void reload(serve::ControlReply reply) override;
  void drain(std::string request_json, serve::ControlReply reply) override;
  bool accepting() const override { return accepting_.load(); }

  void reload_from_signal();
  void stop_accepting() { accepting_.store(false); }
  bool drain_requested() const { return drain_requested_.load(); }
  std::chrono::seconds drain_timeout() const;

 private:
  /// On the host's thread.
  Result<std::string> run_plan(const std::string& request_json);
  Result<std::string> run_swap(const std::string& request_json);
  Result<std::string> run_reload();

  ModelHost& host_;
  const std::string settings_path_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::atomic<bool> accepting_{true}, drain_requested_{false};
  std::atomic<uint32_t> drain_override_s_{0};  // 0: the settings'
};

}  // namespace atlas::app

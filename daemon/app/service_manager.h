// What systemd is told and asked: readiness, status line, watchdog. Silent outside of systemd.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace atlas::app {

class ServiceManager {
 public:
  static void status(const std::string& text);
  static void ready();
  static void reloading();
  static void stopping();
  /// Tells the watchdog that the daemon makes progress.
  static void alive();
  /// How often `alive` is due, if the unit has a watchdog: half of its timeout.
  static std::optional<std::chrono::milliseconds> watchdog_interval();
  /// Listening sockets that systemd passed (socket activation), taken once.
  static std::vector<int> listening_sockets();
};

}  // namespace atlas::app

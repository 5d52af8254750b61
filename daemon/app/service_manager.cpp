#include "daemon/app/service_manager.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>
#include <time.h>

namespace atlas::app {

void ServiceManager::status(const std::string& text) {
  (void)sd_notify(0, fmt::format("STATUS={}", text).c_str());
}

void ServiceManager::ready() { (void)sd_notify(0, "READY=1"); }

void ServiceManager::reloading() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  (void)sd_notify(0, fmt::format("RELOADING=1\nMONOTONIC_USEC={}",
                                 static_cast<uint64_t>(now.tv_sec) * 1000000 +
                                     static_cast<uint64_t>(now.tv_nsec) / 1000)
                         .c_str());
}

void ServiceManager::stopping() { (void)sd_notify(0, "STOPPING=1"); }

void ServiceManager::alive() { (void)sd_notify(0, "WATCHDOG=1"); }

std::optional<std::chrono::milliseconds> ServiceManager::watchdog_interval() {
  uint64_t usec = 0;
  if (sd_watchdog_enabled(0, &usec) <= 0) return std::nullopt;
  return std::chrono::milliseconds(usec / 2000);
}

std::vector<int> ServiceManager::listening_sockets() {
  std::vector<int> sockets;
  const int count = sd_listen_fds(1);
  for (int i = 0; i < count; ++i) sockets.push_back(SD_LISTEN_FDS_START + i);
  return sockets;
}

}  // namespace atlas::app

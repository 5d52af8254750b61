// Daemon: the life of atlasd from settings to exit, phase by phase.
#pragma once

#include <string>

#include "daemon/base/status.h"
#include "daemon/settings/settings.h"

namespace atlas::app {

struct DaemonOptions {
  std::string settings_path;
  settings::Settings settings;
};

/// Blocks SIGTERM, SIGINT, SIGHUP in the calling thread and all that it makes: call before any.
void block_signals();

/// Serves until SIGTERM, SIGINT or a drain. Returns the process's exit code: 0 after an orderly
/// end, 1 if the daemon could not start or lost its device.
int run_daemon(DaemonOptions options);

}  // namespace atlas::app

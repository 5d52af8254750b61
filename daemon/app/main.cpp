// atlasd: arguments, then the daemon.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "daemon/app/daemon.h"
#include "daemon/app/reports.h"
#include "daemon/base/log.h"

int main(int argc, char** argv) {
  CLI::App program{"atlasd: serves a language model on a Unix socket", "atlasd"};
  std::string path = "/etc/atlas/atlasd.yaml";
  bool check_only = false;
  program.add_option("--config", path, "Settings file")->capture_default_str();
  program.add_flag("--check-config", check_only,
                   "Read the settings, say what is wrong, and exit. Plugins and the model's files "
                   "(its tensors against model.formats) are checked by a start or atlasctl plan");
  program.set_version_flag("--version", std::string("atlasd ") + atlas::app::kVersion);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : 2;
  }
  auto settings = atlas::settings::load(path);
  if (!settings) {
    std::fprintf(stderr, "atlasd: %s\n", settings.error().message().c_str());
    return settings.error().code() == atlas::Code::kNotFound ? 2 : 1;
  }
  if (check_only) {
    const auto folder = std::filesystem::path(settings->server.socket.path).parent_path();
    std::error_code error;
    if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
      // No error: a service manager may make it at the start.
      std::printf(
          "%s: good, but the folder '%s' of server.socket.path does not exist: make it, "
          "unless the service does\n",
          path.c_str(), folder.c_str());
      return 0;
    }
    std::printf("%s: good\n", path.c_str());
    return 0;
  }
  atlas::configure_log(settings->log_level, atlas::detect_log_style());
  atlas::app::block_signals();
  return atlas::app::run_daemon({path, *settings});
}

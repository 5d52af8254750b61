// A real atlasd in a test: its settings, its process, its socket.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/tiny_llama.h"
#include "tools/common/client.h"

namespace atlas::testing {

/// One daemon on a tiny model and a socket of its own, in a folder that goes away with it.
class LiveDaemon {
 public:
  struct Options {
    std::string yaml;  // more settings, below model and server
    // "cpu", "imitation" or a GPU's; empty: what `--device` names, without that "cpu".
    std::string platform;
    std::map<std::string, std::string> platform_options;
    std::vector<std::string> environment;  // "KEY=VALUE"
    std::string listen_socket;             // passed as systemd passes sockets
    bool own_model = true;                 // false: `yaml` has the model
  };
  LiveDaemon() : LiveDaemon(Options()) {}
  explicit LiveDaemon(Options options);
  ~LiveDaemon();  // SIGKILL if it still runs

  void start();
  /// Waits until it serves; ends the test with the log if it does not within 20 s.
  void wait_ready();
  void signal(int number) const;
  /// The exit code (or 128 + signal), or nothing if it has not ended in time.
  std::optional<int> wait_exit(std::chrono::seconds timeout = std::chrono::seconds(20));
  bool running() const;

  /// Another settings file for the next start or reload.
  void write_settings(const std::string& yaml);

  tools::Client client() const { return tools::Client(socket()); }
  std::string socket() const { return folder_.file("atlasd.sock"); }
  std::string file(const std::string& name) const { return folder_.file(name); }
  std::string log() const;
  pid_t pid() const { return pid_; }

  /// A completion's whole answer; `fields` are members of the request's JSON object.
  Result<tools::Response> complete(const std::string& fields) const;

 private:
  std::string settings_text(const std::string& yaml) const;
  Options options_;
  TempDir folder_;
  pid_t pid_ = -1;
};

/// The text of a completion answer, or "" if it has none.
std::string completion_text(const tools::Response& response);
/// Bytes of memory that a process holds (RSS).
uint64_t resident_bytes(pid_t pid);

}  // namespace atlas::testing

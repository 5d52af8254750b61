// Server: the sockets of the daemon, on a thread of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/serve/control.h"
#include "daemon/serve/options.h"

namespace atlas::serve {

/// Answers HTTP on the sockets of its options until it is stopped. Members may be called from any
/// thread.
class Server {
 public:
  /// `control` must outlive the server; it may have engines that are still loading.
  Server(ServerOptions options, Control& control);
  /// Opens the sockets and begins to answer. Call once.
  /// Errors: those of ListenSocket, with the socket named; kInvalidArgument without any socket.
  Status start();
  /// stop() with no time to finish.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Stops accepting, lets the requests at hand finish until the deadline, cancels the others, and
  /// returns when every connection is closed. Returns how many connections were cut off. Not to be
  /// called from within a call of Control, which is on the server's own thread.
  size_t stop(std::chrono::milliseconds deadline);
  /// The port that TCP is on; 0 without TCP.
  uint16_t tcp_port() const;
  /// What is listened on, for the log and for READY.
  std::vector<std::string> addresses() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atlas::serve

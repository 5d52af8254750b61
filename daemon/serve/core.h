// Core: what connections and listeners share; the server owns it. Includes Asio.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_set>

#include "daemon/serve/exchange.h"
#include "daemon/serve/services.h"

namespace atlas::serve {

/// A connection as the server sees it. Loop thread only.
class Connection {
 public:
  virtual ~Connection() = default;
  virtual void start() = 0;
  /// Ends the connection if what it waits for is overdue.
  virtual void check_deadline(std::chrono::steady_clock::time_point now) = 0;
  /// Ends after the request at hand; at once if there is none.
  virtual void finish_soon() = 0;
  /// Ends now; a request at hand is cancelled.
  virtual void abort() = 0;
};

struct Core {
  boost::asio::io_context& io;
  Services& services;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  uint64_t body_bytes = 0;  // claimed by bodies being read
  bool stopping = false;
};

/// Takes over the connected, non-blocking socket `fd`.
std::shared_ptr<Connection> make_connection(Core& core, int fd, int family, Peer peer);

}  // namespace atlas::serve

// ServerOptions: what the settings say about sockets, limits and time limits of the server.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace atlas::serve {

/// What one client may use up. Each limit has an answer of its own that names it (docs/api.md).
struct ServeLimits {
  size_t header_bytes = 16 << 10;   // request line and headers; beyond: 431
  size_t body_bytes = 16 << 20;     // one body; beyond: 413
  size_t bodies_bytes = 256 << 20;  // all bodies being read at once; beyond: 503
  uint32_t prompt_tokens = 0;       // of one prompt; 0: the model's context alone; beyond: 400
  uint32_t sequences = 128;         // prompts times `n` of one request; beyond: 400
  uint32_t connections = 1024;      // beyond: 503 and closed
  size_t backlog_bytes = 1 << 20;   // written for a reader that does not read; beyond: cancelled
};

struct ServeTimeouts {
  std::chrono::milliseconds header{10'000};  // from the first byte to the end of the headers
  std::chrono::milliseconds body{60'000};    // from there to the end of the body
  std::chrono::milliseconds idle{120'000};   // between requests of a connection
  std::chrono::milliseconds write{30'000};   // without any byte taken by the reader
  std::chrono::milliseconds linger{2'000};  // for the peer to read an answer that ends a connection
};

struct TcpAddress {
  std::string host;   // a name or an address, "127.0.0.1"
  uint16_t port = 0;  // 0: any free port, see Server::tcp_port
};

struct ServerOptions {
  std::string socket_path;      // empty: no Unix socket of our own
  uint32_t socket_mode = 0660;  // permission bits of the socket file
  std::string socket_group;     // empty: the group of the process
  std::optional<TcpAddress> tcp;
  /// Asked of TCP clients only. Without one, TCP is allowed on loopback addresses only.
  std::string api_key;
  /// Listening sockets that the service manager opened. A Unix (TCP) socket among them takes the
  /// place of `socket_path` (`tcp`); its file stays when the server stops.
  std::vector<int> inherited_fds;
  ServeLimits limits;
  ServeTimeouts timeouts;
};

}  // namespace atlas::serve

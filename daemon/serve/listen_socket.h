// Opening listening sockets: files, modes, groups, addresses. Plain POSIX calls with clear errors.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "daemon/base/status.h"
#include "daemon/serve/options.h"

namespace atlas::serve {

/// A bound and listening socket. Closes it, and removes the file that it made.
class ListenSocket {
 public:
  /// Makes the socket file with the wanted mode and group before anyone can connect. A file that a
  /// dead server left is replaced. Errors: kAlreadyExists if somebody listens there, or if the file
  /// is no socket; kInvalidArgument for a path or group that cannot be; others from the system.
  static Result<ListenSocket> open_unix(const ServerOptions& options);
  /// Errors: kInvalidArgument for a host that has no address, or that is not loopback when there is
  /// no API key; kAlreadyExists for a port in use.
  static Result<ListenSocket> open_tcp(const TcpAddress& address, bool has_api_key);
  /// Takes over a socket that the service manager opened.
  /// Errors: kInvalidArgument for what is not a listening stream socket.
  static Result<ListenSocket> inherit(int fd, bool has_api_key);

  ListenSocket(ListenSocket&& other) noexcept;
  ListenSocket& operator=(ListenSocket&& other) noexcept;
  ListenSocket(const ListenSocket&) = delete;
  ListenSocket& operator=(const ListenSocket&) = delete;
  ~ListenSocket();

  int fd() const { return fd_; }
  bool local() const { return local_; }
  /// "/run/atlas/atlasd.sock" or "127.0.0.1:8080".
  const std::string& name() const { return name_; }
  uint16_t port() const { return port_; }

 private:
  ListenSocket() = default;
  void swap(ListenSocket& other) noexcept;

  int fd_ = -1;
  bool local_ = false;
  std::string name_;
  uint16_t port_ = 0;
  // The file that we made, to remove that one only.
  bool made_file_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace atlas::serve

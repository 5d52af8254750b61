// Listening sockets. Sources: unix(7), bind(2); the mode given by fchmod before bind becomes the
// file's (Linux takes it from the socket's inode), so there is no moment of a looser mode.
#include "daemon/serve/listen_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/base/log.h"

namespace atlas::serve {
namespace {

constexpr int kBacklog = 1024;  // the kernel cuts it to net.core.somaxconn

std::string system_words(int number) { return std::strerror(number); }  // NOLINT: start-up only

Status system_error(int number, std::string what) {
  const std::string text = what + ": " + system_words(number);
  switch (number) {
    case EACCES:
    case EPERM:
      return permission_denied("{}", text);
    case ENOENT:
    case ENOTDIR:
      return not_found("{}", text);
    case EADDRINUSE:
      return already_exists("{}", text);
    default:
      return internal_error("{}", text);
  }
}

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return invalid_argument("socket path '{}' has {} bytes: Linux takes 1..{}", path, path.size(),
                            sizeof(address.sun_path) - 1);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// Whether somebody listens; otherwise the file is a leftover.
Result<bool> answers(const sockaddr_un& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return system_error(errno, "socket");
  const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = connected == 0 ? 0 : errno;
  close(fd);
  if (error == ECONNREFUSED || error == ENOENT) return false;
  if (error == 0 || error == EAGAIN || error == EINPROGRESS) return true;
  return system_error(error, std::string("connecting to ") + address.sun_path);
}

Status make_room(const sockaddr_un& address) {
  const std::string path = address.sun_path;
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) {
    return errno == ENOENT ? Status() : system_error(errno, path);
  }
  if (!S_ISSOCK(file.st_mode)) {
    return already_exists("{} exists and is no socket: remove it or choose another socket path",
                          path);
  }
  ATLAS_ASSIGN_OR_RETURN(const bool alive, answers(address));
  if (alive) {
    return already_exists("another process listens on {}: stop it or choose another socket path",
                          path);
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return system_error(errno, "removing " + path);
  log_info("removed {}, which nobody listens on", path);
  return {};
}

Result<std::optional<gid_t>> find_group(const std::string& name) {
  if (name.empty()) return std::optional<gid_t>();
  std::vector<char> buffer(1 << 16);
  group entry{};
  group* found = nullptr;
  const int error = getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return invalid_argument("socket group '{}' does not exist{}", name,
                            error == 0 ? "" : ": " + system_words(error));
  }
  return std::optional<gid_t>(entry.gr_gid);
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

std::string address_text(const sockaddr* address, socklen_t length, uint16_t& port) {
  char host[NI_MAXHOST] = "?";
  char service[NI_MAXSERV] = "0";
  getnameinfo(address, length, host, sizeof(host), service, sizeof(service),
              NI_NUMERICHOST | NI_NUMERICSERV);
  port = static_cast<uint16_t>(std::strtoul(service, nullptr, 10));
  return address->sa_family == AF_INET6 ? fmt::format("[{}]:{}", host, service)
                                        : fmt::format("{}:{}", host, service);
}

Status check_exposure(const sockaddr* address, const std::string& name, bool has_api_key) {
  if (has_api_key || is_loopback(address)) return {};
  return invalid_argument(
      "{} can be reached from other machines, and there is no API key: set one, or listen on "
      "127.0.0.1",
      name);
}

}  // namespace

ListenSocket::ListenSocket(ListenSocket&& other) noexcept { swap(other); }

ListenSocket& ListenSocket::operator=(ListenSocket&& other) noexcept {
  swap(other);
  return *this;
}

void ListenSocket::swap(ListenSocket& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(local_, other.local_);
  std::swap(name_, other.name_);
  std::swap(port_, other.port_);
  std::swap(made_file_, other.made_file_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
}

ListenSocket::~ListenSocket() {
  if (made_file_) {
    // Somebody may have put another file there; that one is not ours to remove.
    struct stat file {};
    if (lstat(name_.c_str(), &file) == 0 && file.st_dev == device_ && file.st_ino == inode_) {
      unlink(name_.c_str());
    }
  }
  if (fd_ >= 0) close(fd_);
}

Result<ListenSocket> ListenSocket::open_unix(const ServerOptions& options) {
  ATLAS_ASSIGN_OR_RETURN(const sockaddr_un address, unix_address(options.socket_path));
  if ((options.socket_mode & ~0777U) != 0) {
    return invalid_argument("socket mode {:o} is not in 0..777", options.socket_mode);
  }
  ATLAS_ASSIGN_OR_RETURN(const std::optional<gid_t> group, find_group(options.socket_group));
  ATLAS_RETURN_IF_ERROR(make_room(address));

  ListenSocket out;
  out.local_ = true;
  out.name_ = options.socket_path;
  out.fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (out.fd_ < 0) return system_error(errno, "socket");
  if (fchmod(out.fd_, 0600) != 0) return system_error(errno, "fchmod");
  if (bind(out.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == ENOENT) {
      return not_found(
          "the socket '{}' has no folder to lie in: make '{}', or set "
          "server.socket.path",
          out.name_, std::filesystem::path(out.name_).parent_path().string());
    }
    return system_error(errno, "binding " + out.name_);
  }
  struct stat file {};
  if (lstat(out.name_.c_str(), &file) != 0) return system_error(errno, out.name_);
  out.made_file_ = true;
  out.device_ = file.st_dev;
  out.inode_ = file.st_ino;
  if (group && chown(out.name_.c_str(), static_cast<uid_t>(-1), *group) != 0) {
    return system_error(errno,
                        fmt::format("giving {} to the group {}", out.name_, options.socket_group));
  }
  if (chmod(out.name_.c_str(), options.socket_mode) != 0) {
    return system_error(errno, fmt::format("chmod {:o} {}", options.socket_mode, out.name_));
  }
  if (listen(out.fd_, kBacklog) != 0) return system_error(errno, "listening on " + out.name_);
  return out;
}

Result<ListenSocket> ListenSocket::open_tcp(const TcpAddress& address, bool has_api_key) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string service = fmt::format("{}", address.port);
  const int error = getaddrinfo(address.host.c_str(), service.c_str(), &hints, &found);
  if (error != 0) {
    return invalid_argument("TCP host '{}': {}", address.host, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);

  ListenSocket out;
  out.name_ = address_text(found->ai_addr, found->ai_addrlen, out.port_);
  ATLAS_RETURN_IF_ERROR(check_exposure(found->ai_addr, out.name_, has_api_key));
  out.fd_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (out.fd_ < 0) return system_error(errno, "socket");
  const int on = 1;
  setsockopt(out.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(out.fd_, found->ai_addr, found->ai_addrlen) != 0) {
    return system_error(errno, "binding " + out.name_);
  }
  if (listen(out.fd_, kBacklog) != 0) return system_error(errno, "listening on " + out.name_);
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (getsockname(out.fd_, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return system_error(errno, "getsockname");
  }
  out.name_ = address_text(reinterpret_cast<const sockaddr*>(&bound), length, out.port_);
  return out;
}

Result<ListenSocket> ListenSocket::inherit(int fd, bool has_api_key) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  int listening = 0;
  socklen_t option_length = sizeof(listening);
  int type = 0;
  socklen_t type_length = sizeof(type);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &option_length) != 0 ||
      getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_length) != 0 || listening == 0 ||
      type != SOCK_STREAM) {
    return invalid_argument("inherited file descriptor {} is no listening stream socket", fd);
  }
  const auto* address = reinterpret_cast<const sockaddr*>(&bound);
  ListenSocket out;
  if (address->sa_family == AF_UNIX) {
    const auto* local = reinterpret_cast<const sockaddr_un*>(address);
    const size_t bytes = length - offsetof(sockaddr_un, sun_path);
    out.local_ = true;
    out.name_ = std::string(local->sun_path, strnlen(local->sun_path, bytes));
  } else if (address->sa_family == AF_INET || address->sa_family == AF_INET6) {
    out.name_ = address_text(address, length, out.port_);
    ATLAS_RETURN_IF_ERROR(check_exposure(address, out.name_, has_api_key));
  } else {
    return invalid_argument("inherited socket {} is neither Unix nor TCP", fd);
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return system_error(errno, "fcntl");
  }
  out.fd_ = fd;
  return out;
}

}  // namespace atlas::serve

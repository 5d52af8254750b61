// Accepting. Errors of one connection are that connection's; a lack of descriptors or memory is
// waited out, for a listener that gives up is a daemon that seems alive and is not.
#include "daemon/serve/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "daemon/base/log.h"
#include "daemon/serve/http_text.h"

namespace atlas::serve {
namespace {

constexpr int kAcceptsInARow = 64;  // then other sockets have their turn
constexpr auto kBackOff = std::chrono::milliseconds(100);

Peer local_peer(int fd) {
  Peer peer;
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0) {
    peer.pid = credentials.pid;
    peer.uid = credentials.uid;
  }
  return peer;
}

Peer tcp_peer(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = "?";
  char port[NI_MAXSERV] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port,
              sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  return {.local = false, .address = fmt::format("{}:{}", host, port)};
}

// Tokens go out as they come; peers that vanish without a word are found by the kernel.
void set_tcp_options(int fd) {
  const int on = 1;
  const int idle_s = 30;
  const int interval_s = 10;
  const int probes = 3;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

// One write that does not block: who does not get it sees the connection end.
void turn_away(int fd) {
  const ApiError error{.status = 503,
                       .message = "this server has as many connections as it takes: try again",
                       .code = "connections_full"};
  std::string text;
  append_response(text,
                  {.status = 503, .body = error_json(error), .headers = {{"Retry-After", "1"}}},
                  "none", false, false);
  (void)!send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  close(fd);
}

}  // namespace

// The descriptor gets a copy of the file descriptor: Asio closes what it is given.
Listener::Listener(Core& core, ListenSocket socket)
    : core_(core),
      socket_(std::move(socket)),
      descriptor_(core.io, dup(socket_.fd())),
      timer_(core.io) {}

void Listener::stop() {
  if (std::exchange(stopped_, true)) return;
  timer_.cancel();
  boost::system::error_code ignored;
  descriptor_.close(ignored);
  const ListenSocket gone = std::move(socket_);
}

void Listener::wait() {
  if (stopped_) return;
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           if (!error) self->accept_some();
                         });
}

void Listener::accept_some() {
  for (int i = 0; i < kAcceptsInARow && !stopped_ && !backing_off_; ++i) {
    if (!accept_one()) break;
  }
  if (!backing_off_) wait();
}

// False if nobody waits, or nobody can be accepted now.
bool Listener::accept_one() {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  const int fd = accept4(socket_.fd(), reinterpret_cast<sockaddr*>(&address), &length,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) {
    const bool local = address.ss_family == AF_UNIX || socket_.local();
    if (!local) set_tcp_options(fd);
    take(fd, local ? local_peer(fd) : tcp_peer(address, length));
    return true;
  }
  switch (errno) {
    case EAGAIN:
#if EAGAIN != EWOULDBLOCK
    case EWOULDBLOCK:
#endif
      return false;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      back_off(errno);
      return false;
    default:
      // The connection failed before it was accepted; the next one may do better.
      ++core_.services.metrics.accept_errors;
      return errno == EINTR || errno == ECONNABORTED;
  }
}

void Listener::take(int fd, Peer peer) {
  Metrics& metrics = core_.services.metrics;
  if (core_.connections.size() >= core_.services.options.limits.connections) {
    metrics.count_refused("connections_full");
    log_warning("{}: turned away, {} connections are open", peer.text(), core_.connections.size());
    return turn_away(fd);
  }
  ++metrics.connections_accepted;
  int family = AF_UNIX;
  socklen_t length = sizeof(family);
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
  try {
    make_connection(core_, fd, family, std::move(peer))->start();
  } catch (const std::exception& error) {
    log_error("a connection could not be set up: {}", error.what());
    close(fd);
  }
}

void Listener::back_off(int error) {
  ++core_.services.metrics.accept_errors;
  log_warning("{}: accepting fails: {}; trying again", socket_.name(),
              std::system_category().message(error));
  backing_off_ = true;
  timer_.expires_after(kBackOff);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& failed) {
    if (failed || self->stopped_) return;
    self->backing_off_ = false;
    self->accept_some();
  });
}

}  // namespace atlas::serve

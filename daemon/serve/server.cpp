// Start and stop of the server; in between, one thread runs the loop.
#include "daemon/serve/server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "daemon/base/log.h"
#include "daemon/serve/core.h"
#include "daemon/serve/listener.h"

namespace atlas::serve {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

// Deadlines are looked at this often: fine enough for the shortest of them, rare enough to cost
// nothing with a thousand connections.
std::chrono::milliseconds tick_of(const ServeTimeouts& timeouts) {
  const auto shortest =
      std::min({timeouts.header, timeouts.body, timeouts.idle, timeouts.write, timeouts.linger});
  return std::clamp(shortest / 4, std::chrono::milliseconds(5), std::chrono::milliseconds(500));
}

Result<std::vector<ListenSocket>> open_sockets(const ServerOptions& options) {
  std::vector<ListenSocket> sockets;
  const bool has_key = !options.api_key.empty();
  bool has_unix = false;
  bool has_tcp = false;
  for (const int fd : options.inherited_fds) {
    ATLAS_ASSIGN_OR_RETURN(ListenSocket socket, ListenSocket::inherit(fd, has_key));
    (socket.local() ? has_unix : has_tcp) = true;
    sockets.push_back(std::move(socket));
  }
  if (!options.socket_path.empty() && !has_unix) {
    ATLAS_ASSIGN_OR_RETURN(ListenSocket socket, ListenSocket::open_unix(options));
    sockets.push_back(std::move(socket));
  }
  if (options.tcp && !has_tcp) {
    ATLAS_ASSIGN_OR_RETURN(ListenSocket socket, ListenSocket::open_tcp(*options.tcp, has_key));
    sockets.push_back(std::move(socket));
  }
  if (sockets.empty()) {
    return invalid_argument("there is no socket to listen on: give a socket path or a TCP address");
  }
  return sockets;
}

}  // namespace

struct Server::Impl {
  // In the order of construction: what stands below uses what stands above.
  ServerOptions options;
  Metrics metrics;
  asio::io_context io{1};
  std::shared_ptr<Loop> loop;
  std::unique_ptr<Worker> worker;
  Services services;
  Core core;
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<std::string> addresses;
  uint16_t tcp_port = 0;
  asio::steady_timer tick{io};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> guard;

  std::mutex mutex;
  std::condition_variable closed;
  bool all_closed = false;
  std::thread thread;

  Impl(ServerOptions wanted, Control& control)
      : options(std::move(wanted)),
        loop(std::make_shared<Loop>([this] { asio::post(io, [this] { loop->drain(); }); })),
        worker(std::make_unique<Worker>()),
        services{control, options, metrics, loop, *worker},
        core{io, services, {}, 0, false},
        guard(asio::make_work_guard(io)) {}

  void run() {
    while (true) {
      try {
        io.run();
        return;
      } catch (const std::exception& error) {
        // A handler that throws is our bug; the other connections need not pay for it.
        log_error("the socket thread caught: {}", error.what());
      }
    }
  }

  void on_tick() {
    tick.expires_after(tick_of(options.timeouts));
    tick.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      const auto now = Clock::now();
      // Closing takes a connection out of the set.
      const std::vector<std::shared_ptr<Connection>> connections(core.connections.begin(),
                                                                 core.connections.end());
      for (const auto& connection : connections) connection->check_deadline(now);
      note_closed();
      on_tick();
    });
  }

  void note_closed() {
    if (!core.stopping || !core.connections.empty()) return;
    const std::lock_guard lock(mutex);
    all_closed = true;
    closed.notify_all();
  }

  void begin_stop() {
    core.stopping = true;
    for (const auto& listener : listeners) listener->stop();
    for_each_connection([](Connection& connection) { connection.finish_soon(); });
    note_closed();
  }

  template <typename Call>
  void for_each_connection(Call call) {
    const std::vector<std::shared_ptr<Connection>> connections(core.connections.begin(),
                                                               core.connections.end());
    for (const auto& connection : connections) call(*connection);
  }
};

Server::Server(ServerOptions options, Control& control)
    : impl_(std::make_unique<Impl>(std::move(options), control)) {}

Status Server::start() {
  Impl& impl = *impl_;
  ATLAS_ASSIGN_OR_RETURN(std::vector<ListenSocket> sockets, open_sockets(impl.options));
  for (ListenSocket& socket : sockets) {
    if (!socket.local()) impl.tcp_port = socket.port();
    impl.addresses.push_back(socket.name());
    impl.listeners.push_back(std::make_shared<Listener>(impl.core, std::move(socket)));
    impl.listeners.back()->start();
  }
  impl.on_tick();
  impl.thread = std::thread([&impl] { impl.run(); });
  for (const std::string& address : impl.addresses) log_info("listening on {}", address);
  return {};
}

size_t Server::stop(std::chrono::milliseconds deadline) {
  Impl& impl = *impl_;
  if (!impl.thread.joinable()) return 0;
  asio::post(impl.io, [&impl] { impl.begin_stop(); });
  {
    std::unique_lock lock(impl.mutex);
    impl.closed.wait_for(lock, deadline, [&impl] { return impl.all_closed; });
  }
  size_t cancelled = 0;
  asio::post(impl.io, [&impl, &cancelled] {
    cancelled = impl.core.connections.size();
    impl.for_each_connection([](Connection& connection) { connection.abort(); });
    impl.tick.cancel();
    impl.loop->close();
    impl.guard.reset();
    impl.io.stop();
  });
  impl.thread.join();
  impl.worker.reset();
  if (cancelled > 0) log_warning("{} connections were cut off at the deadline", cancelled);
  return cancelled;
}

Server::~Server() { stop(std::chrono::milliseconds(0)); }

uint16_t Server::tcp_port() const { return impl_->tcp_port; }
std::vector<std::string> Server::addresses() const { return impl_->addresses; }

}  // namespace atlas::serve

// SocketConnection: one client's connection, as Core knows it. Its input (requests, deadlines) and
// its output (answers, backlog, ending) are a file each.
#pragma once

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/serve/core.h"
#include "daemon/serve/request_reader.h"
#include "daemon/serve/routes.h"

namespace atlas::serve {

inline constexpr size_t kReadBytes = 16 << 10;
inline constexpr size_t kPipelinedBytes = 64 << 10;  // read ahead while a request is at hand
inline constexpr size_t kKeptBytes = 64 << 10;       // of buffers, from one request to the next

class SocketConnection;

/// The exchange of a connection, which may end before it does.
class SocketExchange : public Exchange {
 public:
  explicit SocketExchange(std::weak_ptr<SocketConnection> connection)
      : connection_(std::move(connection)) {}
  bool open() const override { return open_; }
  void reply(HttpResponse response) override;
  void begin_stream() override;
  void send_event(std::string_view data) override;
  void end_stream(bool failed) override;

 private:
  friend class SocketConnection;
  std::weak_ptr<SocketConnection> connection_;
  bool open_ = true;
};

/// Loop thread only. Pending callbacks of Asio hold it; Core's set holds it while it is open.
class SocketConnection : public Connection, public std::enable_shared_from_this<SocketConnection> {
 public:
  using Clock = std::chrono::steady_clock;
  SocketConnection(Core& core, int fd, int family, Peer peer);
  ~SocketConnection() override;

  void start() override;
  void check_deadline(Clock::time_point now) override;
  void finish_soon() override;
  void abort() override;

  // What the exchange asks for.
  void reply(const HttpResponse& response);
  void begin_stream();
  void send_event(std::string_view data);
  void end_stream(bool failed);

 private:
  enum class Phase {
    kIdle,  // between requests
    kHead,  // part of a head has come
    kBody,
    kAnswering,  // a handler has the request, or its answer is being written
    kLingering,  // all is written; what the peer still sends is thrown away
    kClosed,
  };

  const ServerOptions& options() const { return core_.services.options; }
  Metrics& metrics() { return core_.services.metrics; }

  void enter(Phase phase);
  Clock::time_point deadline_of(Phase phase) const;
  void read();
  void on_read(const boost::system::error_code& error, size_t bytes);
  bool half_closed();
  void watch_hangup();
  void parse();
  void head_done();
  void claim_body();
  void dispatch();
  void refuse_and_close(const ApiError& error);
  void make_exchange();
  bool accept_route();
  void answered();
  void schedule_flush();
  void flush();
  void on_written(const boost::system::error_code& error, size_t bytes);
  bool slow_reader();
  void finished_writing();
  void log_request();
  void gone();
  void close(std::string_view why);

  Core& core_;
  boost::asio::generic::stream_protocol::socket socket_;
  Peer peer_;
  RequestReader reader_;
  Phase phase_ = Phase::kIdle;
  Clock::time_point deadline_;
  bool reading_ = false;
  std::string in_;  // bytes not yet parsed
  size_t in_begin_ = 0;
  std::array<char, kReadBytes> read_buffer_;
  std::string pending_;  // to be written
  std::string writing_;  // being written
  bool flush_scheduled_ = false;
  Clock::time_point last_write_;
  bool peer_closed_ = false;  // nothing more will come

  // The request at hand.
  std::shared_ptr<SocketExchange> exchange_;
  const Route* route_ = nullptr;
  Clock::time_point received_;
  int status_ = 0;
  bool keep_alive_ = true;
  bool streaming_ = false;
  bool complete_ = false;  // the whole answer is in the buffers
  bool finish_soon_ = false;
  uint64_t claimed_ = 0;  // of core_.body_bytes
};

}  // namespace atlas::serve

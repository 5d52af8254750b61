// What a connection does with what comes in: requests in order, each looked at before its body is
// read, and a read always in flight, so that a client that leaves is noticed during its answer.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <random>
#include <utility>

#include "daemon/base/log.h"
#include "daemon/serve/socket_connection.h"

namespace atlas::serve {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using ErrorCode = boost::system::error_code;

std::string new_request_id() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return fmt::format("{:016x}{:08x}", generator(), static_cast<uint32_t>(generator()));
}

}  // namespace

SocketConnection::SocketConnection(Core& core, int fd, int family, Peer peer)
    : core_(core),
      socket_(core.io, asio::generic::stream_protocol(family, 0), fd),
      peer_(std::move(peer)),
      reader_(options().limits.header_bytes, options().limits.body_bytes) {
  ++metrics().connections_open;
}

SocketConnection::~SocketConnection() { --metrics().connections_open; }

void SocketConnection::start() {
  log_debug("connection from {}", peer_.text());
  enter(Phase::kIdle);
  read();
}

// ---- Phases and deadlines

Clock::time_point SocketConnection::deadline_of(Phase phase) const {
  const ServeTimeouts& timeouts = options().timeouts;
  const auto now = Clock::now();
  switch (phase) {
    case Phase::kIdle:
      return now + timeouts.idle;
    case Phase::kHead:
      return now + timeouts.header;
    case Phase::kBody:
      return now + timeouts.body;
    case Phase::kLingering:
      return now + timeouts.linger;
    case Phase::kAnswering:
    case Phase::kClosed:
      break;
  }
  return Clock::time_point::max();
}

void SocketConnection::enter(Phase phase) {
  phase_ = phase;
  deadline_ = deadline_of(phase);
}

void SocketConnection::check_deadline(Clock::time_point now) {
  if (phase_ == Phase::kClosed) return;
  if (!writing_.empty() && now - last_write_ > options().timeouts.write) {
    ++metrics().slow_readers;
    log_warning("{}: took no byte for {} ms and is cut off", peer_.text(),
                options().timeouts.write.count());
    return close("the peer does not read");
  }
  if (now < deadline_) return;
  if (phase_ == Phase::kHead || phase_ == Phase::kBody) {
    return refuse_and_close({.status = 408,
                             .message = phase_ == Phase::kHead ? "the headers did not come in time"
                                                               : "the body did not come in time",
                             .code = "request_timeout"});
  }
  close("idle");
}

void SocketConnection::finish_soon() {
  finish_soon_ = true;
  if (phase_ == Phase::kIdle || phase_ == Phase::kHead) close("the server stops");
}

// ---- Reading

void SocketConnection::read() {
  if (reading_ || peer_closed_ || phase_ == Phase::kClosed) return;
  // With enough read ahead the rest may wait in the kernel; a peer that leaves then shows by EPIPE.
  if (phase_ == Phase::kAnswering && in_.size() - in_begin_ > kPipelinedBytes) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(read_buffer_),
                          [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
                            self->on_read(error, bytes);
                          });
}

void SocketConnection::on_read(const ErrorCode& error, size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  metrics().bytes_received += bytes;
  if (error) {
    peer_closed_ = true;
    if (error == asio::error::eof && phase_ == Phase::kAnswering && half_closed()) {
      return watch_hangup();
    }
    return close(error == asio::error::eof ? "the peer closed" : error.message());
  }
  if (phase_ != Phase::kLingering) in_.append(read_buffer_.data(), bytes);
  if (phase_ != Phase::kAnswering && phase_ != Phase::kLingering) parse();
  read();
}

// A client of the Unix socket may have closed its sending half only, as shell tools do at the end
// of their input. TCP does not tell the two apart: there, whoever closes does not wait for an
// answer.
bool SocketConnection::half_closed() {
  pollfd poll_fd{.fd = socket_.native_handle(), .events = 0, .revents = 0};
  return peer_.local && poll(&poll_fd, 1, 0) == 0;
}

void SocketConnection::watch_hangup() {
  keep_alive_ = false;
  socket_.async_wait(asio::socket_base::wait_error, [self = shared_from_this()](const ErrorCode&) {
    self->close("the peer closed");
  });
}

void SocketConnection::parse() {
  while (phase_ == Phase::kIdle || phase_ == Phase::kHead || phase_ == Phase::kBody) {
    const bool in_body = phase_ == Phase::kBody;
    const size_t used = reader_.feed(std::string_view(in_).substr(in_begin_));
    in_begin_ += used;
    if (in_begin_ == in_.size()) {
      in_.clear();
      in_begin_ = 0;
    }
    if (reader_.begun() && phase_ == Phase::kIdle) enter(Phase::kHead);
    switch (reader_.state()) {
      case RequestReader::State::kFailed:
        return refuse_and_close(reader_.failure());
      case RequestReader::State::kHead:
        if (in_begin_ > 0) {
          in_.erase(0, in_begin_);
          in_begin_ = 0;
        }
        return;
      case RequestReader::State::kBody:
        if (in_body && used == 0) {
          // The size line or a trailer of a chunk, which counts for no limit of the body.
          if (in_.size() - in_begin_ <= options().limits.header_bytes) return;
          return refuse_and_close(
              {.status = 431,
               .message = "a line between chunks is longer than the headers may be",
               .code = "headers_too_large"});
        }
        if (!in_body) head_done();
        if (in_.empty()) return;
        break;
      case RequestReader::State::kDone:
        if (!in_body) head_done();
        if (phase_ == Phase::kBody) dispatch();
        return;
    }
  }
}

// Everything that the head alone decides is decided before any of the body is read.
void SocketConnection::head_done() {
  enter(Phase::kBody);
  make_exchange();
  if (!accept_route()) return;
  claim_body();
  if (phase_ == Phase::kBody && exchange_->head.expects_continue &&
      reader_.state() == RequestReader::State::kBody) {
    pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
    schedule_flush();
  }
}

void SocketConnection::make_exchange() {
  received_ = Clock::now();
  exchange_ = std::make_shared<SocketExchange>(weak_from_this());
  exchange_->head = reader_.head();
  exchange_->peer = peer_;
  exchange_->id = new_request_id();
  keep_alive_ = exchange_->head.keep_alive;
  streaming_ = false;
  complete_ = false;
  route_ = nullptr;
  status_ = 0;
}

bool SocketConnection::accept_route() {
  RouteMatch match = find_route(exchange_->head.method, exchange_->head.path);
  const bool has_body = reader_.state() == RequestReader::State::kBody;
  if (exchange_->head.method == "OPTIONS" && !match.allow.empty() && !has_body) {
    enter(Phase::kAnswering);
    exchange_->reply({.status = 204, .headers = {{"Allow", match.allow}}});
    return false;
  }
  Refusal refusal;
  if (match.route == nullptr) {
    refusal = std::move(match.error);
  } else {
    route_ = match.route;
    refusal = check_head(*route_, exchange_->head, peer_, options());
  }
  if (!refusal) return true;
  metrics().count_refused(refusal->code);
  // An unread body would be taken for the next request, so then the connection ends.
  HttpResponse response{.status = refusal->status, .body = error_json(*refusal)};
  if (refusal->status == 405) response.headers.emplace_back("Allow", match.allow);
  if (refusal->status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  response.close = has_body;
  exchange_->note = refusal->message;
  enter(Phase::kAnswering);
  exchange_->reply(std::move(response));
  return false;
}

// A chunked body is counted with the most that it may have.
void SocketConnection::claim_body() {
  const RequestHead& head = exchange_->head;
  const ServeLimits& limits = options().limits;
  const uint64_t bytes =
      head.chunked ? limits.body_bytes : std::min<uint64_t>(head.body_bytes, limits.body_bytes);
  if (core_.body_bytes + bytes <= limits.bodies_bytes) {
    claimed_ = bytes;
    core_.body_bytes += bytes;
    return;
  }
  refuse_and_close({.status = 503,
                    .message = "too many large requests are being read: try again",
                    .code = "bodies_full",
                    .retry_after_s = 1});
}

void SocketConnection::dispatch() {
  enter(Phase::kAnswering);
  exchange_->body = reader_.take_body();
  try {
    route_->handler(core_.services, exchange_);
  } catch (const std::exception& error) {
    log_error("{} {}: {}", exchange_->head.method, exchange_->head.path, error.what());
    exchange_->reply_error({.status = 500, .message = "the request failed", .code = "internal"});
  }
}

// For what ends the connection: requests that are no HTTP, too long or too late.
void SocketConnection::refuse_and_close(const ApiError& error) {
  if (exchange_ == nullptr || complete_) make_exchange();
  metrics().count_refused(error.code);
  exchange_->note = error.message;
  HttpResponse response{.status = error.status, .body = error_json(error), .close = true};
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", fmt::format("{}", error.retry_after_s));
  }
  enter(Phase::kAnswering);
  exchange_->reply(std::move(response));
}

std::shared_ptr<Connection> make_connection(Core& core, int fd, int family, Peer peer) {
  auto connection = std::make_shared<SocketConnection>(core, fd, family, std::move(peer));
  core.connections.insert(connection);
  return connection;
}

}  // namespace atlas::serve

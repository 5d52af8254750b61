// What a connection sends: answers and events with bounded memory, and how it ends.
#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "daemon/base/log.h"
#include "daemon/serve/http_text.h"
#include "daemon/serve/socket_connection.h"

namespace atlas::serve {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using ErrorCode = boost::system::error_code;

}  // namespace

void SocketConnection::reply(const HttpResponse& response) {
  if (response.close || core_.stopping || finish_soon_) keep_alive_ = false;
  status_ = response.status;
  append_response(pending_, response, exchange_->id, keep_alive_, exchange_->head.method == "HEAD");
  answered();
}

void SocketConnection::begin_stream() {
  streaming_ = true;
  status_ = 200;
  if (core_.stopping || finish_soon_ || exchange_->head.http10) keep_alive_ = false;
  append_stream_head(pending_, exchange_->id, !exchange_->head.http10, keep_alive_);
  schedule_flush();
}

void SocketConnection::send_event(std::string_view data) {
  append_event(pending_, data, !exchange_->head.http10);
  if (!slow_reader()) schedule_flush();
}

void SocketConnection::end_stream(bool failed) {
  if (failed) keep_alive_ = false;
  if (!exchange_->head.http10) pending_ += kLastChunk;
  answered();
}

void SocketConnection::answered() {
  complete_ = true;
  exchange_->open_ = false;
  exchange_->on_gone = nullptr;
  if (finish_soon_) keep_alive_ = false;
  log_request();
  schedule_flush();
}

void SocketConnection::log_request() {
  const double seconds = std::chrono::duration<double>(Clock::now() - received_).count();
  const std::string_view label = route_ == nullptr ? "other" : route_->path;
  metrics().count_request(label, status_, seconds);
  const bool quiet = route_ != nullptr && route_->quiet && status_ < 400;
  const RequestHead& head = exchange_->head;
  log_at(quiet ? LogLevel::kDebug : LogLevel::kInfo, "{} {} {} {:.3f} s, {}, {}{}{}",
         head.method.empty() ? "-" : head.method, std::string_view(head.path).substr(0, 128),
         status_, seconds, peer_.text(), exchange_->id, exchange_->note.empty() ? "" : ": ",
         exchange_->note);
}

// True if the reader was cut off: it holds more memory than a client may.
bool SocketConnection::slow_reader() {
  const size_t backlog = pending_.size() + writing_.size();
  if (backlog <= options().limits.backlog_bytes) return false;
  ++metrics().slow_readers;
  log_warning("{}: request {}: {} bytes wait for a client that does not read; it is cut off",
              peer_.text(), exchange_->id, backlog);
  close("the peer does not read");
  return true;
}

// ---- Writing

// Flushing after the current handler lets the events of one step leave in one write.
void SocketConnection::schedule_flush() {
  if (flush_scheduled_ || !writing_.empty() || phase_ == Phase::kClosed) return;
  flush_scheduled_ = true;
  asio::post(core_.io, [self = shared_from_this()] {
    self->flush_scheduled_ = false;
    self->flush();
  });
}

void SocketConnection::flush() {
  if (phase_ == Phase::kClosed || !writing_.empty()) return;
  if (pending_.empty()) {
    if (complete_) finished_writing();
    return;
  }
  writing_.swap(pending_);
  last_write_ = Clock::now();
  asio::async_write(
      socket_, asio::buffer(writing_),
      [self = shared_from_this()](const ErrorCode&, size_t) {
        self->last_write_ = Clock::now();  // any byte taken is progress
        return size_t{64} << 10;
      },
      [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
        self->on_written(error, bytes);
      });
}

void SocketConnection::on_written(const ErrorCode& error, size_t bytes) {
  writing_.clear();
  if (writing_.capacity() > kKeptBytes) writing_.shrink_to_fit();
  if (phase_ == Phase::kClosed) return;
  metrics().bytes_sent += bytes;
  if (error) return close(error.message());
  flush();
}

void SocketConnection::finished_writing() {
  core_.body_bytes -= std::exchange(claimed_, 0);
  exchange_ = nullptr;
  complete_ = false;
  if (!keep_alive_ || finish_soon_) {
    if (reader_.state() == RequestReader::State::kDone && in_.empty()) return close("answered");
    // Closing with unread bytes would throw away what the peer has not read yet.
    ErrorCode ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
    in_.clear();
    in_begin_ = 0;
    enter(Phase::kLingering);
    return read();
  }
  reader_.reset();
  if (in_.capacity() > kKeptBytes && in_.empty()) in_.shrink_to_fit();
  if (pending_.capacity() > kKeptBytes) pending_.shrink_to_fit();
  enter(Phase::kIdle);
  if (!in_.empty()) parse();
  read();
}

// ---- Ending

void SocketConnection::gone() {
  if (exchange_ == nullptr || !exchange_->open_) return;
  exchange_->open_ = false;
  const auto on_gone = std::exchange(exchange_->on_gone, nullptr);
  if (on_gone) on_gone();
  if (status_ == 0) status_ = 499;  // as nginx notes a client that left before its answer
  exchange_->note = "the client went away";
  log_request();
}

void SocketConnection::close(std::string_view why) {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();  // the set may hold the last one
  phase_ = Phase::kClosed;
  log_debug("{}: closed: {}", peer_.text(), why);
  gone();
  core_.body_bytes -= std::exchange(claimed_, 0);
  exchange_ = nullptr;
  ErrorCode ignored;
  socket_.close(ignored);
  core_.connections.erase(self);
}

void SocketConnection::abort() { close("the server stops"); }

// ---- The exchange

void SocketExchange::reply(HttpResponse response) {
  if (const auto connection = connection_.lock(); connection && open_) connection->reply(response);
}
void SocketExchange::begin_stream() {
  if (const auto connection = connection_.lock(); connection && open_) connection->begin_stream();
}
void SocketExchange::send_event(std::string_view data) {
  if (const auto connection = connection_.lock(); connection && open_) {
    connection->send_event(data);
  }
}
void SocketExchange::end_stream(bool failed) {
  if (const auto connection = connection_.lock(); connection && open_) {
    connection->end_stream(failed);
  }
}

}  // namespace atlas::serve

// Exchange: one HTTP request and the answer being given to it; what handlers see of a connection.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/serve/api_error.h"

namespace atlas::serve {

/// Who is at the other end. Process and user are known of Unix sockets only.
struct Peer {
  bool local = true;  // over the Unix socket
  int64_t pid = -1;
  int64_t uid = -1;
  std::string address;  // TCP: "127.0.0.1:40000"
  /// "pid 12 uid 1000" or the address: for the log.
  std::string text() const;
};

/// What is known once the headers are read.
struct RequestHead {
  std::string method;  // "GET"
  std::string path;    // of the target, without its query
  std::string query;   // behind the '?'
  std::string content_type;
  std::string content_encoding;
  std::string authorization;
  bool has_body_length = false;  // Content-Length or chunked
  uint64_t body_bytes = 0;       // Content-Length
  bool chunked = false;
  bool keep_alive = true;
  bool http10 = false;
  bool expects_continue = false;
  bool has_host = false;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  bool close = false;  // end the connection afterwards
};

/// Used on the loop thread only, except for its destruction. Answers are given once; after that, or
/// once the client has gone, every call does nothing.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  /// False once the answer is complete or the client has gone.
  virtual bool open() const = 0;
  virtual void reply(HttpResponse response) = 0;
  /// Answers 200 with a stream of server-sent events.
  virtual void begin_stream() = 0;
  /// Sends one event with this data, which must be one line.
  virtual void send_event(std::string_view data) = 0;
  /// Completes the stream. `failed`: the connection ends too, so that nobody takes it for whole.
  virtual void end_stream(bool failed) = 0;

  void reply_json(std::string json) { reply({.body = std::move(json)}); }
  void reply_error(const ApiError& error);

  RequestHead head;
  std::string body;
  Peer peer;
  std::string id;    // of this request, in answers and logs
  std::string note;  // what the log line shall say about it
  /// Called once if the client goes away, or does not read, before the answer is complete. Whatever
  /// it holds is dropped when the exchange ends.
  std::function<void()> on_gone;
};

}  // namespace atlas::serve

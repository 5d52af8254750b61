// A server on a Unix socket that answers as a daemon would, or as one that fails: for clients'
// tests.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace atlas::testing {

/// Serves one connection after the other, one request each.
class SseServer {
 public:
  /// `answer` gets the request's first line and its body, and gives the whole answer.
  using Answer = std::function<std::string(const std::string& line, const std::string& body)>;

  SseServer(const std::string& path, Answer answer);
  ~SseServer();
  uint32_t requests() const { return requests_; }

 private:
  void serve(const std::stop_token& stop);
  int listener_ = -1;
  Answer answer_;
  std::atomic<uint32_t> requests_{0};
  std::jthread thread_;
};

/// "HTTP/1.1 STATUS ..." with a body of this type, and the connection's end.
std::string http_answer(int status, const std::string& type, const std::string& body);

}  // namespace atlas::testing

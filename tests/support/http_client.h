// HttpClient: a small blocking HTTP client over a Unix or TCP socket, for tests that look closely.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace atlas::testing {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks put together
  bool complete = false;                       // ended as its headers promised
};

class HttpClient {
 public:
  static HttpClient unix_socket(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return HttpClient(AF_UNIX, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  static HttpClient tcp(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return HttpClient(AF_INET, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  HttpClient(HttpClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}
  HttpClient& operator=(HttpClient&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~HttpClient() { close(); }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void half_close() { shutdown(fd_, SHUT_WR); }
  int fd() const { return fd_; }

  /// False if the peer has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  static std::string text_of(std::string_view method, std::string_view path, std::string_view body,
                             std::string_view more_headers = {}) {
    std::string text =
        std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n";
    text += more_headers;
    if (method == "POST") {
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n";
    }
    text += "\r\n";
    text += body;
    return text;
  }
  HttpAnswer get(std::string_view path, std::string_view more_headers = {}) {
    send(text_of("GET", path, {}, more_headers));
    return read_answer();
  }
  HttpAnswer post(std::string_view path, std::string_view body, std::string_view headers = {}) {
    send(text_of("POST", path, body, headers));
    return read_answer();
  }

  /// Reads the head and the body; with `head_only` no body follows (HEAD).
  HttpAnswer read_answer(bool head_only = false) {
    HttpAnswer answer = read_head();
    if (answer.status == 0 || head_only || answer.status == 204) {
      answer.complete = answer.status != 0;
    } else if (answer.headers.contains("transfer-encoding")) {
      std::string chunk;
      while (read_chunk(chunk)) {
        if (chunk.empty()) {
          answer.complete = true;
          break;
        }
        answer.body += chunk;
      }
    } else if (answer.headers.contains("content-length")) {
      const size_t wanted = std::stoul(answer.headers["content-length"]);
      answer.complete = fill(wanted);
      answer.body = take(std::min(wanted, buffer_.size()));
    } else {
      while (more()) {
      }
      answer.body = take(buffer_.size());
      answer.complete = true;
    }
    return answer;
  }
  HttpAnswer read_head() {
    HttpAnswer answer;
    std::string line;
    if (!read_line(line) || line.size() < 12) return answer;
    answer.status = std::stoi(line.substr(9, 3));
    while (read_line(line) && !line.empty()) {
      const size_t colon = line.find(':');
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      answer.headers[name] = line.substr(colon + 2);
    }
    return answer;
  }
  /// One chunk of a chunked body; empty for the last. False if the connection ended.
  bool read_chunk(std::string& chunk) {
    std::string line;
    if (!read_line(line)) return false;
    const size_t bytes = std::stoul(line, nullptr, 16);
    if (!fill(bytes + 2)) return false;
    chunk = take(bytes);
    take(2);
    return true;
  }
  /// True once the peer has closed and nothing is left to read.
  bool at_end() { return buffer_.empty() && !more(); }

 private:
  HttpClient(int family, sockaddr* address, socklen_t length)
      : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (connect(fd_, address, length) != 0) {
      throw std::runtime_error(std::string("connect: ") + std::strerror(errno));
    }
  }
  // A server that does not answer fails the test instead of stopping it.
  bool more() {
    constexpr int kPatienceMs = 10'000;
    pollfd poll_fd{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&poll_fd, 1, kPatienceMs) <= 0) return false;
    char bytes[16384];
    const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
    if (got <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(got));
    return true;
  }
  bool fill(size_t bytes) {
    while (buffer_.size() < bytes) {
      if (!more()) return false;
    }
    return true;
  }
  std::string take(size_t bytes) {
    std::string out = buffer_.substr(0, bytes);
    buffer_.erase(0, bytes);
    return out;
  }
  bool read_line(std::string& line) {
    size_t end = 0;
    while ((end = buffer_.find("\r\n")) == std::string::npos) {
      if (!more()) return false;
    }
    line = take(end);
    take(2);
    return true;
  }

  int fd_ = -1;
  std::string buffer_;
};

/// The data of each event in the body of an event stream.
inline std::vector<std::string> events_of(std::string_view body) {
  std::vector<std::string> events;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    std::string_view event = body.substr(0, end);
    if (event.starts_with("data: ")) event.remove_prefix(6);
    events.emplace_back(event);
    if (end == body.npos) break;
    body.remove_prefix(end + 2);
  }
  return events;
}

}  // namespace atlas::testing

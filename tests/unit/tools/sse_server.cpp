#include "tests/unit/tools/sse_server.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace atlas::testing {

std::string http_answer(int status, const std::string& type, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: " + type +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" +
         body;
}

SseServer::SseServer(const std::string& path, Answer answer) : answer_(std::move(answer)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(::listen(listener_, 64) == 0);
  thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
}

SseServer::~SseServer() {
  thread_.request_stop();
  thread_.join();
  ::close(listener_);
}

void SseServer::serve(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pollfd waiting{listener_, POLLIN, 0};
    if (::poll(&waiting, 1, 50) != 1) continue;
    const int client = ::accept(listener_, nullptr, nullptr);
    std::string text;
    char part[4096];
    size_t end = std::string::npos, wanted = 0;
    while (end == std::string::npos || text.size() < wanted) {
      const ssize_t got = ::recv(client, part, sizeof(part), 0);
      if (got <= 0) break;
      text.append(part, static_cast<size_t>(got));
      end = text.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      const size_t length = text.find("Content-Length: ");
      wanted = end + 4 + (length < end ? std::stoul(text.substr(length + 16)) : 0);
    }
    if (end != std::string::npos) {
      ++requests_;
      const std::string answer = answer_(text.substr(0, text.find("\r\n")), text.substr(end + 4));
      (void)!::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
    }
    ::close(client);
  }
}

}  // namespace atlas::testing

// HTTP over the daemon's Unix socket, by libcurl.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "daemon/base/status.h"

namespace atlas::tools {

struct Response {
  long status = 0;
  std::string body;
};

/// Takes the data of one server-sent event; false ends the transfer.
using EventHandler = std::function<bool(std::string_view data)>;

/// One connection, kept between requests; for one thread. A copy shares it.
class Client {
 public:
  explicit Client(std::string socket_path);

  /// kUnavailable if no daemon answers on the socket, with what to check.
  Result<Response> get(const std::string& path) const;
  Result<Response> post(const std::string& path, const std::string& json) const;
  /// Posts and reads a stream of events. A response that is no stream comes back whole, in `body`.
  Result<Response> stream(const std::string& path, const std::string& json,
                          const EventHandler& handler) const;

 private:
  Result<Response> perform(const std::string& path, const std::string* json,
                           const EventHandler* handler) const;
  std::string socket_path_;
  std::shared_ptr<void> curl_;  // null if libcurl could not be started
};

}  // namespace atlas::tools

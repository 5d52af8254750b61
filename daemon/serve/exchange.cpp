// What every exchange does alike: errors as answers, peers as text.
#include "daemon/serve/exchange.h"

#include <fmt/format.h>

namespace atlas::serve {

std::string Peer::text() const { return local ? fmt::format("pid {} uid {}", pid, uid) : address; }

void Exchange::reply_error(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error_json(error)};
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", fmt::format("{}", error.retry_after_s));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (note.empty()) note = error.message;
  reply(std::move(response));
}

}  // namespace atlas::serve

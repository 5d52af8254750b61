// The table of routes: what paths there are, who may use them, and who answers.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "daemon/serve/api_error.h"
#include "daemon/serve/exchange.h"
#include "daemon/serve/services.h"

namespace atlas::serve {

using Handler = void (*)(Services&, const std::shared_ptr<Exchange>&);

enum class Access {
  kOpen,   // everyone: probes
  kKey,    // over TCP, whoever has the API key
  kLocal,  // over the Unix socket only
};

struct Route {
  std::string_view method;  // "GET" answers HEAD too
  std::string_view path;    // a '*' at the end stands for the rest
  Access access;
  bool quiet;  // logged at debug level
  Handler handler;
};

std::span<const Route> all_routes();

/// The route of a method and path, or an error: 404 with the nearest path, 405 with what is
/// allowed.
struct RouteMatch {
  const Route* route = nullptr;
  ApiError error;     // without a route
  std::string allow;  // methods of the path, for 405 and OPTIONS; empty: no such path
};
RouteMatch find_route(std::string_view method, std::string_view path);

/// Whether this peer may use the route with these headers, and whether body and query are such as
/// routes read. Decided before a body is read.
Refusal check_head(const Route& route, const RequestHead& head, const Peer& peer,
                   const ServerOptions& options);

// The handlers, by file.
// session.cpp
void handle_completions(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_chat(Services& services, const std::shared_ptr<Exchange>& exchange);
// routes_text.cpp
void handle_tokenize(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_detokenize(Services& services, const std::shared_ptr<Exchange>& exchange);
// routes_state.cpp
void handle_models(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_model(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_health(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_ready(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_metrics(Services& services, const std::shared_ptr<Exchange>& exchange);
// routes_control.cpp
void handle_status(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_control_models(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_plugins(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_plan(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_swap(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_reload(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_drain(Services& services, const std::shared_ptr<Exchange>& exchange);
void handle_stats(Services& services, const std::shared_ptr<Exchange>& exchange);

/// Answers with the error and counts it.
void refuse(Services& services, const std::shared_ptr<Exchange>& exchange, const ApiError& error);
/// 503 while the daemon drains.
Refusal draining(const Services& services);

/// Runs `work` on the worker, then `done` on the loop thread with its result; an exception inside
/// is a 500. `done` is not run if the client has gone.
template <typename Result, typename Work, typename Done>
void on_worker(Services& services, const std::shared_ptr<Exchange>& exchange, Work work,
               Done done) {
  services.worker.post([&services, exchange, work = std::move(work), done = std::move(done)] {
    std::shared_ptr<Result> result = std::make_shared<Result>();
    Refusal refusal;
    try {
      refusal = work(*result);
    } catch (const std::exception& error) {
      refusal =
          ApiError{.status = 500,
                   .message = std::string("the request could not be prepared: ") + error.what(),
                   .code = "internal"};
    }
    services.loop->post([&services, exchange, result, refusal = std::move(refusal), done] {
      if (!exchange->open()) return;
      if (refusal) return refuse(services, exchange, *refusal);
      done(std::move(*result));
    });
  });
}

}  // namespace atlas::serve

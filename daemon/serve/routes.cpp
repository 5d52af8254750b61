// Finding routes, and what is decided from a request's head alone.
#include "daemon/serve/routes.h"

#include <fmt/format.h>

#include <vector>

#include "daemon/base/nearest_name.h"
#include "daemon/serve/http_text.h"

namespace atlas::serve {
namespace {

constexpr Route kRoutes[] = {
    {"GET", "/v1/models", Access::kKey, false, handle_models},
    {"GET", "/v1/models/*", Access::kKey, false, handle_model},
    {"POST", "/v1/completions", Access::kKey, false, handle_completions},
    {"POST", "/v1/chat/completions", Access::kKey, false, handle_chat},
    {"POST", "/tokenize", Access::kKey, false, handle_tokenize},
    {"POST", "/detokenize", Access::kKey, false, handle_detokenize},
    {"GET", "/health", Access::kOpen, true, handle_health},
    {"GET", "/ready", Access::kOpen, true, handle_ready},
    {"GET", "/metrics", Access::kKey, true, handle_metrics},
    {"GET", "/atlas/v1/status", Access::kKey, true, handle_status},
    {"GET", "/atlas/v1/models", Access::kKey, true, handle_control_models},
    {"GET", "/atlas/v1/plugins", Access::kKey, true, handle_plugins},
    {"GET", "/atlas/v1/stats", Access::kKey, true, handle_stats},
    {"POST", "/atlas/v1/plan", Access::kLocal, false, handle_plan},
    {"POST", "/atlas/v1/swap", Access::kLocal, false, handle_swap},
    {"POST", "/atlas/v1/reload", Access::kLocal, false, handle_reload},
    {"POST", "/atlas/v1/drain", Access::kLocal, false, handle_drain},
};

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}

ApiError no_route(std::string_view method, std::string_view path) {
  std::vector<std::string_view> paths;
  for (const Route& route : kRoutes) paths.push_back(route.path);
  std::string message = fmt::format("there is no route {} {}", method, path.substr(0, 128));
  std::string_view nearest;
  // A base URL without its "/v1" is the usual mistake.
  for (const std::string_view candidate : paths) {
    if (path.size() > 1 && candidate.ends_with(path)) nearest = candidate;
  }
  if (nearest.empty()) nearest = nearest_name(path, paths);
  if (!nearest.empty()) message += fmt::format("; is {} meant?", nearest);
  return {.status = 404, .message = std::move(message), .code = "unknown_url"};
}

Refusal check_access(const Route& route, const RequestHead& head, const Peer& peer,
                     const ServerOptions& options) {
  if (peer.local || route.access == Access::kOpen) return std::nullopt;
  if (!options.api_key.empty()) {
    constexpr std::string_view kScheme = "Bearer ";
    std::string_view given = head.authorization;
    const bool bearer = given.starts_with(kScheme);
    if (bearer) given.remove_prefix(kScheme.size());
    if (!equal_in_constant_time(given, options.api_key) || !bearer) {
      return ApiError{.status = 401,
                      .message =
                          "over TCP this server asks for its API key: send "
                          "\"Authorization: Bearer KEY\"",
                      .code = "invalid_api_key"};
    }
  }
  if (route.access == Access::kLocal) {
    return ApiError{.status = 403,
                    .message = fmt::format("{} is answered on the Unix socket only", route.path),
                    .code = "local_only"};
  }
  return std::nullopt;
}

}  // namespace

std::span<const Route> all_routes() { return kRoutes; }

RouteMatch find_route(std::string_view method, std::string_view path) {
  RouteMatch match;
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  for (const Route& route : kRoutes) {
    if (!matches(route.path, path)) continue;
    if (route.method == wanted) match.route = &route;
    if (!match.allow.empty()) match.allow += ", ";
    match.allow += route.method;
    if (route.method == "GET") match.allow += ", HEAD";
  }
  if (match.allow.empty()) {
    match.error = no_route(method, path);
    return match;
  }
  match.allow += ", OPTIONS";
  if (match.route == nullptr) {
    match.error = {.status = 405,
                   .message = fmt::format("{} takes {}, not {}", path.substr(0, 128), match.allow,
                                          method.substr(0, 32)),
                   .code = "method_not_allowed"};
  }
  return match;
}

Refusal check_head(const Route& route, const RequestHead& head, const Peer& peer,
                   const ServerOptions& options) {
  if (Refusal refusal = check_access(route, head, peer, options)) return refusal;
  if (!head.query.empty()) {
    return ApiError{.message = fmt::format("{} takes no query parameters, and got \"{}\"",
                                           route.path, head.query.substr(0, 128)),
                    .code = "unknown_field"};
  }
  if (!head.content_encoding.empty() && head.content_encoding != "identity") {
    return ApiError{.status = 415,
                    .message = "bodies are read as they are: send no Content-Encoding",
                    .code = "unsupported_encoding"};
  }
  if (route.method != "POST") return std::nullopt;
  if (!head.has_body_length && route.access != Access::kLocal) {
    return ApiError{.status = 411,
                    .message = "this route reads a body: send Content-Length or chunks",
                    .code = "length_required"};
  }
  const std::string_view type =
      std::string_view(head.content_type).substr(0, head.content_type.find(';'));
  if (!type.empty() && type != "application/json") {
    return ApiError{.status = 415,
                    .message = fmt::format("the body must be JSON: send \"Content-Type: "
                                           "application/json\", not \"{}\"",
                                           type.substr(0, 64)),
                    .code = "unsupported_media_type"};
  }
  return std::nullopt;
}

void refuse(Services& services, const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
  services.metrics.count_refused(error.code);
  exchange->reply_error(error);
}

Refusal draining(const Services& services) {
  if (services.control.accepting()) return std::nullopt;
  constexpr int kRetryS = 10;
  return ApiError{.status = 503,
                  .message = "the daemon is draining and takes no new requests",
                  .code = "draining",
                  .retry_after_s = kRetryS};
}

}  // namespace atlas::serve

// HTTP/1.1 requests through Beast's parser. Source of what is refused: RFC 9112.
#include "daemon/serve/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <utility>

namespace atlas::serve {
namespace {

namespace http = boost::beast::http;
using Parser = http::request_parser<http::string_body>;

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

// A target is a path, or a whole URL as proxies get it.
void split_target(std::string_view target, RequestHead& head) {
  if (const size_t scheme = target.find("://"); !target.starts_with('/') && scheme != target.npos) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == target.npos ? "/" : target.substr(slash);
  }
  const size_t question = target.find('?');
  head.path = target.substr(0, question);
  if (question != target.npos) head.query = target.substr(question + 1);
}

ApiError to_failure(const boost::beast::error_code& error, size_t header_limit, size_t body_limit) {
  if (error == http::error::header_limit) {
    return {.status = 431,
            .message = fmt::format("the headers are longer than {} bytes", header_limit),
            .code = "headers_too_large"};
  }
  if (error == http::error::body_limit) {
    return {.status = 413,
            .message = fmt::format("the body is longer than {} bytes", body_limit),
            .code = "body_too_large"};
  }
  if (error == http::error::bad_version) {
    return {.status = 505,
            .message = "only HTTP/1.1 and HTTP/1.0 are spoken here",
            .code = "http_version"};
  }
  return {.message = "this is not HTTP as RFC 9112 has it: " + error.message(),
          .code = "malformed_http"};
}

}  // namespace

struct RequestReader::Impl {
  size_t header_limit;
  size_t body_limit;
  std::optional<Parser> parser;
  State state = State::kHead;
  bool begun = false;
  RequestHead head;
  ApiError failure;

  void reset() {
    parser.emplace();
    parser->header_limit(static_cast<uint32_t>(header_limit));
    parser->body_limit(body_limit);
    state = State::kHead;
    begun = false;
    head = {};
  }

  void fail(ApiError error) {
    failure = std::move(error);
    state = State::kFailed;
  }

  void read_head() {
    const auto& request = parser->get();
    const auto field = [&](http::field name) {
      const auto value = request[name];
      return std::string(value.data(), value.size());
    };
    head.method = std::string(request.method_string());
    split_target({request.target().data(), request.target().size()}, head);
    head.content_type = lower(field(http::field::content_type));
    head.content_encoding = lower(field(http::field::content_encoding));
    head.authorization = field(http::field::authorization);
    head.chunked = parser->chunked();
    const auto length = parser->content_length();
    head.has_body_length = head.chunked || length.has_value();
    head.body_bytes = length.value_or(0);
    head.keep_alive = parser->keep_alive();
    head.http10 = request.version() == 10;
    head.expects_continue = lower(field(http::field::expect)) == "100-continue";
    head.has_host = request.find(http::field::host) != request.end();
    const auto coding = request.find(http::field::transfer_encoding);
    const bool other_coding =
        coding != request.end() && lower(field(http::field::transfer_encoding)) != "chunked";
    if (other_coding || request.count(http::field::transfer_encoding) > 1) {
      // What a body's end is would be a guess, and the rest of the connection with it (RFC
      // 9112, 6.1).
      fail({.status = 501,
            .message = "the only transfer encoding that is read is `chunked`",
            .code = "malformed_http"});
    } else if (request.count(http::field::host) > 1) {
      fail({.message = "a request has one Host header", .code = "malformed_http"});
    } else if (!head.http10 && !head.has_host) {
      fail({.message = "an HTTP/1.1 request needs a Host header", .code = "malformed_http"});
    } else if (!head.path.starts_with('/') && head.path != "*") {
      fail({.message = "the request's target must be a path", .code = "malformed_http"});
    }
  }
};

RequestReader::RequestReader(size_t header_limit, size_t body_limit)
    : impl_(new Impl{.header_limit = header_limit, .body_limit = body_limit}) {
  impl_->reset();
}
RequestReader::~RequestReader() = default;

size_t RequestReader::feed(std::string_view bytes) {
  Impl& impl = *impl_;
  size_t taken = 0;
  while (taken < bytes.size()) {
    // Empty lines before a request are skipped (RFC 9112, section 2.2).
    if (!impl.begun && (bytes[taken] == '\r' || bytes[taken] == '\n')) {
      ++taken;
      continue;
    }
    impl.begun = true;
    const bool in_head = impl.state == State::kHead;
    boost::beast::error_code error;
    const size_t used =
        impl.parser->put(boost::asio::buffer(bytes.data() + taken, bytes.size() - taken), error);
    taken += used;
    if (error == http::error::need_more) break;
    if (error) {
      impl.fail(to_failure(error, impl.header_limit, impl.body_limit));
      break;
    }
    if (in_head && impl.parser->is_header_done()) {
      impl.state = impl.parser->is_done() ? State::kDone : State::kBody;
      impl.read_head();
      break;
    }
    if (impl.parser->is_done()) {
      impl.state = State::kDone;
      break;
    }
    if (used == 0) break;
  }
  return taken;
}

RequestReader::State RequestReader::state() const { return impl_->state; }
bool RequestReader::begun() const { return impl_->begun; }
const RequestHead& RequestReader::head() const { return impl_->head; }
size_t RequestReader::body_bytes() const { return impl_->parser->get().body().size(); }
std::string RequestReader::take_body() { return std::move(impl_->parser->get().body()); }
const ApiError& RequestReader::failure() const { return impl_->failure; }
void RequestReader::reset() { impl_->reset(); }

}  // namespace atlas::serve

// HTTP/1.1 answers as text. Source: RFC 9110 (fields, dates), RFC 9112 (chunks), the HTML
// standard's chapter on server-sent events.
#include "daemon/serve/http_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <iterator>

namespace atlas::serve {
namespace {

const std::string& date_now() {
  thread_local std::time_t of = 0;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != of) {
    of = now;
    text = fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(now));
  }
  return text;
}

void append_common_head(std::string& out, int status, std::string_view request_id,
                        bool keep_alive) {
  fmt::format_to(std::back_inserter(out),
                 "HTTP/1.1 {} {}\r\nServer: atlasd\r\nDate: {}\r\nX-Request-Id: {}\r\n"
                 "Connection: {}\r\n",
                 status, status_words(status), date_now(), request_id,
                 keep_alive ? "keep-alive" : "close");
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string_view status_words(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

void append_response(std::string& out, const HttpResponse& response, std::string_view request_id,
                     bool keep_alive, bool head_only) {
  append_common_head(out, response.status, request_id, keep_alive);
  for (const auto& [name, value] : response.headers) {
    fmt::format_to(std::back_inserter(out), "{}: {}\r\n", name, value);
  }
  if (response.status == 204) {
    out += "\r\n";
    return;
  }
  fmt::format_to(std::back_inserter(out), "Content-Type: {}\r\nContent-Length: {}\r\n\r\n",
                 response.content_type, response.body.size());
  if (!head_only) out += response.body;
}

void append_stream_head(std::string& out, std::string_view request_id, bool chunked,
                        bool keep_alive) {
  append_common_head(out, 200, request_id, keep_alive);
  out += "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  if (chunked) out += "Transfer-Encoding: chunked\r\n";
  out += "\r\n";
}

void append_event(std::string& out, std::string_view data, bool chunked) {
  constexpr std::string_view kBefore = "data: ";
  constexpr std::string_view kBehind = "\n\n";
  if (chunked) {
    fmt::format_to(std::back_inserter(out), "{:x}\r\n",
                   kBefore.size() + data.size() + kBehind.size());
  }
  out += kBefore;
  out += data;
  out += kBehind;
  if (chunked) out += "\r\n";
}

bool percent_decode(std::string_view text, std::string& out) {
  out.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = hex_value(text[i + 1]);
    const int low = hex_value(text[i + 2]);
    if (high < 0 || low < 0) return false;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return true;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  // Walks all of `a`, which callers make the client's text, whatever the other one is.
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i] ^ other);
  }
  return difference == 0;
}

}  // namespace atlas::serve

// The text of HTTP answers: heads, dates, chunks. No sockets.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "daemon/serve/exchange.h"

namespace atlas::serve {

/// "Not Found"
std::string_view status_words(int status);
/// A whole answer with Content-Length; without the body's bytes if `head_only`.
void append_response(std::string& out, const HttpResponse& response, std::string_view request_id,
                     bool keep_alive, bool head_only);
/// The head of an event stream: chunked, or ended by closing for HTTP/1.0.
void append_stream_head(std::string& out, std::string_view request_id, bool chunked,
                        bool keep_alive);
/// "data: ...\n\n", as one chunk if `chunked`.
void append_event(std::string& out, std::string_view data, bool chunked);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

/// Percent-decodes a path segment; false for a '%' without two hexadecimal digits.
bool percent_decode(std::string_view text, std::string& out);
/// Compares without telling by its time where the texts differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace atlas::serve

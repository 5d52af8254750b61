// Writing JSON by appending text: what every answer and every streamed token is made with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace atlas::serve {

/// Appends `text` in quotes, escaped. Bytes that are no UTF-8 become U+FFFD, one for each maximal
/// part of a character, so the result is valid JSON whatever comes in.
void append_json_string(std::string& out, std::string_view text);
/// Appends a number. JSON has no infinities: they and NaN become -9999, as clients of
/// log-probabilities expect.
void append_json_number(std::string& out, float value);
void append_json_number(std::string& out, double value);

/// Bytes of the well-formed character at the beginning of `text`: 1..4, or 0 if there is none.
size_t utf8_character_bytes(std::string_view text);
bool is_utf8(std::string_view text);
/// A copy in which bytes that are no UTF-8 are U+FFFD.
std::string to_utf8(std::string_view bytes);

}  // namespace atlas::serve

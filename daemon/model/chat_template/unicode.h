// UTF-8 stepping and the character questions that Python's str methods ask.
// Every function but valid_utf8 takes text that is valid UTF-8 already.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace atlas::model::jinja {

/// Whether the bytes are well-formed UTF-8 (no surrogates, no overlong forms).
bool valid_utf8(std::string_view bytes);
/// The code point at `position`, which moves behind it.
char32_t next_code_point(std::string_view text, size_t& position);
/// The code point that ends at `position` (> 0), which moves to its start.
char32_t previous_code_point(std::string_view text, size_t& position);
void append_code_point(char32_t code_point, std::string& out);
size_t count_code_points(std::string_view text);
/// Byte offset of the code point number `index`; the size of the text if it has fewer.
size_t code_point_offset(std::string_view text, size_t index);

/// As str.isspace of Python, which is also what `\s` of its regular expressions matches.
bool is_space(char32_t code_point);
/// As str.splitlines of Python; "\r\n" counts as one.
bool is_line_break(char32_t code_point);
bool is_printable(char32_t code_point);
bool is_alpha(char32_t code_point);
bool is_digit(char32_t code_point);
bool is_upper(char32_t code_point);
bool is_lower(char32_t code_point);
/// Whether the code point has upper and lower forms; words of str.title are made of these.
bool is_cased(char32_t code_point);

enum class Case { kUpper, kLower, kTitle };
/// Appends the code point in the wanted case; some become two or three code points.
void append_in_case(char32_t code_point, Case wanted, std::string& out);

/// First occurrence of `needle` at or after `from`, in linear time; npos if there is none.
size_t find_text(std::string_view text, std::string_view needle, size_t from = 0);
/// Last occurrence that ends at or before `end`, in linear time; npos if there is none.
size_t find_last_text(std::string_view text, std::string_view needle, size_t end);

}  // namespace atlas::model::jinja

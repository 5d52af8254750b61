// JSON strings and numbers. Source of the UTF-8 rules: Unicode 15, section 3.9, table 3-7.
#include "daemon/serve/json_text.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace atlas::serve {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

struct Character {
  size_t bytes;  // taken from the text
  bool valid;
};

// A lead byte fixes how many bytes follow and which second bytes are allowed (no overlong forms,
// surrogates or values beyond U+10FFFF).
Character read_character(std::string_view text) {
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const size_t wanted = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < wanted; ++i) {
    if (i >= text.size() || byte_at(text, i) < low || byte_at(text, i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {wanted, true};
}

void append_escape(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint8_t>(c));
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  size_t begin = 0;  // of what goes out unchanged
  size_t at = 0;
  const auto flush = [&] { out.append(text, begin, at - begin); };
  while (at < text.size()) {
    const uint8_t c = byte_at(text, at);
    if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
      ++at;
      continue;
    }
    if (c >= 0x80) {
      const Character character = read_character(text.substr(at));
      if (!character.valid) {
        flush();
        out += kReplacement;
        begin = at + character.bytes;
      }
      at += character.bytes;
      continue;
    }
    flush();
    append_escape(out, text[at]);
    begin = ++at;
  }
  flush();
  out += '"';
}

void append_json_number(std::string& out, float value) {
  if (!std::isfinite(value)) value = -9999.0f;
  fmt::format_to(std::back_inserter(out), "{}", value);
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) value = -9999.0;
  fmt::format_to(std::back_inserter(out), "{}", value);
}

size_t utf8_character_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const Character character = read_character(text);
  return character.valid ? character.bytes : 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = utf8_character_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string to_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Character character = read_character(bytes);
    out += character.valid ? bytes.substr(0, character.bytes) : kReplacement;
    bytes.remove_prefix(character.bytes);
  }
  return out;
}

}  // namespace atlas::serve

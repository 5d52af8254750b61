// UTF-8 stepping, and binary search in the generated character tables.
#include "daemon/model/chat_template/unicode.h"

#include <string.h>

#include <algorithm>

#include "daemon/model/chat_template/unicode_tables.h"

namespace atlas::model::jinja {
namespace {

uint8_t byte_at(std::string_view text, size_t position) {
  return static_cast<uint8_t>(text[position]);
}

bool is_continuation(std::string_view text, size_t position) {
  return (byte_at(text, position) & 0xC0) == 0x80;
}

bool in_ranges(const CodePointRange* ranges, size_t count, uint32_t code_point) {
  const CodePointRange* end = ranges + count;
  const CodePointRange* found = std::lower_bound(
      ranges, end, code_point,
      [](const CodePointRange& range, uint32_t value) { return range.last < value; });
  return found != end && found->first <= code_point;
}

struct CaseTable {
  const CaseRange* ranges;
  size_t range_count;
  const CaseSpecial* specials;
  size_t special_count;
};

CaseTable table_of(Case wanted) {
  switch (wanted) {
    case Case::kUpper:
      return {kUpper, kUpperCount, kUpperSpecial, kUpperSpecialCount};
    case Case::kLower:
      return {kLower, kLowerCount, kLowerSpecial, kLowerSpecialCount};
    case Case::kTitle:
      break;
  }
  return {kTitle, kTitleCount, kTitleSpecial, kTitleSpecialCount};
}

bool changes(char32_t code_point, Case wanted) {
  std::string same;
  std::string changed;
  append_code_point(code_point, same);
  append_in_case(code_point, wanted, changed);
  return same != changed;
}

}  // namespace

bool valid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const uint8_t lead = byte_at(bytes, i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || length > bytes.size() - i) return false;
    for (size_t k = 1; k < length; ++k) {
      if (!is_continuation(bytes, i + k)) return false;
    }
    const uint8_t second = byte_at(bytes, i + 1);
    // Overlong forms, surrogates and what lies beyond U+10FFFF show in the second byte.
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
      return false;
    }
    i += length;
  }
  return true;
}

char32_t next_code_point(std::string_view text, size_t& position) {
  const uint8_t lead = byte_at(text, position++);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  char32_t code_point = lead & (0x3F >> more);
  for (int k = 0; k < more && position < text.size(); ++k) {
    code_point = (code_point << 6) | (byte_at(text, position++) & 0x3F);
  }
  return code_point;
}

char32_t previous_code_point(std::string_view text, size_t& position) {
  --position;
  while (position > 0 && is_continuation(text, position)) --position;
  size_t forward = position;
  return next_code_point(text, forward);
}

void append_code_point(char32_t code_point, std::string& out) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); ++i) count += is_continuation(text, i) ? 0 : 1;
  return count;
}

size_t code_point_offset(std::string_view text, size_t index) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_continuation(text, i)) continue;
    if (index == 0) return i;
    --index;
  }
  return text.size();
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(char32_t c) { return !in_ranges(kUnprintable, kUnprintableCount, c); }
bool is_alpha(char32_t c) { return in_ranges(kAlpha, kAlphaCount, c); }
bool is_digit(char32_t c) { return in_ranges(kDigit, kDigitCount, c); }
bool is_upper(char32_t c) { return changes(c, Case::kLower); }
bool is_lower(char32_t c) { return !is_upper(c) && changes(c, Case::kUpper); }
bool is_cased(char32_t c) { return changes(c, Case::kLower) || changes(c, Case::kUpper); }

void append_in_case(char32_t code_point, Case wanted, std::string& out) {
  const CaseTable table = table_of(wanted);
  const CaseSpecial* special_end = table.specials + table.special_count;
  const CaseSpecial* special = std::lower_bound(
      table.specials, special_end, code_point,
      [](const CaseSpecial& entry, uint32_t value) { return entry.code_point < value; });
  if (special != special_end && special->code_point == code_point) {
    for (uint32_t part : special->result) {
      if (part != 0) append_code_point(part, out);
    }
    return;
  }
  const CaseRange* range_end = table.ranges + table.range_count;
  const CaseRange* range =
      std::lower_bound(table.ranges, range_end, code_point,
                       [](const CaseRange& entry, uint32_t value) { return entry.last < value; });
  if (range != range_end && range->first <= code_point &&
      (code_point - range->first) % range->stride == 0) {
    code_point = static_cast<char32_t>(static_cast<int64_t>(code_point) + range->delta);
  }
  append_code_point(code_point, out);
}

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size() || needle.size() > text.size() - from) return std::string_view::npos;
  if (needle.empty()) return from;
  // memmem is linear in glibc; std::string_view::find is not.
  const void* found =
      ::memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last_text(std::string_view text, std::string_view needle, size_t end) {
  end = std::min(end, text.size());
  const std::string backwards(text.rend() - static_cast<std::ptrdiff_t>(end), text.rend());
  const std::string wanted(needle.rbegin(), needle.rend());
  const size_t found = find_text(backwards, wanted);
  if (found == std::string_view::npos) return found;
  return end - found - needle.size();
}

}  // namespace atlas::model::jinja

// Decoding, repairing and classifying UTF-8; see utf8.h.
#include "daemon/model/tokenizer/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "daemon/model/tokenizer/unicode_tables.h"

namespace atlas::model {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  uint8_t size;       // 0: begins no character
  uint8_t low, high;  // what the second byte may be
};

// Table 3-7 of the Unicode standard: well-formed byte sequences.
constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

size_t skip_ascii(std::string_view text, size_t at) {
  while (at + 8 <= text.size()) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + at, 8);
    if (eight & 0x8080808080808080u) break;
    at += 8;
  }
  while (at < text.size() && byte_at(text, at) < 0x80) ++at;
  return at;
}

// The entry of a code point that was assigned after Unicode 14.
const CategoryRange* newer_range(char32_t c) {
  const CategoryRange* end = kNewerThanUnicode14 + kNewerThanUnicode14Count;
  const CategoryRange* found =
      std::find_if(kNewerThanUnicode14, end,
                   [&](const CategoryRange& range) { return c >= range.first && c <= range.last; });
  return found == end ? nullptr : found;
}

}  // namespace

CodePoint decode_utf8(std::string_view text, size_t at) {
  const uint8_t first = byte_at(text, at);
  const Lead lead = lead_of(first);
  if (lead.size == 1) return {first, 1, CodePoint::kValid};
  if (lead.size == 0) return {0xFFFD, 1, CodePoint::kInvalid};
  char32_t value = first & (0x7F >> lead.size);
  for (uint8_t i = 1; i < lead.size; ++i) {
    if (at + i >= text.size()) return {0xFFFD, i, CodePoint::kIncomplete};
    const uint8_t next = byte_at(text, at + i);
    const bool good = i == 1 ? next >= lead.low && next <= lead.high : (next & 0xC0) == 0x80;
    if (!good) return {0xFFFD, i, CodePoint::kInvalid};
    value = value << 6 | (next & 0x3F);
  }
  return {value, lead.size, CodePoint::kValid};
}

CodePoint decode_utf8_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (byte_at(text, begin) & 0xC0) == 0x80) --begin;
  return decode_utf8(text.substr(0, end), begin);
}

void append_utf8(std::string& out, char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while ((at = skip_ascii(text, at)) < text.size()) {
    const CodePoint c = decode_utf8(text, at);
    if (c.kind != CodePoint::kValid) break;
    at += c.size;
  }
  return at;
}

size_t append_as_utf8(std::string& out, std::string_view bytes, bool keep_tail) {
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t good = valid_utf8_prefix(bytes.substr(at));
    out.append(bytes.substr(at, good));
    at += good;
    if (at == bytes.size()) break;
    const CodePoint bad = decode_utf8(bytes, at);
    if (keep_tail && bad.kind == CodePoint::kIncomplete) break;
    out.append(kReplacement);
    at += bad.size;
  }
  return at;
}

std::string repair_utf8(std::string_view text, std::vector<TextEdit>& edits) {
  std::string out;
  out.reserve(text.size() + 16);
  size_t at = 0;
  while (at < text.size()) {
    const size_t good = valid_utf8_prefix(text.substr(at));
    out.append(text.substr(at, good));
    at += good;
    if (at == text.size()) break;
    const CodePoint bad = decode_utf8(text, at);
    edits.push_back({{at, at + bad.size}, {out.size(), out.size() + kReplacement.size()}});
    out.append(kReplacement);
    at += bad.size;
  }
  return out;
}

std::vector<TextRange> map_ranges(std::span<const TextRange> ranges,
                                  std::span<const TextEdit> edits) {
  // The edit that holds an offset, or else the shift that the edits before it add up to.
  const auto map = [&](size_t offset, bool is_end) {
    // The first edit that ends behind the offset (an end offset belongs to what lies before it).
    const auto edit = std::partition_point(edits.begin(), edits.end(), [&](const TextEdit& e) {
      return is_end ? e.from.end < offset : e.from.end <= offset;
    });
    if (edit != edits.end() && (is_end ? edit->from.begin < offset : edit->from.begin <= offset)) {
      return is_end ? edit->to.end : edit->to.begin;
    }
    if (edit == edits.begin()) return offset;
    const TextEdit& before = *(edit - 1);
    return before.to.end + (offset - before.from.end);
  };
  std::vector<TextRange> out;
  out.reserve(ranges.size());
  for (const TextRange& range : ranges) {
    out.push_back({map(range.begin, false), map(range.end, true)});
  }
  return out;
}

std::vector<TextRange> tidy_ranges(std::span<const TextRange> ranges, size_t size) {
  std::vector<TextRange> sorted;
  for (const TextRange& range : ranges) {
    const TextRange cut{range.begin, std::min(range.end, size)};
    if (cut.begin < cut.end) sorted.push_back(cut);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const TextRange& a, const TextRange& b) { return a.begin < b.begin; });
  std::vector<TextRange> out;
  for (const TextRange& range : sorted) {
    if (!out.empty() && range.begin <= out.back().end) {
      out.back().end = std::max(out.back().end, range.end);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

bool is_white_space(char32_t c) {
  if (c <= 0x20) return c == 0x20 || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    case UTF8PROC_CATEGORY_CN:
      break;
    default:
      return false;
  }
  const CategoryRange* range = newer_range(c);
  return (range != nullptr && range->category[0] == 'N') ||
         std::any_of(kNumericBeyondCategories,
                     kNumericBeyondCategories + kNumericBeyondCategoriesCount,
                     [&](const CodePointRange& r) { return c >= r.first && c <= r.last; });
}

bool is_word_character(char32_t c) {
  // Alphabetic symbols that are no letters: circled and squared Latin ones.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  if (c == 0x200C || c == 0x200D) return true;
  if (const CategoryRange* range = newer_range(c)) {
    return range->category[0] == 'L' || range->category[0] == 'M' ||
           std::string_view(range->category, 2) == "Nd";
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace atlas::model

// Text in, text out; provenance follows every byte.
#include "daemon/model/chat_template/text_tools.h"

#include <algorithm>
#include <set>

#include "daemon/model/chat_template/failure.h"

namespace atlas::model::jinja {
namespace {

void check_size(size_t size) {
  if (size > kMaxTextBytes) {
    fail_limit("the template makes a text of more than {} MiB", kMaxTextBytes >> 20);
  }
}

/// Offset behind the white space at `position`, or the position itself.
size_t behind_space(std::string_view bytes, size_t position) {
  while (position < bytes.size()) {
    size_t next = position;
    if (!is_space(next_code_point(bytes, next))) break;
    position = next;
  }
  return position;
}

size_t before_space(std::string_view bytes, size_t position) {
  while (position > 0) {
    size_t previous = position;
    if (!is_space(previous_code_point(bytes, previous))) break;
    position = previous;
  }
  return position;
}

size_t behind_word(std::string_view bytes, size_t position) {
  while (position < bytes.size()) {
    size_t next = position;
    if (is_space(next_code_point(bytes, next))) break;
    position = next;
  }
  return position;
}

size_t before_word(std::string_view bytes, size_t position) {
  while (position > 0) {
    size_t previous = position;
    if (is_space(previous_code_point(bytes, previous))) break;
    position = previous;
  }
  return position;
}

/// An empty `old` stands between all code points and at both ends.
Text interleaved(const Text& text, const Text& replacement, int64_t count) {
  Text result;
  size_t position = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    result.append(replacement);
    check_size(result.size());
    if (position == text.size()) return result;
    const size_t begin = position;
    next_code_point(text.bytes(), position);
    result.append(text, begin, position);
  }
  result.append(text, position, text.size());
  return result;
}

}  // namespace

Text rewritten(const Text& text, const std::function<void(char32_t, std::string&)>& rewrite) {
  Text result;
  const auto run = [&](size_t begin, size_t end, bool plain) {
    std::string changed;
    for (size_t position = begin; position < end;) {
      rewrite(next_code_point(text.bytes(), position), changed);
    }
    result.append(changed, plain);
  };
  size_t done = 0;
  for (const ByteRange& range : text.plain_ranges()) {
    run(done, range.begin, false);
    run(range.begin, range.end, true);
    done = range.end;
  }
  run(done, text.size(), false);
  return result;
}

Text in_case(const Text& text, Case wanted) {
  return rewritten(text,
                   [wanted](char32_t c, std::string& out) { append_in_case(c, wanted, out); });
}

Text capitalized(const Text& text) {
  bool first = true;
  return rewritten(text, [&first](char32_t c, std::string& out) {
    append_in_case(c, first ? Case::kTitle : Case::kLower, out);
    first = false;
  });
}

Text stripped(const Text& text, Side side, const Text* characters) {
  std::set<char32_t> wanted;
  for (size_t position = 0; characters != nullptr && position < characters->size();) {
    wanted.insert(next_code_point(characters->bytes(), position));
  }
  const auto goes = [&](char32_t c) {
    return characters == nullptr ? is_space(c) : wanted.contains(c);
  };
  size_t begin = 0;
  size_t end = text.size();
  while (side != Side::kRight && begin < end) {
    size_t next = begin;
    if (!goes(next_code_point(text.bytes(), next))) break;
    begin = next;
  }
  while (side != Side::kLeft && end > begin) {
    size_t previous = end;
    if (!goes(previous_code_point(text.bytes(), previous))) break;
    end = previous;
  }
  return text.slice(begin, end);
}

Text replaced(Runtime& runtime, const Text& text, const Text& old, const Text& replacement,
              int64_t count) {
  runtime.budget().work(text.size());
  if (old.empty()) return interleaved(text, replacement, count);
  Text result;
  size_t done = 0;
  for (int64_t replacements = 0; count < 0 || replacements < count; ++replacements) {
    const size_t found = find_text(text.bytes(), old.bytes(), done);
    if (found == std::string_view::npos) break;
    result.append(text, done, found);
    result.append(replacement);
    check_size(result.size());
    done = found + old.size();
  }
  result.append(text, done, text.size());
  return result;
}

std::vector<Value> split(Runtime& runtime, const Text& text, const Text& separator, int64_t limit,
                         bool from_right) {
  if (separator.empty()) fail("empty separator");
  runtime.budget().work(text.size());
  std::vector<Value> pieces;
  if (!from_right) {
    size_t begin = 0;
    while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
      const size_t found = find_text(text.bytes(), separator.bytes(), begin);
      if (found == std::string_view::npos) break;
      pieces.push_back(runtime.text(text.slice(begin, found)));
      begin = found + separator.size();
    }
    pieces.push_back(runtime.text(text.slice(begin, text.size())));
    return pieces;
  }
  size_t end = text.size();
  while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
    runtime.budget().work(end);
    const size_t found = find_last_text(text.bytes(), separator.bytes(), end);
    if (found == std::string_view::npos) break;
    pieces.push_back(runtime.text(text.slice(found + separator.size(), end)));
    end = found;
  }
  pieces.push_back(runtime.text(text.slice(0, end)));
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<Value> split_words(Runtime& runtime, const Text& text, int64_t limit, bool from_right) {
  runtime.budget().work(text.size());
  const std::string& bytes = text.bytes();
  std::vector<Value> words;
  const auto at_limit = [&] { return limit >= 0 && static_cast<int64_t>(words.size()) >= limit; };
  if (!from_right) {
    size_t position = behind_space(bytes, 0);
    while (position < bytes.size() && !at_limit()) {
      const size_t end = behind_word(bytes, position);
      words.push_back(runtime.text(text.slice(position, end)));
      position = behind_space(bytes, end);
    }
    if (position < bytes.size()) words.push_back(runtime.text(text.slice(position, bytes.size())));
    return words;
  }
  size_t position = before_space(bytes, bytes.size());
  while (position > 0 && !at_limit()) {
    const size_t begin = before_word(bytes, position);
    words.push_back(runtime.text(text.slice(begin, position)));
    position = before_space(bytes, begin);
  }
  if (position > 0) words.push_back(runtime.text(text.slice(0, position)));
  std::reverse(words.begin(), words.end());
  return words;
}

std::vector<Value> split_lines(Runtime& runtime, const Text& text, bool keep_ends) {
  runtime.budget().work(text.size());
  const std::string& bytes = text.bytes();
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t position = 0; position < bytes.size();) {
    const size_t end = position;
    const char32_t c = next_code_point(bytes, position);
    if (!is_line_break(c)) continue;
    if (c == '\r' && position < bytes.size() && bytes[position] == '\n') ++position;
    lines.push_back(runtime.text(text.slice(begin, keep_ends ? position : end)));
    begin = position;
  }
  if (begin < bytes.size()) lines.push_back(runtime.text(text.slice(begin, bytes.size())));
  return lines;
}

Text padded(const Text& text, int64_t width, const Text& fill, Side text_side) {
  if (count_code_points(fill.bytes()) != 1) {
    fail("The fill character must be exactly one character long");
  }
  const auto size = static_cast<int64_t>(count_code_points(text.bytes()));
  const int64_t missing = std::max<int64_t>(width - size, 0);
  if (missing > static_cast<int64_t>(kMaxTextBytes / fill.size())) check_size(kMaxTextBytes + 1);
  // str.center puts an odd fill on the left where the width is odd as well.
  const int64_t left = text_side == Side::kLeft    ? 0
                       : text_side == Side::kRight ? missing
                                                   : missing / 2 + (missing & width & 1);
  Text result;
  for (int64_t i = 0; i < left; ++i) result.append(fill);
  result.append(text);
  for (int64_t i = left; i < missing; ++i) result.append(fill);
  return result;
}

Text escaped(const Text& text) {
  return rewritten(text, [](char32_t c, std::string& out) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        append_code_point(c, out);
    }
  });
}

}  // namespace atlas::model::jinja

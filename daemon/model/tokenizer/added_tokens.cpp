// Search for added tokens: a table of first bytes to skip ahead, then narrowing in the sorted list.
#include "daemon/model/tokenizer/added_tokens.h"

#include <algorithm>

namespace atlas::model {

namespace {

// Where white space that ends at `at` begins, not before `least`.
size_t strip_left_of(std::string_view text, size_t at, size_t least) {
  while (at > least) {
    const CodePoint c = decode_utf8_before(text, at);
    if (!is_white_space(c.value)) break;
    at -= c.size;
  }
  return at;
}

size_t strip_right_of(std::string_view text, size_t at, size_t most) {
  while (at < most) {
    const CodePoint c = decode_utf8(text, at);
    if (!is_white_space(c.value)) break;
    at += c.size;
  }
  return at;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word_character(decode_utf8_before(text, begin).value)) &&
         (end == text.size() || !is_word_character(decode_utf8(text, end).value));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) begins_[static_cast<uint8_t>(token.content[0])] = true;
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t at, size_t end) const {
  const AddedToken* found = nullptr;
  auto low = tokens_.begin(), high = tokens_.end();
  // All tokens in [low, high) begin with the `depth` bytes at `at`; a full match sorts first.
  for (size_t depth = 0; low != high; ++depth) {
    if (low->content.size() == depth) {
      found = &*low;
      ++low;
    }
    if (low == high || at + depth >= end) break;
    const auto byte = static_cast<uint8_t>(text[at + depth]);
    low = std::lower_bound(low, high, byte, [&](const AddedToken& token, uint8_t value) {
      return static_cast<uint8_t>(token.content[depth]) < value;
    });
    high = std::upper_bound(low, high, byte, [&](uint8_t value, const AddedToken& token) {
      return value < static_cast<uint8_t>(token.content[depth]);
    });
  }
  return found;
}

void AddedTokenFinder::split_area(std::string_view text, TextRange area, size_t& done,
                                  std::vector<TextSegment>& out) const {
  size_t at = area.begin;
  while (at < area.end) {
    if (!begins_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* token = longest_at(text, at, area.end);
    if (token == nullptr) {
      ++at;
      continue;
    }
    TextRange range{at, at + token->content.size()};
    at = range.end;
    if (token->single_word && !stands_alone(text, range.begin, range.end)) continue;
    if (token->strip_left) {
      range.begin = strip_left_of(text, range.begin, std::max(done, area.begin));
    }
    if (token->strip_right) range.end = at = strip_right_of(text, range.end, area.end);
    if (range.begin > done) out.push_back({{done, range.begin}, std::nullopt});
    out.push_back({range, token->id});
    done = range.end;
  }
}

std::vector<TextSegment> AddedTokenFinder::split(std::string_view text,
                                                 std::span<const TextRange> plain) const {
  std::vector<TextSegment> out;
  size_t done = 0;
  if (!tokens_.empty()) {
    size_t begin = 0;
    for (const TextRange& range : plain) {
      split_area(text, {begin, range.begin}, done, out);
      begin = range.end;
    }
    split_area(text, {begin, text.size()}, done, out);
  }
  if (done < text.size()) out.push_back({{done, text.size()}, std::nullopt});
  return out;
}

}  // namespace atlas::model

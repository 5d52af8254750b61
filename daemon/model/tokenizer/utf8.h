// UTF-8 as the tokenizer needs it: one code point at a time, bad bytes replaced the way the Unicode
// standard recommends (one U+FFFD for each maximal part of a character), ranges carried along.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace atlas::model {

/// A half-open range of bytes.
struct TextRange {
  size_t begin, end;
};

struct CodePoint {
  enum Kind : uint8_t {
    kValid,
    kInvalid,     // `size` bytes that no character begins with
    kIncomplete,  // the text ends inside a character that began well
  };
  char32_t value;  // U+FFFD unless valid
  uint8_t size;    // bytes taken, 1..4
  Kind kind;
};

/// The code point at `at`, which must be inside the text.
CodePoint decode_utf8(std::string_view text, size_t at);
/// The code point that ends before `end` (> 0) in valid UTF-8.
CodePoint decode_utf8_before(std::string_view text, size_t end);
void append_utf8(std::string& out, char32_t code_point);

/// How many bytes from the beginning are valid UTF-8.
size_t valid_utf8_prefix(std::string_view text);
/// Appends `bytes` with a U+FFFD for each bad part. With `keep_tail`, an incomplete character at
/// the end is not replaced but left out; returns how many bytes were consumed.
size_t append_as_utf8(std::string& out, std::string_view bytes, bool keep_tail = false);

/// One replaced stretch of a rewritten text: bytes [from] became bytes [to].
struct TextEdit {
  TextRange from, to;
};
/// Like append_as_utf8 into an empty string; notes each replacement in `edits`.
std::string repair_utf8(std::string_view text, std::vector<TextEdit>& edits);
/// Carries ranges of the old text over to the new one; edits ascend. A range that cuts into an
/// edited stretch covers all of it afterwards.
std::vector<TextRange> map_ranges(std::span<const TextRange> ranges,
                                  std::span<const TextEdit> edits);
/// Sorted, without overlaps and empty ranges, nothing beyond `size`.
std::vector<TextRange> tidy_ranges(std::span<const TextRange> ranges, size_t size);

/// The property White_Space.
bool is_white_space(char32_t c);
/// Numeric for the package's Digits step: the categories N*, and what Unicode 17 adds to them.
bool is_numeric(char32_t c);
/// A letter, mark, decimal digit, connector or joiner: what `\w` means to the package's
/// `single_word` tokens.
bool is_word_character(char32_t c);

}  // namespace atlas::model

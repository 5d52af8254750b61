// Tokens that are cut out of the text verbatim before anything else: `added_tokens` of
// tokenizer.json, control and user-defined tokens of GGUF.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/model/tokenizer/byte_pairs.h"
#include "daemon/model/tokenizer/utf8.h"

namespace atlas::model {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // only where no word character stands beside it
  bool strip_left = false;   // takes white space before it along
  bool strip_right = false;  // and behind it
  bool normalized = false;   // looked for in the normalized text, not in the raw one
  bool special = false;      // left out of the text for people
};

/// A piece of the text: a token, or text between tokens.
struct TextSegment {
  TextRange range;
  std::optional<TokenId> token;
};

/// Finds the leftmost, then longest, of its tokens. Immutable.
class AddedTokenFinder {
 public:
  /// Tokens with empty content are never found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  /// Cuts `text` (valid UTF-8) into non-empty segments in order. A token lies, with the white space
  /// it strips, entirely outside `plain` (sorted and disjoint).
  std::vector<TextSegment> split(std::string_view text, std::span<const TextRange> plain) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, size_t end) const;
  void split_area(std::string_view text, TextRange area, size_t& done,
                  std::vector<TextSegment>& out) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};  // first bytes of tokens
};

}  // namespace atlas::model

// The vocabulary while a tokenizer is loaded: texts by id, ids by text, everything checked.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/model/tokenizer/added_tokens.h"
#include "daemon/model/tokenizer/byte_pairs.h"

namespace atlas::model {

/// Ids end here: sixteen times the largest vocabulary known (262,144, Gemma 3).
constexpr uint64_t kMaxVocabulary = 1 << 22;
/// A token's text; the longest known are runs of some 1,000 spaces or dashes.
constexpr size_t kMaxTokenBytes = 1 << 16;
/// An added token's text; searching costs its length for each place where it may begin.
constexpr size_t kMaxAddedTokenBytes = 1 << 10;

/// GPT-2's alphabet of printable characters for the 256 bytes (Radford et al., 2019): bytes 33-126,
/// 161-172 and 174-255 are themselves, the others are U+0100 and up in ascending order.
std::string byte_to_letter(uint8_t byte);
/// The bytes that letters of that alphabet stand for; nothing if a character is not one of them.
std::optional<std::string> letters_to_bytes(std::string_view text);

/// Collects tokens as their file spells them (byte-level letters, or verbatim for added ones).
class Vocabulary {
 public:
  /// Errors: kInvalidArgument for an id or text beyond the limits or used twice.
  Status add(std::string_view text, uint64_t id);
  /// Adds the token, or marks one that exists with the same id and text.
  /// Errors: kInvalidArgument if text or id belong to another token, and those of add().
  Status add_added(AddedToken token);
  /// Errors: kInvalidArgument if one of the three tokens does not exist.
  Status add_merge(std::string_view left, std::string_view right);

  std::optional<TokenId> find(std::string_view text) const;
  bool has(uint64_t id) const { return id < used_.size() && used_[id]; }
  /// Reserves ids without token up to `size` (at most kMaxVocabulary).
  void pad_to(size_t size);
  /// One more than the largest id.
  size_t size() const { return texts_.size(); }
  const std::vector<AddedToken>& added() const { return added_; }

  /// The bytes of each token by id (added tokens verbatim); empty where an id is not used.
  std::vector<std::string> token_bytes() const;
  /// Single bytes and merges.
  BytePairRules rules() const;
  /// Tokens that text can become: spelled in byte-level letters and not added.
  std::vector<TokenId> words() const;

 private:
  std::vector<std::string> texts_;
  std::vector<bool> used_;
  std::unordered_map<std::string, TokenId> ids_;
  std::vector<AddedToken> added_;
  std::vector<Merge> merges_;
};

}  // namespace atlas::model

// Byte-pair merging: words to token ids, lowest rank first, leftmost on equal rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace atlas::model {

using TokenId = uint32_t;

struct Merge {
  TokenId left, right, result;
};

/// What merging needs to know of a vocabulary.
struct BytePairRules {
  std::array<std::optional<TokenId>, 256> bytes;  // the token of each single byte
  std::vector<Merge> merges;                      // in order of rank
  std::optional<TokenId>
      unknown;                // stands for a byte without token; without it the byte is dropped
  bool fuse_unknown = false;  // one unknown for a run of such bytes
};

/// Immutable; encode() may run on many threads, each with its own Scratch.
class BytePairEncoder {
 public:
  explicit BytePairEncoder(const BytePairRules& rules);

  /// Words that are taken whole without merging (`ignore_merges`). The texts must outlive this.
  void set_whole_words(std::unordered_map<std::string_view, TokenId> words) {
    whole_words_ = std::move(words);
  }

  /// Work memory of one text: buffers, and where words seen before stand in the output.
  class Scratch {
   public:
    /// `text_bytes` sizes the memory of words. Words and output must stay alive and in place.
    explicit Scratch(size_t text_bytes);

   private:
    friend class BytePairEncoder;
    struct Seen {
      const char* data = nullptr;
      size_t size = 0;
      size_t first = 0;  // index in the output
      size_t count = 0;
    };
    // A symbol of a long word. All that a merge touches lies together.
    struct Symbol {
      TokenId id;
      uint32_t rank;   // of the pair with the next symbol
      TokenId result;  // of that pair
      uint32_t previous, next;
    };
    std::vector<Seen> seen_;  // direct-mapped, a power of two
    std::vector<TokenId> ids_;
    std::vector<uint32_t> ranks_;
    std::vector<TokenId> results_;
    std::vector<Symbol> symbols_;
    std::vector<uint64_t> heap_;  // rank << 32 | index of the left symbol
  };

  /// Appends the ids of one word. `out` must be the same vector for all calls with one Scratch.
  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Rule {
    TokenId left, right;
    uint32_t rank;
    TokenId result;
  };

  size_t slot_of(TokenId left, TokenId right) const;
  const Rule& find(TokenId left, TokenId right) const;
  void merge(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;
  void merge_short(Scratch& scratch, std::vector<TokenId>& out) const;
  void merge_long(std::span<const TokenId> ids, Scratch& scratch, std::vector<TokenId>& out) const;

  std::array<std::optional<TokenId>, 256> bytes_;
  std::optional<TokenId> unknown_;
  bool fuse_unknown_;
  std::vector<Rule> rules_;  // open addressing, a power of two, at most half full
  int hash_shift_;           // leaves as many bits as rules_ has
  std::unordered_map<std::string_view, TokenId> whole_words_;
};

}  // namespace atlas::model

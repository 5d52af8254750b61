// Merging with a scan for short words and a heap for long ones; words that repeat in a text are
// copied from where the output has them already.
#include "daemon/model/tokenizer/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace atlas::model {

namespace {

constexpr uint32_t kNoRank = UINT32_MAX;
// Up to here a scan beats the heap: words of 24, 40, 64 and 96 random letters take 25, 33, 33 and
// 35 ms for 400 KB instead of 41 to 43 (EPYC, one core, 2026-11-29); at 160 both take 42.
constexpr size_t kShortWord = 96;
// Longer words hardly repeat; comparing them costs more than it saves.
constexpr size_t kLongestSeen = 64;
constexpr uint32_t kNone = UINT32_MAX;
// Words are cut there before merging, so that 32 bits are enough for an index.
constexpr size_t kMostSymbols = size_t{1} << 31;

}  // namespace

BytePairEncoder::BytePairEncoder(const BytePairRules& rules)
    : bytes_(rules.bytes), unknown_(rules.unknown), fuse_unknown_(rules.fuse_unknown) {
  const size_t size = std::bit_ceil(std::max<size_t>(rules.merges.size() * 2, 16));
  hash_shift_ = 64 - std::countr_zero(size);
  rules_.assign(size, {0, 0, kNoRank, 0});
  for (uint32_t rank = 0; rank < rules.merges.size(); ++rank) {
    const Merge& merge = rules.merges[rank];
    // A pair named twice keeps its last rank, as in the `tokenizers` package.
    rules_[slot_of(merge.left, merge.right)] = {merge.left, merge.right, rank, merge.result};
  }
}

// The slot of the pair, or the free one where it would be.
size_t BytePairEncoder::slot_of(TokenId left, TokenId right) const {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | right;
  // The upper bits of the product depend on all bits of the key.
  size_t slot = static_cast<size_t>(key * 0x9E3779B97F4A7C15u >> hash_shift_);
  while (rules_[slot].rank != kNoRank &&
         (rules_[slot].left != left || rules_[slot].right != right)) {
    slot = (slot + 1) & (rules_.size() - 1);
  }
  return slot;
}

const BytePairEncoder::Rule& BytePairEncoder::find(TokenId left, TokenId right) const {
  return rules_[slot_of(left, right)];
}

BytePairEncoder::Scratch::Scratch(size_t text_bytes)
    : seen_(std::bit_ceil(std::clamp<size_t>(text_bytes / 8, 64, 8192))) {}

void BytePairEncoder::encode(std::string_view word, Scratch& scratch,
                             std::vector<TokenId>& out) const {
  if (word.size() > kLongestSeen) return merge(word, scratch, out);
  const size_t hash = std::hash<std::string_view>{}(word);
  Scratch::Seen& seen = scratch.seen_[hash & (scratch.seen_.size() - 1)];
  if (std::string_view(seen.data, seen.size) == word) {
    for (size_t i = 0; i < seen.count; ++i) {
      const TokenId id = out[seen.first + i];
      out.push_back(id);
    }
    return;
  }
  const size_t first = out.size();
  merge(word, scratch, out);
  seen = {word.data(), word.size(), first, out.size() - first};
}

void BytePairEncoder::merge(std::string_view word, Scratch& scratch,
                            std::vector<TokenId>& out) const {
  if (!whole_words_.empty()) {
    if (const auto whole = whole_words_.find(word); whole != whole_words_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  scratch.ids_.clear();
  bool after_unknown = false;
  for (const char c : word) {
    const std::optional<TokenId>& id = bytes_[static_cast<uint8_t>(c)];
    if (id) {
      scratch.ids_.push_back(*id);
    } else if (unknown_ && !(fuse_unknown_ && after_unknown)) {
      scratch.ids_.push_back(*unknown_);
    }
    after_unknown = !id;
  }
  if (scratch.ids_.size() <= kShortWord) return merge_short(scratch, out);
  const std::span<const TokenId> ids = scratch.ids_;
  for (size_t at = 0; at < ids.size(); at += kMostSymbols) {
    merge_long(ids.subspan(at, std::min(kMostSymbols, ids.size() - at)), scratch, out);
  }
}

// ranks_[i] is the rank of the pair (i, i+1); merged symbols are squeezed out of the arrays.
void BytePairEncoder::merge_short(Scratch& scratch, std::vector<TokenId>& out) const {
  std::vector<TokenId>& ids = scratch.ids_;
  size_t n = ids.size();
  scratch.ranks_.resize(n);
  scratch.results_.resize(n);
  const auto refresh = [&](size_t at) {
    const Rule& rule = find(ids[at], ids[at + 1]);
    scratch.ranks_[at] = rule.rank;
    scratch.results_[at] = rule.result;
  };
  for (size_t i = 0; i + 1 < n; ++i) refresh(i);
  while (n > 1) {
    const auto best = std::min_element(scratch.ranks_.begin(), scratch.ranks_.begin() + (n - 1));
    if (*best == kNoRank) break;
    const auto at = static_cast<size_t>(best - scratch.ranks_.begin());
    ids[at] = scratch.results_[at];
    std::copy(ids.begin() + at + 2, ids.begin() + n, ids.begin() + at + 1);
    if (at + 2 < n) {
      std::copy(scratch.ranks_.begin() + at + 2, scratch.ranks_.begin() + n - 1,
                scratch.ranks_.begin() + at + 1);
      std::copy(scratch.results_.begin() + at + 2, scratch.results_.begin() + n - 1,
                scratch.results_.begin() + at + 1);
    }
    --n;
    if (at + 1 < n) refresh(at);
    if (at > 0) refresh(at - 1);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + n);
}

// A linked list of symbols and a heap of pairs. A pair that has changed since it was pushed is
// known by its rank: two pairs with one rank are the same pair.
void BytePairEncoder::merge_long(std::span<const TokenId> ids, Scratch& scratch,
                                 std::vector<TokenId>& out) const {
  const auto n = static_cast<uint32_t>(ids.size());
  std::vector<Scratch::Symbol>& symbols = scratch.symbols_;
  std::vector<uint64_t>& heap = scratch.heap_;
  symbols.resize(n);
  heap.clear();
  const auto push = [&](uint32_t at) {
    Scratch::Symbol& symbol = symbols[at];
    symbol.rank = kNoRank;
    if (symbol.next == kNone) return;
    const Rule& rule = find(symbol.id, symbols[symbol.next].id);
    symbol.rank = rule.rank;
    symbol.result = rule.result;
    if (rule.rank != kNoRank) heap.push_back(static_cast<uint64_t>(rule.rank) << 32 | at);
  };
  for (uint32_t i = 0; i < n; ++i) {
    symbols[i] = {ids[i], kNoRank, 0, i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1};
  }
  for (uint32_t i = 0; i < n; ++i) push(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto at = static_cast<uint32_t>(heap.back());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    Scratch::Symbol& symbol = symbols[at];
    if (symbol.rank != rank) continue;
    Scratch::Symbol& gone = symbols[symbol.next];
    symbol.id = symbol.result;
    symbol.next = gone.next;
    gone.rank = kNoRank;
    if (gone.next != kNone) symbols[gone.next].previous = at;
    for (const uint32_t changed : {at, symbol.previous}) {
      if (changed == kNone) continue;
      const size_t before = heap.size();
      push(changed);
      if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  for (uint32_t at = n == 0 ? kNone : 0; at != kNone; at = symbols[at].next) {
    out.push_back(symbols[at].id);
  }
}

}  // namespace atlas::model

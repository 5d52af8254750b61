// PrefixCache: which pages and anchors hold the state after which tokens, for requests to come.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "daemon/engine/cache_pool.h"
#include "daemon/engine/engine.h"

namespace atlas::engine {

/// What a new sequence need not compute: its first `tokens` positions. The pages and the anchor are
/// the caller's to give back.
struct CachedPrefix {
  uint32_t tokens = 0;
  std::vector<uint32_t> pages;
  std::optional<uint32_t> anchor;  // the state at `tokens`, in models that have one
  uint32_t known_tokens = 0;       // whose pages are there; beyond `tokens` they lead to no state
};

/// A tree over the full pages of sequences: a node is a page of tokens after the pages above it. A
/// model with recurrent layers goes on only from a node with an anchor. One for each generation,
/// because another one's arithmetic may give other bits. The engine's thread only.
class PrefixCache {
 public:
  /// `pool` outlives the cache. `anchors`: whether a prefix needs one.
  PrefixCache(CachePool& pool, uint32_t page_tokens, bool anchors)
      : pool_(pool), page_tokens_(page_tokens), anchors_(anchors) {}
  ~PrefixCache() { clear(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// The longest usable prefix of `tokens` that leaves at least one of them to compute. Counts
  /// nothing: count() does, once a request of `tokens` tokens is admitted with it. The counters are
  /// the engine's, for they outlive a generation and its cache.
  CachedPrefix find(std::span<const TokenId> tokens);
  void count(size_t tokens, const CachedPrefix& found, PrefixCounters& counters) const;

  /// Keeps the full pages of a sequence: `pages` hold `tokens`, and `anchor` the state at
  /// `anchor_index`. What is there already stays.
  void keep(std::span<const TokenId> tokens, std::span<const uint32_t> pages,
            std::optional<uint32_t> anchor, uint32_t anchor_index);

  /// Gives up pages that only the cache holds, least recently used first and never one that others
  /// follow, until `wanted` are free; how many pages it gave up.
  uint32_t evict_pages(uint32_t wanted);
  /// Gives up one anchor that only the cache holds: one with a later state behind it before the
  /// last of a conversation, then the least recently used. False if there is none.
  bool evict_anchor();
  /// Gives everything back and keeps nothing from now on: its generation is replaced.
  void close();

  uint32_t pages() const { return pages_; }
  uint32_t anchors() const { return anchors_held_; }

 private:
  struct Node {
    Node* parent = nullptr;
    std::vector<TokenId> tokens;
    uint32_t page = 0;
    std::optional<uint32_t> anchor;
    uint64_t used = 0;
    std::multimap<uint64_t, std::unique_ptr<Node>> children;  // by hash of their tokens
  };

  void clear();
  Node* child(Node& node, std::span<const TokenId> tokens, uint64_t hash) const;
  /// The nodes of as many whole pages of `tokens` as are there.
  std::vector<Node*> path(std::span<const TokenId> tokens);
  void drop_anchor(Node& node);
  void drop_leaf(Node& node);
  template <typename Visit>
  static void visit(Node& node, const Visit& what);

  CachePool& pool_;
  const uint32_t page_tokens_;
  const bool anchors_;
  Node root_;
  uint64_t clock_ = 0;
  uint32_t pages_ = 0, anchors_held_ = 0;
  bool closed_ = false;
};

}  // namespace atlas::engine

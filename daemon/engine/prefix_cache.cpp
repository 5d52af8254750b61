#include "daemon/engine/prefix_cache.h"

#include <algorithm>
#include <queue>

namespace atlas::engine {

namespace {

/// 64-bit FNV-1a over ids; equal hashes are compared by their tokens.
uint64_t hash_of(std::span<const TokenId> tokens) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const TokenId token : tokens) hash = (hash ^ token) * 0x100000001b3ull;
  return hash;
}

}  // namespace

PrefixCache::Node* PrefixCache::child(Node& node, std::span<const TokenId> tokens,
                                      uint64_t hash) const {
  const auto [first, last] = node.children.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (std::ranges::equal(it->second->tokens, tokens)) return it->second.get();
  }
  return nullptr;
}

std::vector<PrefixCache::Node*> PrefixCache::path(std::span<const TokenId> tokens) {
  std::vector<Node*> nodes;
  Node* at = &root_;
  for (size_t first = 0; first + page_tokens_ <= tokens.size(); first += page_tokens_) {
    const auto page = tokens.subspan(first, page_tokens_);
    at = child(*at, page, hash_of(page));
    if (at == nullptr) break;
    nodes.push_back(at);
  }
  return nodes;
}

CachedPrefix PrefixCache::find(std::span<const TokenId> tokens) {
  CachedPrefix found;
  if (tokens.empty()) return found;
  std::vector<Node*> nodes = path(tokens.first(tokens.size() - 1));
  found.known_tokens = static_cast<uint32_t>(nodes.size()) * page_tokens_;
  while (anchors_ && !nodes.empty() && !nodes.back()->anchor) nodes.pop_back();
  if (nodes.empty()) return found;
  ++clock_;
  for (Node* node : nodes) {
    node->used = clock_;
    pool_.share_page(node->page);
    found.pages.push_back(node->page);
  }
  found.tokens = static_cast<uint32_t>(nodes.size()) * page_tokens_;
  if (anchors_) {
    found.anchor = nodes.back()->anchor;
    pool_.share_anchor(*found.anchor);
  }
  return found;
}

void PrefixCache::count(size_t tokens, const CachedPrefix& found, PrefixCounters& counters) const {
  const size_t whole = tokens == 0 ? 0 : (tokens - 1) / page_tokens_ * page_tokens_;
  if (whole == 0) return;  // too short to be cached: no lookup
  ++(found.tokens == whole     ? counters.exact
     : found.tokens != 0       ? counters.anchor
     : found.known_tokens != 0 ? counters.pages
                               : counters.miss);
  counters.recomputed_tokens += found.known_tokens - found.tokens;
}

void PrefixCache::keep(std::span<const TokenId> tokens, std::span<const uint32_t> pages,
                       std::optional<uint32_t> anchor, uint32_t anchor_index) {
  if (closed_) return;
  ++clock_;
  Node* at = &root_;
  const size_t count = std::min(tokens.size() / page_tokens_, pages.size());
  for (size_t i = 0; i < count; ++i) {
    const auto page = tokens.subspan(i * page_tokens_, page_tokens_);
    const uint64_t hash = hash_of(page);
    Node* next = child(*at, page, hash);
    if (next == nullptr) {
      auto node = std::make_unique<Node>();
      next = node.get();
      next->parent = at;
      next->tokens.assign(page.begin(), page.end());
      next->page = pages[i];
      pool_.share_page(pages[i]);
      ++pages_;
      at->children.emplace(hash, std::move(node));
    }
    next->used = clock_;
    at = next;
    if (anchor && anchor_index == (i + 1) * page_tokens_ && !at->anchor) {
      at->anchor = anchor;
      pool_.share_anchor(*anchor);
      ++anchors_held_;
    }
  }
}

template <typename Visit>
void PrefixCache::visit(Node& node, const Visit& what) {
  for (auto& [hash, next] : node.children) {
    visit(*next, what);
    what(*next);
  }
}

void PrefixCache::drop_anchor(Node& node) {
  pool_.give_back({{}, std::nullopt, {*node.anchor}}, 0);
  node.anchor.reset();
  --anchors_held_;
}

void PrefixCache::drop_leaf(Node& node) {
  if (node.anchor) drop_anchor(node);
  pool_.give_back({{node.page}, std::nullopt, {}}, 0);
  --pages_;
  auto& siblings = node.parent->children;
  siblings.erase(std::find_if(siblings.begin(), siblings.end(),
                              [&](const auto& one) { return one.second.get() == &node; }));
}

uint32_t PrefixCache::evict_pages(uint32_t wanted) {
  // The first to go is the last of the heap's order: a page that leads to no state, then the
  // oldest.
  const auto later = [this](const Node* a, const Node* b) {
    const bool useful_a = !anchors_ || a->anchor, useful_b = !anchors_ || b->anchor;
    return useful_a != useful_b ? useful_a : a->used > b->used;
  };
  std::priority_queue<Node*, std::vector<Node*>, decltype(later)> leaves(later);
  const auto consider = [&](Node& node) {
    if (node.children.empty() && pool_.page_holders(node.page) == 1) leaves.push(&node);
  };
  if (pool_.pages_free() < wanted) visit(root_, consider);
  uint32_t given = 0;
  while (pool_.pages_free() < wanted && !leaves.empty()) {
    Node* leaf = leaves.top();
    leaves.pop();
    Node* parent = leaf->parent;
    drop_leaf(*leaf);
    ++given;
    if (parent != &root_) consider(*parent);
  }
  return given;
}

bool PrefixCache::evict_anchor() {
  Node* victim = nullptr;
  bool victim_is_last = false;
  visit(root_, [&](Node& node) {
    if (!node.anchor || pool_.anchor_holders(*node.anchor) != 1) return;
    bool last = true;
    visit(node, [&](const Node& below) { last &= !below.anchor; });
    const bool better = victim == nullptr || (victim_is_last && !last) ||
                        (victim_is_last == last && node.used < victim->used);
    if (!better) return;
    victim = &node;
    victim_is_last = last;
  });
  if (victim == nullptr) return false;
  drop_anchor(*victim);
  return true;
}

void PrefixCache::clear() {
  CacheShare share;
  visit(root_, [&](Node& node) {
    share.pages.push_back(node.page);
    if (node.anchor) share.anchors.push_back(*node.anchor);
  });
  pool_.give_back(std::move(share), 0);
  root_.children.clear();
  pages_ = anchors_held_ = 0;
}

void PrefixCache::close() {
  clear();
  closed_ = true;
}

}  // namespace atlas::engine

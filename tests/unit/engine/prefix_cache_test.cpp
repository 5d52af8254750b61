// The tree alone: what it finds, what it counts, what it gives up first, and that nothing is lost.
#include "daemon/engine/prefix_cache.h"

#include <doctest/doctest.h>

#include <numeric>

using namespace atlas;
using namespace atlas::engine;

TEST_SUITE_BEGIN("engine");

namespace {

constexpr uint32_t kPage = 4;

std::vector<TokenId> tokens(uint32_t count, TokenId first = 100) {
  std::vector<TokenId> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::vector<uint32_t> take_pages(CachePool& pool, uint32_t count) {
  std::vector<uint32_t> pages;
  while (pages.size() < count) pages.push_back(pool.take_page().value());
  return pages;
}

/// Gives back what a lookup found.
void give_back(CachePool& pool, const CachedPrefix& found) {
  CacheShare share{found.pages, std::nullopt, {}};
  if (found.anchor) share.anchors.push_back(*found.anchor);
  pool.give_back(share, 0);
}

}  // namespace

TEST_CASE("prefix cache: the longest run of whole pages that leaves a token to compute") {
  CachePool pool(8, 1);
  PrefixCache cache(pool, kPage, false);
  const auto pages = take_pages(pool, 3);
  cache.keep(tokens(11), pages, std::nullopt, 0);
  CHECK(cache.pages() == 2);  // 8 of 11 tokens fill pages
  pool.give_back({pages, std::nullopt, {}}, 0);
  CHECK(pool.pages_free() == 6);

  const auto found = cache.find(tokens(9));
  CHECK(found.tokens == 8);
  CHECK(found.pages == std::vector<uint32_t>(pages.begin(), pages.begin() + 2));
  give_back(pool, found);
  // The last token is to be computed, so of 8 tokens only one page counts.
  const auto shorter = cache.find(tokens(8));
  CHECK(shorter.tokens == 4);
  give_back(pool, shorter);
  auto other = tokens(12);
  other[5] = 7;
  const auto part = cache.find(other);
  CHECK(part.tokens == 4);
  give_back(pool, part);
  CHECK(cache.find(tokens(12, 500)).tokens == 0);
  CHECK(cache.find({}).tokens == 0);
}

TEST_CASE("prefix cache: with recurrent layers a prefix ends where a state is") {
  CachePool pool(8, 1, 4);
  PrefixCache cache(pool, kPage, true);
  const auto pages = take_pages(pool, 3);
  const uint32_t early = *pool.take_anchor(), late = *pool.take_anchor();
  cache.keep(tokens(12), pages, std::nullopt, 0);
  const auto nothing = cache.find(tokens(13));
  CHECK(nothing.tokens == 0);
  CHECK(nothing.known_tokens == 12);
  PrefixCounters counters;
  cache.count(13, nothing, counters);
  CHECK(counters.pages == 1);
  CHECK(counters.recomputed_tokens == 12);

  cache.keep(tokens(12), pages, early, 4);
  const auto first = cache.find(tokens(13));
  CHECK(first.tokens == 4);
  CHECK(first.anchor == early);
  cache.count(13, first, counters);
  CHECK(counters.anchor == 1);
  CHECK(counters.recomputed_tokens == 20);
  give_back(pool, first);

  cache.keep(tokens(12), pages, late, 12);
  const auto all = cache.find(tokens(13));
  CHECK(all.tokens == 12);
  CHECK(all.anchor == late);
  cache.count(13, all, counters);
  CHECK(counters.exact == 1);
  give_back(pool, all);
  cache.count(13, {}, counters);
  CHECK(counters.miss == 1);
  cache.count(3, {}, counters);  // too short to be cached
  CHECK(counters.miss == 1);
}

TEST_CASE("prefix cache: what is there stays, and its holder keeps a page of its own") {
  CachePool pool(4, 1);
  PrefixCache cache(pool, kPage, false);
  const auto mine = take_pages(pool, 1), yours = take_pages(pool, 1);
  cache.keep(tokens(4), mine, std::nullopt, 0);
  cache.keep(tokens(4), yours, std::nullopt, 0);
  CHECK(cache.pages() == 1);
  const auto found = cache.find(tokens(5));
  CHECK(found.pages == mine);
  CHECK(pool.page_holders(yours[0]) == 1);
}

TEST_CASE("prefix cache: the least recently used leaf goes first, and no page that others hold") {
  CachePool pool(4, 1);
  PrefixCache cache(pool, kPage, false);
  const auto a = take_pages(pool, 2);
  const auto b = take_pages(pool, 2);
  cache.keep(tokens(8), a, std::nullopt, 0);
  cache.keep(tokens(8, 300), b, std::nullopt, 0);
  pool.give_back({{a[0], a[1], b[1]}, std::nullopt, {}}, 0);  // b[0] is still its sequence's
  give_back(pool, cache.find(tokens(9)));
  CHECK(cache.evict_pages(1) == 1);
  CHECK(cache.find(tokens(9, 300)).tokens == 4);  // its second page was the oldest leaf
  CHECK(cache.evict_pages(4) == 2);               // both of a; b[0] has other holders now
  CHECK(cache.pages() == 1);
}

TEST_CASE("prefix cache: a state in the middle of a conversation goes before one at its end") {
  CachePool pool(8, 1, 3);
  PrefixCache cache(pool, kPage, true);
  const auto pages = take_pages(pool, 2), other = take_pages(pool, 1);
  const uint32_t middle = *pool.take_anchor(), end = *pool.take_anchor();
  const uint32_t old = *pool.take_anchor();
  cache.keep(tokens(4, 300), other, old, 4);
  cache.keep(tokens(8), pages, middle, 4);
  cache.keep(tokens(8), pages, end, 8);
  CHECK_FALSE(cache.evict_anchor());  // all have other holders
  pool.give_back({{}, std::nullopt, {middle, end, old}}, 0);
  CHECK(cache.evict_anchor());
  CHECK(pool.anchors_free() == 1);
  give_back(pool, cache.find(tokens(9)));
  CHECK(cache.evict_anchor());  // the oldest of those at ends
  CHECK(cache.find(tokens(5, 300)).tokens == 0);
  CHECK(cache.find(tokens(9)).tokens == 8);
}

TEST_CASE("prefix cache: closed, it has given everything back and keeps nothing") {
  CachePool pool(2, 1, 1);
  PrefixCache cache(pool, kPage, true);
  const auto pages = take_pages(pool, 2);
  const uint32_t anchor = *pool.take_anchor();
  cache.keep(tokens(8), pages, anchor, 8);
  pool.give_back({pages, std::nullopt, {anchor}}, 0);
  CHECK(pool.pages_free() == 0);
  cache.close();
  CHECK(pool.pages_free() == 2);
  CHECK(pool.anchors_free() == 1);
  const auto again = take_pages(pool, 2);
  cache.keep(tokens(8), again, std::nullopt, 0);
  CHECK(cache.pages() == 0);
}

TEST_SUITE_END();

#include "daemon/engine/cache_pool.h"

#include <doctest/doctest.h>

using atlas::engine::CachePool;

TEST_SUITE_BEGIN("engine");

TEST_CASE("pool: low numbers first, and no more than there are") {
  CachePool pool(2, 1);
  CHECK(*pool.take_page() == 0);
  CHECK(*pool.take_page() == 1);
  CHECK_FALSE(pool.take_page());
  CHECK(*pool.take_slot() == 0);
  CHECK_FALSE(pool.take_slot());
}

TEST_CASE("pool: what a step in flight names comes back only when that step has finished") {
  CachePool pool(3, 2);
  const uint32_t page = *pool.take_page();
  const uint32_t slot = *pool.take_slot();
  pool.give_back({{page}, slot, {}}, 7);
  CHECK(pool.pages_free() == 2);
  CHECK(pool.pages_free_soon() == 3);
  CHECK(pool.slots_free() == 1);
  pool.finished(6);
  CHECK(pool.pages_free() == 2);
  pool.finished(7);
  CHECK(pool.pages_free() == 3);
  CHECK(pool.slots_free() == 2);
}

TEST_CASE("pool: what no step names is free at once") {
  CachePool pool(1, 1);
  pool.finished(5);
  const uint32_t page = *pool.take_page();
  pool.give_back({{page}, *pool.take_slot(), {}}, 5);
  CHECK(pool.pages_free() == 1);
  CHECK(pool.slots_free() == 1);
}

TEST_CASE("pool: what several hold is free when the last gives it back") {
  CachePool pool(1, 1, 1);
  const uint32_t page = *pool.take_page();
  const uint32_t anchor = *pool.take_anchor();
  pool.share_page(page);
  pool.share_anchor(anchor);
  pool.give_back({{page}, std::nullopt, {anchor}}, 0);
  CHECK(pool.pages_free() == 0);
  CHECK(pool.anchors_free() == 0);
  CHECK(pool.page_holders(page) == 1);
  pool.give_back({{page}, std::nullopt, {anchor}}, 0);
  CHECK(pool.pages_free() == 1);
  CHECK(pool.anchors_free() == 1);
}

TEST_SUITE_END();

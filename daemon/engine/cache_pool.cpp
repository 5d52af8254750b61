#include "daemon/engine/cache_pool.h"

#include <algorithm>

namespace atlas::engine {

namespace {

/// Numbers below `count`; taken from the back, so that low ones go first.
std::vector<uint32_t> all_free(uint32_t count) {
  std::vector<uint32_t> numbers(count);
  for (uint32_t i = 0; i < count; ++i) numbers[i] = count - 1 - i;
  return numbers;
}

std::optional<uint32_t> take(std::vector<uint32_t>& free) {
  if (free.empty()) return std::nullopt;
  const uint32_t number = free.back();
  free.pop_back();
  return number;
}

}  // namespace

CachePool::CachePool(uint32_t pages, uint32_t slots, uint32_t anchors)
    : slots_total_(slots),
      free_pages_(all_free(pages)),
      free_slots_(all_free(slots)),
      free_anchors_(all_free(anchors)),
      page_holders_(pages),
      anchor_holders_(anchors) {}

std::optional<uint32_t> CachePool::take_slot() { return take(free_slots_); }

std::optional<uint32_t> CachePool::take_page() {
  const auto page = take(free_pages_);
  if (page) page_holders_[*page] = 1;
  return page;
}

std::optional<uint32_t> CachePool::take_anchor() {
  const auto anchor = take(free_anchors_);
  if (anchor) anchor_holders_[*anchor] = 1;
  return anchor;
}

void CachePool::release(const CacheShare& share) {
  for (const uint32_t page : share.pages) {
    if (--page_holders_[page] == 0) free_pages_.push_back(page);
  }
  for (const uint32_t anchor : share.anchors) {
    if (--anchor_holders_[anchor] == 0) free_anchors_.push_back(anchor);
  }
  if (share.slot) free_slots_.push_back(*share.slot);
}

void CachePool::give_back(CacheShare share, uint64_t last_step) {
  if (last_step <= finished_step_) {
    release(share);
    return;
  }
  pages_waiting_ += static_cast<uint32_t>(share.pages.size());
  waiting_.push_back({last_step, std::move(share)});
}

void CachePool::finished(uint64_t step) {
  finished_step_ = std::max(finished_step_, step);
  std::erase_if(waiting_, [this](const Waiting& waiting) {
    if (waiting.step > finished_step_) return false;
    pages_waiting_ -= static_cast<uint32_t>(waiting.share.pages.size());
    release(waiting.share);
    return true;
  });
}

}  // namespace atlas::engine

#include "daemon/engine/cache_pool.h"

#include <algorithm>

namespace atlas::engine {

CachePool::CachePool(uint32_t pages, uint32_t slots) : pages_total_(pages), slots_total_(slots) {
  // Taken from the back, so that low numbers go first.
  for (uint32_t page = pages; page-- > 0;) free_pages_.push_back(page);
  for (uint32_t slot = slots; slot-- > 0;) free_slots_.push_back(slot);
}

std::optional<uint32_t> CachePool::take_slot() {
  if (free_slots_.empty()) return std::nullopt;
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

std::optional<uint32_t> CachePool::take_page() {
  if (free_pages_.empty()) return std::nullopt;
  const uint32_t page = free_pages_.back();
  free_pages_.pop_back();
  return page;
}

void CachePool::release(const Waiting& waiting) {
  free_pages_.insert(free_pages_.end(), waiting.pages.begin(), waiting.pages.end());
  if (waiting.slot) free_slots_.push_back(*waiting.slot);
}

void CachePool::give_back(const std::vector<uint32_t>& pages, std::optional<uint32_t> slot,
                          uint64_t last_step) {
  const Waiting waiting{last_step, pages, slot};
  if (last_step <= finished_step_) {
    release(waiting);
    return;
  }
  pages_waiting_ += static_cast<uint32_t>(pages.size());
  waiting_.push_back(waiting);
}

void CachePool::finished(uint64_t step) {
  finished_step_ = std::max(finished_step_, step);
  std::erase_if(waiting_, [this](const Waiting& waiting) {
    if (waiting.step > finished_step_) return false;
    pages_waiting_ -= static_cast<uint32_t>(waiting.pages.size());
    release(waiting);
    return true;
  });
}

}  // namespace atlas::engine

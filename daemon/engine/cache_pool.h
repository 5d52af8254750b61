// Pages and slots: which are free, and which wait for the steps that still name them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace atlas::engine {

/// The free pages and slots of one state. A page or slot that is given back is free again only when
/// the last step that names it has finished, for the device may still write there.
class CachePool {
 public:
  CachePool(uint32_t pages, uint32_t slots);

  std::optional<uint32_t> take_slot();
  std::optional<uint32_t> take_page();
  /// Gives back at once what no step in flight names (`last_step` <= the last finished step).
  void give_back(const std::vector<uint32_t>& pages, std::optional<uint32_t> slot,
                 uint64_t last_step);
  /// Steps up to `step` have finished.
  void finished(uint64_t step);

  uint32_t pages_free() const { return static_cast<uint32_t>(free_pages_.size()); }
  uint32_t slots_free() const { return static_cast<uint32_t>(free_slots_.size()); }
  /// Pages that are free or will be once the steps in flight have finished.
  uint32_t pages_free_soon() const { return pages_free() + pages_waiting_; }
  uint32_t pages_total() const { return pages_total_; }
  uint32_t slots_total() const { return slots_total_; }

 private:
  struct Waiting {
    uint64_t step;
    std::vector<uint32_t> pages;
    std::optional<uint32_t> slot;
  };
  void release(const Waiting& waiting);

  uint32_t pages_total_, slots_total_;
  uint32_t pages_waiting_ = 0;
  uint64_t finished_step_ = 0;
  std::vector<uint32_t> free_pages_, free_slots_;
  std::deque<Waiting> waiting_;
};

}  // namespace atlas::engine

// Pages, slots and anchors: which are free, and which wait for the steps that still name them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace atlas::engine {

/// What one sequence holds of a state.
struct CacheShare {
  std::vector<uint32_t> pages;
  std::optional<uint32_t> slot;
  std::vector<uint32_t> anchors;
};

/// The free pages, slots and anchors of one state. What is given back is free again only when the
/// last step that names it has finished, for the device may still write there.
class CachePool {
 public:
  CachePool(uint32_t pages, uint32_t slots, uint32_t anchors = 0);

  std::optional<uint32_t> take_slot();
  std::optional<uint32_t> take_page();
  std::optional<uint32_t> take_anchor();
  /// One more holder of a page or an anchor that is taken; each gives it back once.
  void share_page(uint32_t page) { ++page_holders_[page]; }
  void share_anchor(uint32_t anchor) { ++anchor_holders_[anchor]; }
  /// Gives back at once what no step in flight names (`last_step` <= the last finished step).
  void give_back(CacheShare share, uint64_t last_step);
  /// Steps up to `step` have finished.
  void finished(uint64_t step);

  uint32_t pages_free() const { return static_cast<uint32_t>(free_pages_.size()); }
  uint32_t slots_free() const { return static_cast<uint32_t>(free_slots_.size()); }
  uint32_t anchors_free() const { return static_cast<uint32_t>(free_anchors_.size()); }
  /// Pages that are free or will be once the steps in flight have finished, at most.
  uint32_t pages_free_soon() const { return pages_free() + pages_waiting_; }
  uint32_t pages_total() const { return static_cast<uint32_t>(page_holders_.size()); }
  uint32_t slots_total() const { return slots_total_; }
  uint32_t anchors_total() const { return static_cast<uint32_t>(anchor_holders_.size()); }
  /// How many hold the page: 1 if it is the caller's alone.
  uint32_t page_holders(uint32_t page) const { return page_holders_[page]; }
  uint32_t anchor_holders(uint32_t anchor) const { return anchor_holders_[anchor]; }

 private:
  struct Waiting {
    uint64_t step;
    CacheShare share;
  };
  void release(const CacheShare& share);

  uint32_t slots_total_;
  uint32_t pages_waiting_ = 0;
  uint64_t finished_step_ = 0;
  std::vector<uint32_t> free_pages_, free_slots_, free_anchors_;
  std::vector<uint32_t> page_holders_, anchor_holders_;
  std::deque<Waiting> waiting_;
};

}  // namespace atlas::engine

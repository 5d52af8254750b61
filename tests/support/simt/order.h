// What comes before what: stamps of accesses, and what a lane knows to lie behind it. Accesses of a
// block are ordered by its barriers, lanes of a warp by its barriers, blocks by release and
// acquire.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace atlas::simt {

/// One access: which block and thread, how many block barriers it had passed (epoch), and how many
/// warp barriers and releases since (clock). 0: none. Numbers past their fields' ends stay there,
/// and such accesses count as ordered.
class Stamp {
 public:
  static constexpr uint32_t kMaxBlocks = (1u << 21) - 1;
  static constexpr uint32_t kMaxCount = (1u << 16) - 1;

  Stamp() = default;
  Stamp(uint32_t block, uint32_t thread, uint32_t epoch, uint32_t clock, bool atomic)
      : bits_(uint64_t{block + 1} << 43 | uint64_t{thread} << 33 |
              uint64_t{epoch < kMaxCount ? epoch : kMaxCount} << 17 |
              uint64_t{clock < kMaxCount ? clock : kMaxCount} << 1 | (atomic ? 1 : 0)) {}

  explicit operator bool() const { return bits_ != 0; }
  uint32_t block() const { return static_cast<uint32_t>(bits_ >> 43) - 1; }
  uint32_t thread() const { return static_cast<uint32_t>(bits_ >> 33) & 1023; }
  uint32_t epoch() const { return static_cast<uint32_t>(bits_ >> 17) & kMaxCount; }
  uint32_t clock() const { return static_cast<uint32_t>(bits_ >> 1) & kMaxCount; }
  bool atomic() const { return (bits_ & 1) != 0; }
  /// The same thread of the same block.
  bool same_thread(Stamp other) const { return bits_ >> 33 == other.bits_ >> 33; }

 private:
  uint64_t bits_ = 0;
};

/// What is known of one block: all that it did before barrier `complete`, and of some threads what
/// they did in an epoch up to a clock.
struct BlockKnowledge {
  struct Part {
    uint32_t thread, epoch, clock;
  };
  uint32_t complete = 0;
  std::vector<Part> parts;  // one a thread, ascending

  bool covers(Stamp access) const {
    if (access.epoch() < complete) return true;
    const auto part = std::lower_bound(parts.begin(), parts.end(), access.thread(), before);
    if (part == parts.end() || part->thread != access.thread()) return false;
    if (access.epoch() < part->epoch) return true;
    return access.epoch() == part->epoch && access.clock() <= part->clock;
  }
  void join(const BlockKnowledge& other) {
    if (other.complete > complete) complete = other.complete;
    for (const Part& part : other.parts) add(part);
  }
  void add(const Part& part) {
    const auto mine = std::lower_bound(parts.begin(), parts.end(), part.thread, before);
    if (mine == parts.end() || mine->thread != part.thread) {
      parts.insert(mine, part);
    } else if (part.epoch > mine->epoch ||
               (part.epoch == mine->epoch && part.clock > mine->clock)) {
      *mine = part;
    }
  }
  static bool before(const Part& part, uint32_t thread) { return part.thread < thread; }
};

/// What is known of all blocks; empty for most lanes.
class Knowledge {
 public:
  bool empty() const { return !blocks_ || blocks_->empty(); }
  bool covers(Stamp access) const {
    if (empty()) return false;
    const auto found = blocks_->find(access.block());
    return found != blocks_->end() && found->second.covers(access);
  }
  void join(const Knowledge& other) {
    if (other.empty()) return;
    for (const auto& [block, part] : *other.blocks_) of(block).join(part);
  }
  BlockKnowledge& of(uint32_t block) {
    if (!blocks_) blocks_ = std::make_unique<std::unordered_map<uint32_t, BlockKnowledge>>();
    return (*blocks_)[block];
  }
  void clear() { blocks_.reset(); }

 private:
  std::unique_ptr<std::unordered_map<uint32_t, BlockKnowledge>> blocks_;
};

}  // namespace atlas::simt

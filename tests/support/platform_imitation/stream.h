// A stream of the imitation: commands into the shared queue, pageable memory through a staging
// area.
#pragma once

#include <array>
#include <cstdint>

#include "tests/support/platform_imitation/device.h"

namespace atlas::imitation {

class Stream {
 public:
  explicit Stream(Device& device);
  /// Waits for what was submitted.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void launch(uint64_t step);
  void copy_to_device(AtlasAddress to, const void* from, uint64_t bytes);
  void copy_to_host(void* to, AtlasAddress from, uint64_t bytes);
  void fill(AtlasAddress to, uint8_t value, uint64_t bytes);
  void synchronize();

  uint32_t index() const { return index_; }
  uint64_t submitted() { return shared().submitted.load(); }

 private:
  static constexpr uint64_t kStageBytes = uint64_t{1} << 20;
  static constexpr uint32_t kStages = 4;

  SharedStream& shared() { return device_.stream(index_); }
  void copy(AtlasAddress to, AtlasAddress from, uint64_t bytes);

  Device& device_;
  uint32_t index_;
  AtlasAddress staging_;                          // pinned: kStages parts
  std::array<uint64_t, kStages> stage_ticket_{};  // the command that reads or writes a part last
  uint32_t next_stage_ = 0;
};

}  // namespace atlas::imitation

// Builds launch records: a parameter struct, and which of its pointers name which buffer.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::sdk {

inline constexpr AtlasBufferRef kNowhere{ATLAS_NO_BUFFER, 0, 0};
/// The place `bytes` behind another.
inline AtlasBufferRef behind(AtlasBufferRef ref, uint64_t bytes) {
  ref.offset += bytes;
  ref.row_bytes = 0;
  return ref;
}

/// One launch while it is put together. `Params` is a parameter struct of kernels/common.
/// Use: `Launch<P> launch("kernel", kPDigest); launch.params.n = n;
///       launch.point(&launch.params.x, problem.x); return launch.emit(sink, error);`
template <typename Params>
class Launch {
 public:
  Launch(const char* kernel, uint64_t params_digest) : kernel_(kernel), digest_(params_digest) {}

  Params params{};

  /// The pointer field (a member of `params`) will hold the address of `target`; an absent target
  /// leaves it null. What a pointer to const points to is read, anything else written.
  template <typename Field>
  void point(Field* field, const AtlasBufferRef& target) {
    constexpr bool kReads = std::is_const_v<std::remove_pointer_t<Field>>;
    point(field, target, kReads ? ATLAS_ACCESS_READS : ATLAS_ACCESS_WRITES);
  }
  template <typename Field>
  void point(Field* field, const AtlasBufferRef& target, AtlasAccess access) {
    static_assert(sizeof(Field) == 8);
    if (target.buffer == ATLAS_NO_BUFFER) return;
    const auto offset = static_cast<uint32_t>(reinterpret_cast<const char*>(field) -
                                              reinterpret_cast<const char*>(&params));
    relocations_.push_back({offset, access, target});
  }
  void grid(uint32_t x, uint32_t y = 1, uint32_t z = 1) { set(grid_, x, y, z); }
  void block(uint32_t x, uint32_t y = 1, uint32_t z = 1) { set(block_, x, y, z); }
  void shared_bytes(uint32_t bytes) { shared_bytes_ = bytes; }
  void bytes_read(uint64_t bytes) { bytes_read_ = bytes; }

  AtlasCode emit(const AtlasRecordSink* sink, AtlasError* error) const {
    AtlasRecord record{};
    record.struct_size = sizeof(record);
    record.params_size = sizeof(Params);
    record.kernel = kernel_;
    record.params_digest = digest_;
    for (int i = 0; i < 3; ++i) {
      record.grid[i] = grid_[i];
      record.block[i] = block_[i];
    }
    record.shared_bytes = shared_bytes_;
    record.relocation_count = static_cast<uint32_t>(relocations_.size());
    record.params = &params;
    record.relocations = relocations_.data();
    record.bytes_read = bytes_read_;
    return sink->emit(sink->context, &record, error);
  }

 private:
  static void set(uint32_t (&where)[3], uint32_t x, uint32_t y, uint32_t z) {
    where[0] = x;
    where[1] = y;
    where[2] = z;
  }
  const char* kernel_;
  uint64_t digest_;
  uint32_t grid_[3] = {1, 1, 1};
  uint32_t block_[3] = {1, 1, 1};
  uint32_t shared_bytes_ = 0;
  uint64_t bytes_read_ = 0;
  std::vector<AtlasRelocation> relocations_;
};

}  // namespace atlas::sdk

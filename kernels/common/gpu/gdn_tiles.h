// The tiles of gdn_attend and how it feeds them: each warp brings the rows that its own tile takes,
// a slice of 256 floats after another, to its own part of shared memory. So warps wait for none but
// themselves, rows are copied as they stand, and a slice of rows serves 8 of their elements.
#pragma once

#include "kernels/common/gpu/gdn_parts.h"

namespace atlas::kernels {

/// Columns of a block's state.
#if defined(ATLAS_ARCH_H200)
inline constexpr uint32_t kGdnColumns = gdn_columns("h200");
#elif defined(ATLAS_ARCH_GB10)
inline constexpr uint32_t kGdnColumns = gdn_columns("gb10");
#else
inline constexpr uint32_t kGdnColumns = gdn_columns("strix-hip");
#endif

/// A warp's tile is 32 rows by the block's columns, a lane's of it 4 or 8 rows by a quad of
/// columns.
inline constexpr uint32_t kGdnQuads = kGdnColumns / 4;
inline constexpr uint32_t kGdnRowLanes = device::kWarpLanes / kGdnQuads;
inline constexpr uint32_t kGdnRows = device::kWarpLanes / kGdnRowLanes;
using DeltaTile = DeltaSums<kGdnRows>;

/// A lane's quad of columns and which of the warp's rows it has: lanes beside each other read the
/// same columns and those two apart the same rows, which was 3 % faster on an H200 than rows after
/// rows.
ATLAS_DEVICE uint32_t tile_column(uint32_t lane) { return lane / 2 % kGdnQuads * 4; }
ATLAS_DEVICE uint32_t tile_rows(uint32_t lane) { return lane % 2 + lane / (2 * kGdnQuads) * 2; }

/// Where a lane's two vectors of four of the next slice come from, and those of later ones `step`
/// floats further each.
struct DeltaSource {
  const float* from[2];
  uint64_t step;
};
/// The vectors of four of a slice that a lane brings, the n-th of two.
ATLAS_DEVICE uint32_t slice_item(uint32_t lane, uint32_t n) {
  return n * device::kWarpLanes + lane;
}

/// Slices of 32 rows by 8 elements. Rows that lanes of a tile read together stand together: row r
/// of a lane is the kGdnRowLanes * r + tile_rows th. Item i: row_of_item(i), elements 4 (i % 2) on.
ATLAS_DEVICE uint32_t row_of_item(uint32_t item) {
  return item / 2 % kGdnRowLanes * kGdnRows + item / (2 * kGdnRowLanes);
}

/// What stands elsewhere: nothing.
struct NoGather {
  static constexpr bool kSome = false;
  ATLAS_DEVICE bool has(uint32_t, uint32_t) const { return false; }
  ATLAS_DEVICE device::Floats4 get(uint32_t, uint32_t) const { return {}; }
  ATLAS_DEVICE uint32_t early() const { return 0; }
};
/// The first slice so many floats behind its place.
struct EarlySlice : NoGather {
  uint32_t behind;
  ATLAS_DEVICE uint32_t early() const { return behind; }
};

/// RDNA has no asynchronous copies: there a slice is under way in registers, and the next one only.
#if defined(ATLAS_HAS_WMMA)
inline constexpr bool kGdnAsync = false;
#else
inline constexpr bool kGdnAsync = true;
#endif
/// Groups of copies that DeltaSlices::begin leaves under way.
inline constexpr uint32_t kGdnSliceGroups = kGdnAsync ? kGdnRing - 1 : 0;

/// The slices of one warp, at least one, which comes to all of these functions whole: this is lane
/// `lane` of it.
template <typename Gather = NoGather>
class DeltaSlices {
 public:
  ATLAS_DEVICE DeltaSlices(uint32_t lane, float* ring, uint32_t count, const DeltaSource& source,
                           const Gather& gather = {})
      : lane_(lane), ring_(ring), count_(count), source_(source), gather_(gather) {}

  /// Asks for the first slices. What the warp has read of the ring before is used up.
  ATLAS_DEVICE void begin() {
    if constexpr (kGdnAsync) {
      ATLAS_UNROLL
      for (uint32_t s = 0; s + 1 < kGdnRing; ++s) {
        if (s < count_) copy(s, source_, s == 0 ? gather_.early() : 0);
        next(source_);
        device::async_commit();
      }
    } else {
      device::Floats4 held[2];
      fetch(0, source_, held, gather_.early());
      put(0, held);
    }
  }
  /// Calls use(slice in shared memory, s) for all slices, after begin. Ends with the ring free.
  template <typename Use>
  ATLAS_DEVICE void run(const Use& use) {
    using namespace device;
    uint32_t s = 0;
    if constexpr (kGdnAsync) {
      ATLAS_ROLLED
      do {
        async_wait<kGdnRing - 2>();
        warp_barrier();  // all lanes' copies are there, and the slice before has been used
        if (s + kGdnRing - 1 < count_) copy(s + kGdnRing - 1, source_);
        next(source_);
        async_commit();
        use(ring_ + s % kGdnRing * kGdnRingFloats, s);
      } while (++s < count_);
    } else {
      next(source_);
      ATLAS_ROLLED
      do {
        Floats4 held[2];
        warp_barrier();  // all lanes have put their part of the slice
        if (s + 1 < count_) fetch(s + 1, source_, held);
        next(source_);
        use(ring_ + s % kGdnRing * kGdnRingFloats, s);
        if (s + 1 < count_) put(s + 1, held);
      } while (++s < count_);
    }
    warp_barrier();  // all lanes have used the last slices
  }
  /// For a run whose begin was another object's.
  ATLAS_DEVICE void begun() {
    if constexpr (!kGdnAsync) return;
    ATLAS_UNROLL
    for (uint32_t s = 0; s + 1 < kGdnRing; ++s) next(source_);
  }

 private:
  ATLAS_DEVICE float* place(uint32_t s, uint32_t n) const {
    return ring_ + s % kGdnRing * kGdnRingFloats + 4 * slice_item(lane_, n);
  }
  ATLAS_DEVICE static void next(DeltaSource& source) {
    ATLAS_UNROLL
    for (auto& from : source.from) from += source.step;
  }
  ATLAS_DEVICE void copy(uint32_t s, const DeltaSource& source, uint32_t behind = 0) const {
    ATLAS_UNROLL
    for (uint32_t n = 0; n < 2; ++n) {
      if (Gather::kSome && gather_.has(s, slice_item(lane_, n))) {
        device::store_as(place(s, n), gather_.get(s, slice_item(lane_, n)));
      } else {
        device::async_copy<16>(place(s, n), source.from[n] + behind);
      }
    }
  }
  ATLAS_DEVICE void fetch(uint32_t s, const DeltaSource& source, device::Floats4 (&held)[2],
                          uint32_t behind = 0) const {
    ATLAS_UNROLL
    for (uint32_t n = 0; n < 2; ++n) {
      if (Gather::kSome && gather_.has(s, slice_item(lane_, n))) {
        held[n] = gather_.get(s, slice_item(lane_, n));
      } else {
        held[n] = device::load_as<device::Floats4>(source.from[n] + behind);
      }
    }
  }
  ATLAS_DEVICE void put(uint32_t s, const device::Floats4 (&held)[2]) const {
    ATLAS_UNROLL
    for (uint32_t n = 0; n < 2; ++n) device::store_as(place(s, n), held[n]);
  }

  uint32_t lane_;
  float* ring_;
  uint32_t count_;
  DeltaSource source_;
  Gather gather_;
};

/// tile += its rows of four elements, times four rows of a quad of columns: elements ascending.
/// Rows stand kRowStride apart in shared memory, from the fifth on kSkip further, those of quads
/// kGdnColumns. `shares`, if there are any, are multiplied to the rows' elements first, rounded.
template <uint32_t kRowStride, uint32_t kSkip = 0>
ATLAS_DEVICE void add_four(DeltaTile& tile, const float* rows, const float* quads,
                           const float* shares = nullptr) {
  using namespace device;
  schedule_barrier();
  Floats4 left[kGdnRows];
  ATLAS_UNROLL
  for (uint32_t r = 0; r < kGdnRows; ++r) {
    left[r] = load_as<Floats4>(rows + r * kRowStride + r / 4 * kSkip);
  }
  if (shares != nullptr) {
    const Floats4 share = load_as<Floats4>(shares);
    ATLAS_UNROLL
    for (auto& row : left) {
      ATLAS_UNROLL
      for (uint32_t e = 0; e < 4; ++e) row.f[e] = share.f[e] * row.f[e];
    }
  }
  ATLAS_UNROLL
  for (uint32_t e = 0; e < 4; ++e) {
    const Floats4 right = load_as<Floats4>(quads + e * kGdnColumns);
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnRows; ++r) {
      ATLAS_UNROLL
      for (uint32_t c = 0; c < 4; ++c) {
        tile.at[r][c] = fma(left[r].f[e], right.f[c], tile.at[r][c]);
      }
    }
  }
}

}  // namespace atlas::kernels

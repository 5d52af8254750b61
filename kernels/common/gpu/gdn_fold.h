// The fold of gdn_attend: a full chunk's keys and V into the next state.
#pragma once

#include "kernels/common/gpu/gdn_many.h"

namespace atlas::kernels {

/// What a block does at the end of a chunk.
struct DeltaFold : DeltaMany {
  using DeltaMany::DeltaMany;

  /// Keys that stand among the slot's pending ones: of the places before `count`. Item i of a slice
  /// of 8 places: place i / 8, four elements from d + 4 (i % 8) on.
  struct PendingKeys {
    static constexpr bool kSome = true;
    const DeltaChunk& chunk;
    uint32_t count, d;

    ATLAS_DEVICE bool has(uint32_t slice, uint32_t item) const {
      return slice * kGdnGroup + item / 8 < count;
    }
    ATLAS_DEVICE device::Floats4 get(uint32_t slice, uint32_t item) const {
      return chunk.pending_key(slice * kGdnGroup + item / 8, d + item % 8 * 4);
    }
    ATLAS_DEVICE uint32_t early() const { return 0; }
  };

  /// Adds all places' keys times V to a thread's tile. The warp has elements [d, d + 32) of the
  /// head. Keys of the places before `pending` are the slot's.
  ATLAS_DEVICE void add_keys(DeltaTile& tile, uint32_t d, uint32_t column, uint32_t pending) const {
    using namespace device;
    constexpr uint32_t kSlices = kGdnChunk / kGdnGroup;
    const float* values = values_ + column;
    const uint32_t lanes = tile_rows(thread_ % kLanes);
    if (pending == kGdnChunk) {
      // A slice is 32 elements of 8 places, as the slot has them.
      DeltaSource source{{nullptr, nullptr}, kGdnGroup};
      ATLAS_UNROLL
      for (uint32_t n = 0; n < 2; ++n) {
        const uint32_t item = slice_item(thread_ % kLanes, n), of = d + row_of_item(item);
        source.from[n] = chunk_.pending + (of < p_.key_dim ? of : 0) * kGdnKeyPlaces + item % 2 * 4;
      }
      DeltaSlices<EarlySlice> slices(thread_ % kLanes, ring(), kSlices, source, {{}, chunk_.early});
      slices.begin();
      slices.run([&](const float* slice, uint32_t s) {
        const float *rows = slice + lanes * kGdnGroup, *of = values + s * kGdnGroup * kGdnColumns;
        const float* shares = fold_ + s * kGdnGroup;
        add_four<kGdnRowLanes * kGdnGroup>(tile, rows, of, shares);
        add_four<kGdnRowLanes * kGdnGroup>(tile, rows + 4, of + 4 * kGdnColumns, shares + 4);
      });
      return;
    }
    // A slice is 8 places' 32 elements, as rows of the step have them.
    DeltaSource source{{nullptr, nullptr}, kGdnGroup * chunk_.row_floats};
    ATLAS_UNROLL
    for (uint32_t n = 0; n < 2; ++n) {
      const uint32_t item = slice_item(thread_ % kLanes, n), of = d + item % 8 * 4;
      source.from[n] = chunk_.key(item / 8) + (of < gdn_padded(p_.key_dim) ? of : 0);
    }
    const auto add = [&](const float* slice, uint32_t s) {
      ATLAS_UNROLL
      for (uint32_t half = 0; half < kGdnGroup; half += 4) {
        const Floats4 shares = load_as<Floats4>(fold_ + s * kGdnGroup + half);
        ATLAS_UNROLL
        for (uint32_t e = 0; e < 4; ++e) {
          if (e % 2 == 0) schedule_barrier();
          Floats4 left[kGdnRows / 4];
          ATLAS_UNROLL
          for (uint32_t r = 0; r < kGdnRows / 4; ++r) {
            left[r] = load_as<Floats4>(slice + (half + e) * kLanes + lanes * kGdnRows + 4 * r);
            ATLAS_UNROLL
            for (float& element : left[r].f) element = shares.f[e] * element;
          }
          const Floats4 v = load_as<Floats4>(values + (s * kGdnGroup + half + e) * kGdnColumns);
          ATLAS_UNROLL
          for (uint32_t r = 0; r < kGdnRows; ++r) {
            ATLAS_UNROLL
            for (uint32_t c = 0; c < 4; ++c) {
              tile.at[r][c] = fma(left[r / 4].f[r % 4], v.f[c], tile.at[r][c]);
            }
          }
        }
      }
    };
    if (pending == 0) {
      DeltaSlices<> slices(thread_ % kLanes, ring(), kSlices, source);
      slices.begin();
      slices.run(add);
    } else {
      DeltaSlices<PendingKeys> slices(thread_ % kLanes, ring(), kSlices, source,
                                      {chunk_, pending, d});
      slices.begin();
      slices.run(add);
    }
  }

  /// Only the fold takes pending keys. They are found where the registers of a platform's compiler
  /// do not spill: before anything else, or there.
  ATLAS_DEVICE void find_pending_keys() {
    const auto* slot = reinterpret_cast<const float*>(p_.slots + span_.slot * p_.slot_stride);
    const auto key_head = head_ / (p_.value_heads / p_.key_heads);
    chunk_.pending = slot + gdn_slot_keys(shape_) + uint64_t{key_head} * p_.key_dim * kGdnKeyPlaces;
    chunk_.early = gdn_early_keys(span_.anchor_index);
  }
  /// Folds the full chunk into the state; `keep`: that state stands in the next anchor from now on.
  /// Keys of the places before `pending` are the slot's. V, its factors and the state have been
  /// written for all, and the state is used up.
  ATLAS_DEVICE void fold(bool keep, uint32_t pending) {
    using namespace device;
    if (kGdnAsync) find_pending_keys();
    thread_ = opaque(thread_);
    const float factor = exp(load(decay_ + kGdnChunk - 1));
    const uint32_t column = tile_column(thread_ % kLanes);
    constexpr uint32_t kElements = kGdnAttendThreads;  // of a head at a time
    ATLAS_ROLLED
    for (uint32_t of_warp = thread_ / kLanes * kLanes; of_warp < p_.key_dim; of_warp += kElements) {
      uint32_t d = of_warp + tile_rows(thread_ % kLanes) * kGdnRows;
      DeltaTile tile;
      ATLAS_UNROLL
      for (uint32_t r = 0; r < kGdnRows; ++r) {
        Floats4 old{};
        if (d + r < p_.key_dim) old = load_as<Floats4>(state_ + (d + r) * kGdnColumns + column);
        ATLAS_UNROLL
        for (uint32_t c = 0; c < 4; ++c) tile.at[r][c] = factor * old.f[c];
      }
      add_keys(tile, of_warp, column, pending);
      d = opaque(d);
      ATLAS_UNROLL
      for (uint32_t r = 0; r < kGdnRows; ++r) {
        if (d + r >= p_.key_dim) continue;
        const Floats4 four{{tile.at[r][0], tile.at[r][1], tile.at[r][2], tile.at[r][3]}};
        store_as(state_ + (d + r) * kGdnColumns + column, four);
        if (keep && column < columns_) {
          store_as(anchor(span_.next_anchor) + uint64_t{d + r} * value_stride_ + column, four);
        }
      }
    }
  }
};

}  // namespace atlas::kernels

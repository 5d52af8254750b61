// Many rows of a chunk in gdn_attend, as tiles (gdn_tiles.h). The first two warps have the chunk's
// keys, 32 places each, and make V; the third and fourth have its queries and make the outputs. All
// begin with a product with the state. Then a warp solves its 32 places alone, 4 or 8 at a time, so
// the block waits twice in all: for V of the lower places, and for V of the upper ones.
#pragma once

#include "kernels/common/gpu/gdn_shares.h"

namespace atlas::kernels {

/// What a block does with many rows of a chunk.
struct DeltaMany : DeltaShares {
  using DeltaShares::DeltaShares;

  ATLAS_DEVICE float* ring() const { return work_ + gdn_ring_place(thread_ / kLanes); }
  ATLAS_DEVICE bool is_query() const { return thread_ / kLanes >= 2; }
  /// The first of the warp's places, and of the lane's.
  ATLAS_DEVICE uint32_t warp_place() const { return thread_ / kLanes % 2 * kLanes; }
  ATLAS_DEVICE uint32_t lane_place() const {
    return warp_place() + tile_rows(thread_ % kLanes) * kGdnRows;
  }

  /// Slices of the warp's 32 places, of keys in the first two warps, then of queries. Places that
  /// the step has not are others', whose sums nobody takes.
  ATLAS_DEVICE DeltaSlices<> key_slices() const {
    DeltaSource source{{nullptr, nullptr}, kGdnGroup};
    ATLAS_UNROLL
    for (uint32_t n = 0; n < 2; ++n) {
      const uint32_t item = slice_item(thread_ % kLanes, n);
      uint32_t place = warp_place() + row_of_item(item);
      place = place > chunk_.first ? place : chunk_.first;
      place = place < chunk_.end ? place : chunk_.end - 1;
      source.from[n] = (is_query() ? chunk_.query(place) : chunk_.key(place)) + item % 2 * 4;
    }
    return {thread_ % kLanes, ring(), (p_.key_dim + kGdnGroup - 1) / kGdnGroup, source};
  }

  /// Asks for the step's v, to where V will be, and for what the next chunk's gates are made of.
  ATLAS_DEVICE void bring_values() {
    using namespace device;
    constexpr uint32_t kQuads = kGdnColumns / 4;
    const uint32_t count = (chunk_.end - chunk_.first) * kQuads;
    for (uint32_t i = thread_; i < count; i += kGdnAttendThreads) {
      const uint32_t place = chunk_.first + i / kQuads, column = i % kQuads * 4;
      float* to = values_ + place * kGdnColumns + column;
      if (column < columns_) {
        async_copy<16>(to, row_values(place) + column);
      } else {
        store_as(to, Floats4{});
      }
    }
    if (thread_ / kLanes == 0 && gates_ahead()) {
      bring_gates(uint64_t{row_} + (chunk_.end - chunk_.first), next_rows());
    }
    async_commit();
  }

  ATLAS_DEVICE void many_rows() {
    using namespace device;
    bring_values();
    ShareQuads shares;
    if (kGdnAsync) bring_shares(shares);
    DeltaTile tile, sums;
    multiply_state(tile);
    async_wait<0>();
    thread_ = opaque(thread_);
    if (!kGdnAsync) bring_shares(shares);  // slices under way take the registers before
    block_barrier();                       // slices are used up; v and gates are there
    write_shares(shares);
    const uint32_t column = tile_column(thread_ % kLanes);
    if (!is_query()) subtract_from_values(tile, lane_place(), column);
    block_barrier();  // shares are written before they are used

    sums.clear();
    const uint32_t warp = thread_ / kLanes;
    constexpr uint32_t kHalf = kLanes;  // places of a warp
    if (warp == 0 && chunk_.first < kHalf) solve_all(tile, sums, column);
    block_barrier();  // V of the lower places is written
    if (warp == 0) {
      if (gates_ahead()) {
        gate_chunk(other_gates(), 0, uint64_t{row_} + (chunk_.end - chunk_.first), next_rows());
      }
    } else if (warp == 2) {
      if (chunk_.first < kHalf) add_own(tile, sums, column);
    } else if (chunk_.end > kHalf) {
      add_lower(sums, column);
      if (warp == 1) solve_all(tile, sums, column);
    }
    block_barrier();  // and of the upper ones
    if (warp == 3 && chunk_.end > kHalf) add_own(tile, sums, column);
    warp_barrier();  // its shares are used up: its ring stands there
    if (last_) keep_values();
  }

  /// The state times a key or a query in each of the tile's rows.
  ATLAS_DEVICE void multiply_state(DeltaTile& tile) const {
    tile.clear();
    const float* rows = state_ + tile_column(thread_ % kLanes);
    const uint32_t slot = tile_rows(thread_ % kLanes) * kGdnGroup;
    DeltaSlices<> slices = key_slices();
    slices.begun();
    slices.run([&](const float* slice, uint32_t s) {
      const float* quads = rows + s * kGdnGroup * kGdnColumns;
      add_four<kGdnRowLanes * kGdnGroup>(tile, slice + slot, quads);
      add_four<kGdnRowLanes * kGdnGroup>(tile, slice + slot + 4, quads + 4 * kGdnColumns);
    });
  }
  /// Shares of the places [j, j + 4) in the lane's rows, all in one block.
  ATLAS_DEVICE const float* lane_shares(uint32_t j) const {
    const uint32_t place = lane_place();
    return share_block(place / kGdnGroup, j / kGdnGroup, is_query()) +
           share_row(place % kGdnGroup) + j % kGdnGroup;
  }
  /// Adds the shares of V at places [j, j + 4).
  ATLAS_DEVICE void add_values(DeltaTile& sums, uint32_t j, uint32_t column) const {
    add_four<kGdnGroup, kShareSkip>(sums, lane_shares(j), values_ + j * kGdnColumns + column);
  }
  /// Of a warp of the upper places: all lower ones.
  ATLAS_DEVICE void add_lower(DeltaTile& sums, uint32_t column) const {
    ATLAS_ROLLED
    for (uint32_t j = 0; j < kLanes; j += 4) add_values(sums, j, column);
  }

  /// p becomes v - e^G p; at the places before the rows V, which they have, behind them 0.
  ATLAS_DEVICE void subtract_from_values(DeltaTile& tile, uint32_t first, uint32_t column) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnRows; ++r) {
      const uint32_t place = first + r;
      const bool there = place < chunk_.end, own = there && place >= chunk_.first;
      Floats4 v{};
      if (there) v = load_as<Floats4>(values_ + place * kGdnColumns + column);
      float factor = 0.0f;
      if (own) factor = -load(factor_ + place);
      ATLAS_UNROLL
      for (uint32_t c = 0; c < 4; ++c) {
        tile.at[r][c] = own ? fma(factor, tile.at[r][c], v.f[c]) : v.f[c];
      }
    }
  }
  /// V of the warp's places, which hold tiles' rows one after another.
  ATLAS_DEVICE void solve_all(const DeltaTile& tile, DeltaTile& sums, uint32_t column) const {
    using namespace device;
    const uint32_t own = lane_place();
    ATLAS_ROLLED
    for (uint32_t j = warp_place(); j < warp_place() + kLanes; j += kGdnRows) {
      if (own == j) solve(tile, sums, column);
      warp_barrier();  // V of the tile's rows is written before others use it
      if (own > j) {
        ATLAS_UNROLL
        for (uint32_t four = 0; four < kGdnRows; four += 4) add_values(sums, j + four, column);
      }
    }
  }
  /// V of the tile's rows, each of which the later ones use. Where the step has no row there are no
  /// shares, and what subtract_from_values and gate_chunk have put there gives V.
  ATLAS_DEVICE void solve(const DeltaTile& tile, DeltaTile& sums, uint32_t column) const {
    using namespace device;
    const uint32_t first = lane_place();
    ATLAS_UNROLL
    for (uint32_t four = 0; four < kGdnRows; four += 4) {
      schedule_barrier();
      const Floats4 beta = load_as<Floats4>(beta_ + first + four);
      const float* shares = lane_shares(first + four);
      Floats4 of_rows[kGdnRows];
      ATLAS_UNROLL
      for (uint32_t r = four + 1; r < kGdnRows; ++r) {
        of_rows[r] = load_as<Floats4>(shares + share_row(r));
      }
      ATLAS_UNROLL
      for (uint32_t r = four; r < four + 4; ++r) {
        Floats4 v;
        ATLAS_UNROLL
        for (uint32_t c = 0; c < 4; ++c) {
          v.f[c] = fma(beta.f[r - four], tile.at[r][c], 0.0f - sums.at[r][c]);
        }
        // Not to those that have V: a -0 would have become 0.
        const uint32_t place = first + r;
        if (place >= chunk_.first) store_as(values_ + place * kGdnColumns + column, v);
        ATLAS_UNROLL
        for (uint32_t later = r + 1; later < kGdnRows; ++later) {
          ATLAS_UNROLL
          for (uint32_t c = 0; c < 4; ++c) {
            sums.at[later][c] = fma(of_rows[later].f[r - four], v.f[c], sums.at[later][c]);
          }
        }
      }
    }
  }
  /// Adds the shares of the warp's own places, up to each row, and writes the rows' outputs.
  ATLAS_DEVICE void add_own(const DeltaTile& tile, DeltaTile& sums, uint32_t column) const {
    const uint32_t own = lane_place();
    ATLAS_ROLLED
    for (uint32_t j = warp_place(); j < warp_place() + kLanes - kGdnRows; j += 4) {
      if (own > j) add_values(sums, j, column);
    }
    add_tile(sums, column);
    write_outputs(tile, sums, device::opaque(own), column);
  }
  /// Adds V of the tile's own rows to those from each on.
  ATLAS_DEVICE void add_tile(DeltaTile& sums, uint32_t column) const {
    using namespace device;
    const uint32_t first = lane_place();
    ATLAS_UNROLL
    for (uint32_t four = 0; four < kGdnRows; four += 4) {
      schedule_barrier();
      const float* shares = lane_shares(first + four);
      Floats4 of_rows[kGdnRows];
      ATLAS_UNROLL
      for (uint32_t r = four; r < kGdnRows; ++r) {
        of_rows[r] = load_as<Floats4>(shares + share_row(r));
      }
      ATLAS_UNROLL
      for (uint32_t e = 0; e < 4; ++e) {
        const Floats4 v = load_as<Floats4>(values_ + (first + four + e) * kGdnColumns + column);
        ATLAS_UNROLL
        for (uint32_t r = four + e; r < kGdnRows; ++r) {
          ATLAS_UNROLL
          for (uint32_t c = 0; c < 4; ++c) {
            sums.at[r][c] = fma(of_rows[r].f[e], v.f[c], sums.at[r][c]);
          }
        }
      }
    }
  }
  ATLAS_DEVICE void write_outputs(const DeltaTile& tile, const DeltaTile& sums, uint32_t first,
                                  uint32_t column) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnRows; ++r) {
      const uint32_t place = first + r;
      if (place < chunk_.first || place >= chunk_.end) continue;
      const float factor = load(factor_ + place);
      float* to = outputs(place) + column;
      Floats4 out;
      ATLAS_UNROLL
      for (uint32_t c = 0; c < 4; ++c) out.f[c] = fma(factor, tile.at[r][c], sums.at[r][c]);
      const uint32_t at = first_column_ + column;
      if (at + 4 <= p_.value_dim && reinterpret_cast<uint64_t>(to) % sizeof(Floats4) == 0) {
        store_as(to, out);
        continue;
      }
      ATLAS_UNROLL
      for (uint32_t c = 0; c < 4; ++c) {
        if (at + c < p_.value_dim) store(to + c, out.f[c]);
      }
    }
  }
  /// V of the chunk's rows into the slot. All of V is written.
  ATLAS_DEVICE void keep_values() const {
    using namespace device;
    constexpr uint32_t kQuads = kGdnColumns / 4;
    const uint32_t count = (chunk_.end - chunk_.first) * kQuads;
    for (uint32_t i = thread_; i < count; i += kGdnAttendThreads) {
      const uint32_t place = chunk_.first + i / kQuads, column = i % kQuads * 4;
      if (column >= columns_) continue;
      store_as(slot_values_ + place * value_stride_ + column,
               load_as<Floats4>(values_ + place * kGdnColumns + column));
    }
  }
};

}  // namespace atlas::kernels

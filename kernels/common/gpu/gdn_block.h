// What a block of gdn_attend is: some columns of one value head of one span, with their state and
// their chunk's V and gates in shared memory.
#pragma once

#include "kernels/common/gpu/gdn_gates.h"
#include "kernels/common/gpu/gdn_tiles.h"

namespace atlas::kernels {

/// Some columns of one value head of one span, and the chunk of it that is at hand.
struct DeltaBlock {
  ATLAS_DEVICE DeltaBlock(const GdnAttendParams& p, const RowSpan& span, uint32_t head,
                          uint32_t part)
      : p_(p), span_(span), shape_(gdn_shape(p)), head_(head) {
    using namespace device;
    const auto key_head = head / (p.value_heads / p.key_heads);
    value_stride_ = static_cast<uint32_t>(gdn_padded(p.value_dim));
    first_column_ = part * kGdnColumns;
    const uint32_t left = value_stride_ - first_column_;
    columns_ = left < kGdnColumns ? left : kGdnColumns;
    const auto padded = static_cast<uint32_t>(gdn_padded(p.key_dim));
    chunk_.row_floats = gdn_row_floats(shape_);
    chunk_.query_offset = key_head * padded;
    chunk_.key_offset = (p.key_heads + key_head) * padded;
    chunk_.key_dim = p.key_dim;
    auto* slot = reinterpret_cast<float*>(p.slots + span.slot * p.slot_stride);
    dots_offset_ = key_head * 2 * kGdnChunk;
    slot_values_ =
        slot + gdn_slot_values(shape_) + uint64_t{head} * kGdnChunk * value_stride_ + first_column_;
    slot_decays_ = slot + gdn_slot_decays(shape_) + uint64_t{head} * kGdnChunk;
    values_ = shared_memory<float>();
    beta_ = values_ + kGdnChunk * kGdnColumns;
    take_gates(beta_);
    raw_gates_ = beta_ + 2 * kGdnGates;
    work_ = raw_gates_ + 2 * kGdnChunk;
    state_ = work_ + kGdnWorkFloats;  // last, as its size is not known before
    left_ = span.row_count;
    row_ = span.first_row;
    thread_ = thread_index();
  }

  /// The chunk that row row_ has place `first` of.
  ATLAS_DEVICE void set_chunk(uint32_t first) {
    const uint32_t room = kGdnChunk - first, rows = left_ < room ? left_ : room;
    chunk_.first = first;
    chunk_.end = first + rows;
    chunk_.rows = p_.mixed + (uint64_t{row_} - first) * chunk_.row_floats;
    last_ = rows == left_;
  }
  /// Rows of the chunk behind this one.
  ATLAS_DEVICE uint32_t next_rows() const {
    const uint32_t left = left_ - (chunk_.end - chunk_.first);
    return left < kGdnChunk ? left : kGdnChunk;
  }
  ATLAS_DEVICE bool is_many(uint32_t rows) const {
    return rows != 0 && !gdn_few_rows(rows, p_.key_dim);
  }
  ATLAS_DEVICE bool is_many() const { return is_many(chunk_.end - chunk_.first); }
  /// The chunk's gates are, or will be, from `gates` on.
  ATLAS_DEVICE void take_gates(float* gates) {
    beta_ = gates;
    decay_ = gates + kGdnChunk;
    factor_ = gates + 2 * kGdnChunk;
    fold_ = gates + 3 * kGdnChunk;
  }
  /// Those of the chunk behind this one, or before it.
  ATLAS_DEVICE float* other_gates() const {
    float* first = values_ + kGdnChunk * kGdnColumns;
    return first == beta_ ? first + kGdnGates : first;
  }

  /// Columns that the head has not are zeros. Rows that it has not are -0: times the zeros that
  /// keys have there they change no sum, not even one that is -0.
  ATLAS_DEVICE void bring_state() {
    using namespace device;
    const float* from = nullptr;
    if (span_.anchor != kNoAnchor) from = anchor(span_.anchor);
    constexpr uint32_t kQuads = kGdnColumns / 4;
    const auto padded = static_cast<uint32_t>(gdn_padded(p_.key_dim));
    for (uint32_t i = thread_; i < padded * kQuads; i += kGdnAttendThreads) {
      const uint32_t column = i % kQuads * 4;
      float* to = state_ + i / kQuads * kGdnColumns + column;
      if (from != nullptr && column < columns_ && i / kQuads < p_.key_dim) {
        async_copy<16>(to, from + uint64_t{i / kQuads} * value_stride_ + column);
      } else {
        const float none = i / kQuads < p_.key_dim ? 0.0f : -0.0f;
        store_as(to, Floats4{{none, none, none, none}});
      }
    }
  }
  /// V and G of the places before `count`.
  ATLAS_DEVICE void bring_pending(uint32_t count) {
    using namespace device;
    constexpr uint32_t kQuads = kGdnColumns / 4;
    for (uint32_t i = thread_; i < count * kQuads; i += kGdnAttendThreads) {
      const uint32_t column = i % kQuads * 4;
      float* to = values_ + i / kQuads * kGdnColumns + column;
      if (column < columns_) {
        async_copy<16>(to, slot_values_ + uint64_t{i / kQuads} * value_stride_ + column);
      } else {
        store_as(to, Floats4{});
      }
    }
    for (uint32_t j = thread_; j < count; j += kGdnAttendThreads) {
      store(decay_ + j, load(slot_decays_ + j));
    }
    async_commit();
  }
  ATLAS_DEVICE float* anchor(uint32_t number) const {
    return reinterpret_cast<float*>(p_.anchors + number * p_.anchor_stride) +
           uint64_t{head_} * p_.key_dim * value_stride_ + first_column_;
  }
  ATLAS_DEVICE const float* dots(uint32_t place) const {
    return p_.dots + (uint64_t{row_} + place - chunk_.first) * gdn_row_dots(shape_) + dots_offset_;
  }
  ATLAS_DEVICE const float* row_values(uint32_t place) const {
    return chunk_.rows + place * chunk_.row_floats + 2 * p_.key_heads * gdn_padded(p_.key_dim) +
           uint64_t{head_} * value_stride_ + first_column_;
  }
  ATLAS_DEVICE float* outputs(uint32_t place) const {
    return p_.out + (uint64_t{row_} + place - chunk_.first) * p_.out_stride +
           uint64_t{head_} * p_.value_dim + first_column_;
  }

  static constexpr uint32_t kLanes = device::kWarpLanes;
  const GdnAttendParams& p_;
  const RowSpan& span_;
  const GdnShape shape_;
  const uint32_t head_;
  uint32_t value_stride_, first_column_, columns_, dots_offset_;
  uint32_t thread_;
  DeltaChunk chunk_;
  uint32_t row_, left_;  // of the set, that has place chunk_.first; rows from it on
  bool last_ = false;    // the span's last chunk
  float *slot_values_, *slot_decays_;
  float *state_, *values_, *beta_, *decay_, *factor_, *fold_, *raw_gates_, *work_;  // shared memory
};

}  // namespace atlas::kernels

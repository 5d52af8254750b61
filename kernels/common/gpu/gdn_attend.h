// gdn_attend for every GPU pack: the recurrence of Gated DeltaNet (kernels/common/gdn.h), with the
// CPU pack's bits.
//
// A block has 32 columns of one value head's state in shared memory and walks the chunks of one
// span. Up to 8 rows of a chunk are done as a decoding step needs it: state and pending values come
// in one burst of asynchronous copies, then each lane has a column. More rows are tiles of 8 rows
// by 4 columns a thread: two products with the state, a triangular solve by groups of 8 rows, and
// the fold into the next state. Both make every sum in the same order.
#pragma once

#include "kernels/common/gpu/gdn_parts.h"

namespace atlas::kernels {

/// max(x, 0) + log(1 + e^-|x|): log1p as kernels/cpu/gdn.cpp has it.
ATLAS_DEVICE float gdn_log_near_one(float f) {
  using device::fma;
  float q = -0x1.38b452p-4f;
  q = fma(q, f, 0x1.056f9ap-3f);
  q = fma(q, f, -0x1.0d8ed0p-3f);
  q = fma(q, f, 0x1.22d812p-3f);
  q = fma(q, f, -0x1.547126p-3f);
  q = fma(q, f, 0x1.99a014p-3f);
  q = fma(q, f, -0x1.00022ap-2f);
  q = fma(q, f, 0x1.555554p-2f);
  const float square = f * f;
  return f + fma(square * f, q, square * -0.5f);
}
ATLAS_DEVICE float gdn_softplus(float x) {
  using namespace device;
  const float u = exp(x < 0.0f ? x : -x);
  float log;
  if (u <= 0x1.a8p-2f) {
    log = gdn_log_near_one(u);
  } else {
    // 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
    const auto bits = bits_as<int32_t>(u + 1.0f);
    const int32_t power = (bits - 0x3f3504f3) >> 23;
    const float f = bits_as<float>(bits - power * 0x800000) - 1.0f;
    const auto k = static_cast<float>(power);
    log = fma(k, 0x1.62e4p-1f, fma(k, 0x1.7f7d1cp-20f, gdn_log_near_one(f)));
  }
  return (x > 0.0f ? x : 0.0f) + log;
}

/// Some columns of one value head of one span.
class DeltaBlock {
 public:
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
    chunk_.pending = slot + gdn_slot_keys(shape_) + uint64_t{key_head} * p.key_dim * kGdnChunk;
    dots_offset_ = key_head * 2 * kGdnChunk;
    slot_values_ =
        slot + gdn_slot_values(shape_) + uint64_t{head} * kGdnChunk * value_stride_ + first_column_;
    slot_decays_ = slot + gdn_slot_decays(shape_) + uint64_t{head} * kGdnChunk;
    state_ = shared_memory<float>();
    values_ = state_ + p.key_dim * kGdnColumns;
    beta_ = values_ + kGdnChunk * kGdnColumns;
    decay_ = beta_ + kGdnChunk;
    factor_ = decay_ + kGdnChunk;
    fold_ = factor_ + kGdnChunk;
    work_ = fold_ + kGdnChunk;
  }

  ATLAS_DEVICE void run() {
    using namespace device;
    const uint64_t end = uint64_t{span_.index} + span_.row_count;
    uint64_t chunk = span_.anchor_index, position = span_.index;
    thread_ = thread_index();
    bring_state();
    bring_pending(static_cast<uint32_t>(position - chunk));
    ATLAS_ROLLED
    for (;; chunk += kGdnChunk) {
      thread_ = opaque(thread_index());
      const uint64_t chunk_end = end < chunk + kGdnChunk ? end : chunk + kGdnChunk;
      row_ = span_.first_row + static_cast<uint32_t>(position - span_.index);
      chunk_.first = static_cast<uint32_t>(position - chunk);
      chunk_.end = static_cast<uint32_t>(chunk_end - chunk);
      chunk_.rows = p_.mixed + (uint64_t{row_} - chunk_.first) * chunk_.row_floats;
      last_ = chunk_end == end;
      const uint32_t rows = chunk_.end - chunk_.first;
      if (rows == 0) {
        async_wait<0>();
        block_barrier();  // the state and pending rows are there
      } else if (gdn_few_rows(rows, p_.key_dim)) {
        few_rows();
      } else {
        async_wait<0>();
        many_rows();
      }
      if (last_) return;
      fold(chunk_end + kGdnChunk >= end, chunk == span_.anchor_index ? chunk_.first : 0);
      position = chunk_end;
    }
  }

 private:
  /// Columns that the head has not are zeros.
  ATLAS_DEVICE void bring_state() {
    using namespace device;
    const float* from = nullptr;
    if (span_.anchor != kNoAnchor) from = anchor(span_.anchor);
    constexpr uint32_t kQuads = kGdnColumns / 4;
    for (uint32_t i = thread_; i < p_.key_dim * kQuads; i += kGdnAttendThreads) {
      const uint32_t column = i % kQuads * 4;
      float* to = state_ + i / kQuads * kGdnColumns + column;
      if (from != nullptr && column < columns_) {
        async_copy<16>(to, from + uint64_t{i / kQuads} * value_stride_ + column);
      } else {
        store_as(to, Floats4{});
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

  /// beta, G and e^G of the chunk's rows. Begins and ends with a barrier's worth of order for what
  /// the block wrote to shared memory.
  ATLAS_DEVICE void gate_rows() {
    using namespace device;
    const uint32_t rows = chunk_.end - chunk_.first;
    const float rate = exp(load(p_.a_log + head_)), bias = load(p_.dt_bias + head_);
    for (uint32_t i = thread_; i < rows; i += kGdnAttendThreads) {
      const uint64_t row = uint64_t{row_} + i;
      const float step = gdn_softplus(load(p_.a + row * p_.a_stride + head_) + bias);
      store(beta_ + chunk_.first + i, sigmoid(load(p_.b + row * p_.b_stride + head_)));
      store(decay_ + chunk_.first + i, 0.0f - rate * step);
    }
    block_barrier();  // steps are written before one thread adds them
    if (thread_ == 0) {
      float sum = chunk_.first == 0 ? 0.0f : load(decay_ + chunk_.first - 1);
      for (uint32_t i = chunk_.first; i < chunk_.end; ++i) {
        sum += load(decay_ + i);
        store(decay_ + i, sum);
      }
    }
    block_barrier();  // G is written before all read it
    for (uint32_t i = thread_; i < rows; i += kGdnAttendThreads) {
      const float sum = load(decay_ + chunk_.first + i);
      store(factor_ + chunk_.first + i, exp(sum));
      if (first_column_ == 0) {
        store(p_.decays + (uint64_t{row_} + i) * p_.value_heads + head_, sum);
      }
    }
  }

  // ---- Few rows

  ATLAS_DEVICE void few_rows() {
    using namespace device;
    const uint32_t rows = chunk_.end - chunk_.first;
    const auto padded = static_cast<uint32_t>(gdn_padded(p_.key_dim));
    float* vectors = work_;                                  // [rows, 2, padded]: keys and queries
    float* shares = vectors + kGdnFewFloats;                 // [rows, 2, kGdnChunk]: A and B
    float* products = shares + 2 * kGdnFewRows * kGdnChunk;  // [rows, 2, kGdnColumns]: p and r
    float* sums = products + 2 * kGdnFewRows * kGdnColumns;  // the same: s and z over pending rows
    for (uint32_t i = thread_; i < 2 * rows * padded / 4; i += kGdnAttendThreads) {
      const uint32_t vector = i * 4 / padded, d = i * 4 % padded, place = chunk_.first + vector / 2;
      async_copy<16>(vectors + i * 4,
                     (vector % 2 == 0 ? chunk_.key(place) : chunk_.query(place)) + d);
    }
    async_commit();
    // What is far away is asked for before anything waits: dot products, the rows' values.
    constexpr uint32_t kShares = kGdnFewRows * kGdnChunk / kGdnAttendThreads;
    float of_key[kShares], of_query[kShares];
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kShares; ++n) {
      const uint32_t i = thread_ + n * kGdnAttendThreads;
      const uint32_t place = chunk_.first + i / kGdnChunk, j = i % kGdnChunk;
      of_key[n] = of_query[n] = 0.0f;
      if (place >= chunk_.end || j > place) continue;
      of_key[n] = load(dots(place) + j);
      of_query[n] = load(dots(place) + kGdnChunk + j);
    }
    float values[kGdnFewRows];
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnFewRows; ++r) {
      values[r] = 0.0f;
      if (thread_ / kWarpLanes == 0 && r < rows && thread_ % kWarpLanes < columns_) {
        values[r] = load(row_values(chunk_.first + r) + thread_ % kWarpLanes);
      }
    }
    gate_rows();
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kShares; ++n) {
      const uint32_t i = thread_ + n * kGdnAttendThreads;
      const uint32_t row = i / kGdnChunk, place = chunk_.first + row, j = i % kGdnChunk;
      if (place >= chunk_.end || j > place) continue;
      const float decay = exp(load(decay_ + place) - load(decay_ + j));
      float* to = shares + 2 * row * kGdnChunk + j;
      store(to, (load(beta_ + place) * of_key[n]) * decay);
      store(to + kGdnChunk, of_query[n] * decay);
    }
    async_wait<0>();
    block_barrier();  // the state, pending rows, vectors and shares are there

    constexpr uint32_t kWarps = kGdnAttendThreads / kWarpLanes;
    const uint32_t lane = thread_ % kWarpLanes;
    each_column_sum(vectors, padded, thread_ / kWarpLanes, kWarps, 2 * rows, state_ + lane,
                    kGdnColumns, p_.key_dim, [&](uint32_t vector, float sum) {
                      store(products + vector * kGdnColumns + lane, sum);
                    });
    each_column_sum(shares, kGdnChunk, (thread_ / kWarpLanes + 2) % kWarps, kWarps, 2 * rows,
                    values_ + lane, kGdnColumns, chunk_.first, [&](uint32_t vector, float sum) {
                      store(sums + vector * kGdnColumns + lane, sum);
                    });
    block_barrier();  // products and sums are written before the first warp goes on with them
    if (thread_ / kWarpLanes == 0) finish_few(rows, values, shares, products, sums);
    block_barrier();  // V is written before it is folded
  }

  /// The step's own rows, one after another, by the lanes of one warp.
  ATLAS_DEVICE void finish_few(uint32_t rows, const float (&values)[kGdnFewRows],
                               const float* shares, const float* products, const float* sums) {
    using namespace device;
    const uint32_t lane = thread_ % kWarpLanes;
    float s[kGdnFewRows], z[kGdnFewRows];
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnFewRows; ++r) {
      s[r] = z[r] = 0.0f;
      if (r >= rows) continue;
      s[r] = load(sums + 2 * r * kGdnColumns + lane);
      z[r] = load(sums + (2 * r + 1) * kGdnColumns + lane);
    }
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnFewRows; ++r) {
      if (r >= rows) continue;
      const uint32_t place = chunk_.first + r;
      const float factor = load(factor_ + place);
      const float left = fma(-factor, load(products + 2 * r * kGdnColumns + lane), values[r]);
      const float v = fma(load(beta_ + place), left, 0.0f - s[r]);
      ATLAS_UNROLL
      for (uint32_t later = 0; later < kGdnFewRows; ++later) {
        if (later < r || later >= rows) continue;
        const float* share = shares + 2 * later * kGdnChunk + place;
        if (later > r) s[later] = fma(load(share), v, s[later]);
        z[later] = fma(load(share + kGdnChunk), v, z[later]);
      }
      store(values_ + place * kGdnColumns + lane, v);
      if (last_ && lane < columns_) store(slot_values_ + place * value_stride_ + lane, v);
      if (first_column_ + lane < p_.value_dim) {
        store(outputs(place) + lane,
              fma(factor, load(products + (2 * r + 1) * kGdnColumns + lane), z[r]));
      }
    }
  }

  // ---- Many rows

  /// A thread's tile: 4 columns of 8 places, of keys (p, then V) or of queries (r, then the
  /// outputs).
  ATLAS_DEVICE void many_rows() {
    using namespace device;
    gate_rows();
    const uint32_t column = thread_ % 8 * 4, octet = thread_ / 8;
    const bool is_query = octet >= kGdnGroups;
    const uint32_t group = octet % kGdnGroups;
    DeltaTile tile, sums;
    tile.clear();
    sums.clear();
    each_key_slice<kGdnAttendThreads>(thread_, chunk_, false, work_,
                                      [&](const float* slice, uint32_t d, uint32_t count) {
                                        ATLAS_UNROLL_4
                                        for (uint32_t e = 0; e < kGdnSlice; ++e) {
                                          if (e < count) {
                                            tile.add(slice + e * kGdnSliceStride + octet * 8,
                                                     state_ + (d + e) * kGdnColumns + column);
                                          }
                                        }
                                      });
    share_blocks();
    if (!is_query) subtract_from_values(tile, group, column);
    block_barrier();  // shares are written before they are used

    const uint32_t last_group = (chunk_.end - 1) / kGdnGroup;
    for (uint32_t g = 0; g <= last_group; ++g) {
      if (!is_query && group == g) solve(tile, sums, g, column);
      block_barrier();  // V of the group is written before others use it
      if (group > g) {
        add_group(sums, group, g, is_query, column);
      } else if (is_query && group == g) {
        add_own_group(sums, g, column);
      }
    }
    if (is_query) write_outputs(tile, sums, group, column);
    if (last_) keep_values();
  }

  /// Shares of V_j in row i: of A, then of B, block after block of 8 by 8 up to the diagonal, in a
  /// block j after j. Zeros where there are none.
  ATLAS_DEVICE float* share_block(uint32_t row_group, uint32_t j_group, bool is_query) const {
    const uint32_t block = row_group * (row_group + 1) / 2 + j_group;
    return work_ + ((is_query ? kGdnBlocks : 0) + block) * kGdnBlockFloats;
  }
  ATLAS_DEVICE void share_blocks() {
    using namespace device;
    for (uint32_t i = thread_; i < kGdnBlocks * kGdnBlockFloats; i += kGdnAttendThreads) {
      uint32_t block = i / kGdnBlockFloats, row_group = 0;
      while (block > row_group) block -= ++row_group;
      const uint32_t within = i % kGdnBlockFloats;
      const uint32_t place = row_group * kGdnGroup + within / kGdnGroup;
      const uint32_t j = block * kGdnGroup + within % kGdnGroup;
      float a = 0.0f, b = 0.0f;
      if (place >= chunk_.first && place < chunk_.end && j <= place) {
        const float decay = exp(load(decay_ + place) - load(decay_ + j));
        a = (load(beta_ + place) * load(dots(place) + j)) * decay;
        b = load(dots(place) + kGdnChunk + j) * decay;
      }
      const uint32_t at = within % kGdnGroup * kGdnGroup + within / kGdnGroup;
      store(share_block(row_group, block, false) + at, a);
      store(share_block(row_group, block, true) + at, b);
    }
  }
  /// p becomes v - e^G p.
  ATLAS_DEVICE void subtract_from_values(DeltaTile& tile, uint32_t group, uint32_t column) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnGroup; ++r) {
      const uint32_t place = group * kGdnGroup + r;
      if (place < chunk_.first || place >= chunk_.end) continue;
      Floats4 v{};
      if (column < columns_) v = load_as<Floats4>(row_values(place) + column);
      const float factor = -load(factor_ + place);
      ATLAS_UNROLL
      for (uint32_t c = 0; c < 4; ++c) tile.at[r][c] = fma(factor, tile.at[r][c], v.f[c]);
    }
  }
  /// V of a group's 8 places, each of which the later ones use.
  ATLAS_DEVICE void solve(const DeltaTile& tile, DeltaTile& sums, uint32_t group, uint32_t column) {
    using namespace device;
    const float* shares = share_block(group, group, false);
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnGroup; ++r) {
      const uint32_t place = group * kGdnGroup + r;
      if (place >= chunk_.end) continue;
      float* to = values_ + place * kGdnColumns + column;
      Floats4 v;
      if (place < chunk_.first) {
        v = load_as<Floats4>(to);
      } else {
        const float beta = load(beta_ + place);
        ATLAS_UNROLL
        for (uint32_t c = 0; c < 4; ++c) v.f[c] = fma(beta, tile.at[r][c], 0.0f - sums.at[r][c]);
        store_as(to, v);
      }
      ATLAS_UNROLL
      for (uint32_t later = 0; later < kGdnGroup; ++later) {
        if (later <= r) continue;
        const float share = load(shares + r * kGdnGroup + later);
        ATLAS_UNROLL
        for (uint32_t c = 0; c < 4; ++c) {
          sums.at[later][c] = fma(share, v.f[c], sums.at[later][c]);
        }
      }
    }
  }
  /// Adds V of an earlier group's places.
  ATLAS_DEVICE void add_group(DeltaTile& sums, uint32_t group, uint32_t of, bool is_query,
                              uint32_t column) const {
    const float* shares = share_block(group, of, is_query);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kGdnGroup; ++j) {
      const uint32_t place = of * kGdnGroup + j;
      if (place < chunk_.end) {
        sums.add(shares + j * kGdnGroup, values_ + place * kGdnColumns + column);
      }
    }
  }
  /// Adds V of a group's places to its own rows of queries, up to the row.
  ATLAS_DEVICE void add_own_group(DeltaTile& sums, uint32_t group, uint32_t column) const {
    using namespace device;
    const float* shares = share_block(group, group, true);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kGdnGroup; ++j) {
      const uint32_t place = group * kGdnGroup + j;
      if (place >= chunk_.end) continue;
      const Floats4 v = load_as<Floats4>(values_ + place * kGdnColumns + column);
      ATLAS_UNROLL
      for (uint32_t r = 0; r < kGdnGroup; ++r) {
        if (r < j) continue;
        const float share = load(shares + j * kGdnGroup + r);
        ATLAS_UNROLL
        for (uint32_t c = 0; c < 4; ++c) sums.at[r][c] = fma(share, v.f[c], sums.at[r][c]);
      }
    }
  }
  ATLAS_DEVICE void write_outputs(const DeltaTile& tile, const DeltaTile& sums, uint32_t group,
                                  uint32_t column) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnGroup; ++r) {
      const uint32_t place = group * kGdnGroup + r;
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
  /// V of the chunk's rows into the slot. The last group's barrier is behind.
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

  /// Folds the full chunk into the state; `keep`: that state stands in the next anchor from now on.
  /// Keys of the places before `pending` are the slot's.
  ATLAS_DEVICE void fold(bool keep, uint32_t pending) {
    using namespace device;
    const float last = load(decay_ + kGdnChunk - 1);
    for (uint32_t j = thread_; j < kGdnChunk; j += kGdnAttendThreads) {
      store(fold_ + j, exp(last - load(decay_ + j)));
    }
    const float factor = exp(last);
    block_barrier();  // factors are written before slices take them; V and the state are used up
    const uint32_t column = thread_ % 8 * 4;
    constexpr uint32_t kElements = 2 * kGdnChunk;  // of a head at a time
    ATLAS_ROLLED
    for (uint32_t begin = 0; begin < p_.key_dim; begin += kElements) {
      const uint32_t d = begin + thread_ / 8 * 8;
      DeltaTile tile;
      ATLAS_UNROLL
      for (uint32_t r = 0; r < 8; ++r) {
        Floats4 old{};
        if (d + r < p_.key_dim) old = load_as<Floats4>(state_ + (d + r) * kGdnColumns + column);
        ATLAS_UNROLL
        for (uint32_t c = 0; c < 4; ++c) tile.at[r][c] = factor * old.f[c];
      }
      const auto get = [&](uint32_t slice, uint32_t item) {
        const uint32_t at = begin + item % (kElements / 4) * 4;
        const uint32_t j = slice * kGdnSlice + item / (kElements / 4);
        Floats4 four{};
        if (at >= p_.key_dim) return four;
        four = j < pending ? chunk_.pending_key(j, at) : load_as<Floats4>(chunk_.key(j) + at);
        const float share = load(fold_ + j);
        ATLAS_UNROLL
        for (float& value : four.f) value = share * value;
        return four;
      };
      const auto put = [](float* buffer, uint32_t item, const Floats4& four) {
        store_as(buffer + item / (kElements / 4) * kGdnSliceStride + item % (kElements / 4) * 4,
                 four);
      };
      each_slice<kGdnAttendThreads>(
          thread_, kGdnChunk / kGdnSlice, work_, get, put,
          [&](const float* buffer, uint32_t slice) {
            ATLAS_UNROLL_4
            for (uint32_t e = 0; e < kGdnSlice; ++e) {
              tile.add(buffer + e * kGdnSliceStride + (d - begin),
                       values_ + (slice * kGdnSlice + e) * kGdnColumns + column);
            }
          });
      ATLAS_UNROLL
      for (uint32_t r = 0; r < 8; ++r) {
        if (d + r >= p_.key_dim) continue;
        const Floats4 four{{tile.at[r][0], tile.at[r][1], tile.at[r][2], tile.at[r][3]}};
        store_as(state_ + (d + r) * kGdnColumns + column, four);
        if (keep && column < columns_) {
          store_as(anchor(span_.next_anchor) + uint64_t{d + r} * value_stride_ + column, four);
        }
      }
    }
    block_barrier();  // the new state is written before the next chunk reads it
  }

  const GdnAttendParams& p_;
  const RowSpan& span_;
  const GdnShape shape_;
  const uint32_t head_;
  uint32_t value_stride_, first_column_, columns_, dots_offset_;
  uint32_t thread_;
  DeltaChunk chunk_;
  uint32_t row_ = 0;   // of the set, that has place chunk_.first
  bool last_ = false;  // the span's last chunk
  float *slot_values_, *slot_decays_;
  float *state_, *values_, *beta_, *decay_, *factor_, *fold_, *work_;  // in shared memory
};

ATLAS_DEVICE_KERNEL_BLOCKS(gdn_attend, GdnAttendParams, kGdnAttendThreads, 3) {
  using namespace device;
  if (block_index<1>() >= load(&params.rows->span_count)) return;
  const RowSpan span = load_span(load(&params.rows->spans) + block_index<1>());
  if (!gdn_serves(span)) return;
  const uint32_t parts = gdn_column_parts(params.value_dim);
  DeltaBlock(params, span, block_index() / parts, block_index() % parts).run();
}

}  // namespace atlas::kernels

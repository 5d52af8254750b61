// gdn_attend for every GPU pack: the recurrence of Gated DeltaNet (kernels/common/gdn.h), with the
// CPU pack's bits.
//
// A block has 32 columns of one value head's state in shared memory and walks the chunks of one
// span. Up to 8 rows of a chunk are done as a decoding step needs it: state and pending values come
// in one burst of asynchronous copies, then each lane has a column. More rows are tiles of 8 rows
// by 4 columns a thread (gdn_tiles.h): two products with the state, a triangular solve by groups of
// 8 rows, and the fold into the next state. Both make every sum in the same order.
#pragma once

#include "kernels/common/gpu/gdn_gates.h"
#include "kernels/common/gpu/gdn_tiles.h"

namespace atlas::kernels {

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
    if (!kGdnAsync) find_pending_keys();
    dots_offset_ = key_head * 2 * kGdnChunk;
    slot_values_ =
        slot + gdn_slot_values(shape_) + uint64_t{head} * kGdnChunk * value_stride_ + first_column_;
    slot_decays_ = slot + gdn_slot_decays(shape_) + uint64_t{head} * kGdnChunk;
    values_ = shared_memory<float>();
    beta_ = values_ + kGdnChunk * kGdnColumns;
    decay_ = beta_ + kGdnChunk;
    factor_ = decay_ + kGdnChunk;
    fold_ = factor_ + kGdnChunk;
    gates_ = fold_ + kGdnChunk;
    work_ = gates_ + 2 * kGdnChunk;
    state_ = work_ + kGdnWorkFloats;  // last, as its size is not known before
  }

  ATLAS_DEVICE void run() {
    using namespace device;
    uint32_t left = span_.row_count;
    row_ = span_.first_row;
    thread_ = thread_index();
    bring_state();
    bring_pending(span_.index - span_.anchor_index);
    set_chunk(span_.index - span_.anchor_index, left);
    if (is_many()) {
      begin_many();
      async_wait<kGdnSliceGroups>();
      block_barrier();  // the state and pending rows are there
    }
    ATLAS_ROLLED
    for (;;) {
      thread_ = opaque(thread_index());
      const bool many = is_many();
      if (many) {
        many_rows();
      } else if (chunk_.first != chunk_.end) {
        few_rows();
      } else {
        async_wait<0>();
        block_barrier();  // the state and pending rows are there
      }
      if (last_) return;
      if (!many) fold_factors();
      left -= chunk_.end - chunk_.first;
      fold(left <= kGdnChunk, chunk_.first);
      row_ += chunk_.end - chunk_.first;
      set_chunk(0, left);
      thread_ = opaque(thread_);
      if (is_many()) begin_many();
      block_barrier();  // the new state is written before the next chunk reads it
    }
  }

 private:
  /// The chunk that row row_ has place `first` of, with `left` rows to come.
  ATLAS_DEVICE void set_chunk(uint32_t first, uint32_t left) {
    const uint32_t room = kGdnChunk - first, rows = left < room ? left : room;
    chunk_.first = first;
    chunk_.end = first + rows;
    chunk_.rows = p_.mixed + (uint64_t{row_} - first) * chunk_.row_floats;
    last_ = rows == left;
  }
  ATLAS_DEVICE bool is_many() const {
    return chunk_.end != chunk_.first && !gdn_few_rows(chunk_.end - chunk_.first, p_.key_dim);
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

  ATLAS_DEVICE float* ring() const { return work_ + gdn_ring_place(thread_ / kLanes); }
  /// The warp's octet of rows, of four.
  ATLAS_DEVICE uint32_t octet() const { return thread_ / 8 % 4; }

  /// Slices of the warp's 32 places, of keys in the first two warps, then of queries. Places that
  /// the step has not are others', whose sums nobody takes.
  ATLAS_DEVICE DeltaSlices<> key_slices() const {
    DeltaSource source{{nullptr, nullptr}, kGdnGroup};
    ATLAS_UNROLL
    for (uint32_t n = 0; n < 2; ++n) {
      const uint32_t item = slice_item(thread_ % kLanes, n);
      uint32_t place = thread_ / kLanes % 2 * kLanes + row_of_item(item);
      place = place > chunk_.first ? place : chunk_.first;
      place = place < chunk_.end ? place : chunk_.end - 1;
      source.from[n] =
          (thread_ < 2 * kLanes ? chunk_.key(place) : chunk_.query(place)) + item % 2 * 4;
    }
    return {thread_ % kLanes, ring(), (p_.key_dim + kGdnGroup - 1) / kGdnGroup, source};
  }
  /// Asks for what the chunk's first sums need: slices, and what the last warp makes gates of.
  ATLAS_DEVICE void begin_many() {
    using namespace device;
    if (thread_ / kLanes == kGateWarp) {
      ATLAS_UNROLL
      for (uint32_t n = 0; n < 2; ++n) {
        const uint32_t i = n * kLanes + thread_ % kLanes;
        if (i >= chunk_.end - chunk_.first) continue;
        const uint64_t row = uint64_t{row_} + i;
        async_copy<4>(gates_ + i, p_.a + row * p_.a_stride + head_);
        async_copy<4>(gates_ + kGdnChunk + i, p_.b + row * p_.b_stride + head_);
      }
    }
    async_commit();
    key_slices().begin();
  }

  /// beta, G, e^G of the chunk's rows and e^(G_L - G) of a full chunk's, by one warp. beta is 1 at
  /// the places before the rows and 0 at those behind.
  ATLAS_DEVICE void gate_chunk() {
    using namespace device;
    const uint32_t rows = chunk_.end - chunk_.first, lane = thread_ % kLanes;
    const float rate = exp(load(p_.a_log + head_)), bias = load(p_.dt_bias + head_);
    float sum = chunk_.first == 0 ? 0.0f : load(decay_ + chunk_.first - 1);
    async_wait<kGdnSliceGroups + 1>();  // gates have come, slices and v are behind them
    ATLAS_UNROLL
    for (uint32_t n = 0; n < 2; ++n) {
      const uint32_t i = n * kLanes + lane;
      float step = 0.0f, beta = 0.0f;
      if (i < rows) {
        step = 0.0f - rate * gdn_softplus(load(gates_ + i) + bias);
        beta = sigmoid(load(gates_ + kGdnChunk + i));
      }
      float own = 0.0f;
      ATLAS_UNROLL
      for (uint32_t l = 0; l < kLanes; ++l) {
        sum += shuffle(step, l);
        own = lane == l ? sum : own;
      }
      if (i < chunk_.first) store(beta_ + i, 1.0f);  // with them solve leaves V as it is
      if (chunk_.first + i < kGdnChunk) {
        store(decay_ + chunk_.first + i, own);
        store(beta_ + chunk_.first + i, beta);
      }
      if (i >= rows) continue;
      store(factor_ + chunk_.first + i, exp(own));
      if (first_column_ == 0) {
        store(p_.decays + (uint64_t{row_} + i) * p_.value_heads + head_, own);
      }
    }
    if (chunk_.end != kGdnChunk) return;
    warp_barrier();  // all lanes' G are written
    ATLAS_UNROLL
    for (uint32_t j = lane; j < kGdnChunk; j += kLanes) {
      store(fold_ + j, exp(sum - load(decay_ + j)));
    }
  }

  /// The step's v to where V will be.
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
    async_commit();
  }

  /// A thread's tile: 4 columns of 8 places, of keys (p, then V) or of queries (r, then the
  /// outputs).
  ATLAS_DEVICE void many_rows() {
    using namespace device;
    bring_values();
    if (thread_ / kLanes == kGateWarp) gate_chunk();
    ShareQuads shares;
    if (kGdnAsync) bring_shares(shares);
    DeltaTile tile, sums;
    tile.clear();
    key_slices().run([&](const float* slice, uint32_t s) {
      add_eight<4 * kGdnGroup>(tile, slice + octet() * kGdnGroup,
                               state_ + s * kGdnGroup * kGdnColumns + thread_ % 8 * 4);
    });
    async_wait<0>();
    thread_ = opaque(thread_);
    const uint32_t column = thread_ % 8 * 4, group = thread_ / 8 % kGdnGroups;
    const bool is_query = thread_ / 8 >= kGdnGroups;
    if (!kGdnAsync) bring_shares(shares);  // slices under way take the registers before
    block_barrier();                       // slices are used up; v and gates are there
    write_shares(shares);
    if (!is_query) subtract_from_values(tile, group, column);
    block_barrier();  // shares are written before they are used

    sums.clear();
    const uint32_t last_group = (chunk_.end - 1) / kGdnGroup;
    ATLAS_ROLLED
    for (uint32_t g = 0; g <= last_group; ++g) {
      if (!is_query && group == g) solve(tile, sums, g, column);
      block_barrier();  // V of the group is written before others use it
      if (group > g) {
        add_eight<kGdnGroup>(sums, share_block(group, g, is_query),
                             values_ + g * kGdnGroup * kGdnColumns + column);
      } else if (is_query && group == g) {
        add_own_group(sums, g, column);
      }
    }
    if (is_query) write_outputs(tile, sums, opaque(group), column);
    if (last_) keep_values();
  }

  /// Shares of V_j in row i: of A, then of B, block after block of 8 by 8 up to the diagonal, in a
  /// block row after row. Zeros where there are none.
  ATLAS_DEVICE float* share_block(uint32_t row_group, uint32_t j_group, bool is_query) const {
    const uint32_t block = row_group * (row_group + 1) / 2 + j_group;
    return work_ + ((is_query ? kGdnBlocks : 0) + block) * kGdnBlockStride;
  }
  /// Dot products that a thread makes shares of: a warp has the blocks of one row group from above
  /// and one from below, nine in all, of which a lane has a quad of every second one.
  static constexpr uint32_t kShareQuads = (kGdnGroups + 2) / 2;
  struct ShareQuads {
    device::Floats4 of_key[kShareQuads], of_query[kShareQuads];
  };
  struct ShareQuad {
    bool there;   // there is such a block
    bool inside;  // and the step has shares in this quad
    uint32_t row_group, j_group, row, half;

    ATLAS_DEVICE uint32_t place() const { return row_group * kGdnGroup + row; }
    ATLAS_DEVICE uint32_t first() const { return j_group * kGdnGroup + half; }
  };
  ATLAS_DEVICE ShareQuad share_quad(uint32_t n) const {
    const uint32_t lane = thread_ % kLanes, pair = thread_ / kLanes;
    const uint32_t block = 2 * n + lane / 16;
    ShareQuad quad;
    quad.there = block <= kGdnGroups;
    quad.row_group = block <= pair ? pair : kGdnGroups - 1 - pair;
    quad.j_group = block <= pair ? block : block - pair - 1;
    quad.row = lane % kGdnGroup;
    quad.half = lane / kGdnGroup % 2 * 4;
    quad.inside = quad.there && quad.place() >= chunk_.first && quad.place() < chunk_.end &&
                  quad.first() <= quad.place();
    return quad;
  }
  ATLAS_DEVICE void bring_shares(ShareQuads& shares) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kShareQuads; ++n) {
      const ShareQuad quad = share_quad(n);
      shares.of_key[n] = shares.of_query[n] = {};
      if (!quad.inside) continue;
      const float* from = dots(quad.place()) + quad.first();
      shares.of_key[n] = load_as<Floats4>(from);
      shares.of_query[n] = load_as<Floats4>(from + kGdnChunk);
    }
  }
  ATLAS_DEVICE void write_shares(const ShareQuads& shares) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kShareQuads; ++n) {
      const ShareQuad quad = share_quad(n);
      schedule_barrier();
      if (!quad.there) continue;
      Floats4 a{}, b{};
      if (quad.inside) {
        const float own = load(decay_ + quad.place()), beta = load(beta_ + quad.place());
        const Floats4 decays = load_as<Floats4>(decay_ + quad.first());
        ATLAS_UNROLL
        for (uint32_t e = 0; e < 4; ++e) {
          const bool before = quad.first() + e <= quad.place();
          const float decay = exp(own - decays.f[e]);
          a.f[e] = before ? (beta * shares.of_key[n].f[e]) * decay : 0.0f;
          b.f[e] = before ? shares.of_query[n].f[e] * decay : 0.0f;
        }
      }
      const uint32_t at = quad.row * kGdnGroup + quad.half;
      store_as(share_block(quad.row_group, quad.j_group, false) + at, a);
      store_as(share_block(quad.row_group, quad.j_group, true) + at, b);
    }
  }
  /// p becomes v - e^G p; at the places before the rows V, which they have, behind them 0.
  ATLAS_DEVICE void subtract_from_values(DeltaTile& tile, uint32_t group, uint32_t column) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnGroup; ++r) {
      const uint32_t place = group * kGdnGroup + r;
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
  /// V of a group's 8 places, each of which the later ones use. Where the step has no row there are
  /// no shares, and what subtract_from_values and gate_chunk have put there gives V.
  ATLAS_DEVICE void solve(const DeltaTile& tile, DeltaTile& sums, uint32_t group, uint32_t column) {
    using namespace device;
    const float* betas = beta_ + group * kGdnGroup;
    const Floats4 low = load_as<Floats4>(betas), high = load_as<Floats4>(betas + 4);
    const float* shares = share_block(group, group, false);
    ATLAS_UNROLL
    for (uint32_t half = 0; half < kGdnGroup; half += 4) {
      schedule_barrier();
      Floats4 of_rows[kGdnGroup];
      ATLAS_UNROLL
      for (uint32_t r = half + 1; r < kGdnGroup; ++r) {
        of_rows[r] = load_as<Floats4>(shares + r * kGdnGroup + half);
      }
      ATLAS_UNROLL
      for (uint32_t r = half; r < half + 4; ++r) {
        const uint32_t place = group * kGdnGroup + r;
        const float beta = r < 4 ? low.f[r % 4] : high.f[r % 4];
        Floats4 v;
        ATLAS_UNROLL
        for (uint32_t c = 0; c < 4; ++c) {
          v.f[c] = fma(beta, tile.at[r][c], 0.0f - sums.at[r][c]);
        }
        // Not to those that have V: a -0 would have become 0.
        if (place >= chunk_.first) store_as(values_ + place * kGdnColumns + column, v);
        ATLAS_UNROLL
        for (uint32_t later = r + 1; later < kGdnGroup; ++later) {
          ATLAS_UNROLL
          for (uint32_t c = 0; c < 4; ++c) {
            sums.at[later][c] = fma(of_rows[later].f[r - half], v.f[c], sums.at[later][c]);
          }
        }
      }
    }
  }
  /// Adds V of a group's places to its own rows of queries, up to the row.
  ATLAS_DEVICE void add_own_group(DeltaTile& sums, uint32_t group, uint32_t column) const {
    using namespace device;
    const float* shares = share_block(group, group, true);
    ATLAS_UNROLL
    for (uint32_t half = 0; half < kGdnGroup; half += 4) {
      schedule_barrier();
      Floats4 of_rows[kGdnGroup];
      ATLAS_UNROLL
      for (uint32_t r = half; r < kGdnGroup; ++r) {
        of_rows[r] = load_as<Floats4>(shares + r * kGdnGroup + half);
      }
      ATLAS_UNROLL
      for (uint32_t j = half; j < half + 4; ++j) {
        const Floats4 v =
            load_as<Floats4>(values_ + (group * kGdnGroup + j) * kGdnColumns + column);
        ATLAS_UNROLL
        for (uint32_t r = j; r < kGdnGroup; ++r) {
          ATLAS_UNROLL
          for (uint32_t c = 0; c < 4; ++c) {
            sums.at[r][c] = fma(of_rows[r].f[j - half], v.f[c], sums.at[r][c]);
          }
        }
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

  // ---- The fold

  /// e^(G_L - G) of a full chunk whose rows came one by one.
  ATLAS_DEVICE void fold_factors() {
    using namespace device;
    const float last = load(decay_ + kGdnChunk - 1);
    for (uint32_t j = thread_; j < kGdnChunk; j += kGdnAttendThreads) {
      store(fold_ + j, exp(last - load(decay_ + j)));
    }
    block_barrier();  // factors are written before others take them
  }

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
        add_eight<4 * kGdnGroup, true>(tile, slice + octet() * kGdnGroup,
                                       values + s * kGdnGroup * kGdnColumns, fold_ + s * kGdnGroup);
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
      const Floats4 low_shares = load_as<Floats4>(fold_ + s * kGdnGroup);
      const Floats4 high_shares = load_as<Floats4>(fold_ + s * kGdnGroup + 4);
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kGdnGroup; ++j) {
        if (j % 2 == 0) schedule_barrier();
        const float share = j < 4 ? low_shares.f[j % 4] : high_shares.f[j % 4];
        Floats4 low = load_as<Floats4>(slice + j * kLanes + octet() * 8);
        Floats4 high = load_as<Floats4>(slice + j * kLanes + octet() * 8 + 4);
        const Floats4 v = load_as<Floats4>(values + (s * kGdnGroup + j) * kGdnColumns);
        ATLAS_UNROLL
        for (uint32_t r = 0; r < 4; ++r) {
          low.f[r] = share * low.f[r];
          high.f[r] = share * high.f[r];
        }
        ATLAS_UNROLL
        for (uint32_t r = 0; r < 4; ++r) {
          ATLAS_UNROLL
          for (uint32_t c = 0; c < 4; ++c) {
            tile.at[r][c] = fma(low.f[r], v.f[c], tile.at[r][c]);
            tile.at[r + 4][c] = fma(high.f[r], v.f[c], tile.at[r + 4][c]);
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
    const uint32_t column = thread_ % 8 * 4;
    constexpr uint32_t kElements = kGdnAttendThreads;  // of a head at a time
    ATLAS_ROLLED
    for (uint32_t of_warp = thread_ / kLanes * kLanes; of_warp < p_.key_dim; of_warp += kElements) {
      uint32_t d = of_warp + octet() * 8;
      DeltaTile tile;
      ATLAS_UNROLL
      for (uint32_t r = 0; r < 8; ++r) {
        Floats4 old{};
        if (d + r < p_.key_dim) old = load_as<Floats4>(state_ + (d + r) * kGdnColumns + column);
        ATLAS_UNROLL
        for (uint32_t c = 0; c < 4; ++c) tile.at[r][c] = factor * old.f[c];
      }
      add_keys(tile, of_warp, column, pending);
      d = opaque(d);
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
  }

  static constexpr uint32_t kLanes = device::kWarpLanes;
  static constexpr uint32_t kGateWarp = kGdnAttendThreads / kLanes - 1;
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
  float *state_, *values_, *beta_, *decay_, *factor_, *fold_, *gates_, *work_;  // in shared memory
};

/// Blocks of a multiprocessor. GB10 has shared memory for two.
#if defined(ATLAS_ARCH_GB10)
inline constexpr uint32_t kGdnAttendBlocks = 2;
#else
inline constexpr uint32_t kGdnAttendBlocks = 3;
#endif

ATLAS_DEVICE_KERNEL_BLOCKS(gdn_attend, GdnAttendParams, kGdnAttendThreads, kGdnAttendBlocks) {
  using namespace device;
  if (block_index<1>() >= load(&params.rows->span_count)) return;
  const RowSpan span = load_span(load(&params.rows->spans) + block_index<1>());
  if (!gdn_serves(span)) return;
  const uint32_t parts = gdn_column_parts(params.value_dim);
  DeltaBlock(params, span, block_index() / parts, block_index() % parts).run();
}

}  // namespace atlas::kernels

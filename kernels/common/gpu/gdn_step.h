// gdn_step for every GPU pack: a layer of Gated DeltaNet for steps of few rows a sequence, in one
// launch, with the bits of gdn_conv, gdn_attend and gdn_keep (kernels/common/gdn.h).
//
// A block takes one value head of one span. All that it reads is asked for at once, the head's
// state into registers: a step of one row is a chain of memory's latencies. A thread has one column
// and half of the rows of the state. The lower half of the threads begins the products with keys
// and queries while the upper one multiplies these with the chunk's keys; then the upper half ends
// the products while the lower one sums up pending values. Value heads of one key head make its
// queries and keys each for themselves; the first of them keeps these.
#pragma once

#include "kernels/common/device/early.h"
#include "kernels/common/gpu/encoded_rows.h"
#include "kernels/common/gpu/gdn_gates.h"
#include "kernels/common/gpu/gdn_parts.h"

namespace atlas::kernels {

/// Whether pending values stand in shared memory (gdn_grids.h).
#if defined(ATLAS_HAS_WMMA)
inline constexpr bool kGdnStepHoldsValues = false;
#else
inline constexpr bool kGdnStepHoldsValues = true;
#endif

/// A channel's taps and its inputs: those before the rows, then the rows' own. What there is not is
/// 0, taps before the first one too.
struct StepChannel {
  static constexpr uint32_t kBefore = kGdnStepTaps - 1;
  bool there = false;
  uint64_t channel = 0;
  float taps[kGdnStepTaps];
  float inputs[kBefore + kGdnStepRows];

  ATLAS_DEVICE void load_taps(const GdnStepParams& p) {
    using namespace device;
    ATLAS_UNROLL
    for (float& tap : taps) tap = 0.0f;
    if (!there) return;
    const float* from = p.conv + channel * p.taps;
    if (p.taps == kGdnStepTaps && has_quads(p.conv, 0)) {
      const Floats4 four = load_as<Floats4>(from);
      ATLAS_UNROLL
      for (uint32_t t = 0; t < kGdnStepTaps; ++t) taps[t] = four.f[t];
      return;
    }
    ATLAS_UNROLL
    for (uint32_t t = 0; t < kGdnStepTaps; ++t) {
      if (t + p.taps >= kGdnStepTaps) taps[t] = load(from + (t + p.taps - kGdnStepTaps));
    }
  }
  ATLAS_DEVICE void load_inputs(const GdnStepParams& p, const RowSpan& span,
                                const float* const (&before)[kBefore]) {
    using namespace device;
    const float* rows = p.qkv + span.first_row * p.qkv_stride + channel;
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kBefore + kGdnStepRows; ++j) {
      inputs[j] = 0.0f;
      if (!there) continue;
      if (j < kBefore) {
        if (before[j] != nullptr) inputs[j] = load(before[j] + channel);
      } else if (j - kBefore < span.row_count) {
        inputs[j] = load(rows + (j - kBefore) * p.qkv_stride);
      }
    }
  }
  /// What the convolution makes of the next row, and that row's input.
  ATLAS_DEVICE float convolved() const {
    float sum = 0.0f;
    ATLAS_UNROLL
    for (uint32_t t = 0; t < kGdnStepTaps; ++t) sum = device::fma(taps[t], inputs[t], sum);
    return device::silu(sum);
  }
  ATLAS_DEVICE float input() const { return inputs[kBefore]; }
  /// Goes on to the row behind it. Rows are done by a loop that stays one: a kernel of few rows is
  /// fetched as its data is.
  ATLAS_DEVICE void next() {
    ATLAS_UNROLL
    for (uint32_t j = 0; j + 1 < kBefore + kGdnStepRows; ++j) inputs[j] = inputs[j + 1];
  }
};

/// One value head of one span.
class DeltaStep {
 public:
  ATLAS_DEVICE explicit DeltaStep(const GdnStepParams& p)
      : p_(p),
        shape_(gdn_shape(p)),
        head_(device::block_index()),
        key_head_(head_ / (p.value_heads / p.key_heads)),
        leads_(head_ % (p.value_heads / p.key_heads) == 0),
        value_stride_(static_cast<uint32_t>(gdn_padded(p.value_dim))),
        channels_(gdn_channels(shape_)),
        thread_(device::thread_index()),
        column_(thread_ % kGdnStepDim),
        upper_(thread_ / kGdnStepDim != 0) {
    panel_ = device::shared_memory<float>();
    sums_ = panel_;
    vectors_ = panel_ + kGdnStepDim * kGdnChunk;
    values_ = vectors_ + 2 * kGdnStepRows * kGdnStepDim;
    shares_ = values_ + kGdnStepRows * kGdnStepDim;
    products_ = shares_ + 2 * kGdnStepRows * kGdnChunk;
    beta_ = products_ + 2 * kGdnStepRows * kGdnStepDim;
    factor_ = beta_ + kGdnStepRows;
    decay_ = factor_ + kGdnStepRows;
    fold_ = decay_ + kGdnChunk;
    pending_ = fold_ + kGdnChunk;
  }

  ATLAS_DEVICE void run() {
    using namespace device;
    const uint64_t keys = uint64_t{p_.key_heads} * p_.key_dim;
    mixed_.there = column_ < p_.key_dim;
    mixed_.channel = (upper_ ? 0 : keys) + uint64_t{key_head_} * p_.key_dim + column_;
    value_.there = column_ < p_.value_dim;
    value_.channel = 2 * keys + uint64_t{head_} * p_.value_dim + column_;
    mixed_.load_taps(p_);
    value_.load_taps(p_);
    const float rate = load(p_.a_log + head_), bias = load(p_.dt_bias + head_);
    const uint32_t at = 4 * lane_index();
    Quad weights{};
    if (p_.norm_weight != nullptr) {
      weights = load_quad(p_.norm_weight, at, p_.value_dim, has_quads(p_.norm_weight, 0));
    }
    previous_done();
    if (block_index<1>() >= load(&p_.rows->span_count)) return;
    span_ = load_span(load(&p_.rows->spans) + block_index<1>());
    rows_ = span_.row_count;
    first_ = span_.index % kGdnChunk;
    if (!gdn_serves(span_) || rows_ > kGdnStepRows || first_ + rows_ > kGdnChunk) return;
    slot_ = reinterpret_cast<float*>(p_.slots + span_.slot * p_.slot_stride);

    bring_inputs();
    const Gate gate = bring_gate();
    const Quad gates = bring_output_gate(at);
    bring_pending();
    bring_state();
    if (span_.index - span_.anchor_index == kGdnChunk) fold();
    convolve();
    if (warp_index() == kGateWarp) gate_rows(gate, rate, bias);
    block_barrier();  // the rows' channels and gates are there
    if (warp_index() < rows_) make_unit(warp_index());
    async_wait<0>();
    block_barrier();  // keys and queries are there, and what was pending
    ATLAS_ROLLED
    for (uint32_t half = 0; half < 2; ++half) {
      if (upper_ == (half != 0)) {
        multiply_state();
      } else if (upper_) {
        multiply_keys();
      } else if (column_ < value_stride_) {
        sum_pending();
      }
      // First half of the products and the shares are there, and keys are used up; then the other
      // half, and the sums over pending rows.
      block_barrier();
    }
    if (upper_) {
      keep_decays();
    } else if (column_ < value_stride_) {
      finish();
    }
    block_barrier();  // the outputs are there
    if (warp_index() < rows_) write(warp_index(), at, weights, gates);
  }

 private:
  /// Half of the state's rows, of which a thread has one column.
  static constexpr uint32_t kHalf = kGdnStepDim / 2;
  static constexpr uint32_t kGateWarp = kGdnStepThreads / device::kWarpLanes - 1;
  static_assert(kGdnStepRows <= kGateWarp + 1, "a warp a row");
  struct Gate {
    float a, b, before;
  };

  ATLAS_DEVICE float* anchor(uint32_t number) const {
    return reinterpret_cast<float*>(p_.anchors + number * p_.anchor_stride);
  }
  ATLAS_DEVICE float* slot_values() const {
    return slot_ + gdn_slot_values(shape_) + uint64_t{head_} * kGdnChunk * value_stride_;
  }
  ATLAS_DEVICE float* slot_decays() const {
    return slot_ + gdn_slot_decays(shape_) + uint64_t{head_} * kGdnChunk;
  }
  ATLAS_DEVICE float* slot_keys() const {
    return slot_ + gdn_slot_keys(shape_) + uint64_t{key_head_} * p_.key_dim * kGdnKeyPlaces;
  }
  /// Where the slot has a position's inputs. Its rows are a power of two.
  ATLAS_DEVICE uint64_t ring_place(uint32_t position) const {
    return (position & (gdn_ring_rows(p_.taps) - 1)) * channels_;
  }
  /// The thread's part of a state.
  ATLAS_DEVICE float* state_of(uint32_t number) const {
    return anchor(number) + (uint64_t{head_} * p_.key_dim + (upper_ ? kHalf : 0)) * value_stride_ +
           column_;
  }

  // ---- What comes from memory

  ATLAS_DEVICE void bring_inputs() {
    const float* before[StepChannel::kBefore];
    ATLAS_UNROLL
    for (uint32_t j = 0; j < StepChannel::kBefore; ++j) {
      const uint32_t apart = StepChannel::kBefore - j;  // before the rows
      before[j] = nullptr;
      if (apart >= p_.taps || apart > span_.index) continue;
      const uint32_t position = span_.index - apart;
      if (position >= span_.anchor_index) {
        before[j] = slot_ + ring_place(position);
      } else {
        const uint32_t kept = position + p_.taps - 1 - span_.anchor_index;
        before[j] = anchor(span_.anchor) + gdn_anchor_history(shape_) + kept * channels_;
      }
    }
    mixed_.load_inputs(p_, span_, before);
    value_.load_inputs(p_, span_, before);
  }
  /// By one warp, a row a lane.
  ATLAS_DEVICE Gate bring_gate() const {
    using namespace device;
    Gate gate{};
    if (warp_index() != kGateWarp) return gate;
    if (first_ != 0) gate.before = load(slot_decays() + first_ - 1);
    if (lane_index() < rows_) {
      const uint64_t row = uint64_t{span_.first_row} + lane_index();
      gate.a = load(p_.a + row * p_.a_stride + head_);
      gate.b = load(p_.b + row * p_.b_stride + head_);
    }
    return gate;
  }
  ATLAS_DEVICE Quad bring_output_gate(uint32_t at) const {
    if (p_.norm_weight == nullptr || device::warp_index() >= rows_) return {};
    const float* gate = p_.gate +
                        (uint64_t{span_.first_row} + device::warp_index()) * p_.gate_stride +
                        uint64_t{head_} * p_.value_dim;
    return load_quad(gate, at, p_.value_dim, has_quads(gate, 0));
  }
  /// Keys, V and G of the pending rows. Of a chunk that is to be folded all; places that this
  /// step's rows get are not read.
  ATLAS_DEVICE void bring_pending() {
    using namespace device;
    const uint32_t count = span_.index - span_.anchor_index;
    const uint32_t early = gdn_early_keys(span_.anchor_index);
    // Whole quads of keys, then what is left of a quad.
    constexpr uint32_t kQuads = kGdnChunk / 4;
    uint32_t place = thread_ % kQuads * 4;
    const float* keys = slot_keys() + (place < kMaxVerifyRows ? place + early : place);
    if (place + 4 <= count) {
      for (uint32_t d = thread_ / kQuads; d < p_.key_dim; d += kGdnStepThreads / kQuads) {
        async_copy<16>(panel_ + d * kGdnChunk + place, keys + d * kGdnKeyPlaces);
      }
    }
    place = count / 4 * 4 + thread_ % 4;
    keys = slot_keys() + (place < kMaxVerifyRows ? place + early : place);
    if (place < count) {
      for (uint32_t d = thread_ / 4; d < p_.key_dim; d += kGdnStepThreads / 4) {
        async_copy<4>(panel_ + d * kGdnChunk + place, keys + d * kGdnKeyPlaces);
      }
    }
    if (thread_ < count) async_copy<4>(decay_ + thread_, slot_decays() + thread_);
    const uint32_t column = lane_index() * 4;
    if (kGdnStepHoldsValues && column < value_stride_) {
      const float* values = slot_values() + column;
      for (uint32_t j = warp_index(); j < count; j += kGdnStepThreads / kWarpLanes) {
        async_copy<16>(pending_ + j * kGdnStepDim + column, values + j * value_stride_);
      }
    }
    async_commit();
  }
  /// Columns that the head has not are zeros. Rows that it has not are -0: times the zeros that
  /// keys have there they change no sum, not even one that is -0.
  ATLAS_DEVICE void bring_state() {
    using namespace device;
    const bool there = span_.anchor != kNoAnchor && column_ < value_stride_;
    const float* from = state_of(there ? span_.anchor : 0);
    if (there && p_.key_dim == kGdnStepDim && value_stride_ == kGdnStepDim) {
      ATLAS_UNROLL
      for (uint32_t d = 0; d < kHalf; ++d) state_[d] = load_passing(from + d * kGdnStepDim);
      return;
    }
    ATLAS_UNROLL
    for (uint32_t d = 0; d < kHalf; ++d) {
      const bool has = upper_ ? kHalf + d < p_.key_dim : d < p_.key_dim;
      state_[d] = has ? 0.0f : -0.0f;
      if (there && has) state_[d] = load_passing(from);
      from += value_stride_;
    }
  }
  ATLAS_DEVICE const float* pending_values() const {
    return kGdnStepHoldsValues ? pending_ + column_ : slot_values() + column_;
  }
  ATLAS_DEVICE uint32_t pending_stride() const {
    return kGdnStepHoldsValues ? kGdnStepDim : value_stride_;
  }

  // ---- The fold

  /// Folds the full chunk before the rows into the state, which goes to the next anchor.
  ATLAS_DEVICE void fold() {
    using namespace device;
    keep_history(mixed_, leads_);
    keep_history(value_, !upper_);
    async_wait<0>();
    block_barrier();  // pending keys, V and G are there
    const float last = load(decay_ + kGdnChunk - 1);
    if (thread_ < kGdnChunk) store(fold_ + thread_, exp(last - load(decay_ + thread_)));
    block_barrier();  // factors are written before others take them
    constexpr uint32_t kQuads = kGdnChunk / 4;
    const Floats4 share = load_as<Floats4>(fold_ + thread_ % kQuads * 4);
    ATLAS_ROLLED
    for (uint32_t i = thread_; i < kGdnStepDim * kQuads; i += kGdnStepThreads) {
      Floats4 four{};
      if (i / kQuads < p_.key_dim) four = load_as<Floats4>(panel_ + 4 * i);
      ATLAS_UNROLL
      for (uint32_t e = 0; e < 4; ++e) four.f[e] = share.f[e] * four.f[e];
      store_as(panel_ + 4 * i, four);
    }
    block_barrier();  // keys have their factors
    if (column_ >= value_stride_) return;
    const float factor = exp(last);
    ATLAS_UNROLL
    for (float& element : state_) element = factor * element;
    const float* keys = panel_ + (upper_ ? kHalf : 0) * kGdnChunk;
    ATLAS_ROLLED
    for (uint32_t j = 0; j < kGdnChunk; j += 4) {
      float v[4];
      ATLAS_UNROLL
      for (uint32_t e = 0; e < 4; ++e) v[e] = load(pending_values() + (j + e) * pending_stride());
      ATLAS_UNROLL
      for (uint32_t d = 0; d < kHalf; ++d) {
        if (d % 4 == 0) schedule_barrier();
        const Floats4 four = load_as<Floats4>(keys + d * kGdnChunk + j);
        ATLAS_UNROLL
        for (uint32_t e = 0; e < 4; ++e) state_[d] = fma(four.f[e], v[e], state_[d]);
      }
    }
    float* to = state_of(span_.next_anchor);
    ATLAS_UNROLL
    for (uint32_t d = 0; d < kHalf; ++d) {
      if (d % 8 == 0) schedule_barrier();
      const bool has = upper_ ? kHalf + d < p_.key_dim : d < p_.key_dim;
      if (has) store(to, state_[d]);
      if (!has) state_[d] = -0.0f;
      to += value_stride_;
    }
  }
  /// The inputs before the next anchor, which are those before the rows.
  ATLAS_DEVICE void keep_history(const StepChannel& of, bool keeps) const {
    if (!keeps || !of.there) return;
    float* to = anchor(span_.next_anchor) + gdn_anchor_history(shape_) + of.channel;
    ATLAS_UNROLL
    for (uint32_t j = 0; j < StepChannel::kBefore; ++j) {
      const uint32_t row = j + p_.taps - kGdnStepTaps;
      if (j + p_.taps >= kGdnStepTaps) device::store(to + row * channels_, of.inputs[j]);
    }
  }

  // ---- The rows

  /// The rows' channels, queries and keys not of unit length yet, and what the slot keeps of their
  /// inputs: in places that no row of the step reaches back to.
  ATLAS_DEVICE void convolve() {
    using namespace device;
    ATLAS_ROLLED
    for (uint32_t r = 0; r < rows_; ++r) {
      float* kept = slot_ + ring_place(span_.index + r);
      const float mixed = mixed_.convolved();
      store(vectors_ + (2 * r + (upper_ ? 1 : 0)) * kGdnStepDim + column_,
            mixed_.there ? mixed : 0.0f);
      if (leads_ && mixed_.there) store(kept + mixed_.channel, mixed_.input());
      if (upper_ == (r % 2 == 0)) {
        const float value = value_.convolved();
        store(values_ + r * kGdnStepDim + column_, value_.there ? value : 0.0f);
        if (value_.there) store(kept + value_.channel, value_.input());
      }
      mixed_.next();
      value_.next();
    }
  }
  /// beta, G and e^G of the rows, by one warp.
  ATLAS_DEVICE void gate_rows(const Gate& gate, float a_log, float bias) const {
    using namespace device;
    const uint32_t lane = lane_index();
    const float step = lane < rows_ ? 0.0f - exp(a_log) * gdn_softplus(gate.a + bias) : 0.0f;
    float sum = gate.before, own = 0.0f;
    ATLAS_UNROLL
    for (uint32_t l = 0; l < kGdnStepRows; ++l) {
      sum += shuffle(step, l);
      own = lane == l ? sum : own;
    }
    if (lane >= rows_) return;
    store(beta_ + lane, sigmoid(gate.b));
    store(decay_ + first_ + lane, own);
    store(factor_ + lane, exp(own));
  }
  /// Key and query of row r, by 16 lanes each: of unit length, and the key among the chunk's.
  ATLAS_DEVICE void make_unit(uint32_t r) const {
    using namespace device;
    const uint32_t lane = lane_index() % 16;
    const bool is_query = lane_index() >= 16;
    float* vector = vectors_ + (2 * r + (is_query ? 1 : 0)) * kGdnStepDim + lane;
    constexpr uint32_t kGroups = kGdnStepDim / 16;
    float x[kGroups], squares = 0.0f;
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kGroups; ++g) x[g] = load(vector + 16 * g);
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kGroups; ++g) squares = fma(x[g], x[g], squares);
    for (uint32_t apart = 8; apart > 0; apart /= 2) squares += shuffle_xor(squares, apart);
    const float unit = divide(1.0f, square_root(squares + 1e-6f));
    const float scale = is_query ? divide(1.0f, square_root(static_cast<float>(p_.key_dim))) : 1.0f;
    float* kept = slot_keys() + gdn_key_place(span_.index + r);
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kGroups; ++g) {
      const uint32_t d = 16 * g + lane;
      x[g] = (x[g] * unit) * scale;
      store(vector + 16 * g, x[g]);
      if (is_query || d >= p_.key_dim) continue;
      store(panel_ + d * kGdnChunk + first_ + r, x[g]);
      if (leads_) store(kept + d * kGdnKeyPlaces, x[g]);
    }
  }

  /// A and B: a thread has one key of the chunk.
  ATLAS_DEVICE void multiply_keys() const {
    using namespace device;
    const uint32_t place = thread_ % kGdnChunk, group = thread_ / kGdnChunk % 2;
    const uint32_t end = first_ + rows_;
    const float* key = panel_ + (place < end ? place : end - 1);
    ATLAS_ROLLED
    for (uint32_t n = 0; n < 2 * rows_; n += 8) {
      const uint32_t some = 2 * rows_ < n + 8 ? 2 * rows_ : n + 8;
      each_column_sum(vectors_, kGdnStepDim, n + group, 2, some, key, kGdnChunk, p_.key_dim,
                      [&](uint32_t vector, float sum) {
                        const uint32_t row = vector / 2;
                        if (place > first_ + row) return;
                        const float decay = exp(load(decay_ + first_ + row) - load(decay_ + place));
                        const float share = vector % 2 == 0 ? load(beta_ + row) * sum : sum;
                        store(shares_ + vector * kGdnChunk + place, share * decay);
                      });
    }
  }
  /// Half of the sums of p and r: the lower threads begin them, the upper ones go on.
  ATLAS_DEVICE void multiply_state() const {
    uint32_t n = 0;
    ATLAS_ROLLED
    for (; n + 4 <= 2 * rows_; n += 4) add_state<4>(n);
    if (n < 2 * rows_) add_state<2>(n);
  }
  template <uint32_t kCount>
  ATLAS_DEVICE void add_state(uint32_t vector) const {
    using namespace device;
    float* products = products_ + vector * kGdnStepDim + column_;
    const float* from = vectors_ + vector * kGdnStepDim + (upper_ ? kHalf : 0);
    float sums[kCount];
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kCount; ++n) {
      sums[n] = 0.0f;
      if (upper_) sums[n] = load(products + n * kGdnStepDim);
    }
    ATLAS_UNROLL
    for (uint32_t d = 0; d < kHalf; d += 4) {
      if (d % 16 == 0) schedule_barrier();
      ATLAS_UNROLL
      for (uint32_t n = 0; n < kCount; ++n) {
        const Floats4 four = load_as<Floats4>(from + n * kGdnStepDim + d);
        ATLAS_UNROLL
        for (uint32_t e = 0; e < 4; ++e) sums[n] = fma(four.f[e], state_[d + e], sums[n]);
      }
    }
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kCount; ++n) store(products + n * kGdnStepDim, sums[n]);
  }
  /// s and z over the pending rows.
  ATLAS_DEVICE void sum_pending() const {
    ATLAS_ROLLED
    for (uint32_t n = 0; n < 2 * rows_; n += 4) {
      const uint32_t some = 2 * rows_ < n + 4 ? 2 * rows_ : n + 4;
      each_column_sum(shares_, kGdnChunk, n, 1, some, pending_values(), pending_stride(), first_,
                      [&](uint32_t vector, float sum) {
                        device::store(sums_ + vector * kGdnStepDim + column_, sum);
                      });
    }
  }
  /// V and the outputs of the rows, one after another.
  ATLAS_DEVICE void finish() const {
    using namespace device;
    float s[kGdnStepRows], z[kGdnStepRows];
    ATLAS_UNROLL
    for (uint32_t r = 0; r < kGdnStepRows; ++r) {
      s[r] = z[r] = 0.0f;
      if (r >= rows_) continue;
      s[r] = load(sums_ + 2 * r * kGdnStepDim + column_);
      z[r] = load(sums_ + (2 * r + 1) * kGdnStepDim + column_);
    }
    // A loop that stays one; s and z of the next row are always the first ones.
    float* kept = slot_values() + first_ * value_stride_ + column_;
    float* value = values_ + column_;
    const float* products = products_ + column_;
    const float* shares = shares_ + first_;
    ATLAS_ROLLED
    for (uint32_t r = 0; r < rows_; ++r) {
      const float factor = load(factor_ + r);
      const float left = fma(-factor, load(products), load(value));
      const float v = fma(load(beta_ + r), left, 0.0f - s[0]);
      ATLAS_UNROLL
      for (uint32_t later = 0; later < kGdnStepRows; ++later) {
        if (r + later >= rows_) continue;
        const float* share = shares + 2 * later * kGdnChunk;
        if (later > 0) s[later] = fma(load(share), v, s[later]);
        z[later] = fma(load(share + kGdnChunk), v, z[later]);
      }
      store(kept, v);
      store(value, fma(factor, load(products + kGdnStepDim), z[0]));
      ATLAS_UNROLL
      for (uint32_t later = 0; later + 1 < kGdnStepRows; ++later) {
        s[later] = s[later + 1];
        z[later] = z[later + 1];
      }
      kept += value_stride_;
      value += kGdnStepDim;
      products += 2 * kGdnStepDim;
      shares += 2 * kGdnChunk + 1;
    }
  }
  ATLAS_DEVICE void keep_decays() const {
    using namespace device;
    const uint32_t r = thread_ - kGdnStepDim;
    if (r < rows_) store(slot_decays() + first_ + r, load(decay_ + first_ + r));
  }
  /// The head's outputs of row r, normed and gated if the record says so, by one warp: elements
  /// [at, at + 4) a lane.
  ATLAS_DEVICE void write(uint32_t r, uint32_t at, const Quad& weights, const Quad& gates) const {
    using namespace device;
    const uint32_t n = p_.value_dim;
    const uint64_t row = uint64_t{span_.first_row} + r;
    const float* values = values_ + r * kGdnStepDim;
    float* out = p_.out + row * p_.out_stride + uint64_t{head_} * n;
    Quad quad = load_as<Quad>(values + at);
    if (p_.norm_weight != nullptr) {
      float squares = 0.0f;
      ATLAS_UNROLL
      for (uint32_t g = 0; g < kGdnStepDim; g += 16) {
        const uint32_t i = g + lane_index() % 16;
        const float x = i < n ? load(values + i) : 0.0f;
        squares = fma(x, x, squares);
      }
      for (uint32_t apart = 8; apart > 0; apart /= 2) squares += shuffle_xor(squares, apart);
      const float mean = divide(squares, static_cast<float>(n));
      const float scale = divide(1.0f, square_root(mean + p_.epsilon));
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const float divisor = 1.0f + exp(-gates.f[i]);
        quad.f[i] = ((quad.f[i] * scale) * weights.f[i]) *
                    divide(p_.silu != 0 ? gates.f[i] : 1.0f, divisor);
      }
    }
    if (at < n) store_quad(out, at, n, has_quads(out, 0), quad);
    if (p_.encoded == nullptr) return;
    const uint32_t low = bf16_pair(quad.f[0], quad.f[1]), high = bf16_pair(quad.f[2], quad.f[3]);
    const Words4 words = {{low, high, shuffle_down(low, 4), shuffle_down(high, 4)}};
    const uint32_t t = lane_index() % 8;
    encode_piece(p_.encoded, row, p_.value_heads * n, (head_ * n + at) / kBlockElements, t, words,
                 t < 4 && at < n);
  }

  const GdnStepParams& p_;
  const GdnShape shape_;
  const uint32_t head_, key_head_;
  const bool leads_;  // of its key head's value heads
  const uint32_t value_stride_;
  const uint64_t channels_;
  const uint32_t thread_, column_;
  const bool upper_;  // half of the threads, and of the state
  RowSpan span_;
  uint32_t rows_ = 0, first_ = 0;  // the rows' first place in their chunk
  float* slot_ = nullptr;
  float *panel_, *sums_, *vectors_, *values_, *shares_, *products_, *beta_, *factor_, *decay_,
      *fold_, *pending_;       // in shared memory
  StepChannel mixed_, value_;  // of a key in the lower threads, of a query in the upper ones
  float state_[kHalf];
};

ATLAS_EARLY_KERNEL(gdn_step, GdnStepParams, kGdnStepThreads, 1) { DeltaStep(params).run(); }

}  // namespace atlas::kernels

// gdn_attend and gdn_keep: the recurrence of Gated DeltaNet in its chunked form
// (kernels/common/gdn.h).
//
// A task takes one value head of one sequence, chunk by chunk. What the chunk's rows need of the
// state M0 are two products a row, which are made for all rows together, so that M0 is read once
// for a few rows; V of the rows is then solved for in order. V and G go straight to their places
// among the slot's pending rows, which this task alone reads.
#include "kernels/common/gdn.h"

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gdn.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "kernels/cpu/gqa_product-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

static_assert(kGdnSumRows == kProductRows);

HWY_INLINE F16 Negate(const F16& x) { return Sub(Set16(0.0f), x); }

/// max(x, 0) + log1p(e^-|x|).
template <size_t... I>
HWY_INLINE F16 Softplus16(const F16& x, std::index_sequence<I...>) {
  const auto one = [](VF32 v) HWY_ATTR {
    const F32 d;
    const VF32 u = Exp(d, hn::Neg(hn::Abs(v)));
    // Where 1 + u is near 1, its rounding would be most of the logarithm.
    const auto is_near = hn::Le(u, hn::Set(d, 0x1.a8p-2f));
    const VF32 near = LogNearOne(d, hn::IfThenElse(is_near, u, hn::Zero(d)));
    const VF32 far = LogPositive(d, hn::Add(u, hn::Set(d, 1.0f)));
    return hn::Add(hn::Max(v, hn::Zero(d)), hn::IfThenElse(is_near, near, far));
  };
  return {{one(x.r[I])...}};
}

/// One value head of one span.
class DeltaWalk {
 public:
  DeltaWalk(const GdnAttendParams& p, const RowSpan& span, uint32_t head, std::byte* scratch)
      : p_(p),
        span_(span),
        shape_(gdn_shape(p)),
        head_(head),
        key_head_(static_cast<uint32_t>(uint64_t{head} * p.key_heads / p.value_heads)),
        value_stride_(gdn_padded(p.value_dim)),
        groups_(value_stride_ / 16),
        row_floats_(gdn_row_floats(shape_)),
        state_(span.anchor == kNoAnchor ? nullptr : anchor(span.anchor)) {
    auto* slot = reinterpret_cast<float*>(p.slots + span.slot * p.slot_stride);
    pending_keys_ = slot + gdn_slot_keys(shape_) + uint64_t{key_head_} * p.key_dim * kGdnKeyPlaces;
    values_ = slot + gdn_slot_values(shape_) + uint64_t{head} * kGdnChunk * value_stride_;
    decays_ = slot + gdn_slot_decays(shape_) + uint64_t{head} * kGdnChunk;
    auto* floats = reinterpret_cast<float*>(scratch);
    const auto take = [&floats](size_t count) {
      float* at = floats;
      floats += count;
      return at;
    };
    keys_ = take(size_t{p.key_dim} * kGdnChunk);
    products_ = take(2 * kGdnChunk * value_stride_);
    dots_ = take(2 * kGdnChunk * kGdnChunk);
    sums_ = take(kGdnSumRows * value_stride_);
    beta_ = take(kGdnChunk);
    decay_ = take(kGdnChunk);
    factor_ = take(kGdnChunk);
    fold_ = take(kGdnChunk);
  }

  void run() {
    const uint64_t end = uint64_t{span_.index} + span_.row_count;
    uint64_t chunk = span_.anchor_index;
    for (uint64_t position = span_.index;; chunk += kGdnChunk) {
      const uint64_t chunk_end = std::min(end, chunk + kGdnChunk);
      first_ = static_cast<uint32_t>(position - chunk);
      rows_ = static_cast<uint32_t>(chunk_end - position);
      row_ = span_.first_row + static_cast<uint32_t>(position - span_.index);
      gather_keys(chunk == span_.anchor_index ? first_ : 0);
      if (rows_ != 0) compute_rows();
      if (chunk_end == end) return;
      fold();
      position = chunk_end;
    }
  }

 private:
  float* anchor(uint32_t number) const {
    return reinterpret_cast<float*>(p_.anchors + number * p_.anchor_stride) +
           uint64_t{head_} * p_.key_dim * value_stride_;
  }
  const float* query(uint32_t i) const {
    return p_.mixed + (uint64_t{row_} + i) * row_floats_ + key_head_ * gdn_padded(p_.key_dim);
  }
  const float* key(uint32_t i) const { return query(i) + p_.key_heads * gdn_padded(p_.key_dim); }
  const float* value(uint32_t i) const {
    return p_.mixed + (uint64_t{row_} + i) * row_floats_ +
           2 * p_.key_heads * gdn_padded(p_.key_dim) + head_ * value_stride_;
  }
  float* state_product(uint32_t i, bool of_query) {
    return products_ + (2 * i + (of_query ? 1 : 0)) * value_stride_;
  }
  float* row_dots(uint32_t i, bool of_query) {
    return dots_ + (2 * i + (of_query ? 1 : 0)) * kGdnChunk;
  }

  /// keys_ [key_dim, kGdnChunk]: the chunk's first `pending` from the slot, then the rows'.
  void gather_keys(uint32_t pending) {
    const size_t used = (first_ + rows_ + 15) / 16 * 16;
    const uint32_t early = gdn_early_keys(span_.anchor_index);
    for (size_t d = 0; d < p_.key_dim; ++d) {
      float* to = keys_ + d * kGdnChunk;
      const float* from = pending_keys_ + d * kGdnKeyPlaces;
      for (size_t j = 0; j < used; j += 16) {
        Store16(j < pending ? Load16(from + j) : Set16(0.0f), to + j);
      }
      for (uint32_t j = 0; j < std::min(pending, kMaxVerifyRows); ++j) to[j] = from[early + j];
      for (uint32_t i = 0; i < rows_; ++i) to[first_ + i] = key(i)[d];
    }
  }

  void compute_rows() {
    const float* vectors[2 * kGdnChunk];
    for (uint32_t i = 0; i < rows_; ++i) {
      vectors[2 * i] = key(i);
      vectors[2 * i + 1] = query(i);
    }
    const size_t all = 2 * rows_, runs = (all + kProductRows - 1) / kProductRows;
    for (size_t run = 0; run < runs; ++run) {
      const size_t v = run * all / runs, count = (run + 1) * all / runs - v;
      Product(count, vectors + v, keys_, kGdnChunk, p_.key_dim, dots_ + v * kGdnChunk, kGdnChunk,
              (first_ + rows_ + 15) / 16, false);
      if (state_ == nullptr) continue;
      Product(count, vectors + v, state_, value_stride_, p_.key_dim, products_ + v * value_stride_,
              value_stride_, groups_, false);
    }
    if (state_ == nullptr) std::fill_n(products_, all * value_stride_, 0.0f);
    gate_rows();
    for (uint32_t i = 0; i < rows_; ++i) decay_dots(i);
    for (uint32_t i = 0; i < rows_; i += kGdnSumRows) solve(i, std::min(kGdnSumRows, rows_ - i));
    for (uint32_t i = 0; i < rows_; i += kGdnSumRows) write(i, std::min(kGdnSumRows, rows_ - i));
  }

  /// beta_, and the rows' G and its power of e.
  void gate_rows() {
    const F16 one = Set16(1.0f), rate = Exp16(Set16(p_.a_log[head_]));
    const F16 bias = Set16(p_.dt_bias[head_]);
    for (uint32_t i = 0; i < rows_; ++i) {
      beta_[i] = p_.b[(uint64_t{row_} + i) * p_.b_stride + head_];
      decay_[i] = p_.a[(uint64_t{row_} + i) * p_.a_stride + head_];
    }
    std::fill(beta_ + rows_, beta_ + kGdnChunk, 0.0f);
    std::fill(decay_ + rows_, decay_ + kGdnChunk, 0.0f);
    for (uint32_t i = 0; i < rows_; i += 16) {
      Store16(Div(one, Add(one, Exp16(Negate(Load16(beta_ + i))))), beta_ + i);
      const F16 step = Softplus16(Add(Load16(decay_ + i), bias), kAll);
      Store16(Negate(Mul(rate, step)), decay_ + i);
    }
    float sum = first_ == 0 ? 0.0f : decays_[first_ - 1];
    for (uint32_t i = 0; i < rows_; ++i) decays_[first_ + i] = decay_[i] = sum += decay_[i];
    for (uint32_t i = 0; i < rows_; i += 16) Store16(Exp16(Load16(decay_ + i)), factor_ + i);
  }

  /// Turns row i's dot products into A_ij and B_ij; what lies past j = i is not defined.
  void decay_dots(uint32_t i) {
    float *a = row_dots(i, false), *b = row_dots(i, true);
    const F16 beta = Set16(beta_[i]), sum = Set16(decay_[i]);
    for (size_t j = 0; j <= first_ + i; j += 16) {
      const F16 decay = Exp16(Sub(sum, Load16(decays_ + j)));
      Store16(Mul(Mul(beta, Load16(a + j)), decay), a + j);
      Store16(Mul(Load16(b + j), decay), b + j);
    }
  }

  /// V of `count` rows from row i on: what they share of the sums over earlier V first.
  void solve(uint32_t i, uint32_t count) {
    const float* a[kGdnSumRows];
    for (uint32_t r = 0; r < count; ++r) a[r] = row_dots(i + r, false);
    const size_t before = first_ + i;
    Product(count, a, values_, value_stride_, before, sums_, value_stride_, groups_, false);
    for (uint32_t r = 0; r < count; ++r) {
      float* sum = sums_ + r * value_stride_;
      const float* rest = a[r] + before;
      if (r != 0) {
        Product(1, &rest, values_ + before * value_stride_, value_stride_, r, sum, value_stride_,
                groups_, true);
      }
      const F16 beta = Set16(beta_[i + r]), factor = Set16(-factor_[i + r]);
      const float *v = value(i + r), *product = state_product(i + r, false);
      float* to = values_ + (before + r) * value_stride_;
      for (size_t c = 0; c < value_stride_; c += 16) {
        const F16 left = MulAdd(factor, Load16(product + c), Load16(v + c));
        Store16(MulAdd(beta, left, Negate(Load16(sum + c))), to + c);
      }
    }
  }

  /// The outputs of `count` rows from row i on.
  void write(uint32_t i, uint32_t count) {
    const float* b[kGdnSumRows];
    for (uint32_t r = 0; r < count; ++r) b[r] = row_dots(i + r, true);
    const size_t shared = first_ + i + 1;
    Product(count, b, values_, value_stride_, shared, sums_, value_stride_, groups_, false);
    for (uint32_t r = 0; r < count; ++r) {
      float* sum = sums_ + r * value_stride_;
      const float* rest = b[r] + shared;
      if (r != 0) {
        Product(1, &rest, values_ + shared * value_stride_, value_stride_, r, sum, value_stride_,
                groups_, true);
      }
      const F16 factor = Set16(factor_[i + r]);
      const float* product = state_product(i + r, true);
      float* out = p_.out + (uint64_t{row_} + i + r) * p_.out_stride + head_ * size_t{p_.value_dim};
      size_t c = 0;
      for (; c + 16 <= p_.value_dim; c += 16) {
        Store16(MulAdd(factor, Load16(product + c), Load16(sum + c)), out + c);
      }
      if (c < p_.value_dim) {
        StorePart16(MulAdd(factor, Load16(product + c), Load16(sum + c)), out + c,
                    p_.value_dim - c);
      }
    }
  }

  /// Folds the full chunk into the state, which from then on stands in the next anchor.
  void fold() {
    const float last = decays_[kGdnChunk - 1];
    for (size_t j = 0; j < kGdnChunk; j += 16) {
      Store16(Exp16(Sub(Set16(last), Load16(decays_ + j))), fold_ + j);
    }
    const F16 factor = Exp16(Set16(last));
    float* next = anchor(span_.next_anchor);
    for (size_t d = 0; d < p_.key_dim; d += kProductRows) {
      const size_t count = std::min<size_t>(kProductRows, p_.key_dim - d);
      const float* rows[kProductRows];
      for (size_t r = 0; r < count; ++r) {
        float* keys = keys_ + (d + r) * kGdnChunk;
        rows[r] = keys;
        for (size_t j = 0; j < kGdnChunk; j += 16) {
          Store16(Mul(Load16(fold_ + j), Load16(keys + j)), keys + j);
        }
        float* to = next + (d + r) * value_stride_;
        for (size_t c = 0; c < value_stride_; c += 16) {
          const F16 old =
              state_ == nullptr ? Set16(0.0f) : Load16(state_ + (d + r) * value_stride_ + c);
          Store16(Mul(factor, old), to + c);
        }
      }
      Product(count, rows, values_, value_stride_, kGdnChunk, next + d * value_stride_,
              value_stride_, groups_, true);
    }
    state_ = next;
  }

  const GdnAttendParams& p_;
  const RowSpan& span_;
  const GdnShape shape_;
  const uint32_t head_, key_head_;
  const size_t value_stride_, groups_, row_floats_;
  const float* state_;  // M0 [key_dim, value_stride_]; null: zeros
  const float* pending_keys_;
  float *values_, *decays_;  // V and G of the chunk, in the slot
  float *keys_, *products_, *dots_, *sums_, *beta_, *decay_, *factor_, *fold_;
  // The rows in work: `rows_` from row_ on, the first at place first_ of the chunk.
  uint32_t first_ = 0, rows_ = 0, row_ = 0;
};

void AttendHead(const GdnAttendParams& p, const RowSpan& span, uint32_t head, std::byte* scratch) {
  DeltaWalk(p, span, head, scratch).run();
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
namespace {

HWY_EXPORT(AttendHead);

/// Calls what(span, head) for tasks [begin, end) of a grid of heads times sequences.
template <typename What>
void for_each_head(const RowSet& rows, uint32_t sequences, uint32_t heads, uint32_t begin,
                   uint32_t end, const What& what) {
  for (uint32_t task = begin; task < end; ++task) {
    const uint32_t s = task % sequences, head = task / sequences;
    if (s < rows.span_count && head < heads && gdn_serves(rows.spans[s])) {
      what(rows.spans[s], head);
    }
  }
}

/// The keys of one key head of a span's last chunk.
void keep_keys(const GdnKeepParams& p, const RowSpan& span, uint32_t head) {
  const GdnShape shape = gdn_shape(p);
  const size_t row_floats = gdn_row_floats(shape), padded = gdn_padded(p.key_dim);
  auto* slot = reinterpret_cast<float*>(p.slots + span.slot * p.slot_stride);
  float* keys = slot + gdn_slot_keys(shape) + uint64_t{head} * p.key_dim * kGdnKeyPlaces;
  const uint32_t end = span.index + span.row_count;
  const uint32_t first = std::max(span.index, (end - 1) / kGdnChunk * kGdnChunk);
  for (uint32_t position = first; position < end; ++position) {
    const uint64_t row = uint64_t{span.first_row} + (position - span.index);
    const float* from = p.mixed + row * row_floats + (p.key_heads + head) * padded;
    float* to = keys + gdn_key_place(position);
    for (size_t d = 0; d < p.key_dim; ++d) to[d * kGdnKeyPlaces] = from[d];
  }
}

}  // namespace

ATLAS_CPU_KERNEL(gdn_attend, GdnAttendParams) {
  for_each_head(*params.rows, params.sequences, params.value_heads, begin, end,
                [&](const RowSpan& span, uint32_t head) {
                  HWY_DYNAMIC_DISPATCH(AttendHead)(params, span, head, scratch);
                });
}

ATLAS_CPU_KERNEL(gdn_keep, GdnKeepParams) {
  for_each_head(*params.rows, params.sequences, params.key_heads, begin, end,
                [&](const RowSpan& span, uint32_t head) { keep_keys(params, span, head); });
}

}  // namespace atlas::kernels::cpu
#endif

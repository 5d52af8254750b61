// The attention of one tile of rows over blocks of positions, as the contract in
// kernels/common/gqa.h has it. Per target.
#if defined(ATLAS_KERNELS_CPU_GQA_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_KERNELS_CPU_GQA_TILE_INL_H_
#undef ATLAS_KERNELS_CPU_GQA_TILE_INL_H_
#else
#define ATLAS_KERNELS_CPU_GQA_TILE_INL_H_
#endif

#include <algorithm>
#include <atomic>
#include <limits>

#include "kernels/cpu/gqa_item.h"
#include "kernels/cpu/gqa_product-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// A page's keys [head_dim, kGqaPageTokens] and values [kGqaPageTokens, value_stride].
struct PageView {
  const float *keys, *values;
  size_t head_dim, value_stride;

  /// Dot products of `rows` queries with the first `groups` groups of 16 positions.
  HWY_INLINE void score(size_t rows, const float* const* q, size_t groups, float* to,
                        size_t to_stride) const {
    Product(rows, q, keys, kGqaPageTokens, head_dim, to, to_stride, groups, false);
  }
  /// `rows` sums of the values of positions [first, first + count), by weights.
  HWY_INLINE void sum(size_t rows, const float* const* weights, size_t first, size_t count,
                      float* to, bool accumulate) const {
    Product(rows, weights, values + first * value_stride, value_stride, count, to, value_stride,
            value_stride / 16, accumulate);
  }
};

/// The pages of one kv head of a slot, as TileWalk takes them.
struct PageViews {
  GqaPages pages;

  HWY_INLINE PageView page(uint32_t number) const {
    return {pages.keys(number), pages.values(number), pages.head_dim,
            gqa_value_stride(pages.head_dim)};
  }
};

/// The attention of one item; query row v is row v / group of the tile, query head v % group.
/// `Pages` gives the views of pages.
template <typename Pages>
class TileWalk {
 public:
  TileWalk(const GqaAttendParams& p, const GqaItem& item, const Pages& pages, std::byte* scratch)
      : p_(p),
        item_(item),
        group_(p.heads / p.kv_heads),
        count_(item.rows * group_),
        value_stride_(gqa_value_stride(p.head_dim)),
        pages_(pages) {
    const size_t padded = (gqa_tile_rows(group_) * group_ + 15) / 16 * 16;
    auto* floats = reinterpret_cast<float*>(scratch);
    const auto take = [&floats](size_t count) {
      float* at = floats;
      floats += count;
      return at;
    };
    scores_ = take(padded * kGqaBlockTokens);
    block_sum_ = take(padded * value_stride_);
    sum_ = take(padded * value_stride_);
    block_max_ = take(padded);
    block_weight_ = take(padded);
    max_ = take(padded);
    weight_ = take(padded);
    old_factor_ = take(padded);
    new_factor_ = take(padded);
  }

  /// Computes the item's blocks; joins them here, or stores each as a partial.
  void run() {
    for (uint32_t block = item_.first_block; block < item_.end_block; ++block) {
      const size_t first = first_query(block);
      score(block, first);
      for (size_t v = first; v < count_; ++v) weigh(v, tokens(v, block));
      sum_values(block, first);
      if (item_.parts == 1) {
        join(block, first);
      } else {
        for (size_t v = first; v < count_; ++v) store_partial(v, block);
      }
    }
  }

  /// Joins the partials of all the tile's blocks.
  void join_partials() {
    const uint32_t blocks = block_of(item_.first_index + item_.rows - 1) + 1;
    for (uint32_t block = 0; block < blocks; ++block) {
      const size_t first = first_query(block);
      for (size_t v = first; v < count_; ++v) load_partial(v, block);
      join(block, first);
    }
  }

  void write_out() {
    for (size_t v = 0; v < count_; ++v) {
      const F16 weight = Set16(weight_[v]);
      float* out = p_.out + (item_.first_row + v / group_) * p_.out_stride + head_offset(v);
      const float* sum = sum_ + v * value_stride_;
      size_t i = 0;
      for (; i + 16 <= p_.head_dim; i += 16) Store16(Div(Load16(sum + i), weight), out + i);
      if (i < p_.head_dim) StorePart16(Div(Load16(sum + i), weight), out + i, p_.head_dim - i);
    }
  }

 private:
  static uint32_t block_of(uint32_t index) { return index / kGqaBlockTokens; }

  size_t head_offset(size_t v) const {
    return (item_.kv_head * group_ + v % group_) * size_t{p_.head_dim};
  }
  /// The first query row that sees any position of the block; rows ascend, so all later ones do.
  size_t first_query(uint32_t block) const {
    const uint32_t start = block * kGqaBlockTokens;
    return start <= item_.first_index ? 0 : (start - item_.first_index) * group_;
  }
  /// Positions of the block that query row v sees: 0 .. kGqaBlockTokens.
  size_t tokens(size_t v, uint32_t block) const {
    const uint32_t end = item_.first_index + static_cast<uint32_t>(v / group_) + 1;
    const uint32_t start = block * kGqaBlockTokens;
    return end <= start ? 0 : std::min(end - start, kGqaBlockTokens);
  }
  /// The same for page p of the block: 0 .. kGqaPageTokens.
  size_t page_tokens(size_t v, uint32_t block, uint32_t page) const {
    const size_t seen = tokens(v, block), before = size_t{page} * kGqaPageTokens;
    return seen <= before ? 0 : std::min<size_t>(seen - before, kGqaPageTokens);
  }
  /// Calls what(v, rows) for runs of query rows, about equal and at most kProductRows long.
  template <typename What>
  HWY_INLINE void in_runs(size_t first, const What& what) const {
    const size_t all = count_ - first;
    const size_t runs = (all + kProductRows - 1) / kProductRows;
    for (size_t run = 0, v = first; run < runs; ++run) {
      const size_t end = first + (run + 1) * all / runs;
      what(v, end - v);
      v = end;
    }
  }

  /// Scores of the block's positions, before the scale; those past a row's own are not defined.
  void score(uint32_t block, size_t first) {
    for (uint32_t page = 0; page < kGqaBlockPages; ++page) {
      if (page_tokens(count_ - 1, block, page) == 0) break;
      const auto view = pages_.page(block * kGqaBlockPages + page);
      in_runs(first, [&](size_t v, size_t rows) HWY_ATTR {
        const size_t groups = (page_tokens(v + rows - 1, block, page) + 15) / 16;
        if (groups == 0) return;
        const float* q[kProductRows];
        for (size_t r = 0; r < rows; ++r) {
          q[r] = p_.q + (item_.first_row + (v + r) / group_) * p_.q_stride + head_offset(v + r);
        }
        view.score(rows, q, groups, scores_ + v * kGqaBlockTokens + page * kGqaPageTokens,
                   kGqaBlockTokens);
      });
    }
  }

  /// Turns the first `count` scores of query row v into weights; the rest of their group gets 0.
  HWY_INLINE void weigh(size_t v, size_t count) {
    float* s = scores_ + v * kGqaBlockTokens;
    const F16 scale = Set16(p_.scale);
    const F16 lowest = Set16(-std::numeric_limits<float>::infinity());
    F16 largest = lowest;
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
      const F16 x = Mul(Load16(s + i), scale);
      Store16(x, s + i);
      largest = Max(largest, x);
    }
    if (i < count) {
      const M16 seen = Lt(Iota16(), Set16(static_cast<float>(count - i)));
      const F16 x = Select(seen, Mul(Load16(s + i), scale), lowest);
      Store16(x, s + i);
      largest = Max(largest, x);
    }
    const float m = MaxLane(largest);
    const F16 maximum = Set16(m);
    F16 sum = Set16(0.0f);
    for (i = 0; i < count; i += 16) {
      const F16 w = Exp16(Sub(Load16(s + i), maximum));
      Store16(w, s + i);
      sum = Add(sum, w);
    }
    block_max_[v] = m;
    block_weight_[v] = SumPairwise(sum);
  }

  /// block_sum = weights times values, positions ascending.
  void sum_values(uint32_t block, size_t first) {
    for (uint32_t page = 0; page < kGqaBlockPages; ++page) {
      if (page_tokens(count_ - 1, block, page) == 0) break;
      const auto view = pages_.page(block * kGqaBlockPages + page);
      const bool accumulate = page != 0;
      in_runs(first, [&](size_t v, size_t rows) HWY_ATTR {
        const float* w[kProductRows];
        for (size_t r = 0; r < rows; ++r) {
          w[r] = scores_ + (v + r) * kGqaBlockTokens + page * kGqaPageTokens;
        }
        float* sum = block_sum_ + v * value_stride_;
        // What every row of the run sees is summed together. Beyond that lies what some rows must
        // not see, not even times 0: it may be anything. Rows that see more go on alone.
        const size_t shared = page_tokens(v, block, page);
        if (shared != 0 || !accumulate) {
          view.sum(rows, w, 0, shared, sum, accumulate);
        }
        for (size_t r = 0; r < rows; ++r) {
          const size_t seen = page_tokens(v + r, block, page);
          if (seen == shared) continue;
          const float* rest = w[r] + shared;
          view.sum(1, &rest, shared, seen - shared, sum + r * value_stride_, true);
        }
      });
    }
  }

  /// Joins the block's maxima, weight sums and value sums to the running ones, as the contract
  /// says.
  void join(uint32_t block, size_t first) {
    if (block == 0) {
      std::copy_n(block_max_, count_, max_);
      std::copy_n(block_weight_, count_, weight_);
      std::copy_n(block_sum_, count_ * value_stride_, sum_);
      return;
    }
    // Lanes before `first` and past `count_` are computed too, and not kept.
    for (size_t v = first / 16 * 16; v < count_; v += 16) {
      const F16 old_max = Load16(max_ + v), block_max = Load16(block_max_ + v);
      const F16 joint = Max(old_max, block_max);
      const F16 a = Exp16(Sub(old_max, joint)), c = Exp16(Sub(block_max, joint));
      const F16 weight = MulAdd(Load16(block_weight_ + v), c, Mul(Load16(weight_ + v), a));
      float lanes[2][16];
      Store16(joint, lanes[0]);
      Store16(weight, lanes[1]);
      Store16(a, old_factor_ + v);
      Store16(c, new_factor_ + v);
      for (size_t i = std::max(v, first); i < std::min(v + 16, count_); ++i) {
        max_[i] = lanes[0][i - v];
        weight_[i] = lanes[1][i - v];
      }
    }
    for (size_t v = first; v < count_; ++v) {
      const F16 a = Set16(old_factor_[v]), c = Set16(new_factor_[v]);
      float* sum = sum_ + v * value_stride_;
      const float* more = block_sum_ + v * value_stride_;
      for (size_t i = 0; i < value_stride_; i += 16) {
        Store16(MulAdd(Load16(more + i), c, Mul(Load16(sum + i), a)), sum + i);
      }
    }
  }

  float* partial(size_t v, uint32_t block) const {
    const uint64_t row = item_.first_row + v / group_;
    const uint64_t head = item_.kv_head * group_ + v % group_;
    return p_.partials +
           ((row * p_.heads + head) * p_.max_blocks + block) * gqa_partial_floats(p_.head_dim);
  }
  void store_partial(size_t v, uint32_t block) const {
    float* to = partial(v, block);
    std::copy_n(block_sum_ + v * value_stride_, value_stride_, to);
    to[value_stride_] = block_max_[v];
    to[value_stride_ + 1] = block_weight_[v];
  }
  void load_partial(size_t v, uint32_t block) {
    const float* from = partial(v, block);
    std::copy_n(from, value_stride_, block_sum_ + v * value_stride_);
    block_max_[v] = from[value_stride_];
    block_weight_[v] = from[value_stride_ + 1];
  }

  const GqaAttendParams& p_;
  const GqaItem& item_;
  const size_t group_, count_, value_stride_;
  const Pages& pages_;
  float *scores_, *block_sum_, *sum_;
  float *block_max_, *block_weight_, *max_, *weight_, *old_factor_, *new_factor_;
};

/// Computes an item's share of its tile; whoever is last writes the tile's outputs.
template <typename Pages>
void AttendItem(const GqaAttendParams& p, const GqaItem& item, const Pages& pages,
                std::byte* scratch) {
  TileWalk<Pages> walk(p, item, pages, scratch);
  walk.run();
  if (item.parts > 1) {
    // Release: this part's partials before its arrival; acquire: all parts' partials after the
    // last.
    std::atomic_ref<uint32_t> arrivals(
        p.arrivals[uint64_t{item.first_row} * p.kv_heads + item.kv_head]);
    if (arrivals.fetch_add(1, std::memory_order_acq_rel) + 1 != item.parts) return;
    walk.join_partials();
  }
  walk.write_out();
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard

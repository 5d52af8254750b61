// qsa_attend: attention over each row's list of positions (kernels/common/qsa.h).
//
// The walk is gqa_attend's, over 64 places of the list at a time, whose keys and values are read
// from where they lie. Rows that attend to everything share tiles; a row that has to choose is a
// tile of its own.
#include "kernels/common/qsa.h"

#include "kernels/cpu/gqa_item.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/qsa.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>

#include <algorithm>
#include <utility>

#include "kernels/cpu/gqa_tile-inl.h"

// One definition for all targets.
#ifndef ATLAS_KERNELS_CPU_QSA_ITEM_
#define ATLAS_KERNELS_CPU_QSA_ITEM_
namespace atlas::kernels::cpu {

/// What a row attends to: blocks of positions, then the positions from `tail` on.
struct QsaList {
  const uint32_t* blocks;  // null: everything, in order
  uint32_t count;          // of blocks
  uint32_t ratio;
  uint32_t tail;
  uint32_t places;  // positions in all
};

}  // namespace atlas::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

inline constexpr size_t kPageRuns = kGqaPageTokens / kQsaKeyRun;

#if HWY_TARGET == HWY_SCALAR
template <size_t... I>
HWY_INLINE F16 LoadRuns(const float* const* runs, size_t offset, std::index_sequence<I...>) {
  return {{hn::LoadU(F32(), runs[I / kQsaKeyRun] + offset + I % kQsaKeyRun)...}};
}
#else
/// A vector from runs of four floats, one after the other.
template <class D>
HWY_INLINE hn::Vec<D> LoadRun(D d, const float* const* runs, size_t offset) {
  if constexpr (hn::MaxLanes(D()) <= kQsaKeyRun) {
    return hn::LoadU(d, runs[0] + offset);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadRun(half, runs + hn::MaxLanes(half) / kQsaKeyRun, offset),
                       LoadRun(half, runs, offset));
  }
}
/// Sixteen lanes from four runs of four floats.
template <size_t... I>
HWY_INLINE F16 LoadRuns(const float* const* runs, size_t offset, std::index_sequence<I...>) {
  return {{LoadRun(F32(), runs + I * kRegisterLanes / kQsaKeyRun, offset)...}};
}
#endif

/// What is read soon: lines of 16 floats of 2^shift rows, one asked for at each step of a loop.
struct Ahead {
  const float* const* rows;
  uint32_t shift;

  HWY_INLINE void ask(size_t step) const {
    hwy::Prefetch(rows[step & ((size_t{1} << shift) - 1)] + (step >> shift) * 16);
  }
};

/// Dot products of R queries with the sixteen positions of four runs of keys [count, 4].
template <size_t R>
void ScoreRuns(const float* const* q, const float* const* runs, size_t count, const Ahead& ahead,
               float* to, size_t to_stride) {
  F16 sum[R];
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r) sum[r] = Set16(0.0f);
  for (size_t d = 0; d < count; ++d) {
    ahead.ask(d);
    const F16 keys = LoadRuns(runs, d * kQsaKeyRun, kAll);
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) sum[r] = MulAdd(Set16(q[r][d]), keys, sum[r]);
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r) Store16(sum[r], to + r * to_stride);
}

/// 64 places of a list: where the keys of each four of them lie, and each one's values.
struct ListView {
  const float* runs[kPageRuns + 4];  // then the next page's first
  const float* values[kGqaPageTokens];
  size_t head_dim, value_stride;
  mutable uint32_t calls = 0;

  /// A list's keys and values lie scattered, so they are asked for ahead of time: while the first
  /// queries are scored, the keys of the next group, and then the group's values.
  void score(size_t rows, const float* const* q, size_t groups, float* to, size_t to_stride) const {
    const bool ask_values = calls++ == 1;
    for (size_t group = 0; group < groups; ++group, to += 16) {
      const float* const* four = runs + 4 * group;
      const Ahead ahead = ask_values ? Ahead{values + 16 * group, 4} : Ahead{four + 4, 2};
      switch (rows) {
        case 1:
          ScoreRuns<1>(q, four, head_dim, ahead, to, to_stride);
          break;
        case 2:
          ScoreRuns<2>(q, four, head_dim, ahead, to, to_stride);
          break;
        case 3:
          ScoreRuns<3>(q, four, head_dim, ahead, to, to_stride);
          break;
        case 4:
          ScoreRuns<4>(q, four, head_dim, ahead, to, to_stride);
          break;
        case 5:
          ScoreRuns<5>(q, four, head_dim, ahead, to, to_stride);
          break;
        default:
          ScoreRuns<6>(q, four, head_dim, ahead, to, to_stride);
      }
    }
  }
  void sum(size_t rows, const float* const* weights, size_t first, size_t count, float* to,
           bool accumulate) const {
    ProductOver(rows, weights, ListedRows{values + first, 0}, count, to, value_stride,
                value_stride / 16, accumulate);
  }
};

/// Pages of 64 places of a list, for TileWalk.
class ListPages {
 public:
  ListPages(const GqaPages& pages, const QsaList& list, float* memory)
      : pages_(pages), list_(list), memory_(memory) {}

  ListView page(uint32_t number) const {
    ListView view;
    view.head_dim = pages_.head_dim;
    view.value_stride = gqa_value_stride(pages_.head_dim);
    const uint32_t first = number * kGqaPageTokens;
    const uint32_t count = std::min(list_.places - first, kGqaPageTokens);
    for (uint32_t i = 0; i < kGqaPageTokens; ++i) {
      const uint32_t at = position(first + std::min(i, count - 1));
      view.values[i] = pages_.values(at / kGqaPageTokens) + at % kGqaPageTokens * view.value_stride;
    }
    const bool in_runs = list_.blocks == nullptr || list_.ratio % kQsaKeyRun == 0;
    for (uint32_t i = 0; i < kPageRuns; ++i) {
      // Past the list's end anything will do, for no row sees it.
      const uint32_t place = i * kQsaKeyRun < count ? i * kQsaKeyRun : 0;
      view.runs[i] = in_runs ? key(position(first + place)) : collect(first, place, count);
    }
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t place = first + kGqaPageTokens + i * kQsaKeyRun;
      view.runs[kPageRuns + i] =
          in_runs && place < list_.places ? key(position(place)) : view.runs[i];
    }
    return view;
  }

 private:
  uint32_t position(uint32_t place) const {
    if (list_.blocks == nullptr) return place;
    const uint32_t block = place / list_.ratio;
    return block < list_.count ? list_.blocks[block] * list_.ratio + place % list_.ratio
                               : list_.tail + (place - list_.count * list_.ratio);
  }
  const float* key(uint32_t at) const {
    const size_t place = at % kGqaPageTokens;
    return pages_.keys(at / kGqaPageTokens) + place / kQsaKeyRun * pages_.head_dim * kQsaKeyRun +
           place % kQsaKeyRun;
  }
  /// Puts four places' keys together that do not lie so, and says where.
  const float* collect(uint32_t first, uint32_t place, uint32_t count) const {
    float* to = memory_ + size_t{place} * pages_.head_dim;
    for (uint32_t i = 0; i < kQsaKeyRun; ++i) {
      const float* from = key(position(first + std::min(place + i, count - 1)));
      for (size_t d = 0; d < pages_.head_dim; ++d) to[d * kQsaKeyRun + i] = from[d * kQsaKeyRun];
    }
    return to;
  }

  const GqaPages pages_;
  const QsaList& list_;
  float* memory_;  // keys [kPageRuns, head_dim, kQsaKeyRun]
};

void AttendList(const GqaAttendParams& p, const GqaItem& item, const QsaList& list,
                std::byte* scratch) {
  auto* collected = reinterpret_cast<float*>(scratch);
  AttendItem(p, item, ListPages(GqaPages(p, item), list, collected),
             scratch + size_t{p.head_dim} * kGqaPageTokens * sizeof(float));
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
namespace {

/// Rows of a tile whose blocks may be split over tasks, and parts at most.
constexpr uint32_t kSplitTileRows = 8;
constexpr uint32_t kSplitParts = 32;

HWY_EXPORT(AttendList);

GqaAttendParams dense_params(const QsaAttendParams& p) {
  GqaAttendParams dense{};
  dense.q = p.q;
  dense.out = p.out;
  dense.control = p.control;
  dense.rows = p.rows;
  dense.pages = p.pages;
  dense.arrivals = p.arrivals;
  dense.partials = p.partials;
  dense.page_stride = p.page_stride;
  dense.q_stride = p.q_stride;
  dense.out_stride = p.out_stride;
  dense.heads = p.heads;
  dense.kv_heads = p.kv_heads;
  dense.head_dim = p.head_dim;
  dense.tasks = p.tasks;
  dense.split_rows = p.split_rows;
  dense.max_blocks = p.max_blocks;
  dense.scale = p.scale;
  return dense;
}

/// What row `row` at position `index` attends to, once it has to choose.
QsaList list_of(const QsaAttendParams& p, uint64_t row, uint32_t index) {
  QsaList list{};
  list.blocks = p.lists + row * p.budget_blocks;
  list.count = p.budget_blocks;
  list.ratio = p.ratio;
  list.tail = (index + 1) / p.ratio * p.ratio;
  list.places = list.count * list.ratio + (index + 1 - list.tail);
  return list;
}

/// Calls what(item, list) for the parts of a tile that tasks [begin, end) have; `place` counts on.
template <typename What>
void for_each_part(const QsaAttendParams& p, GqaItem item, const QsaList& list, uint32_t& place,
                   uint32_t begin, uint32_t end, const What& what) {
  const uint32_t blocks = (item.first_index + item.rows - 1) / kGqaBlockTokens + 1;
  uint32_t part_blocks = blocks;
  if (item.rows <= kSplitTileRows && item.first_row + item.rows <= p.split_rows &&
      blocks <= p.max_blocks) {
    part_blocks = (blocks + kSplitParts - 1) / kSplitParts;
  }
  item.parts = (blocks + part_blocks - 1) / part_blocks;
  for (uint32_t part = 0; part < item.parts; ++part) {
    item.first_block = part * part_blocks;
    item.end_block = std::min(blocks, item.first_block + part_blocks);
    for (item.kv_head = 0; item.kv_head < p.kv_heads; ++item.kv_head, ++place) {
      const uint32_t task = reversed(place % p.tasks, p.tasks);
      if (task >= begin && task < end) what(item, list);
    }
  }
}

/// Deals out the step's items in a fixed order, and calls `what` for those of tasks [begin, end).
template <typename What>
void for_each_item(const QsaAttendParams& p, uint32_t begin, uint32_t end, const What& what) {
  const uint32_t tile_rows = gqa_tile_rows(p.heads / p.kv_heads);
  const uint64_t positions = uint64_t{p.control->limits.max_pages} * kGqaPageTokens;
  uint32_t place = 0;
  for (uint32_t s = 0; s < p.rows->span_count; ++s) {
    const RowSpan& span = p.rows->spans[s];
    // control_fetch lets no such span pass.
    if (uint64_t{span.index} + span.row_count > positions) continue;
    const uint32_t dense = qsa_dense_rows(span, p.ratio, p.budget_blocks);
    for (uint32_t r = 0; r < span.row_count;) {
      GqaItem item{};
      item.slot = span.slot;
      item.first_row = span.first_row + r;
      item.rows = r < dense ? std::min(tile_rows, dense - r) : 1;
      item.first_index = span.index + r;
      QsaList list{};
      list.places = item.first_index + item.rows;
      if (r >= dense) {
        list = list_of(p, item.first_row, item.first_index);
        item.first_index = list.places - 1;
      }
      for_each_part(p, item, list, place, begin, end, what);
      r += item.rows;
    }
  }
}

}  // namespace

ATLAS_CPU_KERNEL(qsa_attend, QsaAttendParams) {
  const GqaAttendParams dense = dense_params(params);
  for_each_item(params, begin, end, [&](const GqaItem& item, const QsaList& list) {
    HWY_DYNAMIC_DISPATCH(AttendList)(dense, item, list, scratch);
  });
}

}  // namespace atlas::kernels::cpu
#endif

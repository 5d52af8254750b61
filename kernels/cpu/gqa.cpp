// gqa_write and gqa_attend: grouped-query attention over paged keys and values
// (kernels/common/gqa.h).
//
// A task takes a tile: up to 16 consecutive rows of one sequence, and the query heads of one kv
// head. A block of 256 positions is scored for all query rows of the tile, weighted, and its values
// summed, so keys and values are read once a tile. Every query row's arithmetic stands alone.
#include "kernels/common/gqa.h"

#include "kernels/cpu/gqa_item.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gqa.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "kernels/cpu/gqa_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

void Attend(const GqaAttendParams& p, const GqaItem& item, std::byte* scratch) {
  AttendItem(p, item, PageViews{GqaPages(p, item)}, scratch);
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

HWY_EXPORT(Attend);

/// Deals out the step's items in a fixed order, and calls `what` for those of tasks [begin, end).
template <typename What>
void for_each_item(const GqaAttendParams& p, uint32_t begin, uint32_t end, const What& what) {
  const StepControl& control = *p.control;
  const uint32_t tile_rows = gqa_tile_rows(p.heads / p.kv_heads);
  const uint32_t positions = control.limits.max_pages * kGqaPageTokens;
  uint32_t place = 0;
  for (uint32_t s = 0; s < p.rows->span_count; ++s) {
    const RowSpan& span = p.rows->spans[s];
    const uint32_t end_row = span.first_row + span.row_count;
    for (uint32_t row = span.first_row; row < end_row; row += tile_rows) {
      GqaItem item{};
      item.slot = span.slot;
      item.first_row = row;
      item.rows = std::min(tile_rows, end_row - row);
      item.first_index = span.index + (row - span.first_row);
      // control_fetch let no such row pass.
      if (uint64_t{item.first_index} + item.rows > positions) continue;
      const uint32_t blocks = (item.first_index + item.rows - 1) / kGqaBlockTokens + 1;
      uint32_t part_blocks = blocks;
      if (item.rows <= kSplitTileRows && row + item.rows <= p.split_rows &&
          blocks <= p.max_blocks) {
        part_blocks = (blocks + kSplitParts - 1) / kSplitParts;
      }
      item.parts = (blocks + part_blocks - 1) / part_blocks;
      for (uint32_t part = 0; part < item.parts; ++part) {
        item.first_block = part * part_blocks;
        item.end_block = std::min(blocks, item.first_block + part_blocks);
        for (item.kv_head = 0; item.kv_head < p.kv_heads; ++item.kv_head, ++place) {
          const uint32_t task = reversed(place % p.tasks, p.tasks);
          if (task >= begin && task < end) what(item);
        }
      }
    }
  }
}

/// Writes keys and values of `rows` rows from `row` on, which follow one another in page `page`.
void write_rows(const GqaWriteParams& p, uint64_t row, uint32_t rows, uint64_t page) {
  const size_t value_stride = gqa_value_stride(p.head_dim);
  const uint32_t place = p.rows->rows[row].index % kGqaPageTokens;
  auto* to = reinterpret_cast<float*>(p.pages + page * p.page_stride);
  for (uint32_t h = 0; h < p.kv_heads; ++h, to += gqa_head_floats(p.head_dim)) {
    const float* k = p.k + row * p.k_stride + uint64_t{h} * p.head_dim;
    const float* v = p.v + row * p.v_stride + uint64_t{h} * p.head_dim;
    for (size_t d = 0; d < p.head_dim; ++d) {
      float* key = to + d * kGqaPageTokens + place;
      for (size_t i = 0; i < rows; ++i) key[i] = k[i * p.k_stride + d];
    }
    float* value = to + size_t{p.head_dim} * kGqaPageTokens + place * value_stride;
    for (size_t i = 0; i < rows; ++i, value += value_stride) {
      std::copy_n(v + i * p.v_stride, p.head_dim, value);
      std::fill(value + p.head_dim, value + value_stride, 0.0f);
    }
  }
}

}  // namespace

ATLAS_CPU_KERNEL(gqa_write, GqaWriteParams) {
  const StepControl& control = *params.control;
  const auto last = static_cast<uint32_t>(
      std::min<uint64_t>(params.rows->row_count, uint64_t{end} * kGqaWriteRows));
  for (uint32_t row = begin * kGqaWriteRows; row < last;) {
    // Rows that follow one another in one page are written together, dimension by dimension.
    const RowInput& first = params.rows->rows[row];
    uint32_t rows = 1;
    while (row + rows < last && params.rows->rows[row + rows].sequence == first.sequence &&
           (first.index + rows) % kGqaPageTokens != 0) {
      ++rows;
    }
    const uint32_t page = first.index / kGqaPageTokens;
    // control_fetch lets no row pass that has no page.
    if (page < control.limits.max_pages) {
      write_rows(params, row, rows,
                 control.block_table[uint64_t{first.slot} * control.limits.max_pages + page]);
    }
    for (const uint32_t end_row = row + rows; row < end_row; ++row) {
      if (row >= params.split_rows) continue;
      std::fill_n(params.arrivals + uint64_t{row} * params.kv_heads, params.kv_heads, 0u);
    }
  }
}

ATLAS_CPU_KERNEL(gqa_attend, GqaAttendParams) {
  for_each_item(params, begin, end, [&](const GqaItem& item) {
    HWY_DYNAMIC_DISPATCH(Attend)(params, item, scratch);
  });
}

}  // namespace atlas::kernels::cpu
#endif

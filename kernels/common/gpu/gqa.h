// Dense attention for every GPU pack: gqa_write puts keys and values into pages, gqa_attend_* walk
// them, gqa_merge joins blocks that different blocks of threads have computed (gpu_attention.h).
#pragma once

#include "kernels/common/gpu/attention.h"
#include "kernels/common/gpu/attention_write.h"

namespace atlas::kernels {

/// Grid: (rows). arrivals and split_rows are not used.
ATLAS_DEVICE_KERNEL(gqa_write, GqaWriteParams, kAttentionWriteThreads) {
  using namespace device;
  const uint32_t row = block_index();
  if (row >= load(&params.rows->row_count)) return;
  write_row({params.k, params.v, params.k_stride, params.v_stride, params.kv_heads, params.head_dim,
             params.control, params.rows, params.pages, params.page_stride},
            row);
}

template <typename Form>
ATLAS_DEVICE void gqa_attend(const GqaAttendParams& p) {
  using namespace device;
  const uint32_t group = p.heads / p.kv_heads;
  uint32_t before = 0;
  const RowSpan* span = find_span(
      p.rows, block_index(),
      [&](uint32_t row_count, uint32_t, uint32_t) {
        return (row_count * group + Form::kRows - 1) / Form::kRows;
      },
      before);
  if (span == nullptr) return;
  QueryTile tile;
  tile.slot = load(&span->slot);
  tile.kv_head = block_index<1>();
  tile.group = group;
  tile.first_row = load(&span->first_row);
  tile.index = load(&span->index);
  tile.first = (block_index() - before) * Form::kRows;
  const uint32_t left = load(&span->row_count) * group - tile.first;
  tile.count = left < Form::kRows ? left : Form::kRows;
  if (!has_page(p.control, tile.all_places() - 1)) return;
  attend<Form>(p, tile, PagedPlaces(p, tile), block_index<2>());
}

/// Grid: (tiles, kv heads, tasks): a tile's blocks are divided among `tasks` blocks of threads. If
/// split_rows is 0, tasks is 1 and partials are not used; else it is the rows of the bucket.
ATLAS_DEVICE_KERNEL(gqa_attend_64, GqaAttendParams, 128) { gqa_attend<WalkForm<4, 1, 1>>(params); }
ATLAS_DEVICE_KERNEL(gqa_attend_128, GqaAttendParams, 256) { gqa_attend<WalkForm<8, 1, 1>>(params); }
ATLAS_DEVICE_KERNEL(gqa_attend_256, GqaAttendParams, 256) { gqa_attend<WalkForm<8, 1, 2>>(params); }
ATLAS_DEVICE_KERNEL(gqa_attend_tall_64, GqaAttendParams, 256) {
  gqa_attend<WalkForm<8, 4, 1, 2>>(params);
}
ATLAS_DEVICE_KERNEL(gqa_attend_tall_128, GqaAttendParams, 256) {
  gqa_attend<WalkForm<8, 3, 1>>(params);
}
ATLAS_DEVICE_KERNEL(gqa_attend_tall_256, GqaAttendParams, 256) {
  gqa_attend<WalkForm<8, 2, 2>>(params);
}

/// Grid: (rows, heads). Results of the rows that see more than one block.
ATLAS_DEVICE_KERNEL(gqa_merge, GqaAttendParams, kAttentionMergeThreads) {
  using namespace device;
  const uint32_t row = block_index();
  if (row >= load(&params.rows->row_count)) return;
  const uint32_t index = load(&load(&params.rows->rows)[row].index);
  if (index < kGqaBlockTokens || !has_page(params.control, index)) return;
  merge_row(params, row, block_index<1>(), index + 1);
}

}  // namespace atlas::kernels

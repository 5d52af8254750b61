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
  QueryTile tile;
  if (!find_tile(p.rows, p.heads / p.kv_heads, Form::kRows, block_index(), tile)) return;
  tile.kv_head = block_index<1>();
  const uint64_t positions = uint64_t{load(&p.control->limits.max_pages)} * kGqaPageTokens;
  // control_fetch lets no such row pass.
  if (tile.all_places() > positions) return;
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
  const uint32_t places = load(&load(&params.rows->rows)[row].index) + 1;
  const uint64_t positions = uint64_t{load(&params.control->limits.max_pages)} * kGqaPageTokens;
  if (places <= kGqaBlockTokens || places > positions) return;
  merge_row(params, row, block_index<1>(), places);
}

}  // namespace atlas::kernels

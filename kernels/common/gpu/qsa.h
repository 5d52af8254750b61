// Sparse attention for every GPU pack, beside qsa_select.h: qsa_write puts keys, values and index
// keys into pages, qsa_attend_* walk each row's list, qsa_merge joins blocks (gpu_qsa.h).
#pragma once

#include "kernels/common/gpu/attention_write.h"
#include "kernels/common/gpu/qsa_walk.h"
#include "kernels/common/gpu_qsa.h"

namespace atlas::kernels {

/// Raw index keys of one sequence by position, from the step or from the slot's ring.
struct RawIndexKeys {
  const float* step;  // of the span's first row
  float* ring;
  uint64_t stride;
  uint32_t index;  // position of the span's first row
  uint32_t dim, ring_rows;

  ATLAS_DEVICE float* ring_row(uint32_t position) const {
    return ring + uint64_t{position % ring_rows} * dim;
  }
  ATLAS_DEVICE const float* at(uint32_t position) const {
    return position < index ? ring_row(position) : step + (position - index) * stride;
  }
};

/// Makes the key of the block whose first position is `first`, and puts it into its page. All
/// threads of the block come here.
ATLAS_DEVICE void pool_block(const QsaWriteParams& p, const RawIndexKeys& keys,
                             const uint32_t* table, uint32_t first) {
  using namespace device;
  auto* x = shared_memory<float>();
  float* shared_scale = x + p.index_dim;
  const float share = divide(1.0f, static_cast<float>(p.ratio));
  block_barrier();  // the key before has been read
  ATLAS_ROLLED
  for (uint32_t d = thread_index(); d < p.index_dim; d += kAttentionWriteThreads) {
    float sum = load(keys.at(first) + d);
    for (uint32_t i = 1; i < p.ratio; ++i) sum += load(keys.at(first + i) + d);
    store(x + d, sum * share);
  }
  block_barrier();  // means are written before they are squared
  if (thread_index() < 16) {
    float squares = 0.0f;
    for (uint32_t d = thread_index(); d < p.index_dim; d += 16) {
      const float mean = load(x + d);
      squares = fma(mean, mean, squares);
    }
    for (uint32_t apart = 8; apart > 0; apart /= 2) squares += shuffle_xor(squares, apart, 0xffff);
    if (thread_index() == 0) {
      const float mean = divide(squares, static_cast<float>(p.index_dim));
      store(shared_scale, divide(1.0f, square_root(mean + p.epsilon)));
    }
  }
  block_barrier();  // the scale is written before all read it
  const float scale = load(shared_scale);
  const uint32_t dims = attention_dims(p.index_dim), half = p.rotary_dim / 2;
  uint8_t* to = p.pages + load(table + first / kGqaPageTokens) * p.page_stride +
                qsa_gpu_pooled_offset(p.kv_heads, p.head_dim) +
                attention_key_offset(first % kGqaPageTokens / p.ratio, dims);
  ATLAS_ROLLED
  for (uint32_t d = thread_index(); d < dims; d += kAttentionWriteThreads) {
    float value = 0.0f;
    if (d < p.index_dim) {
      value = load(x + d) * scale * load(p.k_norm + d);
      if (d < p.rotary_dim) {
        const uint32_t other = d < half ? d + half : d - half;
        const float pair = load(x + other) * scale * load(p.k_norm + other);
        float cosine, sine;
        rotary_angle(static_cast<float>(first), load(p.inverse_frequency + d % half), p.magnitude,
                     cosine, sine);
        value = d < half ? value * cosine - pair * sine : value * cosine + pair * sine;
      }
    }
    store_as<uint16_t>(to + d / 32 * 512 + d % 32 * 2,
                       static_cast<uint16_t>(bf16_pair(value, 0.0f)));
  }
}

/// Grid: (rows). A block writes its row's keys and values, and the index key of the block of
/// positions that the row completes; where that begins before the step, the block of the span's
/// first row does so, which alone reads the ring and then writes it. arrivals and split_rows are
/// not used.
ATLAS_DEVICE_KERNEL(qsa_write, QsaWriteParams, kAttentionWriteThreads) {
  using namespace device;
  const uint32_t row = block_index();
  if (row >= load(&params.rows->row_count)) return;
  write_row({params.k, params.v, params.k_stride, params.v_stride, params.kv_heads, params.head_dim,
             params.control, params.rows, params.pages, params.page_stride},
            row);
  const RowInput* rows = load(&params.rows->rows);
  uint32_t before = 0;
  const RowSpan* span = find_span(
      params.rows, row, [](uint32_t row_count, uint32_t, uint32_t) { return row_count; }, before);
  if (span == nullptr) return;
  const uint32_t first_row = load(&span->first_row), row_count = load(&span->row_count);
  const uint32_t slot = load(&span->slot), begin = load(&span->index);
  const uint32_t index = load(&rows[row].index), last = begin + row_count - 1;
  if (!has_page(params.control, last)) return;
  const RawIndexKeys keys{params.index_k + uint64_t{first_row} * params.index_k_stride,
                          reinterpret_cast<float*>(params.slots + slot * params.slot_stride),
                          params.index_k_stride,
                          begin,
                          params.index_dim,
                          qsa_ring_rows(params.ratio)};
  const uint32_t* table = page_table(params.control, slot);
  constexpr uint32_t kNone = 0xffffffffu;
  const uint32_t started = begin / params.ratio * params.ratio;
  uint32_t blocks[2] = {kNone, kNone};
  if (row == first_row && started < begin && started + params.ratio - 1 <= last)
    blocks[0] = started;
  if ((index + 1) % params.ratio == 0 && index - begin + 1 >= params.ratio) {
    blocks[1] = index + 1 - params.ratio;
  }
  ATLAS_ROLLED
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t block = i == 0 ? blocks[0] : blocks[1];
    if (block != kNone) pool_block(params, keys, table, block);
  }
  if (row != first_row) return;
  block_barrier();  // the ring has been read before it is written
  const uint32_t kept = row_count < keys.ring_rows ? row_count : keys.ring_rows;
  ATLAS_ROLLED
  for (uint32_t i = 0; i < kept; ++i) {
    ATLAS_ROLLED
    for (uint32_t d = thread_index(); d < params.index_dim; d += kAttentionWriteThreads) {
      store(keys.ring_row(last - i) + d, load(keys.at(last - i) + d));
    }
  }
}

ATLAS_DEVICE GqaAttendParams dense_params(const QsaAttendParams& p) {
  GqaAttendParams dense{};
  dense.q = p.q;
  dense.out = p.out;
  dense.control = p.control;
  dense.rows = p.rows;
  dense.pages = p.pages;
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

/// Rows of a span that see everything before them.
ATLAS_DEVICE uint32_t dense_rows_of(const QsaAttendParams& p, uint32_t row_count, uint32_t index) {
  RowSpan span{};
  span.row_count = row_count;
  span.index = index;
  return qsa_dense_rows(span, p.ratio, p.budget_blocks);
}
/// Places of a row that has a list.
ATLAS_DEVICE uint32_t listed_places(const QsaAttendParams& p, uint32_t index) {
  return p.budget_blocks * p.ratio + (index + 1) % p.ratio;
}

/// Tile number `number` of the step, and what it attends to; past the last one a tile
/// without query rows, which sees nothing.
template <typename Form>
ATLAS_DEVICE QueryTile find_tile(const QsaAttendParams& p, uint32_t number, PlaceList& list) {
  using namespace device;
  const uint32_t group = p.heads / p.kv_heads;
  const uint32_t row_tiles = (group + Form::kRows - 1) / Form::kRows;
  uint32_t before = 0;
  const RowSpan* span = find_span(
      p.rows, number,
      [&](uint32_t row_count, uint32_t index, uint32_t) {
        const uint32_t dense = dense_rows_of(p, row_count, index);
        return (dense * group + Form::kRows - 1) / Form::kRows + (row_count - dense) * row_tiles;
      },
      before);
  list = {nullptr, 0, p.ratio, 0};
  QueryTile tile{0, block_index<1>(), 1, 0, 0xffffffffu, 1, 0};
  if (span == nullptr) return tile;
  number -= before;
  const uint32_t index = load(&span->index), row_count = load(&span->row_count);
  if (!has_page(p.control, index + row_count - 1)) return tile;
  const uint32_t dense = dense_rows_of(p, row_count, index);
  const uint32_t dense_tiles = (dense * group + Form::kRows - 1) / Form::kRows;
  tile.slot = load(&span->slot);
  tile.group = group;
  tile.first_row = load(&span->first_row);
  tile.index = index;
  tile.first = number * Form::kRows;
  uint32_t query_rows = dense * group;
  if (number >= dense_tiles) {
    const uint32_t row = dense + (number - dense_tiles) / row_tiles;
    tile.first_row += row;
    tile.index = listed_places(p, index + row) - 1;
    tile.first = (number - dense_tiles) % row_tiles * Form::kRows;
    query_rows = group;
    list = {p.lists + uint64_t{tile.first_row} * p.budget_blocks, p.budget_blocks, p.ratio,
            (index + row + 1) / p.ratio * p.ratio};
  }
  const uint32_t left = query_rows - tile.first;
  tile.count = left < Form::kRows ? left : Form::kRows;
  return tile;
}

/// All or some blocks of a tile: their states for the merge where the step is split, else results.
template <typename Form>
ATLAS_DEVICE void qsa_attend(const QsaAttendParams& p) {
  using namespace device;
  PlaceList list;
  const QueryTile tile = find_tile<Form>(p, block_index(), list);
  if (tile.count == 0) return;
  ListWalk<Form> walk(p, tile);
  const uint32_t blocks = walk.blocks(), each = (blocks + p.tasks - 1) / p.tasks;
  const uint32_t begin = block_index<2>() * each;
  const uint32_t end = begin + each < blocks ? begin + each : blocks;
  if (begin >= end) return;
  walk.begin(tile, list, begin);
  ATLAS_ROLLED
  for (uint32_t block = begin; block < end; ++block) walk.block(block);
  // Results of what no merge follows: of all rows, or of those that see one block.
  if (p.split_rows != 0 && begin != 0) return;
  walk.write_out([&](uint32_t places) { return p.split_rows == 0 || places <= kGqaBlockTokens; });
}

/// Grid: (tiles, kv heads, tasks), as gqa_attend_*.
ATLAS_DEVICE_KERNEL(qsa_attend_64, QsaAttendParams, 128) {
  qsa_attend<ListForm<4, 1, 1, 16>>(params);
}
ATLAS_DEVICE_KERNEL(qsa_attend_128, QsaAttendParams, 256) {
  qsa_attend<ListForm<8, 1, 1, 16>>(params);
}
ATLAS_DEVICE_KERNEL(qsa_attend_256, QsaAttendParams, 256) {
  qsa_attend<ListForm<8, 2, 1, 16>>(params);
}

/// Grid: (tiles / teams, kv heads): each team of a block has a tile. tasks is 1, split_rows 0, and
/// head_dim 256.
ATLAS_DEVICE_KERNEL(qsa_attend_many_256, QsaAttendParams, 128 * kQsaTeams) {
  using namespace device;
  using Form = ListForm<4, 4, kQsaTeams, 8, true>;
  PlaceList list;
  const QueryTile tile = find_tile<Form>(params, block_index() * Form::kTeams + Form::team(), list);
  ListWalk<Form> walk(params, tile);
  constexpr AttentionForm kForm{"", 0, Form::kWarps, 1};
  auto* counts = shared_memory<uint32_t>(Form::kTeams * qsa_team_bytes(kForm, params.head_dim));
  if (Form::thread() == 0) store(counts + Form::team(), walk.blocks());
  walk.begin(tile, list, 0);
  uint32_t blocks = 0;
  ATLAS_UNROLL
  for (uint32_t i = 0; i < Form::kTeams; ++i) {
    const uint32_t count = load(counts + i);
    blocks = count > blocks ? count : blocks;
  }
  ATLAS_ROLLED
  for (uint32_t block = 0; block < blocks; ++block) walk.block(block);
  walk.write_out([](uint32_t) { return true; });
}

/// Grid: (rows, heads). Results of the rows that see more than one block of places.
ATLAS_DEVICE_KERNEL(qsa_merge, QsaAttendParams, kAttentionMergeThreads) {
  using namespace device;
  const uint32_t row = block_index();
  if (row >= load(&params.rows->row_count)) return;
  const uint32_t index = load(&load(&params.rows->rows)[row].index);
  if (!has_page(params.control, index)) return;
  const bool is_dense = (index + 1) / params.ratio <= params.budget_blocks;
  const uint32_t places = is_dense ? index + 1 : listed_places(params, index);
  if (places <= kGqaBlockTokens) return;
  merge_row(dense_params(params), row, block_index<1>(), places);
}

}  // namespace atlas::kernels

// Sparse attention for every GPU pack, beside qsa_select.h: qsa_write puts keys, values and index
// keys into pages, qsa_attend_* walk each row's list, qsa_merge joins blocks (gpu_qsa.h).
#pragma once

#include "kernels/common/gpu/attention.h"
#include "kernels/common/gpu/attention_write.h"
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

/// What a tile attends to: blocks of positions, then the positions from `tail` on; or all
/// positions.
struct PlaceList {
  const uint32_t* blocks;  // null: everything, in order
  uint32_t count, ratio, tail;

  ATLAS_DEVICE uint32_t position(uint32_t place) const {
    if (blocks == nullptr) return place;
    const uint32_t block = place / ratio;
    if (block >= count) return tail + (place - count * ratio);
    return device::load(blocks + block) * ratio + place % ratio;
  }
};

/// Places of a list for the walk. Where four places stand is looked up a block ahead, by the first
/// threads of the block for all others.
class ListedPlaces {
 public:
  ATLAS_DEVICE ListedPlaces(const GqaAttendParams& p, const QueryTile& tile, const PlaceList& list,
                            uint32_t shared_offset)
      : p_(p),
        tile_(tile),
        list_(list),
        table_(page_table(p.control, tile.slot)),
        keys_(device::shared_memory<uint64_t>(shared_offset)) {}

  ATLAS_DEVICE void look_ahead(uint32_t block) {
    const uint32_t place = block * kGqaBlockTokens + 4 * device::thread_index();
    position_ = kNowhere;
    if (device::thread_index() < kQsaQuads && place < tile_.all_places()) {
      position_ = list_.position(place);
    }
  }
  ATLAS_DEVICE void look_up() {
    if (position_ != kNowhere) page_ = device::load(table_ + position_ / kGqaPageTokens);
  }
  ATLAS_DEVICE void keep(uint32_t block) const {
    if (position_ == kNowhere) return;
    const uint32_t dims = attention_dims(p_.head_dim), place = position_ % kGqaPageTokens;
    const auto page = reinterpret_cast<uint64_t>(
        p_.pages + tile_.kv_head * attention_head_bytes(p_.head_dim) + page_ * p_.page_stride);
    uint64_t* to = keys_ + block % 2 * (2 * kQsaQuads) + device::thread_index();
    device::store(to, page + attention_key_offset(place, dims));
    device::store(to + kQsaQuads, page + attention_value_offset(place, dims));
  }

  ATLAS_DEVICE void begin_keys(uint32_t block, uint32_t) {
    block_keys_ = keys_ + block % 2 * (2 * kQsaQuads);
  }
  ATLAS_DEVICE const uint8_t* key(uint32_t place) const {
    return reinterpret_cast<const uint8_t*>(device::load(block_keys_ + place / 4)) + place % 4 * 64;
  }
  struct Values {
    const uint64_t* quads;
    ATLAS_DEVICE const uint8_t* quad(uint32_t number) const {
      return reinterpret_cast<const uint8_t*>(device::load(quads + number));
    }
  };
  ATLAS_DEVICE Values values(uint32_t block, uint32_t first) const {
    return {keys_ + block % 2 * (2 * kQsaQuads) + kQsaQuads + first / 4};
  }

 private:
  static constexpr uint32_t kNowhere = 0xffffffffu;

  const GqaAttendParams& p_;
  const QueryTile& tile_;
  const PlaceList list_;
  const uint32_t* const table_;
  uint64_t* const keys_;
  const uint64_t* block_keys_ = nullptr;
  uint32_t position_ = kNowhere, page_ = 0;
};

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

template <typename Form>
ATLAS_DEVICE void qsa_attend(const QsaAttendParams& p) {
  using namespace device;
  const uint32_t group = p.heads / p.kv_heads;
  const uint32_t row_tiles = (group + Form::kRows - 1) / Form::kRows;
  uint32_t before = 0;
  const RowSpan* span = find_span(
      p.rows, block_index(),
      [&](uint32_t row_count, uint32_t index, uint32_t) {
        const uint32_t dense = dense_rows_of(p, row_count, index);
        return (dense * group + Form::kRows - 1) / Form::kRows + (row_count - dense) * row_tiles;
      },
      before);
  if (span == nullptr) return;
  const uint32_t number = block_index() - before, index = load(&span->index);
  const uint32_t row_count = load(&span->row_count);
  if (!has_page(p.control, index + row_count - 1)) return;
  const uint32_t dense = dense_rows_of(p, row_count, index);
  const uint32_t dense_tiles = (dense * group + Form::kRows - 1) / Form::kRows;
  QueryTile tile;
  tile.slot = load(&span->slot);
  tile.kv_head = block_index<1>();
  tile.group = group;
  tile.first_row = load(&span->first_row);
  tile.index = index;
  tile.first = number * Form::kRows;
  uint32_t query_rows = dense * group;
  PlaceList list{nullptr, 0, p.ratio, 0};
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
  const GqaAttendParams params = dense_params(p);
  constexpr AttentionForm kForm{"", 0, Form::kWarps, Form::kTiles};
  const uint32_t after = attention_shared_bytes(kForm, p.head_dim);
  attend<Form>(params, tile, ListedPlaces(params, tile, list, after), block_index<2>());
}

/// Grid: (tiles, kv heads, tasks), as gqa_attend_*.
ATLAS_DEVICE_KERNEL(qsa_attend_64, QsaAttendParams, 128) { qsa_attend<WalkForm<4, 1, 1>>(params); }
ATLAS_DEVICE_KERNEL(qsa_attend_128, QsaAttendParams, 256) { qsa_attend<WalkForm<8, 1, 1>>(params); }
ATLAS_DEVICE_KERNEL(qsa_attend_256, QsaAttendParams, 256) { qsa_attend<WalkForm<8, 1, 2>>(params); }

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

// Keys and values of a step's rows into pages, in the layout of gpu_attention.h.
#pragma once

#include "kernels/common/device/device.h"
#include "kernels/common/gpu_attention.h"

namespace atlas::kernels {

struct WriteSource {
  const float *k, *v;
  uint64_t k_stride, v_stride;
  uint32_t kv_heads, head_dim;
  const StepControl* control;
  const RowSet* set;
  unsigned char* pages;
  uint64_t page_stride;
};

/// Whether bf16 holds x: neither NaN nor an infinity, nor what rounds to one.
ATLAS_DEVICE bool is_bf16(float x) { return (device::bf16_pair(x, 0.0f) & 0x7f80u) != 0x7f80u; }

/// The value of element d of a row, as pages hold it: 0 where bf16 does not.
ATLAS_DEVICE float paged_value(const float* v, uint32_t d) {
  const float x = device::load(v + d);
  return is_bf16(x) ? x : 0.0f;
}

/// The four positions of a value that the step's rows [row, end) begin, from position `index` on,
/// which is the first of them or the sequence's first row of the step.
ATLAS_DEVICE void write_values(const WriteSource& s, uint8_t* page, uint32_t row, uint32_t rows,
                               uint32_t index) {
  using namespace device;
  const uint32_t dims = attention_dims(s.head_dim), place = index % 4;
  for (uint32_t i = thread_index(); i < s.kv_heads * dims; i += kAttentionWriteThreads) {
    const uint32_t head = i / dims, d = i % dims;
    uint8_t* to = page + uint64_t{head} * attention_head_bytes(s.head_dim) +
                  attention_value_offset(index % kGqaPageTokens, dims) + d * 8;
    const float* v = s.v + uint64_t{row} * s.v_stride + uint64_t{head} * s.head_dim;
    float four[4] = {};
    if (place != 0) {  // what earlier steps have written
      const Words2 old = load_as<Words2>(to);
      four[0] = bf16_low(old.w[0]);
      four[1] = bf16_high(old.w[0]);
      four[2] = bf16_low(old.w[1]);
    }
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      if (j < place || j >= place + rows) {
        if (j >= place) four[j] = 0.0f;
        continue;
      }
      four[j] = d < s.head_dim ? paged_value(v + (j - place) * s.v_stride, d) : 0.0f;
    }
    store_as<Words2>(to, Words2{{bf16_pair(four[0], four[1]), bf16_pair(four[2], four[3])}});
  }
}

/// The keys of one row; NaN in a head that has a value that is not a number.
ATLAS_DEVICE void write_keys(const WriteSource& s, uint8_t* page, uint32_t row, uint32_t index) {
  using namespace device;
  const uint32_t dims = attention_dims(s.head_dim);
  for (uint32_t head = warp_index(); head < s.kv_heads; head += kAttentionWriteThreads / 32) {
    const float* k = s.k + uint64_t{row} * s.k_stride + uint64_t{head} * s.head_dim;
    const float* v = s.v + uint64_t{row} * s.v_stride + uint64_t{head} * s.head_dim;
    bool is_whole = true;
    for (uint32_t d = lane_index(); d < s.head_dim; d += kWarpLanes) {
      is_whole = is_whole && is_bf16(load(v + d));
    }
    is_whole = all(is_whole);
    uint8_t* to = page + uint64_t{head} * attention_head_bytes(s.head_dim) +
                  attention_key_offset(index % kGqaPageTokens, dims);
    for (uint32_t d = 2 * lane_index(); d < dims; d += 2 * kWarpLanes) {
      uint32_t pair = 0;
      if (d < s.head_dim) pair = is_whole ? bf16_pair(load(k + d), load(k + d + 1)) : 0x7fff7fffu;
      store_as<uint32_t>(to + d / 32 * 512 + d % 32 * 2, pair);
    }
  }
}

/// What block `row` of the grid writes: the row's keys, and the values of the four positions that
/// it begins. All threads of the block come here.
ATLAS_DEVICE void write_row(const WriteSource& s, uint32_t row) {
  using namespace device;
  const RowInput* rows = load(&s.set->rows);
  const uint32_t row_count = load(&s.set->row_count);
  const uint32_t index = load(&rows[row].index), sequence = load(&rows[row].sequence);
  const uint32_t max_pages = load(&s.control->limits.max_pages);
  // control_fetch lets no row pass that has no page.
  if (index / kGqaPageTokens >= max_pages) return;
  const uint32_t* table =
      load(&s.control->block_table) + uint64_t{load(&rows[row].slot)} * max_pages;
  uint8_t* page = s.pages + load(table + index / kGqaPageTokens) * s.page_stride;
  write_keys(s, page, row, index);
  const bool is_first = row == 0 || load(&rows[row - 1].sequence) != sequence;
  if (index % 4 != 0 && !is_first) return;
  uint32_t count = 1;
  while (count < 4 - index % 4 && row + count < row_count &&
         load(&rows[row + count].sequence) == sequence) {
    ++count;
  }
  write_values(s, page, row, count, index);
}

}  // namespace atlas::kernels

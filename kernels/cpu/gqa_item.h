// How the CPU's gqa_attend divides a step's work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/gqa.h"

namespace atlas::kernels::cpu {

inline constexpr uint32_t kGqaBlockPages = kGqaBlockTokens / kGqaPageTokens;

/// A task's share of the work: some blocks of a tile, for the query heads of one kv head.
struct GqaItem {
  uint32_t slot;
  uint32_t first_row, rows;
  uint32_t first_index;  // of first_row in its sequence
  uint32_t kv_head;
  uint32_t first_block, end_block;
  uint32_t parts;  // items that the tile's blocks are divided into; 1: this is all of them
};

/// Where one kv head's keys and values of a slot lie.
struct GqaPages {
  const unsigned char* pages;
  const uint32_t* table;  // of the slot
  uint64_t page_stride, head_offset;
  uint32_t head_dim;

  GqaPages(const GqaAttendParams& p, const GqaItem& item)
      : pages(p.pages),
        table(p.control->block_table + uint64_t{item.slot} * p.control->limits.max_pages),
        page_stride(p.page_stride),
        head_offset(item.kv_head * gqa_head_floats(p.head_dim) * sizeof(float)),
        head_dim(p.head_dim) {}

  /// Keys [head_dim, kGqaPageTokens] of a page of the sequence; its values follow them.
  const float* keys(uint32_t page) const {
    return reinterpret_cast<const float*>(pages + table[page] * page_stride + head_offset);
  }
  const float* values(uint32_t page) const {
    return keys(page) + size_t{head_dim} * kGqaPageTokens;
  }
};

/// Number of the task that is `place`-th when `tasks` (a power of two) are taken in bit-reversed
/// order.
inline uint32_t reversed(uint32_t place, uint32_t tasks) {
  uint32_t result = 0;
  for (uint32_t bit = 1; bit < tasks; bit *= 2, place /= 2) result = result * 2 + place % 2;
  return result;
}

}  // namespace atlas::kernels::cpu

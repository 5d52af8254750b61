// How the CPU's gqa_attend divides a step's work.
#pragma once

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

  /// Keys [head_dim, kGqaPageTokens] of a page of the sequence; its values follow them.
  const float* keys(uint32_t page) const {
    return reinterpret_cast<const float*>(pages + table[page] * page_stride + head_offset);
  }
};

}  // namespace atlas::kernels::cpu

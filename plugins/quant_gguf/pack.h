// The block formats of the plugin gguf, and how their blocks become the resident layout.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/common/packed.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::quant_gguf {

/// Blocks of 16 rows into one group of the resident layout. A null row reads as zeros.
/// `blocks`: blocks of the checkpoint in a row. Writes layout.unit_bytes() * blocks bytes.
using PackGroup = void (*)(const uint8_t* const (&rows)[kernels::kRowGroup], uint64_t blocks,
                           uint8_t* out);

struct BlockFormat {
  const char* name;  // "q4_1"
  AtlasDType dtype;
  uint32_t block_bytes;  // of a block in the checkpoint; it has layout.block() elements
  kernels::PackedLayout layout;
  PackGroup pack;
  void (*decode)(const uint8_t* block, float* out);
};

std::span<const BlockFormat> block_formats();

}  // namespace atlas::quant_gguf

// The block formats of the plugin gguf, and how their blocks become the resident layout.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/common/packed.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::quant_gguf {

/// Sixteen rows of a checkpoint, `k` elements each, into one group of the resident layout; a null
/// row (only behind those that are there) reads as zeros.
using PackGroup = void(const uint8_t* const* rows, uint64_t k, uint8_t* out);
PackGroup pack_q4_0, pack_q4_1, pack_q5_0, pack_q5_1, pack_q8_0, pack_q4_k, pack_q5_k, pack_q6_k;

struct BlockFormat {
  const char* name;
  AtlasDType dtype;
  uint32_t block_bytes;  // of a block in the checkpoint; it has layout.block() elements
  kernels::PackedLayout layout;
  PackGroup* pack;
  void (*decode)(const uint8_t* block, float* out);
};

inline constexpr std::array kBlockFormats = {
    BlockFormat{"q4_0", ATLAS_Q4_0, 18, kernels::kPackedQ4_0, pack_q4_0, kernels::decode_q4_0},
    BlockFormat{"q4_1", ATLAS_Q4_1, 20, kernels::kPackedQ4_1, pack_q4_1, kernels::decode_q4_1},
    BlockFormat{"q5_0", ATLAS_Q5_0, 22, kernels::kPackedQ5_0, pack_q5_0, kernels::decode_q5_0},
    BlockFormat{"q5_1", ATLAS_Q5_1, 24, kernels::kPackedQ5_1, pack_q5_1, kernels::decode_q5_1},
    BlockFormat{"q8_0", ATLAS_Q8_0, 34, kernels::kPackedQ8_0, pack_q8_0, kernels::decode_q8_0},
    BlockFormat{"q4_k", ATLAS_Q4_K, 144, kernels::kPackedQ4_K, pack_q4_k, kernels::decode_q4_k},
    BlockFormat{"q5_k", ATLAS_Q5_K, 176, kernels::kPackedQ5_K, pack_q5_k, kernels::decode_q5_k},
    BlockFormat{"q6_k", ATLAS_Q6_K, 210, kernels::kPackedQ6_K, pack_q6_k, kernels::decode_q6_k},
};

}  // namespace atlas::quant_gguf

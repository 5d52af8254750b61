// exl3_encode for every GPU pack: rows into float16 in the order of fragment B. A block does one
// segment of one row.
#pragma once

#include "kernels/common/gpu/exl3_rows.h"

namespace atlas::kernels {

ATLAS_DEVICE_KERNEL(exl3_encode, Exl3EncodeParams, kExl3FewThreads) {
  using namespace device;
  const uint32_t row = block_index(), segment = block_index<1>();
  const uint8_t* weight = static_cast<const uint8_t*>(params.weight);
  if (params.offsets != nullptr) {
    const uint32_t expert = exl3_expert_of(params.offsets, params.experts, row);
    if (expert == params.experts) return;
    weight += expert * params.expert_bytes;
  } else if (row >= load(params.row_count)) {
    return;
  }
  const uint32_t from = params.source != nullptr ? load(params.source + row) : row;
  const uint32_t first = exl3_segment_begin(params.k, segment);
  const float power = exl3_encode_segment(
      params.x + from * params.x_stride, params.inputs, weight, first,
      exl3_segment_begin(params.k, segment + 1) - first, shared_memory<uint32_t>(),
      [&](uint32_t k, uint32_t two) {
        store_as(static_cast<uint8_t*>(params.encoded) +
                     exl3_encoded_offset(kExl3Lanes, params.k, row, first * kExl3Block + k),
                 two);
      });
  if (thread_index() == 0) {
    store(params.powers + uint64_t{segment} * params.rows + row, power);
  }
}

}  // namespace atlas::kernels

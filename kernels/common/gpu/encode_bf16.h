// encode_bf16_b32 and encode_f16_b32 for every GPU pack: rows of float32 into the input encodings
// "bf16_b32" (gpu_weights.h) and "f16_b32" (gpu_half.h). A thread does eight elements, four threads
// a block of 32.
#pragma once

#include "kernels/common/device/device.h"
#include "kernels/common/gpu/row_numbers.h"
#include "kernels/common/gpu_products.h"

namespace atlas::kernels {

/// Elements at ... at + 3 of a row of `k`; those past its end are 0.
ATLAS_DEVICE device::Floats4 four_elements(const float* row, uint32_t at, uint32_t k) {
  using namespace device;
  if (at + 4 <= k && (reinterpret_cast<uint64_t>(row + at) & 15) == 0) {
    return load_as<Floats4>(row + at);
  }
  Floats4 four{};
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    if (at + i < k) four.f[i] = load(row + at + i);
  }
  return four;
}

template <bool kF16>
ATLAS_DEVICE void encode_b32(const EncodeParams& params) {
  using namespace device;
  const uint64_t row = block_index();
  if (row >= load(params.row_count)) return;
  const uint32_t piece = block_index<1>() * kEncodeThreads + thread_index();
  // A row has a multiple of 16 pieces; the four of a block are there together or not at all.
  const auto pieces = static_cast<uint32_t>(encoded_elements(params.k) / 8);
  const bool there = piece < pieces;
  const uint32_t first = piece / 4 * kBlockElements + piece % 4 * 4;
  Words4 words{};
  float sum = 0.0f;
  if (there) {
    const float* x = params.x + row * params.x_stride;
    ATLAS_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const Floats4 four = four_elements(x, first + 16 * half, params.k);
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t pair = number_pair(kF16, four.f[2 * i], four.f[2 * i + 1]);
        words.w[2 * half + i] = pair;
        sum += number_low(kF16, pair);
        sum += number_high(kF16, pair);
      }
    }
  }
  sum += shuffle_xor(sum, 1);
  sum += shuffle_xor(sum, 2);
  if (!there) return;
  auto* out = static_cast<uint8_t*>(params.out) + row * params.out_row_bytes;
  store_as(out + 16 * uint64_t{piece}, words);
  if (piece % 4 == 0) store_as(out + bf16_sums_offset(params.k) + piece / 4 * sizeof(float), sum);
}

ATLAS_DEVICE_KERNEL(encode_bf16_b32, EncodeParams, kEncodeThreads) { encode_b32<false>(params); }
ATLAS_DEVICE_KERNEL(encode_f16_b32, EncodeParams, kEncodeThreads) { encode_b32<true>(params); }

}  // namespace atlas::kernels

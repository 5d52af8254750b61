// encode_bf16_w64 and encode_f16_w64, for h200: rows of float32 into the input encodings "bf16_w64"
// (gpu_wgmma.h) and "f16_w64" (gpu_half.h); and runs_bf16_w64: rows in either in the order of
// experts' runs.
#pragma once

#include "kernels/common/gpu/encoded_rows.h"

namespace atlas::kernels {

template <bool kF16>
ATLAS_DEVICE void encode_w64(const EncodeParams& params) {
  using namespace device;
  const uint32_t first = block_index() * kWgmmaEncodeRows, row_count = load(params.row_count);
  if (first >= row_count) return;
  const uint32_t at = 4 * (block_index<1>() * kEncodeThreads + thread_index());
  const bool aligned = has_quads(params.x, params.x_stride);
  Quad quads[kWgmmaEncodeRows];
  ATLAS_UNROLL
  for (uint32_t r = 0; r < kWgmmaEncodeRows; ++r) {
    quads[r] = {};
    if (first + r < row_count) {
      quads[r] = load_quad(params.x + uint64_t{first + r} * params.x_stride, at, params.k, aligned);
    }
  }
  ATLAS_UNROLL
  for (uint32_t r = 0; r < kWgmmaEncodeRows; ++r) {
    const float(&f)[4] = quads[r].f;
    wgmma_encode_four(params.out, first + r, params.k, at, number_pair(kF16, f[0], f[1]),
                      number_pair(kF16, f[2], f[3]), first + r < row_count);
  }
}

ATLAS_DEVICE_KERNEL(encode_bf16_w64, EncodeParams, kEncodeThreads) { encode_w64<false>(params); }
ATLAS_DEVICE_KERNEL(encode_f16_w64, EncodeParams, kEncodeThreads) { encode_w64<true>(params); }

ATLAS_DEVICE_KERNEL(runs_bf16_w64, RunsParams, kEncodeThreads) {
  using namespace device;
  constexpr uint32_t kTogether = kWgmmaRowGroup * kWgmmaRowBytes, kPieces = kWgmmaRowBytes / 16;
  constexpr uint32_t kAtOnce = 5, kStages = kWarpLanes / kPieces;  // loads before the first store
  constexpr uint32_t kWarps = kEncodeThreads / kWarpLanes;
  const uint32_t expert = block_index(), lane = lane_index(), piece = lane % kPieces;
  const uint32_t begin = load(params.offsets + expert), end = load(params.offsets + expert + 1);
  const auto stages = static_cast<uint32_t>(whole_units(params.k, kWgmmaStage));
  const uint64_t row_bytes = wgmma_row_bytes(params.k);
  const auto at = [&](uint64_t row) {
    const auto in_group = static_cast<uint32_t>(row % kWgmmaRowGroup);
    return (row - in_group) * row_bytes + in_group * kWgmmaRowBytes +
           16 * (piece ^ in_group % kWgmmaSwizzled) + uint64_t{lane / kPieces} * kTogether;
  };
  ATLAS_ROLLED
  for (uint32_t i = begin + block_index<1>() * kWarps + warp_index(); i < end;
       i += grid_blocks<1>() * kWarps) {
    const uint32_t row = params.source == nullptr ? i : load(params.source + i);
    const uint8_t* from = static_cast<const uint8_t*>(params.x) + at(row);
    uint8_t* to =
        static_cast<uint8_t*>(params.out) + at(wgmma_run_place(begin, expert) + i - begin);
    ATLAS_ROLLED
    for (uint32_t stage = lane / kPieces; stage < stages; stage += kAtOnce * kStages) {
      Words4 words[kAtOnce];
      ATLAS_UNROLL
      for (uint32_t s = 0; s < kAtOnce; ++s) {
        words[s] = {};
        if (stage + s * kStages < stages) {
          words[s] = load_as<Words4>(from + s * (kStages * kTogether));
        }
      }
      ATLAS_UNROLL
      for (uint32_t s = 0; s < kAtOnce; ++s) {
        if (stage + s * kStages < stages) store_as(to + s * (kStages * kTogether), words[s]);
      }
      from += kAtOnce * kStages * kTogether;
      to += kAtOnce * kStages * kTogether;
    }
  }
}

}  // namespace atlas::kernels

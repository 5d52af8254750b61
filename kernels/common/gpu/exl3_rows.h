// EXL3's work on rows for every GPU pack: encoding of inputs (steps 1 and 2 of the contract in
// exl3_gpu.h), transform of sums into outputs (step 4), and which rows are whose.
#pragma once

#include "kernels/common/gpu/exl3_decode.h"
#include "plugins/abi/atlas_plugin.h"  // ATLAS_EPILOGUE_*

namespace atlas::kernels {

// ---- Runs of rows ----

/// Rows [begin, begin + rows) that are multiplied with the weight of `expert`.
struct Exl3Run {
  uint32_t begin = 0, rows = 0, expert = 0;
};

/// The expert with offsets[e] <= row < offsets[e + 1]; `experts` if there is none. All lanes of the
/// warp take part.
ATLAS_DEVICE uint32_t exl3_expert_of(const uint32_t* offsets, uint32_t experts, uint32_t row) {
  using namespace device;
  // Offsets ascend: lanes ask at 32 places of what is left, which a vote narrows to a 32nd.
  uint32_t low = 0, high = experts;  // the answer is one of these, or between
  while (low < high) {
    const uint32_t step = (high - low + kWarpLanes - 1) / kWarpLanes;
    const uint32_t e = low + (lane_index() + 1) * step - 1;
    const uint32_t before = count_bits(ballot(e < high && load(offsets + e + 1) <= row));
    low += before * step;
    high = low + step - 1 < high ? low + step - 1 : high;
  }
  return low;
}

// ---- Transforms ----

/// One stage of butterflies over registers, of stride `kStride`.
template <uint32_t kStride, uint32_t kCount>
ATLAS_DEVICE void exl3_butterfly(float (&v)[kCount]) {
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    if ((i & kStride) != 0) continue;
    const float a = v[i], b = v[i + kStride];
    v[i] = a + b;
    v[i + kStride] = a - b;
  }
}

/// 128 values of a warp, four of each lane.
ATLAS_DEVICE device::Floats4 exl3_butterflies(device::Floats4 v) {
  using namespace device;
  v = {{v.f[0] + v.f[1], v.f[0] - v.f[1], v.f[2] + v.f[3], v.f[2] - v.f[3]}};
  v = {{v.f[0] + v.f[2], v.f[1] + v.f[3], v.f[0] - v.f[2], v.f[1] - v.f[3]}};
  ATLAS_UNROLL
  for (uint32_t flip = 1; flip < 32; flip *= 2) {
    const bool upper = (lane_index() & flip) != 0;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const float other = shuffle_xor(v.f[i], flip);
      v.f[i] = upper ? other - v.f[i] : v.f[i] + other;
    }
  }
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) v.f[i] *= kExl3Norm;
  return v;
}

/// Four float16 scales.
ATLAS_DEVICE device::Floats4 exl3_scales(device::Words2 two) {
  return {{device::f16_low(two.w[0]), device::f16_high(two.w[0]), device::f16_low(two.w[1]),
           device::f16_high(two.w[1])}};
}
ATLAS_DEVICE device::Floats4 exl3_scales(const uint8_t* scales, uint32_t first) {
  return exl3_scales(device::load_as<device::Words2>(scales + 2 * first));
}
/// Four floats of a row from element k on; those from `count` on are zeros. Rows are aligned to 16
/// bytes or not, all lanes alike.
ATLAS_DEVICE device::Floats4 exl3_floats(const float* row, uint32_t k, uint32_t count) {
  using namespace device;
  if (k + 4 <= count && (reinterpret_cast<uint64_t>(row) & 15) == 0)
    return load_as<Floats4>(row + k);
  Floats4 four{};
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    if (k + i < count) four.f[i] = load(row + k + i);
  }
  return four;
}

/// The power of two that `largest` (the bits of a magnitude) is divided by to lie in [2^14, 2^15).
ATLAS_DEVICE int32_t exl3_exponent(uint32_t largest) {
  const int32_t exponent = static_cast<int32_t>(largest >> 23);
  if (largest == 0 || exponent == 255) return 0;
  const int32_t power = exponent - 127 - 14;
  return power > -120 ? power : -120;
}
ATLAS_DEVICE float exl3_power_of_two(int32_t power) {
  return device::bits_as<float>(static_cast<uint32_t>(power + 127) << 23);
}

/// The bits of the largest magnitude of a warp's values.
ATLAS_DEVICE uint32_t exl3_largest(device::Floats4 v) {
  uint32_t most = 0;
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t bits = device::bits_as<uint32_t>(v.f[i]) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return device::warp_max(most);
}

/// Four elements of a row, and the scales of its weight for them.
struct Exl3Quad {
  device::Floats4 x, scales;
};

/// Encodes one segment of one row; all threads of a block of kExl3EncodeThreads take part, a warp
/// does a block of 128 inputs, a lane `quad`, from element 4 * lane on. `largest`: a word of shared
/// memory for each warp. put(k, two words of four f16) gets four elements, k from the segment's
/// begin. Returns the segment's power of two to all threads.
template <typename Put>
ATLAS_DEVICE float exl3_encode_segment(const Exl3Quad& quad, uint32_t blocks, uint32_t* largest,
                                       const Put& put) {
  using namespace device;
  static_assert(kExl3EncodeWarps == kExl3SegmentBlocks, "a warp does a block");
  const uint32_t warp = warp_index();
  Floats4 v{};
  if (warp < blocks) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) v.f[i] = quad.x.f[i] * quad.scales.f[i];
    v = exl3_butterflies(v);
    const uint32_t most = exl3_largest(v);
    if (lane_index() == 0) store(largest + warp, most);
  }
  block_barrier();  // all blocks' largest values are written before they are read
  uint32_t most = 0;
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t other = load(largest + b);
    most = other > most ? other : most;
  }
  block_barrier();  // and read before the next row overwrites them
  const int32_t power = exl3_exponent(most);
  if (warp < blocks) {
    const float scale = exl3_power_of_two(-power);
    const uint32_t k = warp * kExl3Block + 4 * lane_index();
    put(k, f16_pair(v.f[0] * scale, v.f[1] * scale));
    put(k + 2, f16_pair(v.f[2] * scale, v.f[3] * scale));
  }
  return exl3_power_of_two(power);
}

/// Four transformed outputs of a row, from `output` on, times `scales`, into y (plus it).
ATLAS_DEVICE void exl3_store_outputs(device::Floats4 total, const device::Floats4& scales,
                                     uint32_t output, uint32_t outputs, float* y,
                                     uint32_t epilogue) {
  using namespace device;
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    total.f[i] *= scales.f[i];
    if (epilogue == ATLAS_EPILOGUE_ADD && output + i < outputs) {
      total.f[i] = load(y + output + i) + total.f[i];
    }
  }
  if (output + 4 <= outputs && (reinterpret_cast<uint64_t>(y) & 15) == 0) {
    store_as(y + output, total);
    return;
  }
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    if (output + i < outputs) store(y + output + i, total.f[i]);
  }
}

/// Step 4 for one row and a block of 128 outputs, of `outputs` in all: a warp. `total`: the lane's
/// four, from `output` on.
ATLAS_DEVICE void exl3_write_outputs(device::Floats4 total, const uint8_t* svh, uint32_t output,
                                     uint32_t outputs, float* y, uint32_t epilogue) {
  // Asked for before the transform, which takes as long.
  const device::Floats4 scales = exl3_scales(svh, output);
  exl3_store_outputs(exl3_butterflies(total), scales, output, outputs, y, epilogue);
}

}  // namespace atlas::kernels

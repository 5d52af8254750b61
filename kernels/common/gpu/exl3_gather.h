// exl3_gather_<codebook> for every GPU pack: rows of an EXL3 matrix by id, float32. A block does
// 128 elements of one row, a thread one of them: the 128 weights of its input, added with the signs
// of the row's place in its Hadamard block. Rows of tables are few, so weights are read one by one.
#pragma once

#include "kernels/common/gpu/exl3_rows.h"

namespace atlas::kernels {

/// The state of window `i` of segment `segment` (0..7) of a tile.
ATLAS_DEVICE uint32_t exl3_one_state(const uint8_t* groups, uint32_t units, uint32_t k,
                                     uint32_t row, uint32_t column, uint32_t segment, uint32_t i) {
  using namespace device;
  // The units that the window begins and ends in, counted around the tile's ring.
  const uint32_t ring = 8 * units, end = segment * units * 16 + exl3_end(units, i);
  const uint32_t last = (end - 1) / 16, first = (last + ring - 1) % ring;
  const auto unit = [&](uint32_t at) {
    return uint32_t{load_as<uint16_t>(
        groups + exl3_gpu_unit_offset(kExl3Lanes, units, k, row, column, at / units, at % units))};
  };
  return ((unit(first) << 16 | unit(last)) >> (15 - (end - 1) % 16)) & 0xffffu;
}

template <Exl3Codebook kCodebook>
ATLAS_DEVICE void exl3_gather(const Exl3GatherParams& params) {
  using namespace device;
  const uint32_t row = block_index(), block = block_index<1>(), thread = thread_index();
  if (row >= load(params.row_count)) return;
  const uint32_t id =
      load_as<uint32_t>(static_cast<const uint8_t*>(params.ids) + uint64_t{row} * params.id_stride);
  const auto k = static_cast<uint32_t>(exl3_padded(params.k));
  const auto* weight = static_cast<const uint8_t*>(params.weight);
  float* sums = shared_memory<float>();
  if (id < params.n) {
    const uint8_t* groups = weight + exl3_gpu_head_bytes(params.n, params.k);
    const uint32_t tile = (block * kExl3Block + thread) / kExl3Tile, r = thread % kExl3Tile;
    float sum = 0.0f;
    for (uint32_t output = 0; output < kExl3Block; ++output) {
      const uint32_t column = id / kExl3Block * (kExl3Block / kExl3Tile) + output / kExl3Tile;
      const uint32_t c = output % kExl3Tile;
      const uint32_t window = r % 8 / 2 * 8 + c / 8 * 4 + r / 8 * 2 + r % 2;
      const uint32_t state = exl3_one_state(groups, params.units, k, tile, column, c % 8, window);
      const float value = f16_low(exl3_pair<kCodebook>(state, state));
      sum += count_bits(output & id & (kExl3Block - 1)) % 2 == 0 ? value : -value;
    }
    store(sums + thread, sum);
  }
  block_barrier();  // all elements' sums are written before they are transformed
  if (warp_index() != 0) return;
  const uint32_t at = block * kExl3Block + 4 * lane_index();
  const float nan = bits_as<float>(0x7fc00000u);
  Floats4 total{{nan, nan, nan, nan}};  // of an id that there is not
  if (id < params.n) {
    total = exl3_butterflies(load_as<Floats4>(sums + 4 * lane_index()));
    const Floats4 scales = exl3_scales(weight, at);
    const float scale = f16_value(load_as<uint16_t>(weight + 2 * (uint64_t{k} + id))) * kExl3Norm;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) total.f[i] = total.f[i] * scales.f[i] * scale;
  }
  float* y = params.y + row * params.y_stride + at;
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    if (at + i < params.k) store(y + i, total.f[i]);
  }
}

}  // namespace atlas::kernels

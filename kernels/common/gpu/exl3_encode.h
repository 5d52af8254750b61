// exl3_encode for every GPU pack: rows into float16 in the order of fragment B. With few rows a
// block does one segment of one row; with many a warp does a whole segment, whose transform and
// largest value need no other warp.
#pragma once

#include "kernels/common/gpu/exl3_rows.h"
#include "kernels/common/gpu/quads.h"

namespace atlas::kernels {

/// Where encoded rows stand: the order of exl3_few and exl3_many. Another order has the same
/// functions.
struct Exl3FragmentOrder {
  /// The place of a row of an expert (0 if there are none), and where the places end that its
  /// encoder fills with zeros behind it: `place` or less if it fills none.
  ATLAS_DEVICE static uint32_t place(const Exl3EncodeParams&, uint32_t row, uint32_t) {
    return row;
  }
  ATLAS_DEVICE static uint32_t fill_end(const Exl3EncodeParams&, uint32_t, uint32_t, uint32_t) {
    return 0;
  }
  /// Of element k of the row there: bytes.
  ATLAS_DEVICE static uint64_t offset(const Exl3EncodeParams& params, uint32_t place, uint32_t k) {
    return exl3_encoded_offset(kExl3Lanes, params.k, place, k);
  }
};

/// The weight of an expert (0 if there are none) of a part.
ATLAS_DEVICE const uint8_t* exl3_encode_weight(const Exl3EncodeParams& params, uint32_t part,
                                               uint32_t expert) {
  return static_cast<const uint8_t*>(params.weight[part]) + expert * params.expert_bytes[part];
}

/// A lane's part of a segment of up to four blocks of 128. At first four neighbouring elements of
/// each block, as memory is read; in the end 16 neighbouring ones of one block, as it is written.
struct Exl3Part {
  float v[kExl3SegmentBlocks][4];
};

/// The butterflies of one stride over sets of four of two blocks, of which this lane and the one at
/// `flip` have a half each: one lane keeps its half of the first block, the other that of the
/// second, and they trade the rest, so that a lane has both sides of a butterfly. `sign`: -1 in the
/// lane with the upper halves.
ATLAS_DEVICE void exl3_trade(float (&lower)[4], float (&upper)[4], uint32_t flip, bool second,
                             float sign) {
  using namespace device;
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    const float low = lower[i], high = upper[i];
    const float kept = second ? high : low;
    const float got = shuffle_xor(second ? low : high, flip);
    lower[i] = kept + got;
    upper[i] = fma(kept, sign, -sign * got);  // rounded once: the lower element minus the upper
  }
}

/// exl3_butterflies of all blocks at once, with the same bits. Afterwards the lane has elements
/// [16 * (lane / 4), + 16) of block lane % 4, as v[element / 4 of them][element % 4].
ATLAS_DEVICE void exl3_transform(Exl3Part& part) {
  using namespace device;
  auto& v = part.v;
  ATLAS_UNROLL
  for (auto& f : v) {
    const float a = f[0] + f[1], b = f[0] - f[1], c = f[2] + f[3], d = f[2] - f[3];
    f[0] = a + c;
    f[1] = b + d;
    f[2] = a - c;
    f[3] = b - d;
  }
  const auto sign_of = [](uint32_t flip) { return (lane_index() & flip) != 0 ? -1.0f : 1.0f; };
  // Stride 4: blocks 0 and 1, and 2 and 3, change places with bit 0 of the lane. Then stride 8.
  const bool odd = (lane_index() & 1) != 0, second = (lane_index() & 2) != 0;
  exl3_trade(v[0], v[1], 1, odd, sign_of(1));
  exl3_trade(v[2], v[3], 1, odd, sign_of(1));
  exl3_trade(v[0], v[2], 2, second, sign_of(2));
  exl3_trade(v[1], v[3], 2, second, sign_of(2));
  ATLAS_UNROLL
  for (uint32_t flip = 4; flip < kWarpLanes; flip *= 2) {
    const float sign = sign_of(flip);
    ATLAS_UNROLL
    for (auto& f : v) {
      ATLAS_UNROLL
      for (float& value : f) value = fma(value, sign, shuffle_xor(value, flip));
    }
  }
  ATLAS_UNROLL
  for (auto& f : v) {
    ATLAS_UNROLL
    for (float& value : f) value *= kExl3Norm;
  }
}

/// Writes the lane's 16 elements of the row, divided by the segment's power of two, which it
/// returns. `there`: the segment has this lane's block.
ATLAS_DEVICE float exl3_put_part(const Exl3Part& part, bool there, uint8_t* row) {
  using namespace device;
  uint32_t most = 0;
  ATLAS_UNROLL
  for (const auto& f : part.v) {
    ATLAS_UNROLL
    for (const float value : f) {
      const uint32_t bits = bits_as<uint32_t>(value) & 0x7fffffffu;
      most = bits > most ? bits : most;
    }
  }
  const int32_t power = exl3_exponent(warp_max(most));
  const float scale = exl3_power_of_two(-power);
  Words4 halves[2];
  ATLAS_UNROLL
  for (uint32_t e = 0; e < 16; e += 2) {
    // Elements with bit 2 stand in the second set of four, those with bit 3 in the second two.
    const float* f = part.v[e / 8 * 2 + e / 4 % 2];
    const uint32_t at = exl3_element_offset(kExl3Lanes, e);
    halves[at / 16].w[at % 16 / 4] = f16_pair(f[e % 4] * scale, f[e % 4 + 1] * scale);
  }
  if (there) {
    store_as(row, halves[0]);
    store_as(row + exl3_step_bytes(kExl3Lanes) / 2, halves[1]);
  }
  return exl3_power_of_two(power);
}

/// A row of a warp, as it stands in memory.
struct Exl3Row {
  bool there;
  uint32_t row, expert;
  Exl3Part part;
};

/// Asks for a segment of a row. `behind`: the expert of a row not far before; the row's is searched
/// for where that is none.
ATLAS_DEVICE Exl3Row exl3_begin_row(const Exl3EncodeParams& params, uint32_t row, bool search,
                                    uint32_t behind, uint32_t first, uint32_t blocks) {
  using namespace device;
  Exl3Row of{};
  of.row = row;
  if (params.offsets == nullptr) {
    of.there = row < load(params.row_count);
  } else {
    of.expert = behind;
    if (search) {
      of.expert = exl3_expert_of(params.offsets, params.experts, row);
    } else {
      while (of.expert < params.experts && load(params.offsets + of.expert + 1) <= row) ++of.expert;
    }
    of.there = of.expert < params.experts;
  }
  if (!of.there) return of;
  const uint64_t from = params.source != nullptr ? load(params.source + row) : row;
  const float* x = params.x + from * params.x_stride;
  const uint32_t k = first * kExl3Block + 4 * lane_index();
  Floats4 quads[kExl3SegmentBlocks] = {};
  if ((first + blocks) * kExl3Block <= params.inputs && has_quads(x, 0)) {
    // One decision for all, so that they are under way together.
    ATLAS_UNROLL
    for (uint32_t b = 0; b < kExl3SegmentBlocks; ++b) {
      if (b < blocks) quads[b] = load_as<Floats4>(x + k + b * kExl3Block);
    }
  } else {
    ATLAS_UNROLL
    for (uint32_t b = 0; b < kExl3SegmentBlocks; ++b) {
      if (b < blocks) quads[b] = exl3_floats(x, k + b * kExl3Block, params.inputs);
    }
  }
  ATLAS_UNROLL
  for (uint32_t b = 0; b < kExl3SegmentBlocks; ++b) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) of.part.v[b][i] = quads[b].f[i];
  }
  return of;
}

/// The scales of a segment: four of each block.
struct Exl3Scales {
  device::Floats4 of[kExl3SegmentBlocks];

  ATLAS_DEVICE void bring(const uint8_t* weight, uint32_t first, uint32_t blocks) {
    const uint8_t* own = weight + 2 * (first * kExl3Block + 4 * device::lane_index());
    if (blocks == kExl3SegmentBlocks) {  // one decision for all, as most segments are whole
      ATLAS_UNROLL
      for (uint32_t b = 0; b < kExl3SegmentBlocks; ++b) of[b] = exl3_scales(own, b * kExl3Block);
      return;
    }
    ATLAS_UNROLL
    for (uint32_t b = 0; b < kExl3SegmentBlocks; ++b) {
      of[b] = b < blocks ? exl3_scales(own, b * kExl3Block) : device::Floats4{};
    }
  }
};

ATLAS_DEVICE void exl3_finish_row(const Exl3EncodeParams& params, Exl3Row& row,
                                  const Exl3Scales& scales, uint32_t part, uint32_t first,
                                  uint32_t blocks) {
  using namespace device;
  ATLAS_UNROLL
  for (uint32_t b = 0; b < kExl3SegmentBlocks; ++b) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) row.part.v[b][i] *= scales.of[b].f[i];
  }
  exl3_transform(row.part);
  const uint32_t block = lane_index() % kExl3SegmentBlocks;
  const uint32_t tile = lane_index() / kExl3SegmentBlocks;
  const uint32_t k = (first + block) * kExl3Block + tile * kExl3Tile;
  const float power = exl3_put_part(
      row.part, block < blocks,
      static_cast<uint8_t*>(params.encoded[part]) + Exl3FragmentOrder::offset(params, row.row, k));
  if (lane_index() != 0) return;
  store(params.powers[part] + uint64_t{block_index<1>()} * params.rows + row.row, power);
}

/// A segment of kExl3EncodeRows rows. A warp's two stand kExl3EncodeWarps apart, so that warps
/// write neighbouring rows of a tile together; both are asked for before anything waits.
ATLAS_DEVICE void exl3_encode_many(const Exl3EncodeParams& params) {
  using namespace device;
  static_assert(kExl3EncodeRows == 2 * kExl3EncodeWarps);
  const uint32_t segment = block_index<1>(), part = block_index<2>();
  const uint32_t first = exl3_segment_begin(params.k, segment);
  const uint32_t blocks = exl3_segment_begin(params.k, segment + 1) - first;
  const uint32_t begin = block_index() * kExl3EncodeRows + warp_index();
  Exl3Row low = exl3_begin_row(params, begin, true, 0, first, blocks);
  if (!low.there) return;
  Exl3Row high = exl3_begin_row(params, begin + kExl3EncodeWarps, false, low.expert, first, blocks);
  Exl3Scales scales;
  scales.bring(exl3_encode_weight(params, part, low.expert), first, blocks);
  exl3_finish_row(params, low, scales, part, first, blocks);
  if (!high.there) return;
  if (high.expert != low.expert) {
    scales.bring(exl3_encode_weight(params, part, high.expert), first, blocks);
  }
  exl3_finish_row(params, high, scales, part, first, blocks);
}

/// A segment of one row.
template <typename Order>
ATLAS_DEVICE void exl3_encode_few(const Exl3EncodeParams& params) {
  using namespace device;
  const uint32_t row = block_index(), segment = block_index<1>(), part = block_index<2>();
  uint32_t expert = 0;
  if (params.offsets != nullptr) {
    expert = exl3_expert_of(params.offsets, params.experts, row);
    if (expert == params.experts) return;
  } else if (row >= load(params.row_count)) {
    return;
  }
  const uint32_t from = params.source != nullptr ? load(params.source + row) : row;
  const uint32_t first = exl3_segment_begin(params.k, segment);
  const uint32_t place = Order::place(params, row, expert);
  const uint32_t end = Order::fill_end(params, row, expert, place);
  uint8_t* encoded = static_cast<uint8_t*>(params.encoded[part]);
  float* powers = params.powers[part] + uint64_t{segment} * params.rows;
  const uint32_t blocks = exl3_segment_begin(params.k, segment + 1) - first;
  Exl3Quad quad{};
  if (warp_index() < blocks) {
    const uint32_t k = (first + warp_index()) * kExl3Block + 4 * lane_index();
    quad = {exl3_floats(params.x + from * params.x_stride, k, params.inputs),
            exl3_scales(exl3_encode_weight(params, part, expert), k)};
  }
  const float power =
      exl3_encode_segment(quad, blocks, shared_memory<uint32_t>(), [&](uint32_t k, uint32_t two) {
        k += first * kExl3Block;
        store_as(encoded + Order::offset(params, place, k), two);
        for (uint32_t fill = place + 1; fill < end; ++fill) {
          store_as(encoded + Order::offset(params, fill, k), uint32_t{0});
        }
      });
  if (thread_index() != 0) return;
  store(powers + place, power);
  for (uint32_t fill = place + 1; fill < end; ++fill) store(powers + fill, 1.0f);
}

ATLAS_DEVICE_KERNEL(exl3_encode, Exl3EncodeParams, kExl3EncodeThreads) {
  if (params.rows > kExl3EncodeFew) return exl3_encode_many(params);
  exl3_encode_few<Exl3FragmentOrder>(params);
}

}  // namespace atlas::kernels

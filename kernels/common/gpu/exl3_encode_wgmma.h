// exl3_encode_wgmma, for h200: exl3_encode's rows in the order of kernels/common/exl3_wgmma.h. With
// many rows a warp does a segment of two rows for all parts, so that rows are read once.
#pragma once

#include "kernels/common/exl3_wgmma.h"
#include "kernels/common/gpu/exl3_encode.h"

namespace atlas::kernels {

struct Exl3WgmmaOrder {
  ATLAS_DEVICE static uint32_t place(const Exl3EncodeParams& params, uint32_t row,
                                     uint32_t expert) {
    if (params.offsets == nullptr) return row;
    const uint32_t begin = device::load(params.offsets + expert);
    return exl3_wgmma_place(begin, expert) + row - begin;
  }
  /// The encoder of a run's last row fills its group of eight.
  ATLAS_DEVICE static uint32_t fill_end(const Exl3EncodeParams& params, uint32_t row,
                                        uint32_t expert, uint32_t place) {
    const uint32_t* end =
        params.offsets == nullptr ? params.row_count : params.offsets + expert + 1;
    return row + 1 == device::load(end) ? place / 8 * 8 + 8 : 0;
  }
  ATLAS_DEVICE static uint64_t offset(const Exl3EncodeParams& params, uint32_t place, uint32_t k) {
    return exl3_wgmma_offset(params.rows, place, k);
  }
};

// A warp's two rows change lanes by way of shared memory, once: first a lane has four neighbouring
// elements of each block of both rows, for strides 1 and 2; then every fourth element of one block
// of one row, for all others. Lane 16 r + 4 b + j has elements 4 i + j of block b of row r.

/// A row's elements times `scales` and through strides 1 and 2; to the lanes of row `r`.
ATLAS_DEVICE void exl3_stage_row(const Exl3Part& row, const Exl3Scales& scales, uint32_t r,
                                 float* staged) {
  using namespace device;
  ATLAS_UNROLL
  for (uint32_t b = 0; b < kExl3SegmentBlocks; ++b) {
    float f[4];
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) f[j] = row.v[b][j] * scales.of[b].f[j];
    exl3_butterfly<1>(f);
    exl3_butterfly<2>(f);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      store(staged + (16 * r + 4 * b + j) * kExl3StagedLane + lane_index(), f[j]);
    }
  }
}

/// The bits of the largest magnitude. Of bits as integers with a sign the largest is that of the
/// positive numbers, of those without one that of the negative ones, where there are any.
ATLAS_DEVICE uint32_t exl3_largest(const float (&v)[32]) {
  using namespace device;
  int32_t positive = 0;
  uint32_t negative = 0;
  ATLAS_UNROLL
  for (const float value : v) {
    const auto bits = bits_as<uint32_t>(value);
    const auto with_sign = static_cast<int32_t>(bits);
    positive = with_sign > positive ? with_sign : positive;
    negative = bits > negative ? bits : negative;
  }
  negative &= 0x7fffffffu;
  return static_cast<uint32_t>(positive) > negative ? static_cast<uint32_t>(positive) : negative;
}

/// Two of each four neighbouring elements, in the order of wgmma: 16 bytes are the lane's for the
/// `s`-th 64 elements of its block and the first (`upper` 0) or the last two pairs of eight. Lanes
/// trade with their neighbours: one of both has the first eight of 16 elements, one the last.
ATLAS_DEVICE void exl3_wgmma_words(const float (&v)[32], float scale, uint32_t s,
                                   device::Words4 (&words)[2]) {
  using namespace device;
  const bool odd = (lane_index() & 1) != 0;
  ATLAS_UNROLL
  for (uint32_t tile = 0; tile < 4; ++tile) {
    const float* f = v + 16 * s + 4 * tile;
    const uint32_t low = f16_pair(f[0] * scale, f[1] * scale);
    const uint32_t high = f16_pair(f[2] * scale, f[3] * scale);
    const uint32_t kept = odd ? high : low, got = shuffle_xor(odd ? low : high, 1);
    const uint32_t even = odd ? got : kept, next = odd ? kept : got;
    words[0].w[tile] = low_halves(even, next);
    words[1].w[tile] = high_halves(even, next);
  }
}

ATLAS_DEVICE void exl3_encode_wgmma_many(const Exl3EncodeParams& params) {
  using namespace device;
  const uint32_t segment = block_index<1>();
  const uint32_t first = exl3_segment_begin(params.k, segment);
  const uint32_t blocks = exl3_segment_begin(params.k, segment + 1) - first;
  const uint32_t begin = block_index() * kExl3EncodeRows + 2 * warp_index();
  const Exl3Row low = exl3_begin_row(params, begin, true, 0, first, blocks);
  if (!low.there) return;
  const Exl3Row high = exl3_begin_row(params, begin + 1, false, low.expert, first, blocks);
  float* staged = shared_memory<float>() + warp_index() * kWarpLanes * kExl3StagedLane;

  // What this lane writes.
  const uint32_t lane = lane_index(), block = lane / 4 % kExl3SegmentBlocks;
  const bool upper = lane >= 16, there = !upper || high.there;
  const uint32_t row = upper ? high.row : low.row, expert = upper ? high.expert : low.expert;
  const uint32_t place = there ? Exl3WgmmaOrder::place(params, row, expert) : 0;
  // Rows up to the end of the group of eight: all pieces of 16 bytes of one are those of another.
  const uint32_t end = there ? Exl3WgmmaOrder::fill_end(params, row, expert, place) : 0;
  const uint32_t fills = end > place ? end - place : 0;
  // The 64 elements behind and the other two pairs of eight stand 1,024 and 64 bytes apart.
  const uint64_t at = Exl3WgmmaOrder::offset(
      params, place, (first + block) * kExl3Block + lane % 2 * 8 + lane / 2 % 2 * 2);
  ATLAS_ROLLED
  for (uint32_t part = 0; part < params.parts; ++part) {
    if (part != 0) warp_barrier();  // the part before has been read
    Exl3Scales scales;
    scales.bring(exl3_encode_weight(params, part, low.expert), first, blocks);
    exl3_stage_row(low.part, scales, 0, staged);
    if (high.there && high.expert != low.expert) {
      scales.bring(exl3_encode_weight(params, part, high.expert), first, blocks);
    }
    exl3_stage_row(high.part, scales, 1, staged);
    warp_barrier();  // both rows are written before other lanes read them
    float v[32];
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 32; i += 4) {
      const auto four = load_as<Floats4>(staged + lane * kExl3StagedLane + i);
      ATLAS_UNROLL
      for (uint32_t j = 0; j < 4; ++j) v[i + j] = four.f[j];
    }
    exl3_butterfly<1>(v);
    exl3_butterfly<2>(v);
    exl3_butterfly<4>(v);
    exl3_butterfly<8>(v);
    exl3_butterfly<16>(v);
    uint32_t most = exl3_largest(v);
    ATLAS_UNROLL
    for (uint32_t flip = 1; flip < 16; flip *= 2) {
      const uint32_t other = shuffle_xor(most, flip);
      most = other > most ? other : most;
    }
    const int32_t power = exl3_exponent(bits_as<uint32_t>(bits_as<float>(most) * kExl3Norm));
    // One product for norm and power: what is rounded otherwise becomes 0 in float16. Not so in a
    // segment whose largest values are next to the smallest float32.
    float scale = exl3_power_of_two(-power) * kExl3Norm;
    if (power <= -100) {
      scale = exl3_power_of_two(-power);
      ATLAS_UNROLL
      for (float& value : v) value *= kExl3Norm;
    }
    auto* encoded = static_cast<uint8_t*>(params.encoded[part]);
    ATLAS_UNROLL
    for (uint32_t s = 0; s < 2; ++s) {
      Words4 words[2];
      exl3_wgmma_words(v, scale, s, words);
      if (!there || block >= blocks) continue;
      store_as(encoded + at + 1024 * s, words[0]);
      store_as(encoded + (at ^ 64) + 1024 * s, words[1]);
    }
    if (!there) continue;
    float* powers = params.powers[part] + uint64_t{segment} * params.rows + place;
    if (lane % 16 == 0) store(powers, exl3_power_of_two(power));
    ATLAS_ROLLED
    for (uint32_t fill = 1; fill < fills; ++fill) {
      if (lane % 16 == 0) store(powers + fill, 1.0f);
      if (block >= blocks) continue;
      ATLAS_ROLLED
      for (uint32_t i = 0; i < 4; ++i) {
        store_as(encoded + (at ^ i % 2 * 64) + i / 2 * 1024 + fill * kWgmmaRowBytes, Words4{});
      }
    }
  }
}

ATLAS_DEVICE_KERNEL_BLOCKS(exl3_encode_wgmma, Exl3EncodeParams, kExl3EncodeThreads, 6) {
  if (params.rows > kExl3EncodeFew) return exl3_encode_wgmma_many(params);
  exl3_encode_few<Exl3WgmmaOrder>(params);
}

}  // namespace atlas::kernels

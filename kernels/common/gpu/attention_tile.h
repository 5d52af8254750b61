// The pieces of attention that depend on the matrix instruction: 16 query rows against 16 keys, and
// their weights against values. With mma.sync query rows are A, with WMMA they are the columns of
// B, so that a lane's cells belong to one or two query rows.
#pragma once

#include "kernels/common/device/stream.h"
#include "kernels/common/gpu/tile.h"
#include "kernels/common/gpu_attention.h"

namespace atlas::kernels {

/// Where 16 bytes number `piece` of a row of bf16 stand in shared memory: pieces are exchanged
/// within 128 bytes so that neither rows nor pieces meet in a bank. `pitch`: whole 128 bytes.
ATLAS_DEVICE uint32_t staged_offset(uint32_t row, uint32_t piece, uint32_t pitch) {
  return row * pitch + (piece ^ ((row & 1) << 2 | (row >> 1 & 3))) * 16;
}

#if defined(ATLAS_HAS_MMA_SYNC)
/// Query rows that a lane's cells are of.
inline constexpr uint32_t kLaneRows = 2;
ATLAS_DEVICE uint32_t lane_row(uint32_t r) { return device::lane_index() / 4 + 8 * r; }
constexpr uint32_t cell_row(uint32_t i) { return i % 4 / 2; }
/// The key of cell i of scores, 0..15, and the element of cell i of value sums.
ATLAS_DEVICE uint32_t score_place(uint32_t i) {
  return 8 * (i / 4) + 2 * (device::lane_index() % 4) + i % 2;
}
ATLAS_DEVICE uint32_t value_element(uint32_t i) {
  return 4 * (device::lane_index() % 4) + 2 * (i % 2) + i / 4;
}
/// Whether the lane is the first of those that share its rows.
ATLAS_DEVICE bool leads_rows() { return device::lane_index() % 4 == 0; }

/// Joins what the lanes of a row have.
template <typename Join>
ATLAS_DEVICE float over_row(float x, const Join& join) {
  x = join(x, device::shuffle_xor(x, 1));
  return join(x, device::shuffle_xor(x, 2));
}

/// 32 elements of 16 staged rows: two steps of 16. Of each eight elements a lane has, the first
/// four are of the first step.
struct RowChunk {
  device::MmaA a[2];
};
ATLAS_DEVICE RowChunk load_rows(const uint8_t* staged, uint32_t first, uint32_t pitch,
                                uint32_t chunk) {
  const uint32_t row = first + device::lane_index() / 4,
                 piece = 4 * chunk + device::lane_index() % 4;
  const auto low = device::load_as<device::Words4>(staged + staged_offset(row, piece, pitch));
  const auto high = device::load_as<device::Words4>(staged + staged_offset(row + 8, piece, pitch));
  return {
      {{{low.w[0], high.w[0], low.w[1], high.w[1]}}, {{low.w[2], high.w[2], low.w[3], high.w[3]}}}};
}

/// The same of rows that stand in shared memory as their fragments do, 1 KiB for 32 elements: where
/// element k of a row stands, and a lane's part of its loads. Pieces and words are exchanged so
/// that neither they nor stores of weights meet in a bank.
ATLAS_DEVICE uint32_t fragment_offset(uint32_t row, uint32_t k) {
  const uint32_t step = k / 4 % 2, piece = row % 8 * 4 + k / 8 % 4;
  const uint32_t word = (row / 8 + k / 2 % 2 * 2) ^ step;
  return k / 32 * 1024 + step * 512 + (piece ^ piece / 8) * 16 + word * 4 + k % 2 * 2;
}
ATLAS_DEVICE uint32_t lane_fragment_offset() {
  return (device::lane_index() ^ device::lane_index() / 8) * 16;
}
ATLAS_DEVICE RowChunk load_fragments(const uint8_t* lane_at, uint32_t chunk) {
  const auto first = device::load_as<device::Words4>(lane_at + chunk * 1024);
  const auto second = device::load_as<device::Words4>(lane_at + chunk * 1024 + 512);
  return {{{{first.w[0], first.w[1], first.w[2], first.w[3]}},
           {{second.w[1], second.w[0], second.w[3], second.w[2]}}}};
}

/// 32 elements of 16 keys.
struct KeyChunk {
  device::Words4 n[2];
};
/// `keys(place)`: 64 bytes of the key at place 0..15, or null: zeros.
template <typename Keys>
ATLAS_DEVICE KeyChunk load_keys(const Keys& keys) {
  KeyChunk chunk{};
  ATLAS_UNROLL
  for (uint32_t n = 0; n < 2; ++n) {
    const uint8_t* key = keys(8 * n + device::lane_index() / 4);
    if (key != nullptr)
      chunk.n[n] = device::load_as<device::Words4>(key + device::lane_index() % 4 * 16);
  }
  return chunk;
}
/// Keys of 16 that a lane loads of, which these are, and where the lane's part of 64 bytes begins.
inline constexpr uint32_t kLaneKeys = 2;
ATLAS_DEVICE uint32_t lane_key(uint32_t n) { return 8 * n + device::lane_index() / 4; }
ATLAS_DEVICE uint32_t lane_key_offset() { return device::lane_index() % 4 * 16; }
/// The same where the lane's part of each of its keys is known.
ATLAS_DEVICE KeyChunk load_keys_at(const uint8_t* const (&keys)[kLaneKeys], uint32_t offset) {
  return {{device::load_here(keys[0] + offset), device::load_here(keys[1] + offset)}};
}
ATLAS_DEVICE void multiply_keys(TileSums& sums, const RowChunk& q, const KeyChunk& keys) {
  ATLAS_UNROLL
  for (uint32_t n = 0; n < 2; ++n) {
    float* r = sums.r + 4 * n;
    device::MmaSums part{{r[0], r[1], r[2], r[3]}};
    device::mma_bf16(part, q.a[0], {{keys.n[n].w[0], keys.n[n].w[1]}});
    device::mma_bf16(part, q.a[1], {{keys.n[n].w[2], keys.n[n].w[3]}});
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) r[i] = part.r[i];
  }
}

/// 16 elements of 32 positions: in a lane an even and an odd element of four positions, twice.
struct ValueChunk {
  device::Words4 s[2];
};
/// `values(quad)`: an element of positions 4 quad .. 4 quad + 3 of the 32 and those after it, or
/// null: zeros.
template <typename Values>
ATLAS_DEVICE ValueChunk load_values(const Values& values) {
  ValueChunk chunk{};
  ATLAS_UNROLL
  for (uint32_t s = 0; s < 2; ++s) {
    const uint8_t* value = values(2 * (device::lane_index() % 4) + s);
    if (value != nullptr) {
      chunk.s[s] = device::load_as<device::Words4>(value + device::lane_index() / 4 * 16);
    }
  }
  return chunk;
}
/// Quads of 8 that a lane loads of, which these are, and where its part of 16 elements begins.
inline constexpr uint32_t kLaneQuads = 2;
ATLAS_DEVICE uint32_t lane_quad(uint32_t s) { return 2 * (device::lane_index() % 4) + s; }
ATLAS_DEVICE uint32_t lane_value_offset() { return device::lane_index() / 4 * 16; }
ATLAS_DEVICE ValueChunk load_values_at(const uint8_t* const (&quads)[kLaneQuads], uint32_t offset) {
  return {{device::load_here(quads[0] + offset), device::load_here(quads[1] + offset)}};
}
ATLAS_DEVICE void multiply_values(TileSums& sums, const RowChunk& weights,
                                  const ValueChunk& values) {
  ATLAS_UNROLL
  for (uint32_t odd = 0; odd < 2; ++odd) {
    float* r = sums.r + 4 * odd;
    device::MmaSums part{{r[0], r[1], r[2], r[3]}};
    ATLAS_UNROLL
    for (uint32_t s = 0; s < 2; ++s) {
      const uint32_t* w = values.s[s].w + 2 * odd;
      device::mma_bf16(part, weights.a[s], {{w[0], w[1]}});
    }
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) r[i] = part.r[i];
  }
}

/// Rounds 16 rows' weights of 16 positions to bf16, in place too, and stages them in rows of a
/// block.
ATLAS_DEVICE void stage_weights(TileSums& weights, uint8_t* staged, uint32_t first,
                                uint32_t group) {
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 8; i += 2) {
    const uint32_t pair = device::bf16_pair(weights.r[i], weights.r[i + 1]);
    weights.r[i] = device::bf16_low(pair);
    weights.r[i + 1] = device::bf16_high(pair);
    const uint32_t at =
        staged_offset(first + lane_row(cell_row(i)), 2 * group + i / 4, kGqaBlockTokens * 2);
    device::store_as<uint32_t>(staged + at + device::lane_index() % 4 * 4, pair);
  }
}
/// The same as fragments.
ATLAS_DEVICE void stage_fragments(TileSums& weights, uint8_t* staged, uint32_t group) {
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 8; i += 2) {
    const uint32_t pair = device::bf16_pair(weights.r[i], weights.r[i + 1]);
    weights.r[i] = device::bf16_low(pair);
    weights.r[i + 1] = device::bf16_high(pair);
    const uint32_t at = fragment_offset(lane_row(cell_row(i)), 16 * group + score_place(i));
    device::store_as<uint32_t>(staged + at, pair);
  }
}

#else
inline constexpr uint32_t kLaneRows = 1;
ATLAS_DEVICE uint32_t lane_row(uint32_t) { return device::lane_index() % 16; }
constexpr uint32_t cell_row(uint32_t) { return 0; }
ATLAS_DEVICE uint32_t score_place(uint32_t i) { return 2 * i + device::lane_index() / 16; }
ATLAS_DEVICE uint32_t value_element(uint32_t i) { return 2 * i + device::lane_index() / 16; }
ATLAS_DEVICE bool leads_rows() { return device::lane_index() < 16; }

template <typename Join>
ATLAS_DEVICE float over_row(float x, const Join& join) {
  return join(x, device::shuffle_xor(x, 16));
}

struct RowChunk {
  device::WmmaHalves b[2];
};
ATLAS_DEVICE device::WmmaHalves halves_of(const device::Words4& low, const device::Words4& high) {
  return {{low.w[0], low.w[1], low.w[2], low.w[3], high.w[0], high.w[1], high.w[2], high.w[3]}};
}
ATLAS_DEVICE RowChunk load_rows(const uint8_t* staged, uint32_t first, uint32_t pitch,
                                uint32_t chunk) {
  const uint32_t row = first + device::lane_index() % 16;
  RowChunk rows;
  ATLAS_UNROLL
  for (uint32_t s = 0; s < 2; ++s) {
    const uint32_t piece = 4 * chunk + 2 * s;
    rows.b[s] =
        halves_of(device::load_as<device::Words4>(staged + staged_offset(row, piece, pitch)),
                  device::load_as<device::Words4>(staged + staged_offset(row, piece + 1, pitch)));
  }
  return rows;
}

ATLAS_DEVICE uint32_t fragment_offset(uint32_t row, uint32_t k) {
  return k / 32 * 1024 + (row * 4 + (k / 8 % 4 ^ row / 2 % 4)) * 16 + k % 8 * 2;
}
ATLAS_DEVICE uint32_t lane_fragment_offset() { return 0; }
ATLAS_DEVICE RowChunk load_fragments(const uint8_t* at, uint32_t chunk) {
  const uint32_t row = device::lane_index() % 16;
  RowChunk rows;
  ATLAS_UNROLL
  for (uint32_t s = 0; s < 2; ++s) {
    const uint32_t k = 32 * chunk + 16 * s;
    rows.b[s] = halves_of(device::load_as<device::Words4>(at + fragment_offset(row, k)),
                          device::load_as<device::Words4>(at + fragment_offset(row, k + 8)));
  }
  return rows;
}

struct KeyChunk {
  device::WmmaHalves a[2];
};
template <typename Keys>
ATLAS_DEVICE KeyChunk load_keys(const Keys& keys) {
  const uint8_t* key = keys(device::lane_index() % 16);
  KeyChunk chunk{};
  if (key == nullptr) return chunk;
  ATLAS_UNROLL
  for (uint32_t s = 0; s < 2; ++s) {
    chunk.a[s] = halves_of(device::load_as<device::Words4>(key + 32 * s),
                           device::load_as<device::Words4>(key + 32 * s + 16));
  }
  return chunk;
}
inline constexpr uint32_t kLaneKeys = 1;
ATLAS_DEVICE uint32_t lane_key(uint32_t) { return device::lane_index() % 16; }
ATLAS_DEVICE uint32_t lane_key_offset() { return 0; }
ATLAS_DEVICE KeyChunk load_keys_at(const uint8_t* const (&keys)[kLaneKeys], uint32_t offset) {
  KeyChunk chunk;
  ATLAS_UNROLL
  for (uint32_t s = 0; s < 2; ++s) {
    const uint8_t* key = keys[0] + offset + 32 * s;
    chunk.a[s] = halves_of(device::load_here(key), device::load_here(key + 16));
  }
  return chunk;
}
ATLAS_DEVICE void multiply_keys(TileSums& sums, const RowChunk& q, const KeyChunk& keys) {
  auto part = device::bits_as<device::WmmaSums>(sums);
  device::wmma_bf16(part, keys.a[0], q.b[0]);
  device::wmma_bf16(part, keys.a[1], q.b[1]);
  sums = device::bits_as<TileSums>(part);
}

struct ValueChunk {
  device::WmmaHalves a[2];
};
template <typename Values>
ATLAS_DEVICE ValueChunk load_values(const Values& values) {
  ValueChunk chunk{};
  ATLAS_UNROLL
  for (uint32_t quad = 0; quad < 8; ++quad) {
    const uint8_t* value = values(quad);
    if (value == nullptr) continue;
    const auto four = device::load_as<device::Words2>(value + device::lane_index() % 16 * 8);
    chunk.a[quad / 4].r[quad % 4 * 2] = four.w[0];
    chunk.a[quad / 4].r[quad % 4 * 2 + 1] = four.w[1];
  }
  return chunk;
}
inline constexpr uint32_t kLaneQuads = 8;
ATLAS_DEVICE uint32_t lane_quad(uint32_t s) { return s; }
ATLAS_DEVICE uint32_t lane_value_offset() { return device::lane_index() % 16 * 8; }
ATLAS_DEVICE ValueChunk load_values_at(const uint8_t* const (&quads)[kLaneQuads], uint32_t offset) {
  ValueChunk chunk;
  ATLAS_UNROLL
  for (uint32_t quad = 0; quad < 8; ++quad) {
    const auto four = device::load_as<device::Words2>(quads[quad] + offset);
    chunk.a[quad / 4].r[quad % 4 * 2] = four.w[0];
    chunk.a[quad / 4].r[quad % 4 * 2 + 1] = four.w[1];
  }
  return chunk;
}
ATLAS_DEVICE void multiply_values(TileSums& sums, const RowChunk& weights,
                                  const ValueChunk& values) {
  auto part = device::bits_as<device::WmmaSums>(sums);
  device::wmma_bf16(part, values.a[0], weights.b[0]);
  device::wmma_bf16(part, values.a[1], weights.b[1]);
  sums = device::bits_as<TileSums>(part);
}

ATLAS_DEVICE void stage_weights(TileSums& weights, uint8_t* staged, uint32_t first,
                                uint32_t group) {
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t word = device::bf16_pair(weights.r[i], 0.0f);
    weights.r[i] = device::bf16_low(word);
    const uint32_t at = staged_offset(first + lane_row(0), 2 * group + i / 4, kGqaBlockTokens * 2);
    device::store_as<uint16_t>(staged + at + score_place(i) % 8 * 2, static_cast<uint16_t>(word));
  }
}
ATLAS_DEVICE void stage_fragments(TileSums& weights, uint8_t* staged, uint32_t group) {
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t word = device::bf16_pair(weights.r[i], 0.0f);
    weights.r[i] = device::bf16_low(word);
    const uint32_t at = fragment_offset(lane_row(0), 16 * group + score_place(i));
    device::store_as<uint16_t>(staged + at, static_cast<uint16_t>(word));
  }
}
#endif

}  // namespace atlas::kernels

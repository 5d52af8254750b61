// Products of many rows by wgmma, for h200: exl3_wgmma_<codebook>, from rows that exl3_encode_wgmma
// encodes. A block stays for the whole launch and takes tiles of 128 outputs by up to 128 rows over
// all of k. One warp has rows and weights copied to shared memory, a stage of 128 of k at a time;
// the others decode weights of their groups of outputs in registers, a step of 16 ahead of the
// matrix instructions, which run meanwhile. Bits are those of exl3_few.
#pragma once

#include "kernels/common/device/bulk.h"
#include "kernels/common/device/wgmma.h"
#include "kernels/common/exl3_wgmma.h"
#include "kernels/common/gpu/exl3_kernels.h"

namespace atlas::kernels {

/// The stage that a warp is at, and the parity of its phase.
template <uint32_t kUnits>
struct Exl3Turn {
  uint32_t stage = 0, parity = 0;

  ATLAS_DEVICE void advance() {
    stage += 1;
    if (stage != exl3_wgmma_stages(kUnits)) return;
    stage = 0;
    parity ^= 1;
  }
};

/// What a stage is of, four words: its tile (without rows behind the last one), and the block of
/// outputs with what ends.
struct Exl3Stage {
  static constexpr uint32_t kEndsSegment = 1, kEndsTile = 2;

  ATLAS_DEVICE static device::Words4 words(const Exl3Tile& tile, uint32_t output_block,
                                           bool ends_segment, bool ends_tile) {
    return {{tile.begin, tile.rows, tile.expert,
             output_block * 4 + (ends_segment ? kEndsSegment : 0) + (ends_tile ? kEndsTile : 0)}};
  }
};

/// Where segments end, one after another: exl3_segment_begin, without its division.
struct Exl3SegmentEnds {
  uint32_t segments, whole, part;
  uint32_t end = 0, rest = 0;

  ATLAS_DEVICE explicit Exl3SegmentEnds(uint32_t k)
      : segments(exl3_segments(k)),
        whole(k / kExl3Block / segments),
        part(k / kExl3Block - whole * segments) {
    next();
  }
  ATLAS_DEVICE void next() {
    end += whole;
    rest += part;
    if (rest < segments) return;
    rest -= segments;
    ++end;
  }
};

/// The parts of a block's shared memory.
template <uint32_t kUnits>
struct Exl3WgmmaParts {
  static constexpr Exl3WgmmaShared kAt = exl3_wgmma_layout(kUnits);
  uint8_t* begin;

  ATLAS_DEVICE uint8_t* rows(uint32_t stage) const { return begin + stage * kExl3WgmmaRowBytes; }
  ATLAS_DEVICE uint8_t* weights(uint32_t stage, uint32_t warp) const {
    return begin + kAt.weights + stage * exl3_wgmma_weight_bytes(kUnits) +
           warp * exl3_pair_bytes(kExl3Lanes, kUnits);
  }
  ATLAS_DEVICE uint8_t* powers(uint32_t stage) const {
    return begin + kAt.powers + stage * kExl3WgmmaPowerBytes;
  }
  /// Exl3Stage, as words.
  ATLAS_DEVICE uint8_t* tile(uint32_t stage) const {
    return begin + kAt.tiles + stage * kExl3WgmmaTileBytes;
  }
  /// A stage has been brought; has been used.
  ATLAS_DEVICE device::PhaseBarrier* full(uint32_t stage) const { return barrier(2 * stage); }
  ATLAS_DEVICE device::PhaseBarrier* empty(uint32_t stage) const { return barrier(2 * stage + 1); }
  /// Rows of sums have been written; have been read.
  ATLAS_DEVICE device::PhaseBarrier* written() const { return barrier(2 * kStages); }
  ATLAS_DEVICE device::PhaseBarrier* read() const { return barrier(2 * kStages + 1); }
  ATLAS_DEVICE uint8_t* outputs() const { return begin + kAt.outputs; }

 private:
  static constexpr uint32_t kStages = exl3_wgmma_stages(kUnits);
  ATLAS_DEVICE device::PhaseBarrier* barrier(uint32_t i) const {
    return reinterpret_cast<device::PhaseBarrier*>(begin + kAt.barriers) + i;
  }
};

// ---- The warp that brings ----

/// Has the stages of one tile copied; the last "tile" has no rows and one stage without bytes.
template <uint32_t kUnits>
ATLAS_DEVICE void exl3_wgmma_bring(const Exl3ProductGpuParams& params,
                                   const Exl3WgmmaParts<kUnits>& parts, const Exl3Tile& tile,
                                   uint32_t output_block, Exl3Turn<kUnits>& turn) {
  using namespace device;
  constexpr uint32_t kPairBytes = exl3_pair_bytes(kExl3Lanes, kUnits);
  constexpr uint32_t kRowBytes = kExl3Block * 2;
  const uint32_t blocks = params.k / kExl3Block, places = (tile.rows + 7) / 8 * 8;
  uint32_t place = tile.begin;
  if (params.offsets != nullptr && tile.rows != 0) {
    const uint32_t run = load(params.offsets + tile.expert);
    place = exl3_wgmma_place(run, tile.expert) + tile.begin - run;
  }
  const uint8_t* rows = static_cast<const uint8_t*>(params.encoded) + uint64_t{place} * kRowBytes;
  const uint64_t group_bytes = uint64_t{blocks} * kPairBytes;
  const uint8_t* weights =
      static_cast<const uint8_t*>(params.weight) + tile.expert * params.expert_bytes +
      exl3_gpu_head_bytes(params.n, params.k) + output_block * kExl3WgmmaWarps * group_bytes;
  const float* powers = params.powers + place;
  const uint32_t bytes = places * (kRowBytes + 4) + kExl3WgmmaWarps * kPairBytes;
  Exl3SegmentEnds segment(params.k);
  for (uint32_t block = 1; block <= blocks; ++block) {
    const bool ends_segment = block == segment.end;
    PhaseBarrier* full = parts.full(turn.stage);
    phase_wait(parts.empty(turn.stage), turn.parity ^ 1);
    if (elect_lane()) {
      store_as(parts.tile(turn.stage),
               Exl3Stage::words(tile, output_block, ends_segment, block == blocks));
      phase_expect(full, tile.rows == 0 ? 0 : bytes);
      if (tile.rows != 0) {
        bulk_copy(parts.rows(turn.stage), rows, places * kRowBytes, full);
        // One copy after another: registers for all addresses are not there.
        const uint8_t* from = weights;
        ATLAS_ROLLED
        for (uint32_t w = 0; w < kExl3WgmmaWarps; ++w, from += group_bytes) {
          bulk_copy(parts.weights(turn.stage, w), from, kPairBytes, full);
        }
        bulk_copy(parts.powers(turn.stage), powers, places * 4, full);
      }
    }
    if (tile.rows == 0) return;
    rows += uint64_t{params.rows} * kRowBytes;
    weights += kPairBytes;
    if (ends_segment) {
      segment.next();
      powers += params.rows;
    }
    turn.advance();
  }
}

template <uint32_t kUnits>
ATLAS_DEVICE void exl3_wgmma_bring_all(const Exl3ProductGpuParams& params,
                                       const Exl3WgmmaParts<kUnits>& parts) {
  using namespace device;
  const uint32_t output_blocks = params.n / kExl3Block;
  Exl3Turn<kUnits> turn;
  // Tiles are counted by rows first, blocks of outputs within them: those that run together share
  // rows.
  uint32_t index = 0, output_block = block_index();
  for (;;) {
    for (; output_block >= output_blocks; output_block -= output_blocks) ++index;
    const Exl3Tile tile =
        exl3_tile<kExl3WgmmaRows, 2>(params.row_count, params.offsets, params.experts, index);
    exl3_wgmma_bring(params, parts, tile, output_block, turn);
    if (tile.rows == 0) return;
    output_block += grid_blocks();
  }
}

// ---- The warps that multiply ----

/// totals += sums * the segment's powers of two, which stand at `powers`.
template <uint32_t kRows>
ATLAS_DEVICE void exl3_wgmma_fold(const uint8_t* powers, uint32_t rows,
                                  device::WgmmaSums<kRows>& sums, float (&totals)[kRows / 2]) {
  using namespace device;
  // Loaded while the last instructions run. Rows that are not there take others' powers.
  Floats2 two[kRows / 8];
  const uint8_t* own = powers + lane_index() % 4 * 8;
  ATLAS_UNROLL
  for (uint32_t t = 0; t < kRows / 8; ++t)
    two[t] = load_as<Floats2>(own + (8 * t < rows ? 32 * t : 0));
  wgmma_wait_for(sums);
  ATLAS_UNROLL
  for (uint32_t t = 0; t < kRows / 8; ++t) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) totals[4 * t + i] += sums.r[4 * t + i] * two[t].f[i % 2];
  }
}

/// Where 16 bytes, piece `piece` of a row of 128 sums, stand in the row: neither lanes that have 16
/// sums each nor lanes that have every fourth piece meet in a bank.
ATLAS_DEVICE uint32_t exl3_wgmma_piece(uint32_t piece) { return 16 * (piece ^ (piece / 8 & 3)); }

/// Transforms and writes the tile's rows, by way of shared memory: step 4 of the contract. A lane
/// has 16 outputs in a row for strides up to 8, then 4 of every 16 for the others. Half of the rows
/// at a time, so that barriers have the same phases in each tile.
template <uint32_t kUnits, uint32_t kRows>
ATLAS_DEVICE void exl3_wgmma_outputs(const Exl3ProductGpuParams& params,
                                     const Exl3WgmmaParts<kUnits>& parts, const Exl3Tile& tile,
                                     uint32_t output_block, const float (&totals)[kRows / 2]) {
  using namespace device;
  // Addresses are computed here, once a tile, and take no registers of the loop before.
  const uint32_t lane = lane_index() + unknown_zero(), warp = warp_index();
  const uint32_t output = output_block * kExl3Block + lane % 4 * 4;
  const uint8_t* svh = static_cast<const uint8_t*>(params.weight) +
                       tile.expert * params.expert_bytes + 2 * uint64_t{params.k};
  uint8_t* rows = parts.outputs();
  // All asked for together, and long before they are needed.
  Floats4 scales[8];
  ATLAS_UNROLL
  for (uint32_t p = 0; p < 8; ++p) scales[p] = exl3_scales(svh, output + 16 * p);
  static_assert(kRows > kExl3WgmmaOutputRows && kRows <= 2 * kExl3WgmmaOutputRows);
  ATLAS_UNROLL
  for (uint32_t parity = 0; parity < 2; ++parity) {
    const uint32_t first = parity * kExl3WgmmaOutputRows;
    constexpr uint32_t kLeast = kRows % kExl3WgmmaOutputRows;
    const uint32_t each =
        (kLeast != 0 && first + kLeast == kRows ? kLeast : kExl3WgmmaOutputRows) / kExl3WgmmaWarps;
    phase_wait(parts.read(), parity ^ 1);  // all warps have read the rows before these
    ATLAS_UNROLL
    for (uint32_t i = first / 2; i < kRows / 2 && i < (first + kExl3WgmmaOutputRows) / 2; ++i) {
      const Cell cell = wgmma_cell(0, lane, i);
      const uint32_t o = warp * kExl3Shape.outputs + cell.row;
      store(reinterpret_cast<float*>(rows + (cell.column - first) * kExl3ManyRowBytes +
                                     exl3_wgmma_piece(o / 4) + o % 4 * 4),
            totals[i]);
    }
    warp_barrier();
    if (lane == 0) phase_arrive(parts.written());
    phase_wait(parts.written(), parity);  // all warps' sums of a row are there
    ATLAS_ROLLED
    for (uint32_t r = lane / 8; r < each; r += 4) {
      uint8_t* row = rows + (warp * each + r) * kExl3ManyRowBytes;
      float v[16];
      ATLAS_UNROLL
      for (uint32_t p = 0; p < 4; ++p) {
        const auto four = load_as<Floats4>(row + exl3_wgmma_piece(lane % 8 * 4 + p));
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 4; ++i) v[4 * p + i] = four.f[i];
      }
      exl3_butterfly<1>(v);
      exl3_butterfly<2>(v);
      exl3_butterfly<4>(v);
      exl3_butterfly<8>(v);
      ATLAS_UNROLL
      for (uint32_t p = 0; p < 4; ++p) {
        store_as(row + exl3_wgmma_piece(lane % 8 * 4 + p),
                 Floats4{{v[4 * p], v[4 * p + 1], v[4 * p + 2], v[4 * p + 3]}});
      }
    }
    warp_barrier();  // the warp's rows are written before other lanes of it read them
    const uint32_t r = lane / 4 % 2 * 4 + lane / 8, at = warp * each + r;
    if (r < each && first + at < tile.rows) {
      const uint8_t* row = rows + at * kExl3ManyRowBytes;
      float v[32];
      ATLAS_UNROLL
      for (uint32_t p = 0; p < 8; ++p) {
        const auto four = load_as<Floats4>(row + exl3_wgmma_piece(4 * p + lane % 4));
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 4; ++i) v[4 * p + i] = four.f[i];
      }
      exl3_butterfly<4>(v);
      exl3_butterfly<8>(v);
      exl3_butterfly<16>(v);
      float* y = params.y + uint64_t{tile.begin + first + at} * params.y_stride;
      ATLAS_UNROLL
      for (uint32_t p = 0; p < 8; ++p) {
        exl3_store_outputs({{v[4 * p] * kExl3Norm, v[4 * p + 1] * kExl3Norm,
                             v[4 * p + 2] * kExl3Norm, v[4 * p + 3] * kExl3Norm}},
                           scales[p], output + 16 * p, params.outputs, y, params.epilogue);
      }
    }
    warp_barrier();
    if (lane == 0) phase_arrive(parts.read());
  }
}

/// One tile, with instructions of kRows columns.
template <Exl3Codebook kCodebook, uint32_t kUnits, uint32_t kRows>
ATLAS_DEVICE void exl3_wgmma_tile(const Exl3ProductGpuParams& params,
                                  const Exl3WgmmaParts<kUnits>& parts, const Exl3Tile& tile,
                                  uint32_t output_block, Exl3Turn<kUnits>& turn) {
  using namespace device;
  constexpr uint32_t kGroupBytes = 8 * kExl3Block * 2, kHalfBytes = 8 * kWgmmaRowBytes;
  static_assert(kExl3WgmmaOutputRows / kExl3WgmmaWarps == 8);
  constexpr uint32_t kNone = ~0u;
  // Sums begin from zero with each segment anyway; set here they take no registers before.
  WgmmaSums<kRows> sums{};
  float totals[kRows / 2] = {};
  MmaA weights[2][1];  // of two steps: one is multiplied, one decoded
  // A stage is let go when the instructions of its last step have ended: in the next one.
  const auto release = [&](uint32_t stage) {
    warp_barrier();  // the warp's lanes have read it
    if (lane_index() == 0) phase_arrive(parts.empty(stage));
  };
  uint32_t last = kNone, ends = 0;
  ATLAS_ROLLED
  do {
    bool add = false;
    ATLAS_ROLLED
    do {
      phase_wait(parts.full(turn.stage), turn.parity);
      ends = load_as<uint32_t>(parts.tile(turn.stage) + 12);
      const Exl3Words<kUnits> words[1] = {
          exl3_read<kUnits, false>(parts.weights(turn.stage, warp_index()))};
      const WgmmaMatrix rows = wgmma_matrix(parts.rows(turn.stage), kGroupBytes);
      exl3_each_segment<true>(words, [&](uint32_t half, const Exl3Segment<kUnits>(&segments)[1]) {
        ATLAS_UNROLL
        for (uint32_t step = 0; step < 4; ++step) {
          const auto pair = [&](uint32_t r) {
            const uint32_t window = 8 * step + 2 * r;
            return exl3_pair<kCodebook>(exl3_window(segments[0], window),
                                        exl3_window(segments[0], window + 1));
          };
          MmaA(&own)[1] = weights[step % 2];
          own[0] = {{pair(0), pair(2), pair(1), pair(3)}};
          wgmma_begin(own);
          wgmma_f16(sums, own[0], rows.at_byte(half * kHalfBytes).at_step(step), add);
          add = true;
          wgmma_commit();
          wgmma_wait<1>();  // the other step's weights may change
          if (half == 0 && step == 0 && last != kNone) release(last);
          if (half != 0 || step != 0) wgmma_apart(params.n == 0);
        }
      });
      last = turn.stage;
      turn.advance();
    } while ((ends & Exl3Stage::kEndsSegment) == 0);
    exl3_wgmma_fold<kRows>(parts.powers(last), tile.rows, sums, totals);
  } while ((ends & Exl3Stage::kEndsTile) == 0);
  release(last);
  exl3_wgmma_outputs<kUnits, kRows>(params, parts, tile, output_block, totals);
}

template <Exl3Codebook kCodebook, uint32_t kUnits>
ATLAS_DEVICE void exl3_wgmma_multiply_all(const Exl3ProductGpuParams& params,
                                          const Exl3WgmmaParts<kUnits>& parts) {
  using namespace device;
  Exl3Turn<kUnits> turn;
  ATLAS_ROLLED
  for (;;) {
    phase_wait(parts.full(turn.stage), turn.parity);
    const auto stage = load_as<Words4>(parts.tile(turn.stage));
    const Exl3Tile tile{stage.w[0], stage.w[1], stage.w[2]};
    const uint32_t output_block = stage.w[3] / 4;
    if (tile.rows == 0) return;
    // Decoding takes longer than the instructions would with still fewer columns.
    if constexpr (kExl3Hot<kCodebook, kUnits>) {
      if (tile.rows <= 96) {
        exl3_wgmma_tile<kCodebook, kUnits, 96>(params, parts, tile, output_block, turn);
        continue;
      }
    }
    exl3_wgmma_tile<kCodebook, kUnits, kExl3WgmmaRows>(params, parts, tile, output_block, turn);
  }
}

template <Exl3Codebook kCodebook, uint32_t kUnits>
ATLAS_DEVICE void exl3_wgmma(const Exl3ProductGpuParams& params) {
  using namespace device;
  constexpr uint32_t kStages = exl3_wgmma_stages(kUnits);
  const Exl3WgmmaParts<kUnits> parts{shared_memory<uint8_t>(shared_padding(1024))};
  if (thread_index() == 0) {
    for (uint32_t stage = 0; stage < kStages; ++stage) {
      phase_init(parts.full(stage), 1);
      phase_init(parts.empty(stage), kExl3WgmmaWarps);
    }
    phase_init(parts.written(), kExl3WgmmaWarps);
    phase_init(parts.read(), kExl3WgmmaWarps);
  }
  block_barrier();  // barriers are made before they are used
  if (warp_index() >= kExl3WgmmaWarps) {
    give_registers<56>();
    if (warp_index() == kExl3WgmmaWarps) exl3_wgmma_bring_all(params, parts);
  } else {
    take_registers<224>();
    exl3_wgmma_multiply_all<kCodebook>(params, parts);
  }
}

}  // namespace atlas::kernels

#define ATLAS_EXL3_WGMMA(name, codebook)                                                           \
  ATLAS_DEVICE_KERNEL(exl3_wgmma_##name, Exl3ProductGpuParams, kExl3WgmmaThreads) {                \
    exl3_with_units<codebook>(                                                                     \
        params.units, [&](auto units) { exl3_wgmma<codebook, decltype(units)::kUnits>(params); }); \
  }

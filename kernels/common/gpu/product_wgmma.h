// Products of many rows with packed weights by wgmma, for h200: linear_<format>_wgmma and
// grouped_<format>_wgmma. A block stays for the whole launch and takes tiles of 128 outputs by up
// to 160 rows (or of fewer outputs) over all of k. Four warps bring rows and weights to shared
// memory, a stage of 64 of k at a time; eight decode the weights of their groups of outputs in
// registers, a block of 32 ahead of the matrix instructions, which run meanwhile. Bits are those of
// product.h.
//
// What a format must give beside product.h's list:
//   kUnitBytes          of a unit in memory; units of a group stand one behind the other
//   head_bytes(k)       from a group's begin to its first unit
//   Place staged(units) where units stand that were copied to shared memory
//   kHeadScales, kRunScales (product_few.h)
#pragma once

#include "kernels/common/device/bulk.h"
#include "kernels/common/device/wgmma.h"
#include "kernels/common/gpu/product_few.h"
#include "kernels/common/gpu_wgmma.h"

namespace atlas::kernels {

/// A product of either kind.
struct WgmmaWork {
  const uint8_t* x;         // in bf16_w64, or f16_w64; of experts: their runs
  const uint8_t* weight;    // of expert 0
  const uint32_t* offsets;  // null: one expert, all rows
  float* y;
  uint64_t x_row_bytes, y_stride, expert_bytes;
  uint32_t rows;  // without offsets
  uint32_t experts, n, k;
  uint32_t tile_rows;    // without offsets
  uint32_t tile_groups;  // of 16 outputs
  bool add;
};

/// Rows [begin, begin + rows) of y by some groups of 16 outputs, from `group` on; no rows: there
/// are no more tiles.
struct WgmmaTile {
  uint32_t begin, rows, expert, group;
  uint32_t place;  // of its first row in x, for those that bring

  ATLAS_DEVICE uint32_t groups(const WgmmaWork& work) const {
    const uint32_t left = tiles_of(work.n) - group;
    return left < work.tile_groups ? left : work.tile_groups;
  }
};
/// Tiles of outputs.
ATLAS_DEVICE uint32_t wgmma_outputs(const WgmmaWork& work) {
  return (tiles_of(work.n) + work.tile_groups - 1) / work.tile_groups;
}

/// The parts of a block's shared memory.
template <class F>
struct WgmmaParts {
  static constexpr uint32_t kGroupBytes = kWgmmaStage / F::kUnit * F::kUnitBytes;
  static constexpr uint32_t kStages = wgmma_stages(kGroupBytes);
  static_assert(kStages >= 4 && kGroupBytes % 16 == 0);
  uint8_t* begin;

  ATLAS_DEVICE uint8_t* rows(uint32_t stage) const { return begin + stage * kWgmmaRowsBytes; }
  ATLAS_DEVICE uint8_t* weights(uint32_t stage, uint32_t group) const {
    return begin + kStages * kWgmmaRowsBytes + (stage * kWgmmaGroups + group) * kGroupBytes;
  }
  /// WgmmaTile, as words.
  ATLAS_DEVICE uint8_t* tile(uint32_t stage) const {
    return begin + kStages * (kWgmmaRowsBytes + kWgmmaGroups * kGroupBytes) +
           stage * kWgmmaTileBytes;
  }
  /// A stage has been brought; has been used.
  ATLAS_DEVICE device::PhaseBarrier* full(uint32_t stage) const { return barrier(stage); }
  ATLAS_DEVICE device::PhaseBarrier* empty(uint32_t stage) const {
    return barrier(kStages + stage);
  }

 private:
  ATLAS_DEVICE device::PhaseBarrier* barrier(uint32_t i) const {
    return reinterpret_cast<device::PhaseBarrier*>(tile(kStages)) + i;
  }
};

/// The stage that a warp is at, and the parity of its phase.
template <uint32_t kStages>
struct WgmmaTurn {
  uint32_t stage = 0, parity = 0;

  ATLAS_DEVICE void advance() {
    stage += 1;
    if (stage != kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// ---- Which tiles ----

/// Tiles of a block without experts, in turn: bands of tiles of rows, within a band tiles of
/// outputs, within them tiles of rows. So blocks that run together share both weights and rows.
class WgmmaRowTiles {
 public:
  ATLAS_DEVICE explicit WgmmaRowTiles(const WgmmaWork& work)
      : outputs_(wgmma_outputs(work)), tiles_((work.rows + work.tile_rows - 1) / work.tile_rows) {
    constexpr uint32_t kBand = 12;  // by 11 outputs: about as many as there are blocks
    const uint32_t bands = (tiles_ + kBand - 1) / kBand;
    band_ = bands == 0 ? 0 : (tiles_ + bands - 1) / bands;
  }
  ATLAS_DEVICE WgmmaTile at(const WgmmaWork& work, uint32_t index) {
    if (tiles_ == 0) return {};
    const uint32_t first = index / (outputs_ * band_) * band_, rest = index % (outputs_ * band_);
    if (first >= tiles_) return {};
    const uint32_t width = tiles_ - first < band_ ? tiles_ - first : band_;
    const uint32_t output = rest / width, begin = (first + rest % width) * work.tile_rows;
    if (output >= outputs_) return {};
    const uint32_t left = work.rows - begin;
    return {begin, left < work.tile_rows ? left : work.tile_rows, 0, output * work.tile_groups,
            begin};
  }

 private:
  uint32_t outputs_, tiles_, band_;
};

/// Tiles of experts, in turn: an expert's tiles of rows, within them tiles of outputs. A warp's
/// lanes know 32 experts; tiles are asked for in ascending order.
class WgmmaExpertTiles {
 public:
  ATLAS_DEVICE explicit WgmmaExpertTiles(const WgmmaWork& work) { look(work, 0); }
  ATLAS_DEVICE WgmmaTile at(const WgmmaWork& work, uint32_t index) {
    using namespace device;
    const uint32_t outputs = wgmma_outputs(work), wanted = index / outputs;
    for (;;) {
      const uint32_t all = shuffle(through_, kWarpLanes - 1);
      if (wanted < all) break;
      first_ += kWarpLanes;
      if (first_ >= work.experts) return {};
      look(work, all);
    }
    const uint32_t lane = lowest_bit(ballot(wanted < through_));
    const uint32_t rows = shuffle(rows_, lane), each = wgmma_expert_rows(rows);
    const uint32_t tiles = (rows + each - 1) / each;
    const uint32_t skipped = (wanted + tiles - shuffle(through_, lane)) * each;
    const uint32_t left = rows - skipped;
    const uint32_t begin = shuffle(begin_, lane), expert = first_ + lane;
    return {begin + skipped, left < each ? left : each, expert, index % outputs * work.tile_groups,
            wgmma_run_place(begin, expert) + skipped};
  }

 private:
  /// Looks at the experts from first_ on; `before`: tiles of those that lie behind.
  ATLAS_DEVICE void look(const WgmmaWork& work, uint32_t before) {
    using namespace device;
    const uint32_t expert = first_ + lane_index();
    begin_ = rows_ = through_ = 0;
    if (expert < work.experts) {
      begin_ = load(work.offsets + expert);
      rows_ = load(work.offsets + expert + 1) - begin_;
      const uint32_t each = wgmma_expert_rows(rows_);
      through_ = (rows_ + each - 1) / each;
    }
    ATLAS_UNROLL
    for (uint32_t apart = 1; apart < kWarpLanes; apart *= 2) {
      const uint32_t below = shuffle_up(through_, apart);
      if (lane_index() >= apart) through_ += below;
    }
    through_ += before;
  }

  uint32_t first_ = 0;               // the first lane's expert
  uint32_t begin_, rows_, through_;  // of the lane's expert; tiles up to it and its own
};

// ---- The warps that bring ----

/// A warp that brings: it has some of the rows' and of the weights' copies made.
template <class F>
class WgmmaBringer {
  using Parts = WgmmaParts<F>;
  // Rows that stand together are a copy each; a tile need not begin with the first of them.
  static constexpr uint32_t kPieces = kWgmmaRows / kWgmmaRowGroup + 1;
  static constexpr uint32_t kOwnPieces = (kPieces + kWgmmaBringers - 1) / kWgmmaBringers;
  static constexpr uint32_t kOwnGroups = kWgmmaGroups / kWgmmaBringers;

 public:
  ATLAS_DEVICE WgmmaBringer(const WgmmaWork& work, const Parts& parts)
      : work_(work), parts_(parts), warp_(device::warp_index() - kWgmmaGroups) {}

  template <class Tiles>
  ATLAS_DEVICE void bring_all(Tiles tiles) {
    for (uint32_t index = device::block_index();; index += device::grid_blocks()) {
      const WgmmaTile tile = tiles.at(work_, index);
      if (tile.rows == 0) break;
      bring(tile);
    }
    end();
  }

 private:
  ATLAS_DEVICE void bring(const WgmmaTile& tile) {
    using namespace device;
    constexpr uint32_t kUnits = kWgmmaStage / F::kUnit;
    constexpr uint32_t kTogether = kWgmmaRowGroup * kWgmmaRowBytes;  // bytes of a stage
    const auto units = static_cast<uint32_t>(whole_units(work_.k, F::kUnit));
    // Pieces are dealt from the last warp on, as the first has the tile's words to write.
    uint32_t place[kOwnPieces], row_bytes[kOwnPieces], all_bytes = 0;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kOwnPieces; ++i) {
      const uint32_t piece = kWgmmaBringers - 1 - warp_ + i * kWgmmaBringers;
      const uint32_t group = tile.place / kWgmmaRowGroup + piece, last = tile.place + tile.rows;
      place[i] = piece == 0 ? tile.place : group * kWgmmaRowGroup;
      const uint32_t end =
          (group + 1) * kWgmmaRowGroup < last ? (group + 1) * kWgmmaRowGroup : last;
      row_bytes[i] = place[i] < end ? (end - place[i]) * kWgmmaRowBytes : 0;
      all_bytes += row_bytes[i];
    }
    const uint8_t* rows = work_.x;
    const uint32_t groups = tile.groups(work_), first_group = warp_ * kOwnGroups;
    const uint32_t own = first_group < groups ? groups - first_group : 0;
    const uint32_t own_groups = own < kOwnGroups ? own : kOwnGroups;
    const uint64_t group_bytes = F::group_bytes(work_.k);
    const uint8_t* weights = work_.weight + tile.expert * work_.expert_bytes +
                             (tile.group + first_group) * group_bytes + F::head_bytes(work_.k);
    ATLAS_ROLLED
    for (uint32_t unit = 0; unit < units; unit += kUnits) {
      const uint32_t bytes = (units - unit < kUnits ? units - unit : kUnits) * F::kUnitBytes;
      PhaseBarrier* full = parts_.full(turn_.stage);
      phase_wait(parts_.empty(turn_.stage), turn_.parity ^ 1);
      // One lane: of several each would have its copies made after the others'.
      if (elect_lane()) {
        // Which tile it is stands in the first stage alone.
        if (unit == 0 && warp_ == 0) {
          store_as(parts_.tile(turn_.stage),
                   Words4{{tile.begin, tile.rows, tile.expert, tile.group}});
        }
        phase_expect(full, all_bytes + own_groups * bytes);
        ATLAS_UNROLL
        for (uint32_t i = 0; i < kOwnPieces; ++i) {
          if (row_bytes[i] == 0) continue;
          const uint32_t in_group = place[i] % kWgmmaRowGroup;
          bulk_copy(parts_.rows(turn_.stage) + (place[i] - tile.place) * kWgmmaRowBytes,
                    rows + (place[i] - in_group) * work_.x_row_bytes + in_group * kWgmmaRowBytes,
                    row_bytes[i], full);
        }
        ATLAS_UNROLL
        for (uint32_t i = 0; i < kOwnGroups; ++i) {
          if (i >= own_groups) continue;
          bulk_copy(parts_.weights(turn_.stage, first_group + i), weights + i * group_bytes, bytes,
                    full);
        }
      }
      rows += kTogether;
      weights += kUnits * F::kUnitBytes;
      turn_.advance();
    }
  }

  /// Shows a stage of a tile without rows.
  ATLAS_DEVICE void end() {
    using namespace device;
    phase_wait(parts_.empty(turn_.stage), turn_.parity ^ 1);
    if (lane_index() != 0) return;
    if (warp_ == 0) store_as(parts_.tile(turn_.stage), Words4{});
    phase_arrive(parts_.full(turn_.stage));
  }

 private:
  const WgmmaWork& work_;
  const Parts& parts_;
  uint32_t warp_;
  WgmmaTurn<Parts::kStages> turn_;
};

// ---- The warps that multiply ----

/// What load_from() takes units in shared memory through.
struct FromStage {
  ATLAS_DEVICE device::Words4 four(const uint8_t* at) {
    return device::load_as<device::Words4>(at);
  }
  ATLAS_DEVICE device::Words2 two(const uint8_t* at) { return device::load_as<device::Words2>(at); }
  ATLAS_DEVICE uint32_t one(const uint8_t* at) { return device::load_as<uint32_t>(at); }
  ATLAS_DEVICE uint32_t half(const uint8_t* at) { return device::load_as<uint16_t>(at); }
};

/// A step of a block as operand A.
ATLAS_DEVICE device::MmaA wgmma_step(const uint32_t* pairs, uint32_t step) {
  return {{pairs[2 * step], pairs[4 + 2 * step], pairs[2 * step + 1], pairs[4 + 2 * step + 1]}};
}

/// totals += the run's sums.
template <class F, uint32_t kColumns>
ATLAS_DEVICE void wgmma_fold(float scale, device::WgmmaSums<kColumns>& sums,
                             float (&totals)[kColumns / 2]) {
  device::wgmma_wait_for(sums);
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kColumns / 2; ++i) {
    totals[i] += F::kRunScales ? scale * sums.r[i] : sums.r[i];
  }
}

/// Writes totals of `kColumns` rows, of which `rows` are there; y: the first one's, at the lane's
/// first output. `outputs`: how many of the lane's two are there.
template <uint32_t kColumns>
ATLAS_DEVICE void wgmma_put(const WgmmaWork& work, float* y, uint32_t rows, uint32_t outputs,
                            const float (&factor)[2], const float (&totals)[kColumns / 2]) {
  using namespace device;
  constexpr uint32_t kAtOnce = 2;  // eight rows each: loads before the first store
  const uint32_t row = lane_index() % 4 * 2;
  float* at = y + row * work.y_stride;
  ATLAS_UNROLL
  for (uint32_t first = 0; first < kColumns / 8; first += kAtOnce) {
    float values[4 * kAtOnce];
    const auto each = [&](auto&& body) {
      float* here = at;
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4 * kAtOnce; ++i) {
        const uint32_t half = i / 2 % 2;
        if (i != 0 && i % 4 == 0) here += 8 * work.y_stride;
        const bool there = 8 * (first + i / 4) + row + i % 2 < rows && half < outputs;
        body(i, here + i % 2 * work.y_stride + 8 * half, there);
      }
    };
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4 * kAtOnce; ++i) {
      values[i] = totals[4 * first + i] * factor[i / 2 % 2];
    }
    if (work.add) {
      each([&](uint32_t i, float* to, bool there) {
        if (there) values[i] = load(to) + values[i];
      });
    }
    each([&](uint32_t i, float* to, bool there) {
      if (there) store(to, values[i]);
    });
    at += 8 * kAtOnce * work.y_stride;
  }
}

/// One tile: kParts times kColumns rows.
template <class F, uint32_t kColumns, uint32_t kParts>
ATLAS_DEVICE void wgmma_multiply(const WgmmaWork& work, const WgmmaParts<F>& parts,
                                 const WgmmaTile& tile, WgmmaTurn<WgmmaParts<F>::kStages>& turn) {
  using namespace device;
  static_assert(F::kParts == 1 && F::kFold == 0);
  constexpr uint32_t kUnitBlocks = F::kUnit / kBlockElements, kNone = ~0u;
  constexpr uint32_t kRunStages = F::kRun / kWgmmaStage;
  // Four warps multiply together: those without a group take the last one's weights.
  const uint32_t groups = tile.groups(work);
  const uint32_t own = warp_index() < groups ? warp_index() : groups - 1;
  const uint8_t* group =
      work.weight + tile.expert * work.expert_bytes + (tile.group + own) * F::group_bytes(work.k);
  const auto stages = static_cast<uint32_t>(whole_units(work.k, kWgmmaStage));
  WgmmaSums<kColumns> sums[kParts] = {};
  float totals[kParts][kColumns / 2] = {};
  MmaA weights[2][2];       // of two blocks: one is multiplied, one decoded
  typename F::Unit unit{};  // what is decoded next, loaded while the block before it is multiplied
  // Stages and blocks are those of unit and weights: `stage` is multiplied.
  uint32_t last = kNone, stage = 0;
  const uint32_t zero = work.n == 0 ? 1 : 0;
  const auto load_block = [&](uint32_t of, uint32_t block) {
    if (block % kUnitBlocks != 0) return;
    // Beyond the last unit there is nothing: decode_block takes no notice of it.
    const bool there = block == 0 || of * kWgmmaStage + kBlockElements < work.k;
    FromStage from;
    unit = F::load_from(from, F::staged(parts.weights(turn.stage, own)),
                        there ? block / kUnitBlocks : 0);
  };
  const auto decode_block = [&](uint32_t of, uint32_t block) {
    uint32_t pairs[kBlockPairs] = {};
    // Beyond the last unit weights are zeros.
    if (kUnitBlocks == 2 || block == 0 || of * kWgmmaStage + kBlockElements < work.k) {
      F::pairs(unit, block % kUnitBlocks, 0, pairs);
    }
    if constexpr (F::kUnitBytes == kTileOutputs * F::kUnit * 2) {
      // Words that are no more than copied ptxas takes for the same registers, which change while
      // they are multiplied.
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kBlockPairs; ++i) pairs[i] ^= zero;
    }
    ATLAS_UNROLL
    for (uint32_t step = 0; step < 2; ++step) weights[block][step] = wgmma_step(pairs, step);
  };
  // A stage is let go when the instructions of its last block have ended: in the next one.
  const auto release = [&](uint32_t which) {
    warp_barrier();  // the warp's lanes have read it
    if (lane_index() == 0) phase_arrive(parts.empty(which));
  };
  // The stage is there: waited for by whoever read which tile this is.
  load_block(0, 0);
  decode_block(0, 0);
  const auto fold = [&](float scale) {
    ATLAS_UNROLL
    for (uint32_t part = 0; part < kParts; ++part) {
      wgmma_fold<F, kColumns>(scale, sums[part], totals[part]);
    }
  };
  float scale;
  ATLAS_ROLLED
  for (;;) {
    scale = F::kRunScales ? load_as<float>(group + stage / kRunStages * 4) : 1.0f;
    const uint32_t end = stages - stage < kRunStages ? stages : stage + kRunStages;
    bool add = false;
    ATLAS_ROLLED
    do {
      const WgmmaMatrix rows = wgmma_matrix(parts.rows(turn.stage), 8 * kWgmmaRowBytes);
      ATLAS_UNROLL
      for (uint32_t block = 0; block < 2; ++block) {
        wgmma_begin(weights[block]);
        ATLAS_UNROLL
        for (uint32_t step = 0; step < 2; ++step) {
          ATLAS_UNROLL
          for (uint32_t part = 0; part < kParts; ++part) {
            const WgmmaMatrix inputs =
                rows.at_byte(part * kColumns * kWgmmaRowBytes).at_step(2 * block + step);
            if constexpr (F::kF16) {
              wgmma_f16(sums[part], weights[block][step], inputs, add);
            } else {
              wgmma_bf16(sums[part], weights[block][step], inputs, add);
            }
          }
          add = true;
        }
        wgmma_commit();
        // The next block's words come while this one is multiplied.
        if (block == 0) {
          load_block(stage, 1);
          wgmma_wait<1>();  // the other block's weights may change
          if (last != kNone) release(last);
          decode_block(stage, 1);
        } else {
          last = turn.stage;
          turn.advance();
          stage += 1;
          if (stage != stages) {
            phase_wait(parts.full(turn.stage), turn.parity);
            load_block(stage, 0);
          }
          wgmma_wait<1>();
          wgmma_apart(work.n == 0);
          decode_block(stage, 0);
        }
      }
    } while (stage != end);
    if (stage == stages) break;
    fold(scale);
  }
  // They come while the last instructions run; a group has all of them, whatever n is.
  float factor[2] = {1.0f, 1.0f};
  ATLAS_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    if (F::kHeadScales) factor[half] = load_as<float>(group + 4 * (lane_index() / 4 + 8 * half));
  }
  fold(scale);
  release(last);
  // Addresses are computed here, once a tile, and take no registers of the loop before.
  const uint32_t in_group = lane_index() / 4 + unknown_zero();
  const uint32_t output = (tile.group + own) * kTileOutputs + in_group;
  const uint32_t outputs =
      warp_index() >= groups ? 0 : (output < work.n ? 1 : 0) + (output + 8 < work.n ? 1 : 0);
  ATLAS_UNROLL
  for (uint32_t part = 0; part < kParts; ++part) {
    const uint32_t first = part * kColumns;
    if (first >= tile.rows) continue;
    wgmma_put<kColumns>(work, work.y + (tile.begin + first) * work.y_stride + output,
                        tile.rows - first, outputs, factor, totals[part]);
  }
}

template <class F>
ATLAS_DEVICE void wgmma_multiply_all(const WgmmaWork& work, const WgmmaParts<F>& parts) {
  using namespace device;
  WgmmaTurn<WgmmaParts<F>::kStages> turn;
  ATLAS_ROLLED
  for (;;) {
    phase_wait(parts.full(turn.stage), turn.parity);
    const auto words = load_as<Words4>(parts.tile(turn.stage));
    const WgmmaTile tile{words.w[0], words.w[1], words.w[2], words.w[3], 0};
    if (tile.rows == 0) return;
    if (tile.rows <= 64) {
      wgmma_multiply<F, 64, 1>(work, parts, tile, turn);
    } else if (tile.rows <= 96) {
      wgmma_multiply<F, 96, 1>(work, parts, tile, turn);
    } else if (tile.rows <= 128) {
      wgmma_multiply<F, 64, 2>(work, parts, tile, turn);
    } else {
      wgmma_multiply<F, 80, 2>(work, parts, tile, turn);
    }
  }
}

template <class F, class Tiles>
ATLAS_DEVICE void product_wgmma(const WgmmaWork& work) {
  using namespace device;
  using Parts = WgmmaParts<F>;
  const Parts parts{shared_memory<uint8_t>(shared_padding(1024))};
  if (thread_index() == 0) {
    for (uint32_t stage = 0; stage < Parts::kStages; ++stage) {
      phase_init(parts.full(stage), kWgmmaBringers);
      phase_init(parts.empty(stage), kWgmmaGroups);
    }
  }
  block_barrier();  // barriers are made before they are used
  if (warp_index() >= kWgmmaGroups) {
    give_registers<56>();
    WgmmaBringer<F>(work, parts).bring_all(Tiles(work));
  } else {
    take_registers<224>();
    wgmma_multiply_all<F>(work, parts);
  }
}

template <class F>
ATLAS_DEVICE void linear_wgmma(const LinearParams& params) {
  product_wgmma<F, WgmmaRowTiles>(
      {static_cast<const uint8_t*>(params.x), static_cast<const uint8_t*>(params.weight), nullptr,
       params.y, params.x_row_bytes, params.y_stride, 0, device::load(params.row_count), 1,
       params.n, params.k, params.tiles % kWgmmaTileSizes, params.tiles / kWgmmaTileSizes,
       params.epilogue == ATLAS_EPILOGUE_ADD});
}

template <class F>
ATLAS_DEVICE void grouped_wgmma(const GroupedParams& params) {
  product_wgmma<F, WgmmaExpertTiles>(
      {static_cast<const uint8_t*>(params.x), static_cast<const uint8_t*>(params.weight),
       params.offsets, params.y, params.x_row_bytes, params.y_stride, params.expert_bytes, 0,
       params.experts, params.n, params.k, params.tiles % kWgmmaTileSizes,
       params.tiles / kWgmmaTileSizes, false});
}

}  // namespace atlas::kernels

#define ATLAS_WGMMA_PRODUCTS(name, ...)                                       \
  ATLAS_DEVICE_KERNEL(linear_##name##_wgmma, LinearParams, kWgmmaThreads) {   \
    linear_wgmma<__VA_ARGS__>(params);                                        \
  }                                                                           \
  ATLAS_DEVICE_KERNEL(grouped_##name##_wgmma, GroupedParams, kWgmmaThreads) { \
    grouped_wgmma<__VA_ARGS__>(params);                                       \
  }

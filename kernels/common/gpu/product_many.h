// Products of many rows by mma.sync or WMMA, for every GPU pack. A block does 128 outputs for 128
// rows (WMMA: 64). A warp has two of its eight groups of 16 outputs for half of the rows; or, of
// formats with many registers a unit and with WMMA, whose weights take twice the registers, one
// group for all rows, so that a weight is decoded once.
//
// k goes by in stages of 64. With mma.sync rows and packed weights come to shared memory by
// asynchronous copies, some stages under way; a barrier of phases for each slot says that its stage
// is there, and another that all warps have read it, so that no warp waits for the slowest at each
// stage. RDNA 3.5 has no such copies: rows come by registers, a stage ahead, and weights to the
// registers of the warp that multiplies with them.
#pragma once

#include "kernels/common/device/phases.h"
#include "kernels/common/gpu/product.h"

namespace atlas::kernels {

inline constexpr uint32_t kManyRows = many_rows_of(kFamily);
/// Threads that copy a row of a stage, 16 bytes each, so that a request is whole sectors of memory;
/// and rows that each has.
inline constexpr uint32_t kManyCopiers = kManyRowBytes / 16;
inline constexpr uint32_t kManyCopies = kManyRows * kManyCopiers / kProductThreads;
/// Behind the head of shared memory.
inline constexpr uint32_t kManyBarrierBytes = 64;

template <class F>
struct ManyShape {
  static constexpr uint32_t kTiles = F::kManyTiles;          // groups of outputs of a warp
  static constexpr uint32_t kAcross = kManyGroups / kTiles;  // warps with the same rows
  static constexpr uint32_t kShares = kProductWarps / kAcross;
  static constexpr uint32_t kColumnGroups = kManyRows / kShares / kColumns;
  /// Column groups that are multiplied together, whose instructions do not wait for each other.
  /// Scales of blocks, or two parts of a weight, leave registers for two, three parts for one.
  static constexpr uint32_t kChunk = kFamily != MatrixFamily::kMma || F::kParts == 3 ? 1
                                     : F::kFold == 0 && F::kParts == 1               ? 4
                                                                                     : 2;
  /// Whether tiles with all rows have code of their own.
  static constexpr bool kWholeApart =
      kFamily == MatrixFamily::kMma && F::kFold == 0 && F::kParts != 3;
  static constexpr uint32_t kUnits = kManyStage / F::kUnit;  // of a stage
  static constexpr uint32_t kUnitBlocks = F::kUnit / kBlockElements;
  /// Whether a lane's words of a unit are the pairs of its blocks.
  static constexpr bool kPlain =
      F::kParts == 1 && sizeof(typename F::Unit) == kUnitBlocks * kBlockPairs * sizeof(uint32_t);
  /// Shared memory of a stage: pieces of rows, sums of their blocks, weights.
  static constexpr uint32_t kSumsAt = kManyRows * kManyRowBytes;
  static constexpr uint32_t kWeightsAt = kSumsAt + (F::kMinima ? 8 * kManyRows : 0);

  /// Rows of a share: shares are even, in whole column groups.
  ATLAS_DEVICE static uint32_t share(uint32_t rows) {
    return (rows + kShares * kColumns - 1) / (kShares * kColumns) * kColumns;
  }
};

/// Where piece `piece` (16 bytes) of a row's 64 elements stands: two rows that are read together
/// use different banks.
ATLAS_DEVICE uint32_t many_flip(uint32_t row) { return row % 2 * 4; }
/// Row `i` of those that the thread copies, and the piece that it has of each.
ATLAS_DEVICE uint32_t many_line(uint32_t i) {
  return device::thread_index() / kManyCopiers + i * (kProductThreads / kManyCopiers);
}
ATLAS_DEVICE uint32_t many_piece() { return device::thread_index() % kManyCopiers; }
/// Where it stands in a stage.
ATLAS_DEVICE uint32_t many_place(uint32_t i) {
  return many_line(i) * kManyRowBytes + 16 * (many_piece() ^ many_flip(many_line(i)));
}

/// The thread's part of a block's rows, those that are read. Rows past the last repeat the first
/// ones: all blocks' copies of one row would wait for one place of the second-level cache.
struct ManySource {
  const uint8_t* at[kManyCopies];  // the thread's piece of each of its rows
  uint32_t lines;                  // rows that are copied

  ATLAS_DEVICE ManySource(const ProductRows& rows, uint32_t read) : lines(read) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kManyCopies; ++i) {
      at[i] = rows.row(many_line(i) % rows.count) + 16 * many_piece();
    }
  }
  /// Sums of the blocks of a stage, for the thread that has the row's first piece.
  ATLAS_DEVICE const uint8_t* sums(uint32_t i, uint32_t stage, uint32_t k) const {
    return at[i] + bf16_sums_offset(k) + stage * 8;
  }
};

/// What comes of a product's stages: ask() for one, put() what was asked for where it can be read
/// after the next wait(), which all threads come to. `kAhead` stages are asked for before the first
/// is read. A ManyRing is what one product leaves to the block's next one.
#if defined(ATLAS_HAS_MMA_SYNC)
/// The slots' barriers; the slot that is read next, and the parity of the phase that this waits
/// for.
template <uint32_t kStages>
struct ManyRing {
  static_assert(2 * kStages * sizeof(device::PhaseBarrier) <= kManyBarrierBytes);
  uint32_t read = 0, parity = 0;

  ATLAS_DEVICE ManyRing() {
    using namespace device;
    if (thread_index() < kStages) {
      phase_init(full(thread_index()), kProductThreads);
      phase_init(empty(thread_index()), kProductWarps);
    }
    block_barrier();  // barriers are made before they are used
  }
  ATLAS_DEVICE static device::PhaseBarrier* full(uint32_t slot) {
    return device::shared_memory<device::PhaseBarrier>(kProductSharedHead) + slot;
  }
  ATLAS_DEVICE static device::PhaseBarrier* empty(uint32_t slot) { return full(kStages + slot); }
  ATLAS_DEVICE void advance() {
    read += 1;
    if (read != kStages) return;
    read = 0;
    parity ^= 1;
  }
};

template <class F>
struct ManyStream {
  using Shape = ManyShape<F>;
  static constexpr uint32_t kSlot = F::kLaneBytes * device::kWarpLanes;  // a unit of a group
  static constexpr uint32_t kStageBytes = Shape::kWeightsAt + kManyGroups * Shape::kUnits * kSlot;
  static constexpr uint32_t kSlotsAt = kProductSharedHead + kManyBarrierBytes;
  static constexpr uint32_t kRoom = (many_shared_bytes(kFamily) - kSlotsAt) / kStageBytes;
  static constexpr uint32_t kStages = kRoom < 4 ? kRoom : 4;
  // A slot stays as it is for a stage longer than one warp needs, so that others may be later.
  static constexpr uint32_t kAhead = kStages > 2 ? kStages - 2 : 1;
  static_assert(kStages >= 2);
  static constexpr bool kRolled = false, kStops = false;
  using Ring = ManyRing<kStages>;

  Ring& ring;
  const ProductTiles& tiles;
  ManySource source;
  const uint8_t* group;  // whose weights the warp copies
  uint32_t units;        // of them
  LaneSlots slots{device::shared_memory<uint8_t>(kSlotsAt + Shape::kWeightsAt)};

  ATLAS_DEVICE ManyStream(Ring& turns, const ProductTiles& of, const ProductRows& rows)
      : ring(turns),
        tiles(of),
        source(rows, Shape::kShares * Shape::share(rows.count)),
        group(of.weight + (of.first + device::warp_index()) * F::group_bytes(of.k)),
        units(device::warp_index() < of.count ? static_cast<uint32_t>(whole_units(of.k, F::kUnit))
                                              : 0) {}

  /// The stage that is read `later` stages after the one that is read next.
  ATLAS_DEVICE void ask(uint32_t later, uint32_t stage, uint32_t stages) {
    using namespace device;
    if (stage >= stages) return;
    const bool around = ring.read + later >= kStages;
    const uint32_t at = ring.read + later - (around ? kStages : 0);
    phase_wait(Ring::empty(at), ring.parity ^ (around ? 0 : 1));
    uint8_t* to = shared_memory<uint8_t>(kSlotsAt) + at * kStageBytes;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kManyCopies; ++i) {
      if (many_line(i) >= source.lines) continue;
      async_copy<16>(to + many_place(i), source.at[i] + stage * kManyRowBytes);
      if (F::kMinima && many_piece() == 0) {
        async_copy<8>(to + Shape::kSumsAt + many_line(i) * 8, source.sums(i, stage, tiles.k));
      }
    }
    ATLAS_UNROLL
    for (uint32_t i = 0; i < Shape::kUnits; ++i) {
      const uint32_t unit = stage * Shape::kUnits + i;
      if (unit < units) {
        ToSlot<device::Reads::kAgain> slot{
            slots, at * kStageBytes + (warp_index() * Shape::kUnits + i) * kSlot};
        F::load_from(slot, F::place(group, unit, tiles.k), 0);
      }
    }
    phase_arrive_copied(Ring::full(at));
  }
  ATLAS_DEVICE void put() {}
  ATLAS_DEVICE void wait() { device::phase_wait(Ring::full(ring.read), ring.parity); }
  /// Unit i of the stage, of the warp's groups from `tile` on; one that is not there repeats the
  /// last, and its sums go nowhere.
  ATLAS_DEVICE void take(typename F::Unit (&unit)[Shape::kTiles], uint32_t tile, uint32_t,
                         uint32_t i) {
    ATLAS_UNROLL
    for (uint32_t t = 0; t < Shape::kTiles; ++t) {
      const uint32_t own = tile + t < tiles.count ? tile + t : tiles.count - 1;
      FromSlot from{slots, ring.read * kStageBytes + (own * Shape::kUnits + i) * kSlot};
      unit[t] = F::load_from(from, F::place(nullptr, 0, 0), 0);
    }
  }
  ATLAS_DEVICE const uint8_t* staged() const {
    return device::shared_memory<uint8_t>(kSlotsAt) + ring.read * kStageBytes;
  }
  ATLAS_DEVICE void next() {
    device::warp_barrier();  // all lanes have read the stage
    if (device::lane_index() == 0) device::phase_arrive(Ring::empty(ring.read));
    ring.advance();
  }
};
#else
struct ManyRing {};

template <class F>
struct ManyStream {
  using Ring = ManyRing;
  static constexpr bool kStops = true;
  using Shape = ManyShape<F>;
  static constexpr uint32_t kStageBytes = Shape::kWeightsAt, kAhead = 1;
  static_assert(2 * kStageBytes <= many_shared_bytes(kFamily) - kProductSharedHead);
  static_assert(Shape::kTiles == 1);
  /// Whether registers for a second stage of weights are there.
  static constexpr bool kUnitsAhead =
      sizeof(typename F::Unit) * Shape::kUnits <= 192 && F::kFold == 0;
  /// Whether one unit's operands are in registers at a time.
  static constexpr bool kRolled = !kUnitsAhead && Shape::kUnits > 1;

  const ProductTiles& tiles;
  ManySource source;
  const uint8_t* group;  // the warp's
  uint32_t units;        // that it has
  device::Words4 pieces[kManyCopies] ATLAS_UNSET;
  device::Words2 sums[kManyCopies] ATLAS_UNSET;
  typename F::Unit now[Shape::kUnits] ATLAS_UNSET, later[Shape::kUnits] ATLAS_UNSET;
  uint32_t held = 0, read = 0;  // the stage in `pieces`; the slot that is read
  bool holds = false;

  ATLAS_DEVICE ManyStream(Ring&, const ProductTiles& of, const ProductRows& rows)
      : tiles(of),
        source(rows, Shape::kShares * Shape::share(rows.count)),
        group(of.weight + (of.first + device::warp_index()) * F::group_bytes(of.k)),
        units(device::warp_index() < of.count ? static_cast<uint32_t>(whole_units(of.k, F::kUnit))
                                              : 0) {}

  ATLAS_DEVICE void ask(uint32_t, uint32_t stage, uint32_t stages) {
    held = stage;
    holds = stage < stages;
    if (!holds) return;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kManyCopies; ++i) {
      if (many_line(i) >= source.lines) continue;
      pieces[i] = device::load_as<device::Words4>(source.at[i] + stage * kManyRowBytes);
      if (F::kMinima && many_piece() == 0) {
        sums[i] = device::load_as<device::Words2>(source.sums(i, stage, tiles.k));
      }
    }
    if constexpr (kUnitsAhead) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < Shape::kUnits; ++i) load(later[i], stage * Shape::kUnits + i);
    }
  }
  ATLAS_DEVICE void put() {
    if (!holds) return;
    uint8_t* to = device::shared_memory<uint8_t>(kProductSharedHead) + held % 2 * kStageBytes;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kManyCopies; ++i) {
      if (many_line(i) >= source.lines) continue;
      device::store_as(to + many_place(i), pieces[i]);
      if (F::kMinima && many_piece() == 0) {
        device::store_as(to + Shape::kSumsAt + many_line(i) * 8, sums[i]);
      }
    }
    if constexpr (kUnitsAhead) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < Shape::kUnits; ++i) now[i] = later[i];
    }
  }
  ATLAS_DEVICE void wait() {
    device::block_barrier();  // the stage is there for all, and the other slot has been read
  }
  ATLAS_DEVICE void take(typename F::Unit (&unit)[1], uint32_t, uint32_t stage, uint32_t i) {
    if constexpr (kUnitsAhead) {
      unit[0] = now[i];
    } else {
      load(unit[0], stage * Shape::kUnits + i);
    }
  }
  ATLAS_DEVICE const uint8_t* staged() const {
    return device::shared_memory<uint8_t>(kProductSharedHead) + read * kStageBytes;
  }
  ATLAS_DEVICE void next() { read ^= 1; }

 private:
  ATLAS_DEVICE void load(typename F::Unit& to, uint32_t unit) const {
    if (unit < units) to = F::load(group, unit, tiles.k);
  }
};
#endif

template <bool kIs>
struct ManyIs {
  static constexpr bool kValue = kIs;
};

/// A block of 32 elements of the warp's groups by its first `count` rows: sums += it, part after
/// part, or the sum of each F::kFold elements times its scale. `inputs(g)` brings the activations
/// of column group g; `zero` is one of which the compiler does not know. kWhole: all column groups
/// have rows, which nothing asks for then.
template <class F, bool kWhole, class Inputs>
ATLAS_DEVICE void many_block(Sums (&sums)[ManyShape<F>::kTiles][ManyShape<F>::kColumnGroups],
                             const typename F::Unit (&unit)[ManyShape<F>::kTiles], uint32_t block,
                             uint32_t count, uint32_t zero, const Inputs& inputs) {
  using Shape = ManyShape<F>;
  constexpr uint32_t kTiles = Shape::kTiles, kChunk = Shape::kChunk;
  constexpr uint32_t kChunks = Shape::kColumnGroups / kChunk;
  constexpr uint32_t kFolds = F::kFold == 16 ? 2 : 1;
  // A chunk's activations are read while the one before it is multiplied; WMMA's take so many
  // registers that one group's are there at a time.
  constexpr bool kEarly = kFamily == MatrixFamily::kMma;
  uint32_t pairs[kTiles][F::kParts][kBlockPairs];
  float scales[kTiles][kFolds][kLaneRows] ATLAS_UNSET, minima[kTiles][kLaneRows] ATLAS_UNSET;
  BlockInputs x[kChunk] ATLAS_UNSET, ahead[kChunk] ATLAS_UNSET;
  const auto wanted = [&](uint32_t group) {
    return group < Shape::kColumnGroups && (kWhole || group * kColumns < count);
  };
  ATLAS_UNROLL
  for (uint32_t g = 0; kEarly && g < kChunk; ++g) {
    if (wanted(g)) ahead[g] = inputs(g);
  }
  ATLAS_UNROLL
  for (uint32_t t = 0; t < kTiles; ++t) {
    ATLAS_UNROLL
    for (uint32_t part = 0; part < F::kParts; ++part)
      F::pairs(unit[t], block, part, pairs[t][part]);
    // Words as they were loaded do not lie as an instruction takes them, and ptxas would move them
    // again for each. Other pairs come out of arithmetic, which puts them where they belong.
    ATLAS_UNROLL
    for (uint32_t i = 0; Shape::kPlain && i < kBlockPairs; ++i) pairs[t][0][i] ^= zero;
    ATLAS_UNROLL
    for (uint32_t i = 0; F::kFold != 0 && i < kLaneRows; ++i) {
      if constexpr (F::kFold != 0) {
        ATLAS_UNROLL
        for (uint32_t f = 0; f < kFolds; ++f) scales[t][f][i] = F::scale(unit[t], block, f, i);
      }
      if constexpr (F::kMinima) minima[t][i] = F::minimum(unit[t], block, i);
    }
  }
  ATLAS_UNROLL
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    device::schedule_barrier();
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kChunk; ++g) {
      const uint32_t group = chunk * kChunk + g;
      if (kEarly) {
        x[g] = ahead[g];
        if (wanted(group + kChunk)) ahead[g] = inputs(group + kChunk);
      } else if (wanted(group)) {
        x[g] = inputs(group);
      }
    }
    const auto each = [&](const auto& use) {
      ATLAS_UNROLL
      for (uint32_t g = 0; g < kChunk; ++g) {
        if (!wanted(chunk * kChunk + g)) continue;
        ATLAS_UNROLL
        for (uint32_t t = 0; t < kTiles; ++t) use(t, g, sums[t][chunk * kChunk + g]);
      }
    };
    if constexpr (F::kFold == 0) {
      ATLAS_UNROLL
      for (uint32_t step = 0; step < 2 * F::kParts; ++step) {
        each([&](uint32_t t, uint32_t g, Sums& to) {
          multiply_step<F::kF16>(to, pairs[t][step / 2], x[g], step % 2);
        });
      }
    } else {
      static_assert(F::kParts == 1);
      Sums part[kTiles][kChunk] = {};
      ATLAS_UNROLL
      for (uint32_t step = 0; step < 2; ++step) {
        each([&](uint32_t t, uint32_t g, Sums&) {
          multiply_step<F::kF16>(part[t][g], pairs[t][0], x[g], step);
        });
        if (F::kFold == 32 && step == 0) continue;
        each([&](uint32_t t, uint32_t g, Sums& to) {
          ATLAS_UNROLL
          for (uint32_t i = 0; i < kCells; ++i) {
            to.r[i] = device::fma(scales[t][F::kFold == 16 ? step : 0][cell_lane_row(i)],
                                  part[t][g].r[i], to.r[i]);
            part[t][g].r[i] = 0.0f;
          }
        });
      }
      if constexpr (F::kMinima) {
        each([&](uint32_t t, uint32_t g, Sums& to) {
          ATLAS_UNROLL
          for (uint32_t i = 0; i < kCells; ++i) {
            to.r[i] =
                device::fma(minima[t][cell_lane_row(i)], x[g].sums[i % kLaneColumns], to.r[i]);
          }
        });
      }
    }
  }
}

/// The warp's results: of its groups from `tile` on, for `count` rows from `first` of the
/// product's.
template <class F>
ATLAS_DEVICE void many_results(
    const Sums (&totals)[ManyShape<F>::kTiles][ManyShape<F>::kColumnGroups],
    const ProductTiles& tiles, uint32_t tile, uint32_t first, uint32_t count,
    const ProductResult& result) {
  using Shape = ManyShape<F>;
  constexpr uint32_t kTiles = Shape::kTiles, kLaneTile = kTileOutputs;
  float scales[kTiles][kLaneRows] ATLAS_UNSET;  // which a store in between would have read again
  ATLAS_UNROLL
  for (uint32_t t = 0; t < kTiles; ++t) {
    if (!F::kHeadScales || tile + t >= tiles.count) continue;
    const uint8_t* group = tiles.weight + (tiles.first + tile + t) * F::group_bytes(tiles.k);
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kLaneRows; ++i) {
      scales[t][i] = device::load_as<float>(group + sizeof(float) *
                                                        lane_row(kFamily, device::lane_index(), i));
    }
  }
  ATLAS_UNROLL
  for (uint32_t g = 0; g < Shape::kColumnGroups; ++g) {
    float value[kTiles][kCells] ATLAS_UNSET;
    const auto each = [&](const auto& use) {
      ATLAS_UNROLL
      for (uint32_t t = 0; t < kTiles; ++t) {
        ATLAS_UNROLL
        for (uint32_t i = 0; i < kCells; ++i) {
          const device::Cell cell = sum_cell(i);
          const uint32_t row = g * kColumns + cell.column;
          const uint32_t output = (tiles.first + tile + t) * kLaneTile + cell.row;
          if (row >= count || tile + t >= tiles.count || output >= tiles.n) continue;
          use(value[t][i], t, i, result.y + (first + row) * result.stride + output);
        }
      }
    };
    // All that is added to is loaded together.
    if (result.add) {
      each([&](float& to, uint32_t, uint32_t, const float* y) { to = device::load(y); });
    }
    each([&](const float& old, uint32_t t, uint32_t i, float* y) {
      float total = totals[t][g].r[i];
      if (F::kHeadScales) total *= scales[t][cell_lane_row(i)];
      device::store(y, result.add ? old + total : total);
    });
  }
}

template <class F>
ATLAS_DEVICE void many_rows(typename ManyStream<F>::Ring& ring, const ProductTiles& tiles,
                            const ProductRows& rows, const ProductResult& result) {
  using namespace device;
  using Shape = ManyShape<F>;
  using Stream = ManyStream<F>;
  constexpr uint32_t kTiles = Shape::kTiles, kRunStages = F::kRun / kManyStage;
  const uint32_t share = Shape::share(rows.count);
  const uint32_t first = warp_index() / Shape::kAcross * share;
  const uint32_t left = first < rows.count ? rows.count - first : 0;
  const uint32_t count = left < share ? left : share;
  const uint32_t tile = warp_index() % Shape::kAcross * kTiles;
  const bool works = count != 0 && tile < tiles.count;  // the warp, all lanes alike
  // Code of its own: with questions between its instructions mma.sync takes 5 % longer.
  const bool is_whole = Shape::kWholeApart && count == Shape::kColumnGroups * kColumns;
  const auto stages = static_cast<uint32_t>(whole_units(tiles.k, kManyStage));

  Stream stream(ring, tiles, rows);
  ATLAS_UNROLL
  for (uint32_t stage = 0; stage < Stream::kAhead; ++stage) {
    stream.ask(stage, stage, stages);
    stream.put();
  }
  Sums totals[kTiles][Shape::kColumnGroups] = {}, sums[kTiles][Shape::kColumnGroups] = {};
  for (uint32_t stage = 0; stage < stages; ++stage) {
    if constexpr (Stream::kStops) stream.wait();  // before what is read may be overwritten
    stream.ask(Stream::kAhead, stage + Stream::kAhead, stages);
    if constexpr (!Stream::kStops) stream.wait();
    if (works) {
      // With kRunScales the value of a run is its sum times a number, which is asked for early.
      float run_scale[kTiles] ATLAS_UNSET;
      ATLAS_UNROLL
      for (uint32_t t = 0; F::kRunScales && t < kTiles; ++t) {
        if (tile + t >= tiles.count) continue;
        run_scale[t] =
            load_as<float>(tiles.weight + (tiles.first + tile + t) * F::group_bytes(tiles.k) +
                           stage / kRunStages * sizeof(float));
      }
      const uint8_t* staged = stream.staged();
      const uint8_t* own = staged + (first + input_column()) * kManyRowBytes;
      const auto unit_of = [&](auto whole, uint32_t i) {
        if (i != 0 && stage * kManyStage + i * F::kUnit >= tiles.k) return;
        typename F::Unit unit[kTiles] ATLAS_UNSET;
        stream.take(unit, tile, stage, i);
        ATLAS_UNROLL
        for (uint32_t b = 0; b < Shape::kUnitBlocks; ++b) {
          const uint32_t block = i * Shape::kUnitBlocks + b;
          if (b != 0 && stage * kManyStage + block * kBlockElements >= tiles.k) continue;
          many_block<F, decltype(whole)::kValue>(
              sums, unit, b, count, tiles.n >> 31, [&](uint32_t group) {
                // A block is half of a row's pieces, and the flip exchanges the halves.
                BlockInputs x = load_inputs(own + 16 * (4 * block ^ many_flip(input_column())) +
                                            group * kColumns * kManyRowBytes);
                if constexpr (F::kMinima) {
                  const uint8_t* at = staged + Shape::kSumsAt + (first + group * kColumns) * 8;
                  ATLAS_UNROLL
                  for (uint32_t c = 0; c < kLaneColumns; ++c) {
                    const uint32_t column =
                        kLaneColumns == 1 ? input_column() : 2 * (lane_index() % 4) + c;
                    x.sums[c] = load_as<float>(at + column * 8 + block * 4);
                  }
                }
                return x;
              });
        }
      };
      if constexpr (Stream::kRolled) {
        ATLAS_ROLLED
        for (uint32_t i = 0; i < Shape::kUnits; ++i) unit_of(ManyIs<false>(), i);
      } else if (is_whole) {
        ATLAS_UNROLL
        for (uint32_t i = 0; i < Shape::kUnits; ++i) unit_of(ManyIs<true>(), i);
      } else {
        ATLAS_UNROLL
        for (uint32_t i = 0; i < Shape::kUnits; ++i) unit_of(ManyIs<false>(), i);
      }
      if ((stage + 1) % kRunStages == 0 || stage + 1 == stages) {
        ATLAS_UNROLL
        for (uint32_t t = 0; t < kTiles; ++t) {
          ATLAS_UNROLL
          for (uint32_t g = 0; g < Shape::kColumnGroups; ++g) {
            ATLAS_UNROLL
            for (uint32_t i = 0; i < kCells; ++i) {
              totals[t][g].r[i] += F::kRunScales ? run_scale[t] * sums[t][g].r[i] : sums[t][g].r[i];
              sums[t][g].r[i] = 0.0f;
            }
          }
        }
      }
    }
    stream.put();
    stream.next();
  }
  // The last stage is read before the next work overwrites it.
  if constexpr (Stream::kStops) block_barrier();
  if (works) many_results<F>(totals, tiles, tile, rows.first + first, count, result);
}

template <class F>
ATLAS_DEVICE void linear_many(const LinearParams& params) {
  using namespace device;
  // Blocks that run together share rows and weights in the second-level cache: bands of some tiles
  // of rows, each from the first outputs to the last, rows first.
  const uint32_t across = grid_blocks<0>(), down = grid_blocks<1>();
  const uint32_t index = block_index<1>() * across + block_index<0>();
  const uint32_t top = index / (kManyBand * across) * kManyBand;
  const uint32_t high = down - top < kManyBand ? down - top : kManyBand;
  const uint32_t in_band = index - top * across;
  const uint32_t first = (top + in_band % high) * kManyRows;
  const uint32_t begin = in_band / high * kManyGroups;
  const uint32_t row_count = load(params.row_count);
  if (first >= row_count) return;
  const uint32_t left = row_count - first, groups = tiles_of(params.n);
  const ProductTiles tiles{static_cast<const uint8_t*>(params.weight), begin,
                           groups - begin < kManyGroups ? groups - begin : kManyGroups, params.n,
                           params.k};
  const ProductRows rows{static_cast<const uint8_t*>(params.x), nullptr, params.x_row_bytes, first,
                         left < kManyRows ? left : kManyRows};
  typename ManyStream<F>::Ring ring;
  many_rows<F>(ring, tiles, rows,
               {params.y, params.y_stride, params.epilogue == ATLAS_EPILOGUE_ADD});
}

}  // namespace atlas::kernels

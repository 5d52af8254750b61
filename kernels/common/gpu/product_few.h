// Products of few rows (1 to 16 a block) for every GPU pack. A block does some runs of k of some
// groups of 16 outputs. Its warps take those runs ("tasks") in turn, each with the weights of its
// next ones under way, and leave a run's values in shared memory, where the block adds them
// ascending. Where a matrix has fewer groups than a device needs blocks, k is divided: a block does
// a part of the runs and leaves their values in memory, and the last block to come at a group adds
// all of them, ascending as ever, so that the bits do not know of the division.
//
// Beside what product.h asks of a format:
//   kLaneBytes  bytes that a lane loads of a unit
//   kAhead      units that a warp has under way in registers, where there are no asynchronous
//               copies; kRun / kUnit is a multiple of it
//   kHeadScales whether finish() multiplies with float32 number `output` of the group's begin
//   kRunScales  whether run_value() multiplies with float32 number `run` of it
//   kDivides    whether groups end in a counter (counter_offset(k)), which is zero between products
#pragma once

#include "kernels/common/device/early.h"
#include "kernels/common/gpu/product.h"

namespace atlas::kernels {

/// `runs` runs of k, from first_run on, of each of `groups` groups, from `first` on. Task t is run
/// t % runs of group t / runs.
struct FewWork {
  const uint8_t* weight;  // of group `first`
  uint32_t first, groups;
  uint32_t first_run, runs;
  uint32_t n, k;
  uint64_t apart = 0;  // bytes that each second group's successor stands further on

  ATLAS_DEVICE uint32_t tasks() const { return groups * runs; }
};

/// A task, as its warp goes from one to the next: `count` units from `unit` on of `group`; none
/// past the last task.
template <class F>
struct FewTask {
  const uint8_t* group;
  uint32_t run, unit, count;
  uint32_t left;  // groups from this one on

  FewTask() = default;
  ATLAS_DEVICE FewTask(const FewWork& work, uint32_t task)
      : group(work.weight), run(task), left(work.groups) {
    settle(work);
  }
  ATLAS_DEVICE void advance(const FewWork& work, uint32_t tasks) {
    run += tasks;
    settle(work);
  }

 private:
  ATLAS_DEVICE void settle(const FewWork& work) {
    constexpr uint32_t kUnits = F::kRun / F::kUnit;
    while (run >= work.runs && left != 0) {
      run -= work.runs;
      --left;
      group += F::group_bytes(work.k);
      if (left % 2 == 0) group += work.apart;
    }
    unit = (work.first_run + run) * kUnits;
    const auto all = static_cast<uint32_t>(whole_units(work.k, F::kUnit)) - unit;
    count = left == 0 ? 0 : (all < kUnits ? all : kUnits);
  }
};

#if defined(ATLAS_ARCH_H200)
inline constexpr uint32_t kFewRing = gpu_traits("h200")->ring_bytes;
#elif defined(ATLAS_ARCH_GB10)
inline constexpr uint32_t kFewRing = gpu_traits("gb10")->ring_bytes;
#else
inline constexpr uint32_t kFewRing = 0;
#endif
/// Where values stand in shared memory.
constexpr uint32_t few_parts_at(uint32_t warps) { return kFewRingAt + warps * kFewRing; }

/// Weights under way: kAhead units of each of kDeep tasks; kDeep above 1 only if kAhead units are a
/// run. Units are asked for and taken in the same order, each asked for again when it was taken.
/// `now` are the tasks under way, `next` is the one that is asked for next.
#if defined(ATLAS_HAS_MMA_SYNC)
#define ATLAS_ROLLED_RING ATLAS_ROLLED
template <class F>
struct FewRing {
  static constexpr uint32_t kSlot = F::kLaneBytes * device::kWarpLanes;
  static constexpr uint32_t kRunUnits = F::kRun / F::kUnit, kRoom = kFewRing / kSlot;
  static constexpr uint32_t kAhead = few_power(kRoom < kRunUnits ? kRoom : kRunUnits);
  // Scales of blocks leave no registers for a second task.
  static constexpr uint32_t kDeep = kRoom < 2 * kRunUnits || F::kFold != 0 ? 1 : 2;
  LaneSlots slots{device::lane_place(
      device::shared_memory<uint8_t>(kFewRingAt + device::warp_index() * kFewRing))};
  FewTask<F> now[kDeep], next;

  /// The i-th unit behind `place`, if it is there, as unit i of task d.
  ATLAS_DEVICE void ask(uint32_t d, uint32_t i, bool there, const typename F::Place& place) {
    if (there) {
      ToSlot<device::Reads::kOnce> to{slots, (d * kAhead + i) * kSlot};
      F::load_from(to, place, i);
    }
    device::async_commit();
  }
  /// Waits for the oldest unit that was asked for.
  ATLAS_DEVICE void wait() { device::async_wait<kDeep * kAhead - 1>(); }
  /// Waits for copies that were begun before the first unit was asked for.
  ATLAS_DEVICE void wait_before() { device::async_wait<kDeep * kAhead>(); }
  ATLAS_DEVICE typename F::Unit take(uint32_t d, uint32_t i) {
    FromSlot from{slots, (d * kAhead + i) * kSlot};
    return F::load_from(from, F::place(nullptr, 0, 0), i);
  }
};
#else
#define ATLAS_ROLLED_RING ATLAS_UNROLL  // registers have no index
template <class F>
struct FewRing {
  static constexpr uint32_t kAhead = F::kAhead, kDeep = 1;
  FewTask<F> now[kDeep], next;
  typename F::Unit unit[kAhead] ATLAS_UNSET;

  ATLAS_DEVICE void ask(uint32_t, uint32_t i, bool there, const typename F::Place& place) {
    FromMemory memory;
    if (there) unit[i] = F::load_from(memory, place, i);
  }
  ATLAS_DEVICE void wait() {}
  ATLAS_DEVICE void wait_before() { device::async_wait<0>(); }
  ATLAS_DEVICE const typename F::Unit& take(uint32_t, uint32_t i) { return unit[i]; }
};
#endif

/// Asks for the weights of the warp's first tasks, and for the scales of the block's results.
template <class F, uint32_t kWarps>
ATLAS_DEVICE void few_begin(FewRing<F>& ring, const FewWork& work) {
  using namespace device;
  using Ring = FewRing<F>;
  if constexpr (F::kHeadScales) {
    const uint32_t scaled = work.groups < kFewScaled ? work.groups : kFewScaled;
    ATLAS_ROLLED
    for (uint32_t i = thread_index(); i < scaled * kTileOutputs; i += kWarps * kWarpLanes) {
      async_copy<4>(shared_memory<float>(kFewScalesAt) + i,
                    work.weight + i / kTileOutputs * F::group_bytes(work.k) +
                        i % kTileOutputs * sizeof(float));
    }
    async_commit();
  }
  ring.next = FewTask<F>(work, warp_index());
  ATLAS_UNROLL
  for (uint32_t d = 0; d < Ring::kDeep; ++d) {
    ring.now[d] = ring.next;
    const typename F::Place place = F::place(ring.next.group, ring.next.unit, work.k);
    ATLAS_UNROLL
    for (uint32_t i = 0; i < Ring::kAhead; ++i) ring.ask(d, i, i < ring.next.count, place);
    ring.next.advance(work, kWarps);
  }
}

/// What the lane reads of the encoded rows of its columns. A column without a row of its own
/// repeats the last one; its sums go nowhere.
template <uint32_t kGroups>
struct FewInputs {
  const uint8_t* row[kGroups];  // from the lane's 16 bytes of the first block on
  const uint8_t* sums[kGroups];

  /// Blocks from `block` on.
  template <uint32_t kBlocks>
  ATLAS_DEVICE void load_blocks(BlockInputs (&x)[kBlocks][kGroups], uint32_t block) const {
    ATLAS_UNROLL
    for (uint32_t g = 0; g < kGroups; ++g) {
      const uint8_t* at = device::kept(row[g] + block * (2 * kBlockElements));
      ATLAS_UNROLL
      for (uint32_t b = 0; b < kBlocks; ++b) {
        ATLAS_UNROLL
        for (uint32_t i = 0; i < kInputLoads; ++i) {
          x[b][g].w[i] = device::load_here(at + b * (2 * kBlockElements) + 16 * i);
        }
      }
    }
  }
  /// For formats with minima. All lanes of the warp come here.
  ATLAS_DEVICE void load_sums(uint32_t group, uint32_t block, BlockInputs& x) const {
    const auto own = device::load_as<float>(sums[group] + block * sizeof(float));
    ATLAS_UNROLL
    for (uint32_t c = 0; c < kLaneColumns; ++c) {
      x.sums[c] =
          kLaneColumns == 1 ? own : device::shuffle(own, 4 * (2 * (device::lane_index() % 4) + c));
    }
  }
};

/// sums += a unit, number `unit` of its group. `x`: its blocks' inputs.
template <class F, uint32_t kGroups>
ATLAS_DEVICE void few_unit(Sums (&sums)[1][kGroups], const typename F::Unit& held, uint32_t unit,
                           BlockInputs (*x)[kGroups], const FewInputs<kGroups>& rows) {
  constexpr uint32_t kBlocks = F::kUnit / kBlockElements;
  const typename F::Unit* units[1] = {&held};
  ATLAS_UNROLL
  for (uint32_t block = 0; block < kBlocks; ++block) {
    multiply_block<F>(
        sums, units, block,
        [&](uint32_t group) {
          if constexpr (F::kMinima) {
            rows.load_sums(group, unit * kBlocks + block, x[block][group]);
          }
          return x[block][group];
        },
        [](uint32_t) { return true; });
  }
}

/// A batch of task d of the ring, all of its units, from `unit` on of its group; `asked` units of
/// another batch take their place.
template <class F, uint32_t kGroups>
ATLAS_DEVICE void few_batch(Sums (&sums)[1][kGroups], FewRing<F>& ring, uint32_t d, uint32_t unit,
                            uint32_t asked, const typename F::Place& place,
                            const FewInputs<kGroups>& rows) {
  constexpr uint32_t kAhead = FewRing<F>::kAhead, kBlocks = F::kUnit / kBlockElements;
  constexpr uint32_t kUnits = few_input_units(kAhead, kGroups * kInputLoads * kBlocks);
  static_assert(kAhead % kUnits == 0);
  // With WMMA, or scales of blocks, there are no registers for asking a step ahead.
  constexpr bool kEarly = kFamily == MatrixFamily::kMma && F::kFold == 0;
  BlockInputs x[kUnits * kBlocks][kGroups] ATLAS_UNSET;
  if (kEarly) rows.load_blocks(x, unit * kBlocks);
  // A loop, since ptxas would bring the weights of all steps to registers together.
  ATLAS_ROLLED_RING
  for (uint32_t first = 0; first < kAhead; first += kUnits) {
    BlockInputs next[kUnits * kBlocks][kGroups] ATLAS_UNSET;
    if (!kEarly) rows.load_blocks(x, (unit + first) * kBlocks);
    if (kEarly && first + kUnits < kAhead)
      rows.load_blocks(next, (unit + first + kUnits) * kBlocks);
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kUnits; ++i) {
      device::schedule_barrier();  // one unit's operands in registers at a time
      ring.wait();
      few_unit<F>(sums, ring.take(d, first + i), unit + first + i, x + i * kBlocks, rows);
      ring.ask(d, first + i, first + i < asked, place);
    }
    if constexpr (kEarly) {
      ATLAS_UNROLL
      for (uint32_t b = 0; b < kUnits * kBlocks; ++b) {
        ATLAS_UNROLL
        for (uint32_t g = 0; g < kGroups; ++g) x[b][g] = next[b][g];
      }
    }
  }
}

/// The same for a batch that has `count` units only.
template <class F, uint32_t kGroups>
ATLAS_DEVICE void few_part_batch(Sums (&sums)[1][kGroups], FewRing<F>& ring, uint32_t d,
                                 uint32_t unit, uint32_t count, uint32_t asked,
                                 const typename F::Place& place, const FewInputs<kGroups>& rows) {
  constexpr uint32_t kBlocks = F::kUnit / kBlockElements;
  ATLAS_ROLLED_RING
  for (uint32_t i = 0; i < FewRing<F>::kAhead; ++i) {
    device::schedule_barrier();
    ring.wait();
    if (i < count) {
      BlockInputs x[kBlocks][kGroups];
      rows.load_blocks(x, (unit + i) * kBlocks);
      few_unit<F>(sums, ring.take(d, i), unit + i, x, rows);
    }
    ring.ask(d, i, i < asked, place);
  }
}

/// sums += task d of the ring, whose place the next one takes.
template <class F, uint32_t kGroups>
ATLAS_DEVICE void few_task(Sums (&sums)[1][kGroups], FewRing<F>& ring, uint32_t d,
                           const FewInputs<kGroups>& rows, uint32_t k) {
  constexpr uint32_t kAhead = FewRing<F>::kAhead, kBatches = F::kRun / F::kUnit / kAhead;
  static_assert(kBatches * kAhead * F::kUnit == F::kRun);
  ATLAS_ROLLED
  for (uint32_t batch = 0; batch < kBatches; ++batch) {
    // Of the batch, and of the one that is asked for.
    const uint32_t unit = ring.now[d].unit + batch * kAhead;
    uint32_t count = ring.now[d].count, asked = ring.next.count;
    typename F::Place place;
    if (kBatches > 1) count = count > batch * kAhead ? count - batch * kAhead : 0;
    if (batch + 1 < kBatches) {
      asked = count > kAhead ? count - kAhead : 0;
      place = F::place(ring.now[d].group, unit + kAhead, k);
    } else {
      place = F::place(ring.next.group, ring.next.unit, k);
    }
    if (count >= kAhead) {
      few_batch<F>(sums, ring, d, unit, asked, place, rows);
    } else {
      few_part_batch<F>(sums, ring, d, unit, count, asked, place, rows);
    }
  }
}

/// The values of a task to `to` [rows, 16].
template <class F, uint32_t kGroups>
ATLAS_DEVICE void few_store(const Sums (&sums)[1][kGroups], float scale, uint32_t rows, float* to) {
  ATLAS_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kCells; ++i) {
      const device::Cell cell = sum_cell(i);
      const uint32_t row = g * kColumns + cell.column;
      if (row >= rows) continue;
      const float sum = sums[0][g].r[i];
      device::store(to + row * kTileOutputs + cell.row, F::kRunScales ? scale * sum : sum);
    }
  }
}

/// Adds the values of tasks [first, end), which stand in shared memory, to the totals of their
/// groups. A total that is not complete waits in shared memory for the next ones.
template <class F, uint32_t kWarps>
ATLAS_DEVICE void few_add(const FewWork& work, const ProductRows& rows, uint32_t first,
                          uint32_t end, const ProductResult& result) {
  using namespace device;
  constexpr uint32_t kTasks = few_tasks(kWarps), kBatch = 8;
  const uint32_t row_cells = rows.count * kTileOutputs, begin_group = first / work.runs;
  const uint32_t cells = ((end - 1) / work.runs - begin_group + 1) * row_cells;
  const uint32_t turn = first / kTasks % 2;
  auto* waiting = shared_memory<float>(kFewWaitingAt);  // [2][16 rows, 16]
  for (uint32_t cell = thread_index(); cell < cells; cell += kWarps * kWarpLanes) {
    const uint32_t group = begin_group + cell / row_cells, at = cell % row_cells;
    uint32_t task = group * work.runs;
    const uint32_t last = task + work.runs, until = last < end ? last : end;
    float total = 0.0f;
    if (task < first) {
      total = load(waiting + turn * (kFewRows * kTileOutputs) + at);
      task = first;
    }
    const float* part =
        shared_memory<float>(few_parts_at(kWarps)) + (task - first) * row_cells + at;
    ATLAS_ROLLED
    for (; task + kBatch <= until; task += kBatch, part += kBatch * row_cells) {
      float values[kBatch];
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kBatch; ++i) values[i] = load(part + i * row_cells);
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kBatch; ++i) total += values[i];
    }
    for (; task < until; ++task, part += row_cells) total += load(part);
    if (until < last) {
      store(waiting + (1 - turn) * (kFewRows * kTileOutputs) + at, total);
      continue;
    }
    const uint32_t in_group = at % kTileOutputs;
    const uint32_t output = (work.first + group) * kTileOutputs + in_group;
    if (output >= work.n) continue;
    float value;
    if (F::kHeadScales && group < kFewScaled) {
      value = total * load(shared_memory<float>(kFewScalesAt) + group * kTileOutputs + in_group);
    } else {
      value = F::finish(work.weight + group * F::group_bytes(work.k), in_group, work.k, total);
    }
    result.put(rows.first + at / kTileOutputs, output, value);
  }
}

/// All threads of a block of kWarps come here with the same arguments, after few_begin. With
/// `values` the tasks' values go there ([tasks, rows, 16]; this block's are the first) and nothing
/// is added up.
template <class F, uint32_t kWarps, uint32_t kGroups>
ATLAS_DEVICE void few_rows_of(FewRing<F>& ring, const FewWork& work, const ProductRows& rows,
                              float* values, uint32_t values_runs, const ProductResult& result) {
  using namespace device;
  constexpr uint32_t kDeep = FewRing<F>::kDeep, kTasks = few_tasks(kWarps), kTurn = kDeep * kWarps;
  static_assert(kTasks % kTurn == 0);
  static_assert(kDeep == 1 || FewRing<F>::kAhead * F::kUnit == F::kRun);
  FewInputs<kGroups> inputs;
  ATLAS_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    const uint32_t row = g * kColumns + input_column();
    const uint8_t* at = rows.row(row < rows.count ? row : rows.count - 1);
    inputs.row[g] = kept(at + (kInputLoads == 1 ? 16 * (lane_index() % 4) : 0));
    inputs.sums[g] = at + bf16_sums_offset(work.k);
  }
  const uint32_t tasks = work.tasks(), row_cells = rows.count * kTileOutputs;
  for (uint32_t first = 0; first < tasks; first += kTasks) {
    const uint32_t end = tasks - first < kTasks ? tasks : first + kTasks;
    for (uint32_t turn = first + warp_index(); turn < end; turn += kTurn) {
      ATLAS_UNROLL
      for (uint32_t d = 0; d < kDeep; ++d) {
        const uint32_t task = turn + d * kWarps;
        if (task >= end) break;
        const FewTask<F> now = ring.now[d];
        float scale = 1.0f;
        if constexpr (F::kRunScales) {
          scale = load_as<float>(now.group + now.unit / (F::kRun / F::kUnit) * sizeof(float));
        }
        Sums sums[1][kGroups] = {};
        few_task<F, kGroups>(sums, ring, d, inputs, work.k);
        ring.now[d] = ring.next;
        ring.next.advance(work, kWarps);
        float* to = shared_memory<float>(few_parts_at(kWarps)) + (task - first) * row_cells;
        if (F::kDivides && values != nullptr) {
          to = values + ((work.groups - now.left) * values_runs + now.run) * row_cells;
        }
        few_store<F, kGroups>(sums, scale, rows.count, to);
      }
    }
    if (F::kHeadScales && first == 0) ring.wait_before();  // the scales
    if (F::kDivides && values != nullptr) continue;
    block_barrier();  // the values are written before they are added up
    few_add<F, kWarps>(work, rows, first, end, result);
    if (end < tasks) block_barrier();  // and read before others overwrite them
  }
}

template <class F, uint32_t kWarps>
ATLAS_DEVICE void few_rows(FewRing<F>& ring, const FewWork& work, const ProductRows& rows,
                           float* values, uint32_t values_runs, const ProductResult& result) {
  if (kFewRows == kColumns || rows.count <= kColumns) {
    few_rows_of<F, kWarps, 1>(ring, work, rows, values, values_runs, result);
  } else {
    few_rows_of<F, kWarps, kFewRows / kColumns>(ring, work, rows, values, values_runs, result);
  }
}

/// Whether this block is the last of `comers` to come at the counter, which it leaves at zero: then
/// all that the others wrote is there.
ATLAS_DEVICE bool few_is_last(const uint8_t* counter, uint32_t comers) {
  using namespace device;
  auto* at = reinterpret_cast<uint32_t*>(const_cast<uint8_t*>(counter));
  uint32_t* last = shared_memory<uint32_t>();
  block_barrier();  // the block's values are written before it is counted
  if (thread_index() == 0) {
    const bool is_last = atomic_add<Order::kAcqRel>(at, 1u) + 1 == comers;
    if (is_last) atomic_store(at, 0u);
    store(last, is_last ? 1u : 0u);
  }
  block_barrier();
  return load(last) != 0;
}

/// Adds up what all parts of k left in `values`.
template <class F, uint32_t kWarps>
ATLAS_DEVICE void few_join(const FewWork& whole, const ProductRows& rows, const float* values,
                           const ProductResult& result) {
  using namespace device;
  constexpr uint32_t kTasks = few_tasks(kWarps);
  const uint32_t tasks = whole.tasks(), row_quads = rows.count * (kTileOutputs / 4);
  for (uint32_t first = 0; first < tasks; first += kTasks) {
    const uint32_t end = tasks - first < kTasks ? tasks : first + kTasks;
    for (uint32_t i = thread_index(); i < (end - first) * row_quads; i += kWarps * kWarpLanes) {
      store_as(shared_memory<float>(few_parts_at(kWarps)) + 4 * i,
               load_as<Floats4>(values + 4 * (first * row_quads + i)));
    }
    block_barrier();  // the values are there before they are added up
    few_add<F, kWarps>(whole, rows, first, end, result);
    if (end < tasks) block_barrier();  // and read before others overwrite them
  }
}

/// Grid (groups / tiles, rows / 16, parts of k).
template <class F>
ATLAS_DEVICE void linear_few(const LinearParams& params) {
  using namespace device;
  constexpr uint32_t kWarps = few_warps(kFamily);
  const uint32_t groups = tiles_of(params.n), begin = block_index() * params.tiles;
  const auto runs = static_cast<uint32_t>(whole_units(params.k, F::kRun));
  FewWork work{static_cast<const uint8_t*>(params.weight) + begin * F::group_bytes(params.k),
               begin,
               groups - begin < params.tiles ? groups - begin : params.tiles,
               0,
               runs,
               params.n,
               params.k};
  const FewWork whole = work;
  if (F::kDivides && grid_blocks<2>() > 1) {
    const uint32_t parts = grid_blocks<2>(), part = block_index<2>();
    work.first_run = part * runs / parts;
    work.runs = (part + 1) * runs / parts - work.first_run;
  }
  // Which weights these are is known before what they are multiplied with is there, but not
  // whether rows 16 and above are.
  const uint32_t first = block_index<1>() * kFewRows;
  FewRing<F> ring;
  if (first == 0) few_begin<F, kWarps>(ring, work);
  previous_done();
  const uint32_t row_count = load(params.row_count);
  if (first >= row_count) {
    async_wait<0>();
    return;
  }
  if (first != 0) few_begin<F, kWarps>(ring, work);
  const uint32_t left = row_count - first;
  const ProductRows rows{static_cast<const uint8_t*>(params.x), nullptr, params.x_row_bytes, first,
                         left < kFewRows ? left : kFewRows};
  const ProductResult result{params.y, params.y_stride, params.epilogue == ATLAS_EPILOGUE_ADD};
  float* values = nullptr;
  if constexpr (F::kDivides) {
    if (grid_blocks<2>() > 1) values = params.values + begin * runs * rows.count * kTileOutputs;
  }
  float* own = values == nullptr ? nullptr : values + work.first_run * rows.count * kTileOutputs;
  few_rows<F, kWarps>(ring, work, rows, own, runs, result);
  if constexpr (F::kDivides) {
    if (values == nullptr) return;
    if (!few_is_last(work.weight + F::counter_offset(params.k), grid_blocks<2>())) return;
    few_join<F, kWarps>(whole, rows, values, result);
  }
}

}  // namespace atlas::kernels

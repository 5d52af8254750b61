// Products of few rows for every GPU pack, exl3_few_<codebook>: from encoded rows, or from x,
// encoding as they go. Every weight is decoded once for 8 rows (WMMA: 16). A block does 64 outputs
// (WMMA: 128), or twice as many, of one part and one segment of k, a warp one group of outputs or
// two, one after the other; the last block of 128 outputs to come adds up the segments and
// transforms them. A counter in the weight's head says which is the last, and is left at zero: one
// product of a weight at a time.
#pragma once

#include "kernels/common/device/early.h"
#include "kernels/common/device/prefetch.h"
#include "kernels/common/gpu/exl3_rows.h"

namespace atlas::kernels {

/// Shared memory: a word that says who is last; a word a warp for exl3_encode_segment, two for
/// exl3_find_run; the ring of each warp; the rows that the block encodes and their powers.
inline constexpr uint32_t kExl3LargestAt = 16, kExl3FoundAt = 32, kExl3RingAt = 64;
static_assert(kExl3FoundAt + 8 * kExl3FewWarps <= kExl3RingAt);

/// What a block works on.
struct Exl3Work {
  uint32_t part, block;             // block: of the part
  uint32_t segment, first, blocks;  // blocks of 128 inputs
  uint32_t rows_at;                 // of encoded rows in shared memory
  Exl3Run run;
  uint8_t* weight;  // of the run's expert
  uint32_t turns;   // groups of outputs of a warp

  /// The group of outputs of this warp, in its part.
  ATLAS_DEVICE uint32_t group(uint32_t turn) const {
    return (block * turns + turn) * kExl3FewWarps + device::warp_index();
  }
  /// The first of the block's outputs, in its part.
  ATLAS_DEVICE uint32_t output() const { return block * turns * exl3_few_outputs(kExl3Lanes); }
};

ATLAS_DEVICE Exl3Work exl3_work(const Exl3FewParams& params) {
  Exl3Work work{};
  ATLAS_UNROLL
  for (uint32_t p = 1; p < kExl3Parts; ++p) {
    if (device::block_index() >= params.first_block[p]) work.part = p;
  }
  work.block = device::block_index() - params.first_block[work.part];
  work.turns = exl3_few_most_turns(kExl3Lanes) == 1 ? 1 : params.turns;
  work.segment = device::block_index<2>();
  work.first = exl3_segment_begin(params.k, work.segment);
  work.blocks = exl3_segment_begin(params.k, work.segment + 1) - work.first;
  work.weight = static_cast<uint8_t*>(params.weight[work.part]);
  return work;
}

/// Which row of x stands at `at` among those of all runs.
ATLAS_DEVICE uint32_t exl3_few_source(const Exl3FewParams& params, uint32_t at) {
  return params.source != nullptr ? device::load(params.source + at) : at;
}

/// The run of the grid's index: of that expert, or of the expert whose first row that is. All
/// threads of the block take part; `found`: two words a warp of shared memory. Where runs are told
/// by rows, meanwhile() is told which row of x such a run begins with, before it is found.
template <typename Meanwhile>
ATLAS_DEVICE Exl3Run exl3_find_run(const Exl3FewParams& params, uint32_t* found,
                                   const Meanwhile& meanwhile) {
  using namespace device;
  const uint32_t index = block_index<1>();
  if (params.by_row == 0) {
    const uint32_t begin = load(params.offsets + index);
    return {begin, load(params.offsets + index + 1) - begin, index};
  }
  // All are asked for before the first is looked at: memory is as far away as 500 instructions.
  constexpr uint32_t kAtOnce = 4;
  const uint32_t from = exl3_few_source(params, index);
  const uint32_t total = load(params.offsets + params.experts);
  Words2 mine{};  // the expert, and its rows
  const auto look = [&](uint32_t first) {
    uint32_t begin[kAtOnce], end[kAtOnce];
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t e = first + i * kExl3FewThreads;
      const bool is_expert = e < params.experts;
      begin[i] = is_expert ? load(params.offsets + e) : 0;
      end[i] = is_expert ? load(params.offsets + e + 1) : 0;
    }
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (begin[i] == index && end[i] > index) {
        mine = {{first + i * kExl3FewThreads, end[i] - index}};
      }
    }
  };
  look(thread_index());
  ATLAS_ROLLED
  for (uint32_t first = thread_index() + kAtOnce * kExl3FewThreads; first < params.experts;
       first += kAtOnce * kExl3FewThreads) {
    look(first);
  }
  // If there are so many rows, a run begins with this one.
  if (index < total) meanwhile(from);
  // One lane of the block has found it, or none: of the other warps lane 0 says so.
  const bool is_found = mine.w[1] != 0;
  if (any(is_found) ? is_found : lane_index() == 0) store_as(found + 2 * warp_index(), mine);
  block_barrier();
  Exl3Run run{index, 0, 0};
  ATLAS_UNROLL
  for (uint32_t w = 0; w < kExl3FewWarps; ++w) {
    const Words2 other = load_as<Words2>(found + 2 * w);
    if (other.w[1] != 0) {
      run.expert = other.w[0];
      run.rows = other.w[1];
    }
  }
  return run;
}

// ---- Rows ----

/// The input scales of the warp's block of 128, as they stand.
ATLAS_DEVICE device::Words2 exl3_few_scales(const Exl3FewParams& params, const Exl3Work& work) {
  using namespace device;
  if (params.encoded[0] != nullptr || warp_index() >= work.blocks) return {};
  return load_as<Words2>(work.weight +
                         2 * ((work.first + warp_index()) * kExl3Block + 4 * lane_index()));
}

/// What the lane encodes of the row that stands at `at` among those of all runs.
ATLAS_DEVICE device::Floats4 exl3_few_inputs(const Exl3FewParams& params, const Exl3Work& work,
                                             uint32_t at) {
  using namespace device;
  const uint32_t from = exl3_few_source(params, at);
  if (warp_index() >= work.blocks) return {};
  return exl3_floats(params.x + from * params.x_stride,
                     (work.first + warp_index()) * kExl3Block + 4 * lane_index(), params.inputs);
}

/// Rows [row, row + rows) of the run into shared memory, encoded; their powers behind them.
/// `first`: what the lane encodes of the first of them; of each other one it is asked for while the
/// one before is encoded.
ATLAS_DEVICE void exl3_stage_rows(const Exl3FewParams& params, const Exl3Work& work, uint32_t row,
                                  uint32_t rows, const device::Words2& scales,
                                  const device::Floats4& first) {
  using namespace device;
  Exl3Quad quad{first, {}};
  for (uint32_t r = 0; r < rows; ++r) {
    quad.scales = exl3_scales(scales);
    Floats4 next{};
    if (r + 1 < rows) next = exl3_few_inputs(params, work, work.run.begin + row + r + 1);
    uint8_t* to = shared_memory<uint8_t>(work.rows_at + r * kExl3StagedRowBytes);
    const float power = exl3_encode_segment(
        quad, work.blocks, shared_memory<uint32_t>(kExl3LargestAt), [&](uint32_t k, uint32_t two) {
          store_as(to + k / kExl3Tile * 32 + exl3_element_offset(kExl3Lanes, k % kExl3Tile), two);
        });
    if (thread_index() == 0) {
      store(shared_memory<float>(work.rows_at + kExl3StagedRows * kExl3StagedRowBytes) + r, power);
    }
    quad.x = next;
  }
  block_barrier();  // the rows are there before they are multiplied
}

/// Where a lane finds the inputs of its row, for step 0 of the segment.
struct Exl3Source {
  const uint8_t* from;
  uint32_t step_bytes, half_bytes;
};

/// The lane's row among [row, row + rows): in shared memory, or encoded. What is known to be shared
/// memory is read by instructions of its own.
template <bool kStaged>
ATLAS_DEVICE Exl3Source exl3_source(const Exl3FewParams& params, const Exl3Work& work, uint32_t row,
                                    uint32_t rows) {
  using namespace device;
  constexpr uint32_t kRowTile = kExl3Shape.row_tile, kStepBytes = exl3_step_bytes(kExl3Lanes);
  // Rows that are not there repeat the last one; their sums go nowhere.
  const uint32_t r = exl3_input_row() < rows ? exl3_input_row() : rows - 1;
  if constexpr (kStaged) {
    return {shared_memory<uint8_t>(work.rows_at + r * kExl3StagedRowBytes + exl3_input_tile() * 32),
            kExl3Shape.inputs, 16};
  }
  const uint32_t at = work.run.begin + row + r;
  const uint32_t first_step = work.first * kExl3Block / kExl3Shape.inputs * 2;
  return {static_cast<const uint8_t*>(params.encoded[work.part]) +
              at / kRowTile * exl3_row_tile_bytes(kExl3Lanes, params.k) +
              uint64_t{first_step} * kStepBytes +
              exl3_encoded_lane(kExl3Lanes, at % kRowTile, exl3_input_tile()),
          kStepBytes, kStepBytes / 2};
}

// ---- Products ----

template <uint32_t kUnits>
using Exl3FewStream = Exl3Stream<kUnits, kExl3Ahead, device::Reads::kOnce>;

/// Where code for both segments takes no more registers than a lane of exl3_few may have.
template <Exl3Codebook kCodebook, uint32_t kUnits>
inline constexpr bool kExl3FewHot = kExl3Hot<kCodebook, kUnits> &&
                                    (kCodebook != Exl3Codebook::kMcg || kUnits < 12);

/// The warp's weights, the first of them on their way.
template <uint32_t kUnits>
ATLAS_DEVICE Exl3FewStream<kUnits> exl3_begin_weights(const Exl3FewParams& params,
                                                      const Exl3Work& work) {
  using namespace device;
  constexpr uint32_t kPairInputs = kExl3Shape.inputs;
  const uint32_t group_pairs = params.k / kPairInputs,
                 pairs = work.blocks * kExl3Block / kPairInputs;
  const uint64_t pair =
      uint64_t{work.group(0)} * group_pairs + work.first * kExl3Block / kPairInputs;
  Exl3FewStream<kUnits> stream(
      work.weight + exl3_gpu_head_bytes(params.n[work.part], params.k) +
          pair * exl3_pair_bytes(kExl3Lanes, kUnits),
      {pairs, work.turns, kExl3FewWarps * group_pairs - pairs},
      shared_memory<uint8_t>(kExl3RingAt +
                             warp_index() * exl3_ring_bytes(kExl3Lanes, kUnits, kExl3Ahead)));
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kExl3Ahead; ++i) {
    stream.begin();
    async_commit();
  }
  return stream;
}

/// Where the sums of the part's outputs stand, of a row of a segment.
ATLAS_DEVICE float* exl3_sums(const Exl3FewParams& params, const Exl3Work& work, uint32_t segment,
                              uint32_t row) {
  return params.sums + (uint64_t{segment} * params.rows + row) * params.columns +
         params.first_block[work.part] * work.turns * exl3_few_outputs(kExl3Lanes);
}

/// The sums of one segment for rows [row, row + rows) of the run, one tile of rows, of the warp's
/// group of outputs of this turn.
template <Exl3Codebook kCodebook, bool kStaged, uint32_t kUnits>
ATLAS_DEVICE void exl3_few_rows(const Exl3FewParams& params, const Exl3Work& work, uint32_t row,
                                uint32_t rows, uint32_t turn, Exl3FewStream<kUnits>& stream) {
  using namespace device;
  const uint32_t pairs = work.blocks * kExl3Block / kExl3Shape.inputs;
  Exl3Source source = exl3_source<kStaged>(params, work, row, rows);
  Exl3Sums sums{};
  ATLAS_ROLLED
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    async_wait<kExl3Ahead - 1>();
    const Exl3Words<kUnits> words[1] = {stream.read()};
    stream.begin();
    async_commit();
    exl3_each_segment<kExl3FewHot<kCodebook, kUnits>>(
        words, [&](uint32_t, const Exl3Segment<kUnits>(&segments)[1]) {
          const Exl3Inputs inputs{
              {load_as<Words4>(source.from), load_as<Words4>(source.from + source.half_bytes)}};
          source.from += source.step_bytes;
          exl3_multiply(sums, exl3_weights<kCodebook>(segments[0]), inputs);
        });
  }
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kExl3Cells; ++i) {
    const Cell cell = exl3_cell(lane_index(), i);
    const uint32_t r = cell.column;
    if (r >= rows) continue;
    const uint32_t at = work.run.begin + row + r;
    const float* powers =
        kStaged ? shared_memory<float>(work.rows_at + kExl3StagedRows * kExl3StagedRowBytes) + r
                : params.powers[work.part] + uint64_t{work.segment} * params.rows + at;
    store(exl3_sums(params, work, work.segment, at) + work.group(turn) * kExl3Shape.outputs +
              cell.row,
          sums.r[i] * load(powers));
  }
}

// ---- The end ----

/// Whether this block is the last to come at its 128 outputs: then all sums are there.
ATLAS_DEVICE bool exl3_is_last(const Exl3FewParams& params, const Exl3Work& work) {
  using namespace device;
  constexpr uint32_t kOutputs = exl3_few_outputs(kExl3Lanes);
  static_assert(kExl3Block % kOutputs == 0);
  const uint32_t comers = kExl3Block / kOutputs / work.turns * exl3_segments(params.k);
  auto* counter = reinterpret_cast<uint32_t*>(work.weight +
                                              exl3_counter_offset(params.n[work.part], params.k)) +
                  work.output() / kExl3Block;
  uint32_t* last = shared_memory<uint32_t>();
  block_barrier();  // the block's sums are written before it is counted
  if (thread_index() == 0) {
    const bool is_last = atomic_add<Order::kAcqRel>(counter, 1u) + 1 == comers;
    if (is_last) atomic_store(counter, 0u);
    store(last, is_last ? 1u : 0u);
  }
  block_barrier();
  return load(last) != 0;
}

/// Adds up and transforms all rows of the run, 128 outputs.
ATLAS_DEVICE void exl3_finish(const Exl3FewParams& params, const Exl3Work& work) {
  using namespace device;
  const uint32_t output = work.output() / kExl3Block * kExl3Block + 4 * lane_index();
  const uint32_t segments = exl3_segments(params.k);
  const uint64_t segment = uint64_t{params.rows} * params.columns;
  for (uint32_t r = warp_index(); r < work.run.rows; r += kExl3FewWarps) {
    const uint32_t row = work.run.begin + r;
    const Words2 scales = load_as<Words2>(work.weight + 2 * (uint64_t{params.k} + output));
    const float* from = exl3_sums(params, work, 0, row) + output;
    Floats4 total{};
    for (uint32_t s = 0; s < segments; ++s) {
      const Floats4 sum = load_as<Floats4>(from);
      from += segment;
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) total.f[i] += sum.f[i];
    }
    exl3_store_outputs(exl3_butterflies(total), exl3_scales(scales), output,
                       params.outputs[work.part],
                       params.y[work.part] + row * params.y_stride[work.part], params.epilogue);
  }
}

/// Asks for what the end needs of the weight's head, which nobody has read for long: the output
/// scales and the counter.
ATLAS_DEVICE void exl3_prefetch_end(const Exl3FewParams& params, const Exl3Work& work) {
  using namespace device;
  constexpr uint32_t kLine = 128, kLines = 2 * kExl3Block / kLine;
  if (thread_index() > kLines) return;
  const uint32_t block = work.output() / kExl3Block;
  prefetch(thread_index() == kLines
               ? work.weight + exl3_counter_offset(params.n[work.part], params.k) + 4 * block
               : work.weight + 2 * (uint64_t{params.k} + block * kExl3Block) +
                     kLine * thread_index());
}

template <Exl3Codebook kCodebook, uint32_t kUnits>
ATLAS_DEVICE void exl3_few(const Exl3FewParams& params) {
  using namespace device;
  Exl3Work work = exl3_work(params);
  work.rows_at = kExl3RingAt + kExl3FewWarps * exl3_ring_bytes(kExl3Lanes, kUnits, kExl3Ahead);
  Floats4 first{};  // of the run's first row, what the lane encodes, if it is known early
  Words2 scales{};
  bool is_early = false;
  const bool dense = params.offsets == nullptr, encodes = params.encoded[0] == nullptr;
  if (!dense) {
    previous_done();
    is_early = encodes && params.by_row != 0;
    work.run = exl3_find_run(params, shared_memory<uint32_t>(kExl3FoundAt), [&](uint32_t from) {
      if (!is_early || warp_index() >= work.blocks) return;
      first =
          exl3_floats(params.x + from * params.x_stride,
                      (work.first + warp_index()) * kExl3Block + 4 * lane_index(), params.inputs);
    });
    if (work.run.rows == 0) return;
    work.weight += work.run.expert * params.expert_bytes[work.part];
    // Before the weights, which memory is busy with for as long as decoding takes.
    scales = exl3_few_scales(params, work);
  }
  // Which weights these are is known before what they are multiplied with is there.
  Exl3FewStream<kUnits> stream = exl3_begin_weights<kUnits>(params, work);
  exl3_prefetch_end(params, work);
  if (dense) {
    scales = exl3_few_scales(params, work);
    previous_done();
    // Row 0 has memory, whether it is there or not.
    if (encodes) first = exl3_few_inputs(params, work, 0);
    is_early = true;
    work.run = {0, load(params.row_count), 0};
    if (work.run.rows == 0) {
      async_wait<0>();
      return;
    }
  }
  const uint32_t tile = encodes ? kExl3StagedRows : kExl3Shape.row_tile;
  for (uint32_t row = 0;;) {
    const uint32_t left = work.run.rows - row, rows = left < tile ? left : tile;
    if (encodes) {
      exl3_stage_rows(
          params, work, row, rows, scales,
          row == 0 && is_early ? first : exl3_few_inputs(params, work, work.run.begin + row));
    }
    ATLAS_ROLLED
    for (uint32_t turn = 0; turn < work.turns; ++turn) {
      if (encodes) {
        exl3_few_rows<kCodebook, true>(params, work, row, rows, turn, stream);
      } else {
        exl3_few_rows<kCodebook, false>(params, work, row, rows, turn, stream);
      }
    }
    row += tile;
    if (row >= work.run.rows) break;
    if (encodes) block_barrier();  // rows are multiplied before others take their place
    stream = exl3_begin_weights<kUnits>(params, work);
  }
  if (exl3_is_last(params, work)) exl3_finish(params, work);
}

}  // namespace atlas::kernels

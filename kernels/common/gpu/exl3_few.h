// Products of few rows for every GPU pack, exl3_few_<codebook>: from encoded rows, or from x,
// encoding as they go. Every weight is decoded once for 8 rows (WMMA: 16). A block does 128 outputs
// of one part and one segment of k, or one of every so many, a warp one group of outputs; how the
// segments of k meet is in exl3_few_end.h.
#pragma once

#include "kernels/common/gpu/exl3_few_end.h"

namespace atlas::kernels {

/// Shared memory: two words that say who is last and which run the block has; for two segments at a
/// time, in turn, a word a warp for exl3_encode_segment; the ring of each warp; the rows that the
/// block encodes and their powers; sums that meet.
inline constexpr uint32_t kExl3LargestAt = 16, kExl3RingAt = kExl3FewHeadBytes;
static_assert(kExl3LargestAt + 2 * kExl3FewWarps * 4 <= kExl3FewHeadBytes);

template <uint32_t kUnits>
ATLAS_DEVICE Exl3Work exl3_work(const Exl3FewParams& params) {
  Exl3Work work{};
  ATLAS_UNROLL
  for (uint32_t p = 1; p < kExl3Parts; ++p) {
    if (device::block_index() >= params.first_block[p]) work.part = p;
  }
  work.block = device::block_index() - params.first_block[work.part];
  work.segment = device::block_index<2>();
  work.stride = device::grid_blocks<2>();
  work.rows_at = kExl3RingAt + kExl3FewWarps * exl3_ring_bytes(kExl3Lanes, kUnits, kExl3Ahead);
  work.parts_at = work.rows_at;
  if (params.encoded[0] == nullptr) {
    work.parts_at += exl3_staged_bytes(params.tile * params.rounds);
  }
  work.span = exl3_span(params.k, work.segment);
  work.weight = static_cast<uint8_t*>(params.weight[work.part]);
  return work;
}

/// The run of the grid's index: of that expert, or of the expert whose first row that is. All
/// threads of the block take part; `found`: two words of shared memory.
ATLAS_DEVICE Exl3Run exl3_find_run(const Exl3FewParams& params, uint32_t* found) {
  using namespace device;
  const uint32_t index = block_index<1>();
  if (params.by_row == 0) {
    const uint32_t begin = load(params.offsets + index);
    return {begin, load(params.offsets + index + 1) - begin, index};
  }
  // Of 512 experts all are asked for at once; those past the last ask for its offsets again.
  constexpr uint32_t kAtOnce = 512 / kExl3FewThreads;
  if (thread_index() == 0) store(found + 1, 0u);
  block_barrier();  // before whoever finds it says so
  ATLAS_ROLLED
  for (uint32_t first = thread_index(); first < params.experts;
       first += kAtOnce * kExl3FewThreads) {
    uint32_t begin[kAtOnce], end[kAtOnce];
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t e = first + i * kExl3FewThreads;
      const uint32_t there = e < params.experts ? e : params.experts - 1;
      begin[i] = load(params.offsets + there);
      end[i] = load(params.offsets + there + 1);
    }
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t e = first + i * kExl3FewThreads;
      // One condition: with three, compilers load what the later ones need when they come to it.
      const uint32_t other = (begin[i] ^ index) | (e < params.experts ? 0u : 1u);
      if ((other | (end[i] > index ? 0u : 1u)) == 0) {
        store(found, e);
        store(found + 1, end[i] - begin[i]);
      }
    }
  }
  block_barrier();
  return {index, load(found + 1), load(found)};
}

/// The block's, of a round.
ATLAS_DEVICE Exl3Span exl3_span_of(const Exl3FewParams& params, const Exl3Work& work,
                                   uint32_t round) {
  return round == 0 ? work.span : exl3_span(params.k, work.segment + round * work.stride);
}

// ---- Rows ----

/// So many segments of rows are encoded at a time, by kExl3EncodeWarps warps each.
inline constexpr uint32_t kExl3AtOnce = kExl3FewWarps / kExl3EncodeWarps;

/// A warp's part in encoding: a block of 128 inputs in the segment of round `round` of row `row` of
/// a tile, and the input scales of the lane's four.
struct Exl3Encoding {
  uint32_t row, round;
  Exl3Span span;
  device::Floats4 scales;

  ATLAS_DEVICE static uint32_t warp() { return device::warp_index() % kExl3EncodeWarps; }
  ATLAS_DEVICE bool has_block() const { return warp() < span.blocks; }
  ATLAS_DEVICE uint32_t element() const {
    return (span.first + warp()) * kExl3Block + 4 * device::lane_index();
  }
  ATLAS_DEVICE void bring_scales(const Exl3FewParams& params, const Exl3Work& work) {
    span = exl3_span_of(params, work, round);
    if (has_block()) scales = exl3_scales(work.weight, element());
  }
  /// The warp's next: the rounds of a row, then the next row.
  ATLAS_DEVICE void step(const Exl3FewParams& params) {
    round += kExl3AtOnce;
    while (round >= params.rounds) {
      round -= params.rounds;
      ++row;
    }
  }
};
ATLAS_DEVICE Exl3Encoding exl3_first_encoding(const Exl3FewParams& params, const Exl3Work& work) {
  Exl3Encoding of{};
  if (params.encoded[0] != nullptr) return of;
  of.round = device::warp_index() / kExl3EncodeWarps;
  if (of.round >= params.rounds) {  // there is one
    of.row = of.round;
    of.round = 0;
  }
  of.bring_scales(params, work);
  return of;
}

/// Rows that the block encodes stand as row * rounds + round; so do their powers, behind them.
ATLAS_DEVICE uint8_t* exl3_staged_row(const Exl3Work& work, uint32_t slot) {
  return device::shared_memory<uint8_t>(work.rows_at + slot * kExl3StagedRowBytes);
}
ATLAS_DEVICE float* exl3_staged_power(const Exl3FewParams& params, const Exl3Work& work,
                                      uint32_t slot) {
  return reinterpret_cast<float*>(exl3_staged_row(work, params.tile * params.rounds)) + slot;
}

/// Rows [row, row + rows) of the run into shared memory, encoded, in the segments of all rounds.
ATLAS_DEVICE void exl3_stage_rows(const Exl3FewParams& params, const Exl3Work& work, uint32_t row,
                                  uint32_t rows, Exl3Encoding of) {
  using namespace device;
  uint32_t* largest = shared_memory<uint32_t>(kExl3LargestAt) + (warp_index() - of.warp());
  const uint32_t turns = (rows * params.rounds + kExl3AtOnce - 1) / kExl3AtOnce;
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const bool there = of.row < rows;
    Exl3Quad quad{{}, of.scales};
    if (there && of.has_block()) {
      const uint32_t at = work.run.begin + row + of.row;
      const uint32_t from = params.source != nullptr ? load(params.source + at) : at;
      quad.x = exl3_floats(params.x + from * params.x_stride, of.element(), params.inputs);
    }
    const uint32_t slot = of.row * params.rounds + of.round;
    uint8_t* to = exl3_staged_row(work, slot);
    const float power = exl3_encode_segment(
        quad, of.warp(), there ? of.span.blocks : 0, largest + turn % 2 * kExl3FewWarps,
        [&](uint32_t k, uint32_t two) {
          store_as(to + k / kExl3Tile * 32 + exl3_element_offset(kExl3Lanes, k % kExl3Tile), two);
        });
    if (there && of.warp() == 0 && lane_index() == 0) {
      store(exl3_staged_power(params, work, slot), power);
    }
    of.step(params);
    // Otherwise the warp has the same segment of every row.
    if (params.rounds > kExl3AtOnce && of.row < rows) of.bring_scales(params, work);
  }
  block_barrier();  // the rows are there before they are multiplied
}

/// Where a lane finds the inputs of its row, for step 0 of a segment.
struct Exl3Source {
  const uint8_t* from;
  uint32_t step_bytes, half_bytes;
};

/// The lane's row of a step: in shared memory, or encoded.
ATLAS_DEVICE Exl3Source exl3_source(const Exl3FewParams& params, const Exl3Work& work,
                                    const Exl3Step& step, const Exl3Span& span) {
  using namespace device;
  constexpr uint32_t kRowTile = kExl3Shape.row_tile, kStepBytes = exl3_step_bytes(kExl3Lanes);
  // Rows that are not there repeat the last one; their sums go nowhere.
  const uint32_t r = exl3_input_row() < step.rows ? exl3_input_row() : step.rows - 1;
  if (params.encoded[0] == nullptr) {
    return {exl3_staged_row(work, r * params.rounds + step.round) + exl3_input_tile() * 32,
            kExl3Shape.inputs, 16};
  }
  const uint32_t at = work.run.begin + step.row + r;
  const uint32_t first_step = span.first * kExl3Block / kExl3Shape.inputs * 2;
  return {static_cast<const uint8_t*>(params.encoded[work.part]) +
              at / kRowTile * exl3_row_tile_bytes(kExl3Lanes, params.k) +
              uint64_t{first_step} * kStepBytes +
              exl3_encoded_lane(kExl3Lanes, at % kRowTile, exl3_input_tile()),
          kStepBytes, kStepBytes / 2};
}
/// What the sums of row `r` of a step are multiplied with.
ATLAS_DEVICE float exl3_power(const Exl3FewParams& params, const Exl3Work& work,
                              const Exl3Step& step, uint32_t r) {
  using namespace device;
  if (params.encoded[0] == nullptr) {
    return load(exl3_staged_power(params, work, r * params.rounds + step.round));
  }
  const uint64_t segment = work.segment + step.round * work.stride;
  return load(params.powers[work.part] + segment * params.rows + work.run.begin + step.row + r);
}

// ---- Products ----

/// The warp's weights, in the segments of all rounds of a tile of rows.
template <uint32_t kUnits>
struct Exl3Feed {
  Exl3Stream<kUnits, kExl3Ahead> stream;
  uint32_t segment;  // whose pairs are begun
};

/// The first of the warp's weights in a segment, and how many pairs.
template <uint32_t kUnits>
ATLAS_DEVICE const uint8_t* exl3_few_weights(const Exl3FewParams& params, const Exl3Work& work,
                                             const Exl3Span& span) {
  constexpr uint32_t kPairInputs = kExl3Shape.inputs;
  const uint64_t pair =
      uint64_t{work.group()} * (params.k / kPairInputs) + span.first * kExl3Block / kPairInputs;
  return work.weight + exl3_gpu_head_bytes(params.n[work.part], params.k) +
         pair * exl3_pair_bytes(kExl3Lanes, kUnits);
}
ATLAS_DEVICE uint32_t exl3_pairs(const Exl3Span& span) {
  return span.blocks * kExl3Block / kExl3Shape.inputs;
}

/// Another pair on its way, of the next round's segment where this one's are.
template <uint32_t kUnits>
ATLAS_DEVICE void exl3_begin_pair([[maybe_unused]] const Exl3FewParams& params,
                                  [[maybe_unused]] const Exl3Work& work, Exl3Feed<kUnits>& feed) {
#if defined(ATLAS_HAS_CLUSTERS)
  const uint32_t next = feed.segment + work.stride;
  if (feed.stream.all_begun() && next < exl3_segments(params.k)) {
    const Exl3Span span = exl3_span(params.k, next);
    feed.stream.go_on(exl3_few_weights<kUnits>(params, work, span), exl3_pairs(span));
    feed.segment = next;
  }
#endif
  feed.stream.begin();
  device::async_commit();
}
template <uint32_t kUnits>
ATLAS_DEVICE Exl3Feed<kUnits> exl3_begin_weights(const Exl3FewParams& params,
                                                 const Exl3Work& work) {
  using namespace device;
  Exl3Feed<kUnits> feed{
      {exl3_few_weights<kUnits>(params, work, work.span), exl3_pairs(work.span),
       shared_memory<uint8_t>(kExl3RingAt +
                              warp_index() * exl3_ring_bytes(kExl3Lanes, kUnits, kExl3Ahead))},
      work.segment};
  ATLAS_ROLLED
  for (uint32_t i = 0; i < kExl3Ahead; ++i) exl3_begin_pair(params, work, feed);
  return feed;
}

/// The sums of a step, without their powers.
template <Exl3Codebook kCodebook, uint32_t kUnits>
ATLAS_DEVICE Exl3Sums exl3_few_step(const Exl3FewParams& params, const Exl3Work& work,
                                    const Exl3Step& step, const Exl3Span& span,
                                    Exl3Feed<kUnits>& feed) {
  using namespace device;
  const uint32_t pairs = exl3_pairs(span);
  Exl3Source source = exl3_source(params, work, step, span);
  Exl3Sums sums{};
  ATLAS_ROLLED
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    async_wait<kExl3Ahead - 1>();
    const Exl3Words<kUnits> words[1] = {feed.stream.read()};
    exl3_begin_pair(params, work, feed);
    exl3_each_segment<kExl3Hot<kCodebook, kUnits>>(
        words, [&](uint32_t, const Exl3Segment<kUnits>(&segments)[1]) {
          const Exl3Inputs inputs{
              {load_as<Words4>(source.from), load_as<Words4>(source.from + source.half_bytes)}};
          source.from += source.step_bytes;
          exl3_multiply(sums, exl3_weights<kCodebook>(segments[0]), inputs);
        });
  }
  return sums;
}

template <Exl3Codebook kCodebook, uint32_t kUnits>
ATLAS_DEVICE void exl3_few(const Exl3FewParams& params) {
  using namespace device;
  Exl3Meeting::open();
  Exl3Work work = exl3_work<kUnits>(params);
  const bool dense = params.offsets == nullptr, encodes = params.encoded[0] == nullptr;
  if (!dense) {
    previous_done();
    work.run = exl3_find_run(params, shared_memory<uint32_t>());
    if (work.run.rows == 0) return;
    work.weight += work.run.expert * params.expert_bytes[work.part];
  }
  Exl3Meeting meeting;
  for (uint32_t row = 0;;) {
    // Which weights these are is known before what they are multiplied with is there.
    Exl3Feed<kUnits> feed = exl3_begin_weights<kUnits>(params, work);
    const Exl3Encoding encoding = exl3_first_encoding(params, work);
    if (row == 0) {
      meeting.begin(params, work);
      if (dense) {
        previous_done();
        work.run = {0, load(params.row_count), 0};
        if (work.run.rows == 0) {
          async_wait<0>();
          return;
        }
      }
    }
    const uint32_t left = work.run.rows - row, rows = left < params.tile ? left : params.tile;
    if (encodes) exl3_stage_rows(params, work, row, rows, encoding);
    for (uint32_t round = 0; round < params.rounds; ++round) {
      const Exl3Step step{row, rows, round};
      const Exl3Span span = exl3_span_of(params, work, round);
      const Exl3Sums sums = exl3_few_step<kCodebook>(params, work, step, span, feed);
      meeting.put(params, work, step, span.blocks != 0, sums,
                  [&](uint32_t r) { return exl3_power(params, work, step, r); });
    }
    row += params.tile;
    if (row >= work.run.rows) break;
    if (encodes) block_barrier();  // rows are multiplied before others take their place
  }
  meeting.close(params, work);
}

}  // namespace atlas::kernels

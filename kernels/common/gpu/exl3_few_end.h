// The end of exl3_few: where a product's segments of k are added up, in ascending order, and
// transformed. With clusters the blocks of 128 outputs are one: each stores its sums into the
// shared memory of the block that adds up the row, while the sums of the step before are added.
// Elsewhere sums go to memory, and the last block to come, as a counter in the weight's head says
// (which it leaves at zero), adds them: one product of a weight at a time.
#pragma once

#include "kernels/common/device/early.h"
#include "kernels/common/gpu/exl3_rows.h"
#if defined(ATLAS_HAS_CLUSTERS)
#include "kernels/common/device/cluster.h"
#define ATLAS_EXL3_FEW_KERNEL ATLAS_CLUSTER_KERNEL
#else
#define ATLAS_EXL3_FEW_KERNEL ATLAS_EARLY_KERNEL
#endif

namespace atlas::kernels {

inline constexpr uint32_t kExl3FewWarps = exl3_few_warps(kExl3Lanes);
inline constexpr uint32_t kExl3FewThreads = exl3_few_threads(kExl3Lanes);

/// Blocks of 128 inputs of a segment; none if there is no such segment.
struct Exl3Span {
  uint32_t first, blocks;
};
ATLAS_DEVICE Exl3Span exl3_span(uint32_t k, uint32_t segment) {
  if (segment >= exl3_segments(k)) return {0, 0};
  const uint32_t first = exl3_segment_begin(k, segment);
  return {first, exl3_segment_begin(k, segment + 1) - first};
}

/// What a block works on: segments `segment`, and every `stride` further on.
struct Exl3Work {
  uint32_t part, block;  // block: of the part
  uint32_t segment, stride;
  Exl3Span span;      // of the first
  uint32_t rows_at;   // of encoded rows in shared memory
  uint32_t parts_at;  // of sums that meet
  Exl3Run run;
  uint8_t* weight;  // of the run's expert

  /// The group of outputs of this warp, in its part.
  ATLAS_DEVICE uint32_t group() const { return block * kExl3FewWarps + device::warp_index(); }
  /// The first of four outputs of a lane that transforms them.
  ATLAS_DEVICE uint32_t output() const { return block * kExl3Block + 4 * device::lane_index(); }
};

/// Rows [row, row + rows) of a run, in one round of segments.
struct Exl3Step {
  uint32_t row, rows, round;
};

ATLAS_DEVICE void exl3_write_row(const Exl3FewParams& params, const Exl3Work& work, uint32_t row,
                                 const device::Floats4& total, const device::Floats4& scales) {
  const uint32_t at = work.run.begin + row;
  exl3_write_outputs(total, scales, work.output(), params.outputs[work.part],
                     params.y[work.part] + at * params.y_stride[work.part], params.epilogue);
}
ATLAS_DEVICE device::Words2 exl3_output_scales(const Exl3FewParams& params, const Exl3Work& work) {
  return device::load_as<device::Words2>(work.weight + 2 * (uint64_t{params.k} + work.output()));
}

#if defined(ATLAS_HAS_CLUSTERS)

/// Row r of a tile belongs to block r mod the number of owners; its sums meet at place r / that.
class Exl3Meeting {
 public:
  /// Before anything else: blocks that have begun may be stored to.
  ATLAS_DEVICE static void open() { device::cluster_begin(); }

  ATLAS_DEVICE void begin(const Exl3FewParams& params, const Exl3Work& work) {
    shift_ = exl3_owners_shift(work.stride);
    owned_ = exl3_owned_rows(work.stride, params.tile);
    // Asked for long before they are needed.
    if (row_of(work) < params.tile) scales_ = exl3_output_scales(params, work);
  }

  /// Sums of a step, times power(row). `has`: the block has a segment in this round.
  template <typename Power>
  ATLAS_DEVICE void put(const Exl3FewParams& params, const Exl3Work& work, const Exl3Step& step,
                        bool has, const Exl3Sums& sums, const Power& power) {
    using namespace device;
    // All blocks have begun; or the sums of the step before are there, and those of the one before
    // that, whose place these take, have been added.
    cluster_wait();
    // Cells c and c + 2 are those of one row.
    static_assert(kExl3Cells == 4);
    ATLAS_UNROLL
    for (uint32_t c = 0; c < 2; ++c) {
      const Cell cell = exl3_cell(lane_index(), c);
      const uint32_t r = cell.column;
      if (r >= step.rows || !has) continue;
      const float times = power(r);
      const uint32_t owner = r & ((1u << shift_) - 1);
      float* const to = place(work, steps_ % 2, work.segment, r >> shift_) +
                        warp_index() * kExl3Shape.outputs + cell.row;
      cluster_store(to, owner, sums.r[c] * times);
      cluster_store(to + 8, owner, sums.r[c + 2] * times);
    }
    if (steps_ != 0) add(params, work);
    cluster_arrive();
    before_ = step;
    ++steps_;
  }

  ATLAS_DEVICE void close(const Exl3FewParams& params, const Exl3Work& work) {
    // Nobody stores to a block that has no rows in the last step.
    if (work.segment >> shift_ != 0 || work.segment >= before_.rows) return;
    device::cluster_wait();  // the last step's sums are there
    add(params, work);
  }

 private:
  /// The row of a tile that this warp adds up; past all rows if there is none.
  ATLAS_DEVICE uint32_t row_of(const Exl3Work& work) const {
    return work.segment >> shift_ != 0 ? ~0u : (device::warp_index() << shift_) + work.segment;
  }
  /// Sums of a segment of the round, at a place of its owner's.
  ATLAS_DEVICE float* place(const Exl3Work& work, uint32_t half, uint32_t segment,
                            uint32_t place) const {
    const uint32_t part = (half * work.stride + segment) * owned_ + place;
    return device::shared_memory<float>(work.parts_at + part * kExl3PartBytes);
  }

  /// Adds up the step before, and writes its rows if that was their last round.
  ATLAS_DEVICE void add(const Exl3FewParams& params, const Exl3Work& work) const {
    using namespace device;
    const uint32_t r = row_of(work);
    if (r >= before_.rows) return;
    const uint32_t first = before_.round * work.stride;
    const uint32_t left = exl3_segments(params.k) - first;
    const uint32_t segments = left < work.stride ? left : work.stride;
    float* const so_far = place(work, 2, 0, warp_index()) + 4 * lane_index();
    Floats4 total{};
    if (before_.round != 0) total = load_as<Floats4>(so_far);
    const float* from = place(work, (steps_ - 1) % 2, 0, warp_index()) + 4 * lane_index();
    ATLAS_UNROLL_4
    for (uint32_t s = 0; s < segments; ++s) {
      const Floats4 sum = load_as<Floats4>(from + s * owned_ * kExl3Block);
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) total.f[i] += sum.f[i];
    }
    if (before_.round + 1 == params.rounds) {
      exl3_write_row(params, work, before_.row + r, total, exl3_scales(scales_));
    } else {
      store_as(so_far, total);
    }
  }

  uint32_t shift_ = 0, owned_ = 0;
  uint32_t steps_ = 0;
  Exl3Step before_{};
  device::Words2 scales_{};
};

#else

class Exl3Meeting {
 public:
  ATLAS_DEVICE static void open() {}
  ATLAS_DEVICE void begin(const Exl3FewParams&, const Exl3Work&) {}

  /// Sums of a step, times power(row). There is one round, in which every block has a segment.
  template <typename Power>
  ATLAS_DEVICE void put(const Exl3FewParams& params, const Exl3Work& work, const Exl3Step& step,
                        bool, const Exl3Sums& sums, const Power& power) {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kExl3Cells; ++i) {
      const Cell cell = exl3_cell(lane_index(), i);
      if (cell.column >= step.rows) continue;
      const uint32_t at = work.run.begin + step.row + cell.column;
      store(place(params, work, work.segment, at) + work.group() * kExl3Shape.outputs + cell.row,
            sums.r[i] * power(cell.column));
    }
  }

  ATLAS_DEVICE void close(const Exl3FewParams& params, const Exl3Work& work) {
    using namespace device;
    if (!is_last(params, work)) return;
    const Floats4 scales = exl3_scales(exl3_output_scales(params, work));
    const uint32_t segments = exl3_segments(params.k);
    const uint64_t segment = uint64_t{params.rows} * params.columns;
    for (uint32_t r = warp_index(); r < work.run.rows; r += kExl3FewWarps) {
      const float* from = place(params, work, 0, work.run.begin + r) + work.output();
      Floats4 total{};
      for (uint32_t s = 0; s < segments; ++s) {
        const Floats4 sum = load_as<Floats4>(from);
        from += segment;
        ATLAS_UNROLL
        for (uint32_t i = 0; i < 4; ++i) total.f[i] += sum.f[i];
      }
      exl3_write_row(params, work, r, total, scales);
    }
  }

 private:
  /// Where the sums of the part's outputs stand, of a row of a segment.
  ATLAS_DEVICE static float* place(const Exl3FewParams& params, const Exl3Work& work,
                                   uint32_t segment, uint32_t row) {
    return params.sums + (uint64_t{segment} * params.rows + row) * params.columns +
           params.first_block[work.part] * kExl3Block;
  }
  /// Whether this block is the last to come at its 128 outputs: then all sums are there.
  ATLAS_DEVICE static bool is_last(const Exl3FewParams& params, const Exl3Work& work) {
    using namespace device;
    auto* counter = reinterpret_cast<uint32_t*>(
                        work.weight + exl3_counter_offset(params.n[work.part], params.k)) +
                    work.block;
    uint32_t* last = shared_memory<uint32_t>();
    block_barrier();  // the block's sums are written before it is counted
    if (thread_index() == 0) {
      const bool is_last = atomic_add<Order::kAcqRel>(counter, 1u) + 1 == exl3_segments(params.k);
      if (is_last) atomic_store(counter, 0u);
      store(last, is_last ? 1u : 0u);
    }
    block_barrier();
    return load(last) != 0;
  }
};

#endif

}  // namespace atlas::kernels

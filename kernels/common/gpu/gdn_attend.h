// gdn_attend for every GPU pack: the recurrence of Gated DeltaNet (kernels/common/gdn.h), with the
// CPU pack's bits. A block has some columns of one value head's state in shared memory and walks
// the chunks of one span: few rows of a chunk (gdn_few.h), or many (gdn_many.h), then the fold into
// the next state (gdn_fold.h). All make every sum in the same order.
#pragma once

#include "kernels/common/gpu/gdn_fold.h"

namespace atlas::kernels {

/// A block's way over its span.
struct DeltaWalk : DeltaFold {
  using DeltaFold::DeltaFold;

  ATLAS_DEVICE void run() {
    using namespace device;
    if (!kGdnAsync) find_pending_keys();
    bring_state();
    bring_pending(span_.index - span_.anchor_index);
    set_chunk(span_.index - span_.anchor_index);
    if (is_many()) {
      key_slices().begin();
      async_wait<kGdnSliceGroups>();
      block_barrier();  // the state and pending rows are there
    }
    bool gated = false;  // the chunk's gates are made
    ATLAS_ROLLED
    for (;;) {
      thread_ = opaque(thread_index());
      const bool many = is_many();
      if (many) {
        if (!gated) gate_this_chunk();
        many_rows();
      } else if (chunk_.first != chunk_.end) {
        few_rows();
      } else {
        async_wait<0>();
        block_barrier();  // the state and pending rows are there
      }
      if (last_) return;
      if (!many) fold_factors();
      const uint32_t rows = chunk_.end - chunk_.first;
      fold(left_ - rows <= kGdnChunk, chunk_.first);
      left_ -= rows;
      row_ += rows;
      set_chunk(0);
      take_gates(other_gates());
      thread_ = opaque(thread_);
      gated = kGdnAsync && many;
      if (is_many()) key_slices().begin();
      block_barrier();  // the new state is written before the next chunk reads it
    }
  }
};

/// Blocks of a multiprocessor. GB10 has shared memory for two.
#if defined(ATLAS_ARCH_GB10)
inline constexpr uint32_t kGdnAttendBlocks = 2;
#else
inline constexpr uint32_t kGdnAttendBlocks = 3;
#endif

ATLAS_DEVICE_KERNEL_BLOCKS(gdn_attend, GdnAttendParams, kGdnAttendThreads, kGdnAttendBlocks) {
  using namespace device;
  if (block_index<1>() >= load(&params.rows->span_count)) return;
  const RowSpan span = load_span(load(&params.rows->spans) + block_index<1>());
  if (!gdn_serves(span)) return;
  const uint32_t parts = gdn_column_parts(params.value_dim, kGdnColumns);
  DeltaWalk(params, span, block_index() / parts, block_index() % parts).run();
}

}  // namespace atlas::kernels

// What the CPU's and the GPUs' plans of plugin `qsa` share: questions about a problem, and the
// records that both emit.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/common/qsa.h"
#include "plugins/attn_common/paged_attention.h"

namespace atlas::qsa {

using namespace paged;
using sdk::behind;
using sdk::kNowhere;

inline constexpr Checks kChecks("qsa");

inline uint32_t budget_blocks_of(const AtlasIndexer& indexer) {
  return indexer.budget / indexer.ratio;
}

/// Whether sequences grow so long that a row has to choose.
inline bool is_sparse(const AtlasAttentionProblem& problem) {
  const uint64_t blocks =
      uint64_t{problem.max_pages} * kernels::qsa_page_blocks(problem.indexer->ratio);
  return blocks > budget_blocks_of(*problem.indexer);
}

/// qsa_write, without its grid.
inline sdk::Launch<kernels::QsaWriteParams> write_launch(const AtlasAttentionProblem& problem) {
  const AtlasIndexer& indexer = *problem.indexer;
  sdk::Launch<kernels::QsaWriteParams> write("qsa_write", kernels::kQsaWriteParamsDigest);
  set_write(write, problem);
  write.point(&write.params.index_k, indexer.k);
  write.point(&write.params.k_norm, indexer.k_norm);
  write.point(&write.params.inverse_frequency, indexer.inverse_frequencies);
  write.point(&write.params.slots, problem.slots);
  write.params.slot_stride = problem.slot_stride;
  write.params.index_k_stride = indexer.k_stride;
  write.params.index_dim = indexer.head_dim;
  write.params.ratio = indexer.ratio;
  write.params.rotary_dim = indexer.rotary_dim;
  write.params.epsilon = indexer.epsilon;
  write.params.magnitude = indexer.magnitude;
  return write;
}

/// An attend or merge record, without what divides the work.
inline sdk::Launch<kernels::QsaAttendParams> attend_launch(const char* kernel,
                                                           const AtlasAttentionProblem& problem) {
  sdk::Launch<kernels::QsaAttendParams> attend(kernel, kernels::kQsaAttendParamsDigest);
  set_attend(attend, problem);
  attend.params.ratio = problem.indexer->ratio;
  attend.params.budget_blocks = budget_blocks_of(*problem.indexer);
  return attend;
}

}  // namespace atlas::qsa

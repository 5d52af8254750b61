// What the CPU's and the GPUs' plans of plugin `qsa` share: questions about a problem, and the
// records that both emit.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/common/platforms.h"
#include "kernels/common/qsa.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/record.h"

namespace atlas::qsa {

[[noreturn]] inline void refuse(const std::string& message) {
  throw sdk::Failure(ATLAS_INVALID_ARGUMENT, "qsa: " + message);
}

inline uint32_t budget_blocks_of(const AtlasIndexer& indexer) {
  return indexer.budget / indexer.ratio;
}

inline bool is_gpu(const AtlasAttentionProblem& problem) {
  return kernels::is_gpu(problem.platform);
}

/// Whether sequences grow so long that a row has to choose.
inline bool is_sparse(const AtlasAttentionProblem& problem) {
  const uint64_t blocks =
      uint64_t{problem.max_pages} * kernels::qsa_page_blocks(problem.indexer->ratio);
  return blocks > budget_blocks_of(*problem.indexer);
}

inline AtlasBufferRef later(AtlasBufferRef ref, uint64_t bytes) {
  ref.offset += bytes;
  return ref;
}
inline constexpr AtlasBufferRef kNowhere{ATLAS_NO_BUFFER, 0, 0};

/// qsa_write, without its grid.
inline sdk::Launch<kernels::QsaWriteParams> write_launch(const AtlasAttentionProblem& problem) {
  const AtlasIndexer& indexer = *problem.indexer;
  sdk::Launch<kernels::QsaWriteParams> write("qsa_write", kernels::kQsaWriteParamsDigest);
  write.point(&write.params.k, problem.k);
  write.point(&write.params.v, problem.v);
  write.point(&write.params.index_k, indexer.k);
  write.point(&write.params.k_norm, indexer.k_norm);
  write.point(&write.params.inverse_frequency, indexer.inverse_frequencies);
  write.point(&write.params.control, problem.control);
  write.point(&write.params.rows, problem.rows);
  write.point(&write.params.pages, problem.pages);
  write.point(&write.params.slots, problem.slots);
  write.params.page_stride = problem.page_stride;
  write.params.slot_stride = problem.slot_stride;
  write.params.k_stride = problem.k_stride;
  write.params.v_stride = problem.v_stride;
  write.params.index_k_stride = indexer.k_stride;
  write.params.kv_heads = problem.kv_heads;
  write.params.head_dim = problem.head_dim;
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
  attend.point(&attend.params.q, problem.q);
  attend.point(&attend.params.out, problem.out);
  attend.point(&attend.params.control, problem.control);
  attend.point(&attend.params.rows, problem.rows);
  attend.point(&attend.params.pages, problem.pages);
  attend.params.page_stride = problem.page_stride;
  attend.params.q_stride = problem.q_stride;
  attend.params.out_stride = problem.out_stride;
  attend.params.heads = problem.heads;
  attend.params.kv_heads = problem.kv_heads;
  attend.params.head_dim = problem.head_dim;
  attend.params.ratio = problem.indexer->ratio;
  attend.params.budget_blocks = budget_blocks_of(*problem.indexer);
  attend.params.scale = problem.scale;
  return attend;
}

}  // namespace atlas::qsa

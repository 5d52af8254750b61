// What attention plugins over paged keys and values have in common: questions about a problem, what
// they refuse, and the parameters that their kernels share.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/common/gpu_attention.h"
#include "kernels/common/gqa.h"
#include "kernels/common/platforms.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/record.h"

namespace atlas::paged {

using sdk::Launch;

inline constexpr uint32_t kMaxHeads = 4096;
inline constexpr uint32_t kMaxHeadDim = 1024;

inline bool is_gpu(const AtlasAttentionProblem& problem) {
  return kernels::is_gpu(problem.platform);
}

/// Tasks of records that deal out their work on a CPU: several for each thread of any, and no more
/// than could have work.
inline uint32_t tasks_of(const AtlasAttentionProblem& problem) {
  const uint64_t rows = uint64_t{problem.max_rows} * problem.kv_heads;
  return static_cast<uint32_t>(std::bit_ceil(std::clamp<uint64_t>(rows, 32, 128)));
}

/// How a CPU's records divide a row's blocks among tasks: `rows` rows are divided, others are one
/// task's. Bytes of the workspace: arrivals at 0, partial sums from `partials` on.
struct Split {
  uint32_t rows = 0;
  uint32_t max_blocks = 0;
  uint64_t partials = 0, bytes = 0;
};
/// `max_blocks`: of 256 positions, of a row. Decode and verify steps have few rows, and prefill
/// steps have tasks enough without.
inline Split split_of(const AtlasAttentionProblem& problem, uint32_t max_blocks) {
  constexpr uint32_t kMaxRows = 64;
  constexpr uint64_t kMaxBytes = uint64_t{16} << 20;
  Split split{0, max_blocks, 0, 0};
  if (max_blocks < 2) return split;  // nothing to divide
  const uint64_t row_bytes = uint64_t{problem.heads} * max_blocks *
                             kernels::gqa_partial_floats(problem.head_dim) * sizeof(float);
  split.rows = static_cast<uint32_t>(
      std::min<uint64_t>({problem.max_rows, kMaxRows, kMaxBytes / row_bytes}));
  if (split.rows == 0) return split;
  split.partials =
      kernels::align_up(uint64_t{split.rows} * problem.kv_heads * sizeof(uint32_t), 256);
  split.bytes = split.partials + split.rows * row_bytes;
  return split;
}

/// Refuses in the name of a backend.
class Checks {
 public:
  explicit constexpr Checks(std::string_view backend) : backend_(backend) {}

  [[noreturn]] void refuse(const std::string& message) const {
    throw sdk::Failure(ATLAS_INVALID_ARGUMENT, std::string(backend_) + ": " + message);
  }

  /// Shapes that no kernel could serve; what only `plan` needs is not looked at.
  void shape(const AtlasAttentionProblem& problem) const {
    if (problem.struct_size < sizeof(AtlasAttentionProblem)) {
      refuse("the problem has " + std::to_string(problem.struct_size) + " bytes, and " +
             std::to_string(sizeof(AtlasAttentionProblem)) + " are expected");
    }
    if (problem.platform == nullptr || kernels::find_platform(problem.platform) == nullptr) {
      refuse("platform '" + std::string(problem.platform == nullptr ? "" : problem.platform) +
             "' is not supported: cpu, h200, gb10 and strix-hip are");
    }
    if (problem.backend == nullptr || problem.backend != backend_) {
      refuse("backend '" + std::string(problem.backend == nullptr ? "" : problem.backend) +
             "' is not this plugin's: " + std::string(backend_) + " is");
    }
    if (problem.heads == 0 || problem.heads > kMaxHeads || problem.kv_heads == 0 ||
        problem.heads % problem.kv_heads != 0) {
      refuse(std::to_string(problem.heads) + " query heads over " +
             std::to_string(problem.kv_heads) +
             " key heads: the second must divide the first, which is at most " +
             std::to_string(kMaxHeads));
    }
    if (problem.head_dim == 0 || problem.head_dim > kMaxHeadDim) {
      refuse("head_dim " + std::to_string(problem.head_dim) + ": 1 to " +
             std::to_string(kMaxHeadDim) + " is supported");
    }
    if (is_gpu(problem) &&
        (problem.head_dim % 16 != 0 || problem.head_dim > kernels::kAttentionMaxDim)) {
      refuse("head_dim " + std::to_string(problem.head_dim) + " on " + problem.platform +
             ": multiples of 16 up to " + std::to_string(kernels::kAttentionMaxDim) +
             " are supported");
    }
    if (problem.max_rows == 0) refuse("a step needs at least one row");
  }

  void stride(const std::string& name, uint64_t stride, uint64_t heads, uint64_t dim) const {
    if (stride >= heads * dim) return;
    refuse(name + "_stride " + std::to_string(stride) + " is less than a row of " +
           std::to_string(heads) + " heads of " + std::to_string(dim));
  }

  /// Strides, scale, pages, of which a layer's part has `page_bytes`, and the buffers of all.
  void plan(const AtlasAttentionProblem& problem, uint64_t page_bytes) const {
    stride("q", problem.q_stride, problem.heads, problem.head_dim);
    stride("k", problem.k_stride, problem.kv_heads, problem.head_dim);
    stride("v", problem.v_stride, problem.kv_heads, problem.head_dim);
    stride("out", problem.out_stride, problem.heads, problem.head_dim);
    if (!std::isfinite(problem.scale)) refuse("the scale is not a finite number");
    if (problem.max_pages == 0) refuse("a sequence needs at least one page");
    const uint64_t alignment = is_gpu(problem) ? 16 : alignof(float);
    if (problem.page_stride < page_bytes || problem.page_stride % alignment != 0 ||
        problem.pages.offset % alignment != 0) {
      refuse("page_stride " + std::to_string(problem.page_stride) + ": a layer's part has " +
             std::to_string(page_bytes) + " bytes of " + (is_gpu(problem) ? "bf16" : "float32") +
             " and begins at a multiple of " + std::to_string(alignment));
    }
    for (const AtlasBufferRef& ref :
         {problem.q, problem.k, problem.v, problem.out, problem.control, problem.pages}) {
      if (ref.buffer == ATLAS_NO_BUFFER)
        refuse("one of q, k, v, out, control and pages has no buffer");
    }
  }

  void workspace(const AtlasAttentionProblem& problem, uint64_t bytes) const {
    if (bytes != 0 && problem.workspace.buffer == ATLAS_NO_BUFFER) {
      refuse("the workspace of " + std::to_string(bytes) + " bytes has no buffer");
    }
  }

 private:
  std::string_view backend_;
};

/// What records that write keys and values have in common.
template <typename Params>
void set_write(Launch<Params>& write, const AtlasAttentionProblem& problem) {
  write.point(&write.params.k, problem.k);
  write.point(&write.params.v, problem.v);
  write.point(&write.params.control, problem.control);
  write.point(&write.params.rows, problem.rows);
  write.point(&write.params.pages, problem.pages);
  write.params.page_stride = problem.page_stride;
  write.params.k_stride = problem.k_stride;
  write.params.v_stride = problem.v_stride;
  write.params.kv_heads = problem.kv_heads;
  write.params.head_dim = problem.head_dim;
}

/// What records that attend or join partial sums have in common.
template <typename Params>
void set_attend(Launch<Params>& attend, const AtlasAttentionProblem& problem) {
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
  attend.params.scale = problem.scale;
}

/// Emits a GPU's attention, and the record that joins its partial sums if it divides rows.
/// `launch(kernel)`: either, without what divides the work; `shared_bytes`: of attention.
template <typename MakeLaunch>
AtlasCode emit_divided(const MakeLaunch& launch, const AtlasAttentionProblem& problem,
                       const kernels::AttentionForm& form, uint32_t shared_bytes,
                       const kernels::AttentionSplit& split, const char* merge_kernel,
                       const AtlasRecordSink* sink, AtlasError* error) {
  const auto divided = [&](const char* kernel) {
    auto record = launch(kernel);
    if (split.split_rows != 0) record.point(&record.params.partials, problem.workspace);
    record.params.tasks = split.tasks;
    record.params.split_rows = split.split_rows;
    record.params.max_blocks = split.max_blocks;
    return record;
  };
  auto attend = divided(form.kernel);
  attend.grid(split.tiles, problem.kv_heads, split.tasks);
  attend.block(form.threads());
  attend.shared_bytes(shared_bytes);
  if (const AtlasCode code = attend.emit(sink, error); code != ATLAS_OK) return code;
  if (split.split_rows == 0) return ATLAS_OK;
  auto merge = divided(merge_kernel);
  merge.grid(problem.max_rows, problem.heads);
  merge.block(kernels::kAttentionMergeThreads);
  merge.shared_bytes(kernels::kAttentionMergeSharedBytes);
  return merge.emit(sink, error);
}

}  // namespace atlas::paged

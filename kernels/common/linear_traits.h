// What plugins/sdk/packed_linear.h wants to know of the packs' products, but for the formats: the
// parameters, and how each platform cuts the work.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/gpu_ends.h"
#include "kernels/common/gpu_wgmma.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::kernels {

struct LinearTraits {
  using Linear = LinearParams;
  using Grouped = GroupedParams;
  using Encode = EncodeParams;
  using Gather = GatherParams;
  using Runs = RunsParams;
  using LinearSilu = LinearSiluParams;
  using LinearMean = LinearMeanParams;
  static constexpr uint64_t kLinearDigest = kLinearParamsDigest;
  static constexpr uint64_t kGroupedDigest = kGroupedParamsDigest;
  static constexpr uint64_t kEncodeDigest = kEncodeParamsDigest;
  static constexpr uint64_t kGatherDigest = kGatherParamsDigest;
  static constexpr uint64_t kRunsDigest = kRunsParamsDigest;
  static constexpr uint64_t kLinearSiluDigest = kLinearSiluParamsDigest;
  static constexpr uint64_t kLinearMeanDigest = kLinearMeanParamsDigest;
  static constexpr uint32_t kRowGroup = kernels::kRowGroup;
  static constexpr const char* kPlatforms = "'cpu', 'h200', 'gb10' and 'strix-hip'";

  static ProductLaunch tasks(uint64_t count) { return {count, 1, 1}; }

  /// `Format` is plugins/sdk/packed_linear.h's PackedFormat.
  template <class Format>
  static ProductLaunch linear_work(std::string_view platform, const Format& format, uint64_t n,
                                   uint64_t k, uint32_t max_rows) {
    const GpuTraits* gpu = gpu_traits(platform);
    if (gpu == nullptr) return tasks(linear_tasks(static_cast<uint32_t>(n)));
    if (format.wgmma_bytes != 0 && takes_wgmma(platform, n, k, max_rows)) {
      return linear_wgmma_launch(n, max_rows, format.wgmma_bytes);
    }
    return linear_launch(*gpu, takes_many(platform, n, k, max_rows), n, k, max_rows,
                         format.divides ? format.group_bytes(k) : 0);
  }
  template <class Format>
  static ProductLaunch ending_work(std::string_view platform, const Format& format,
                                   const AtlasLinearProblem& problem) {
    const GpuTraits* gpu = gpu_traits(platform);
    const uint64_t n = problem.n, k = problem.k;
    const ProductLaunch none{0};
    if (gpu == nullptr || problem.max_rows > kFewRows) return none;
    if (problem.epilogue == ATLAS_EPILOGUE_SILU) {
      return silu_launch(*gpu, n, k, problem.max_rows, format.group_bytes(k));
    }
    if (!takes_mean(*gpu, n, k, problem.columns)) return none;
    return mean_launch(*gpu, n, problem.columns, problem.max_rows);
  }
  template <class Format>
  static ProductLaunch grouped_work(std::string_view platform, const Format& format, uint64_t n,
                                    uint64_t k, uint32_t experts, uint32_t max_rows) {
    const GpuTraits* gpu = gpu_traits(platform);
    // Every row has one expert, so there are never more at work than rows.
    const uint32_t busy = max_rows < experts ? max_rows : experts;
    if (gpu == nullptr) return tasks(grouped_tasks(static_cast<uint32_t>(n), busy));
    if (format.wgmma_bytes != 0 && takes_wgmma_grouped(platform, n, k, experts, max_rows)) {
      ProductLaunch launch = grouped_wgmma_launch(n, experts, max_rows, format.wgmma_bytes);
      launch.workspace_bytes = wgmma_runs_bytes(k, max_rows, experts);
      return launch;
    }
    return grouped_launch(*gpu, takes_many_grouped(platform, n, k, experts, max_rows), n, k,
                          experts, max_rows);
  }
  static ProductLaunch encode_work(std::string_view platform, uint64_t k, uint32_t max_rows) {
    return gpu_traits(platform) == nullptr ? tasks(max_rows) : encode_launch(k, max_rows);
  }
  static ProductLaunch wgmma_encode_work(uint64_t k, uint32_t max_rows) {
    return wgmma_encode_launch(k, max_rows);
  }
  static ProductLaunch wgmma_runs_work(uint32_t experts) { return wgmma_runs_launch(experts); }
  static ProductLaunch gather_work(std::string_view platform, uint32_t max_rows) {
    return gpu_traits(platform) == nullptr ? tasks(max_rows) : gather_launch(max_rows);
  }
  static uint64_t encoded_row_bytes(std::string_view platform, uint64_t k) {
    return gpu_traits(platform) == nullptr ? i16b32_row_bytes(k) : bf16_row_bytes(k);
  }

  static uint64_t wgmma_row_bytes(uint64_t k) { return kernels::wgmma_row_bytes(k); }

  /// The table of a platform out of those of the CPU and of the two families; empty: not served.
  template <class Span>
  static Span table_of(std::string_view platform, Span cpu, Span mma, Span wmma) {
    if (platform == "cpu") return cpu;
    const GpuTraits* gpu = gpu_traits(platform);
    if (gpu == nullptr) return {};
    return gpu->family == MatrixFamily::kMma ? mma : wmma;
  }
};

}  // namespace atlas::kernels

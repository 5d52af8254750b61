// int8g's kernels for platform cpu. Contract int8g_f32: within a group of k, products are added in
// ascending order, each multiplication and addition rounded to float32; then scale times that sum
// is added to the output's sum, groups ascending. A row's bits depend on no other row and on no
// thread.
#include <algorithm>
#include <cstring>

#include "format.h"
#include "kernels/cpu/kernel.h"
#include "params.h"
#include "plugins/abi/atlas_plugin.h"

namespace int8g {
namespace {

// One row of x against 16 rows of W: sums[l] = sum over k of x[j] * W[l,j].
void row_times_16(const float* x, const std::byte* weight, const Layout& layout, float* sums) {
  std::fill_n(sums, kRows, 0.0f);
  for (uint64_t g = 0; g < layout.groups(); ++g) {
    float scales[kRows];
    std::memcpy(scales, weight, sizeof(scales));
    const auto* codes = reinterpret_cast<const int8_t*>(weight + sizeof(scales));
    float partial[kRows] = {};
    for (uint32_t j = 0; j < layout.group; ++j) {
      for (uint32_t l = 0; l < kRows; ++l) {
        partial[l] += x[j] * static_cast<float>(codes[j * kRows + l]);
      }
    }
    for (uint32_t l = 0; l < kRows; ++l) sums[l] += scales[l] * partial[l];
    x += layout.group;
    weight += layout.block_bytes();
  }
}

}  // namespace

ATLAS_CPU_KERNEL(int8g_linear, Int8gLinearParams) {
  const Layout layout{params.k, params.group};
  const uint32_t rows = *params.row_count;
  for (uint32_t task = begin; task < end; ++task) {
    const auto* weight =
        static_cast<const std::byte*>(params.weight) + task * layout.row_group_bytes();
    const uint32_t first = task * kRows;
    const uint32_t count = std::min(kRows, params.n - first);
    for (uint32_t r = 0; r < rows; ++r) {
      float sums[kRows];
      row_times_16(params.x + r * params.x_stride, weight, layout, sums);
      float* y = params.y + r * params.y_stride + first;
      if (params.epilogue == ATLAS_EPILOGUE_ADD) {
        for (uint32_t l = 0; l < count; ++l) y[l] += sums[l];
      } else {
        std::copy_n(sums, count, y);
      }
    }
  }
}

ATLAS_CPU_KERNEL(int8g_grouped, Int8gGroupedParams) {
  const Layout layout{params.k, params.group};
  for (uint32_t task = begin; task < end; ++task) {
    const uint32_t first = task * kRows;
    const uint32_t count = std::min(kRows, params.n - first);
    for (uint32_t e = 0; e < params.experts; ++e) {
      const auto* weight = static_cast<const std::byte*>(params.weight) + e * params.expert_bytes +
                           task * layout.row_group_bytes();
      for (uint32_t r = params.offsets[e]; r < params.offsets[e + 1]; ++r) {
        const uint64_t from = params.source != nullptr ? params.source[r] : r;
        float sums[kRows];
        row_times_16(params.x + from * params.x_stride, weight, layout, sums);
        std::copy_n(sums, count, params.y + r * params.y_stride + first);
      }
    }
  }
}

ATLAS_CPU_KERNEL(int8g_gather, Int8gGatherParams) {
  const Layout layout{params.k, params.group};
  for (uint32_t r = begin; r < std::min(end, *params.row_count); ++r) {
    uint32_t id = 0;
    std::memcpy(&id, static_cast<const std::byte*>(params.ids) + uint64_t{r} * params.id_stride,
                sizeof(id));
    float* y = params.y + r * params.y_stride;
    if (id >= params.n) {
      std::fill_n(y, params.k, 0.0f);
      continue;
    }
    const auto* block =
        static_cast<const std::byte*>(params.weight) + id / kRows * layout.row_group_bytes();
    const uint32_t lane = id % kRows;
    for (uint64_t g = 0; g < layout.groups(); ++g, block += layout.block_bytes()) {
      float scale = 0;
      std::memcpy(&scale, block + lane * sizeof(float), sizeof(scale));
      const auto* codes = reinterpret_cast<const int8_t*>(block + kRows * sizeof(float)) + lane;
      for (uint32_t j = 0; j < params.group; ++j) {
        *y++ = scale * static_cast<float>(codes[j * kRows]);
      }
    }
  }
}

}  // namespace int8g

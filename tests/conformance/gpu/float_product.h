// A float matrix as product_suite.h's GpuWeights.
#pragma once

#include "kernels/common/gpu_float.h"
#include "tests/conformance/gpu/product_suite.h"
#include "tests/support/float_weights.h"

namespace atlas::test {

inline GpuWeights float_weights(kernels::FloatLayout layout, uint32_t n, uint32_t k) {
  const FloatWeights source(layout, n, k, n + k);
  GpuWeights weights{name_of(layout), n, k, source.values, {}};
  weights.divides = true;
  if (layout == kernels::FloatLayout::kBF16)
    weights.wgmma_bytes = 2 * kernels::gpu_float_unit_bytes(layout);
  weights.parts =
      layout == kernels::FloatLayout::kBF16 ? 1 : (layout == kernels::FloatLayout::kF16 ? 2 : 3);
  const uint64_t row_bytes = uint64_t{k} * kernels::float_bytes(layout);
  for (const kernels::MatrixFamily family :
       {kernels::MatrixFamily::kMma, kernels::MatrixFamily::kWmma}) {
    auto& packed = weights.packed[static_cast<uint32_t>(family)];
    packed.resize(kernels::tiles_of(n) * kernels::gpu_float_group_bytes(layout, k), 0xc3);
    for (uint32_t group = 0; group < kernels::tiles_of(n); ++group) {
      const uint8_t* rows[kernels::kTileOutputs] = {};
      for (uint32_t r = 0; r < kernels::kTileOutputs && group * kernels::kTileOutputs + r < n;
           ++r) {
        rows[r] = source.bytes.data() + (group * kernels::kTileOutputs + r) * row_bytes;
      }
      kernels::pack_gpu_floats(family, layout, rows, k,
                               packed.data() + group * kernels::gpu_float_group_bytes(layout, k));
    }
  }
  return weights;
}

}  // namespace atlas::test

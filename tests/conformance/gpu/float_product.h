// A float matrix as product_suite.h's GpuWeights.
#pragma once

#include "kernels/common/gpu_half.h"
#include "tests/conformance/gpu/product_suite.h"
#include "tests/support/float_weights.h"

namespace atlas::test {

/// Packs the rows of `source` into groups of `group_bytes`.
template <typename Pack>
void pack_floats_into(GpuWeights& weights, const FloatWeights& source, uint64_t group_bytes,
                      const Pack& pack) {
  const uint64_t row_bytes = uint64_t{source.k} * kernels::float_bytes(source.layout);
  const uint32_t groups = kernels::tiles_of(source.n);
  for (const kernels::MatrixFamily family :
       {kernels::MatrixFamily::kMma, kernels::MatrixFamily::kWmma}) {
    auto& packed = weights.packed[static_cast<uint32_t>(family)];
    packed.resize(groups * group_bytes, 0xc3);
    for (uint32_t group = 0; group < groups; ++group) {
      const uint8_t* rows[kernels::kTileOutputs] = {};
      for (uint32_t r = 0;
           r < kernels::kTileOutputs && group * kernels::kTileOutputs + r < source.n; ++r) {
        rows[r] = source.bytes.data() + (group * kernels::kTileOutputs + r) * row_bytes;
      }
      pack(family, rows, packed.data() + group * group_bytes);
    }
  }
}

inline GpuWeights float_weights(kernels::FloatLayout layout, uint32_t n, uint32_t k) {
  const FloatWeights source(layout, n, k, n + k);
  GpuWeights weights{name_of(layout), n, k, source.values, {}};
  weights.divides = true;
  if (layout == kernels::FloatLayout::kBF16)
    weights.wgmma_bytes = 2 * kernels::gpu_float_unit_bytes(layout);
  weights.parts =
      layout == kernels::FloatLayout::kBF16 ? 1 : (layout == kernels::FloatLayout::kF16 ? 2 : 3);
  pack_floats_into(weights, source, kernels::gpu_float_group_bytes(layout, k),
                   [&](kernels::MatrixFamily family, const uint8_t* const* rows, uint8_t* out) {
                     kernels::pack_gpu_floats(family, layout, rows, k, out);
                   });
  return weights;
}

/// The same for products in f16.
inline GpuWeights half_weights(const FloatWeights& source) {
  GpuWeights weights{"half", source.n, source.k, source.values, {}};
  weights.divides = weights.f16_rows = true;
  weights.wgmma_bytes = 2 * kernels::gpu_float_unit_bytes(kernels::FloatLayout::kF16);
  pack_floats_into(weights, source, kernels::gpu_half_group_bytes(source.k),
                   [&](kernels::MatrixFamily family, const uint8_t* const* rows, uint8_t* out) {
                     kernels::pack_gpu_halves(family, source.layout, rows, source.k, out);
                   });
  return weights;
}
inline GpuWeights half_weights(kernels::FloatLayout layout, uint32_t n, uint32_t k) {
  return half_weights(FloatWeights(layout, n, k, n + k));
}

}  // namespace atlas::test

// Rows of W by id, from the resident layouts: one task a row. Written without vectors: a row is a
// few kilobytes, and the walk is bound by its loads.
#include <cstring>
#include <limits>

#include "kernels/common/fp8.h"
#include "kernels/common/linear.h"
#include "kernels/common/nvfp4.h"
#include "kernels/common/packed.h"
#include "kernels/common/packed_float.h"
#include "kernels/cpu/kernel.h"

namespace atlas::kernels::cpu {
namespace {

/// Calls write(group index, lane, y) for each row of the tasks; a row whose id is no row of W
/// becomes NaN, which the step's check of its logits reports.
template <class Write>
void gather(const GatherParams& params, uint32_t begin, uint32_t end, const Write& write) {
  const uint32_t rows = *params.row_count;
  for (uint32_t row = begin; row < end && row < rows; ++row) {
    uint32_t id;
    std::memcpy(&id, static_cast<const uint8_t*>(params.ids) + size_t{row} * params.id_stride,
                sizeof(id));
    float* y = params.y + row * params.y_stride;
    if (id < params.n) {
      write(id / kRowGroup, id % kRowGroup, y);
    } else {
      for (uint32_t i = 0; i < params.k; ++i) y[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

template <const PackedLayout& kLayout>
void gather_blocks(const GatherParams& params, uint32_t begin, uint32_t end) {
  const auto* weight = static_cast<const uint8_t*>(params.weight);
  gather(params, begin, end, [&](uint32_t group, uint32_t lane, float* y) {
    const uint8_t* rows = weight + group * kLayout.group_bytes(params.k);
    for (uint32_t b = 0; b < params.k / 32; ++b) decode_packed(kLayout, rows, lane, b, y + 32 * b);
  });
}

template <FloatLayout kLayout>
void gather_floats(const GatherParams& params, uint32_t begin, uint32_t end) {
  const auto* weight = static_cast<const uint8_t*>(params.weight);
  gather(params, begin, end, [&](uint32_t group, uint32_t lane, float* y) {
    const uint8_t* rows = weight + group * float_group_bytes(kLayout, params.k);
    for (uint32_t i = 0; i < params.k; ++i) y[i] = decode_float(kLayout, rows, lane, i);
  });
}

template <Fp8Scales kScales>
void gather_fp8(const GatherParams& params, uint32_t begin, uint32_t end) {
  const auto* weight = static_cast<const uint8_t*>(params.weight);
  gather(params, begin, end, [&](uint32_t group, uint32_t lane, float* y) {
    const uint8_t* rows = weight + group * fp8_group_bytes(kScales, params.k);
    for (uint32_t i = 0; i < params.k; ++i) y[i] = decode_fp8(kScales, rows, lane, i, params.k);
  });
}

void gather_nvfp4(const GatherParams& params, uint32_t begin, uint32_t end) {
  const auto* weight = static_cast<const uint8_t*>(params.weight);
  gather(params, begin, end, [&](uint32_t group, uint32_t lane, float* y) {
    const uint8_t* rows = weight + group * nvfp4_group_bytes(params.k);
    for (uint32_t i = 0; i < params.k; ++i) y[i] = decode_nvfp4(rows, lane, i);
  });
}

}  // namespace

ATLAS_CPU_KERNEL(gather_q4_0, GatherParams) { gather_blocks<kPackedQ4_0>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_q4_1, GatherParams) { gather_blocks<kPackedQ4_1>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_q5_0, GatherParams) { gather_blocks<kPackedQ5_0>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_q5_1, GatherParams) { gather_blocks<kPackedQ5_1>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_q8_0, GatherParams) { gather_blocks<kPackedQ8_0>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_q4_k, GatherParams) { gather_blocks<kPackedQ4_K>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_q5_k, GatherParams) { gather_blocks<kPackedQ5_K>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_q6_k, GatherParams) { gather_blocks<kPackedQ6_K>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_f32, GatherParams) { gather_floats<FloatLayout::kF32>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_f16, GatherParams) { gather_floats<FloatLayout::kF16>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_bf16, GatherParams) {
  gather_floats<FloatLayout::kBF16>(params, begin, end);
}

ATLAS_CPU_KERNEL(gather_nvfp4, GatherParams) { gather_nvfp4(params, begin, end); }

ATLAS_CPU_KERNEL(gather_fp8, GatherParams) { gather_fp8<Fp8Scales::kRow>(params, begin, end); }

ATLAS_CPU_KERNEL(gather_fp8_b128, GatherParams) {
  gather_fp8<Fp8Scales::kBlock>(params, begin, end);
}

ATLAS_CPU_KERNEL(gather_mxfp8, GatherParams) { gather_fp8<Fp8Scales::kMx>(params, begin, end); }

}  // namespace atlas::kernels::cpu

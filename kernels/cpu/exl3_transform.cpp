// What stands before and after the products of EXL3 weights: scales and Hadamard transforms.
#include <algorithm>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/exl3_transform.cpp"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/exl3_hadamard-inl.h"
#include "plugins/abi/atlas_plugin.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// y = norm * H(x * suh), 128 of each.
void transform_input(const float* x, const uint8_t* suh, float* y) {
  alignas(64) float block[kExl3Block];
  for (uint32_t i = 0; i < kExl3Block; i += kLanes) {
    const VF scale = load_f16s(suh + 2 * i);
    hn::Store(hn::Mul(hn::LoadU(F32(), x + i), scale), F32(), block + i);
  }
  hadamard_block(block);
  const VF norm = hn::Set(F32(), kExl3Norm);
  for (uint32_t i = 0; i < kExl3Block; i += kLanes) {
    hn::StoreU(hn::Mul(hn::Load(F32(), block + i), norm), F32(), y + i);
  }
}

/// y = (add ? y : 0) + norm * H(sums) * svh, with the sums in the order of exl3_output().
void transform_output(const float* sums, const uint8_t* svh, bool add, float* y) {
  alignas(64) float block[kExl3Block];
  std::copy_n(sums, kExl3Block, block);
  hadamard_block(block);
  // Runs of 8 outputs keep their order.
  const hn::CappedTag<float, 8> run;
  const hn::Rebind<hwy::float16_t, decltype(run)> halves;
  const auto norm = hn::Set(run, kExl3Norm);
  for (uint32_t i = 0; i < kExl3Block; i += hn::Lanes(run)) {
    const uint32_t output = exl3_output(i);
    const auto scale = hn::PromoteTo(
        run, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(svh + 2 * output)));
    auto value = hn::Mul(hn::Mul(hn::Load(run, block + i), norm), scale);
    if (add) value = hn::Add(hn::LoadU(run, y + output), value);
    hn::StoreU(value, run, y + output);
  }
}

/// The expert of row `row` of y: the last one whose rows begin at it or before.
const uint8_t* weight_of(const Exl3TransformParams& params, uint32_t row) {
  const auto* weight = static_cast<const uint8_t*>(params.weight);
  if (params.offsets == nullptr) return weight;
  const uint32_t* ends = params.offsets + 1;
  const auto expert =
      static_cast<uint64_t>(std::upper_bound(ends, ends + params.experts, row) - ends);
  return weight + expert * params.expert_bytes;
}

/// Calls block(row, the block's scales, its number, how many of its 128 elements the row has) for
/// the blocks of the tasks.
template <class Block>
void for_blocks(const Exl3TransformParams& params, uint32_t begin, uint32_t end,
                const Block& block) {
  const uint32_t rows =
      params.offsets == nullptr ? *params.row_count : params.offsets[params.experts];
  const uint32_t tasks = exl3_transform_tasks(params.width);
  for (uint32_t task = begin; task < end; ++task) {
    const uint32_t row = task / tasks;
    if (row >= rows) return;
    const uint8_t* scales = weight_of(params, row) + params.scale_offset;
    const uint32_t first = task % tasks * kExl3TransformBlocks * kExl3Block;
    const uint32_t last = std::min(params.width, first + kExl3TransformBlocks * kExl3Block);
    for (uint32_t i = first; i < last; i += kExl3Block) {
      block(row, scales + 2 * uint64_t{i}, i / kExl3Block, std::min(kExl3Block, last - i));
    }
  }
}

void transform_inputs(const Exl3TransformParams& params, uint32_t begin, uint32_t end) {
  for_blocks(params, begin, end, [&](uint32_t row, const uint8_t* suh, uint64_t i, uint32_t size) {
    const uint32_t from = params.source == nullptr ? row : params.source[row];
    const float* x = params.x + from * params.x_stride + i * params.x_block;
    float* y = params.y + row * params.y_stride + i * params.y_block;
    if (size == kExl3Block) return transform_input(x, suh, y);
    alignas(64) float whole[kExl3Block] = {};
    std::copy_n(x, size, whole);
    transform_input(whole, suh, y);
  });
}

void transform_outputs(const Exl3TransformParams& params, uint32_t begin, uint32_t end) {
  const bool add = params.epilogue == ATLAS_EPILOGUE_ADD;
  for_blocks(params, begin, end, [&](uint32_t row, const uint8_t* svh, uint64_t i, uint32_t size) {
    const float* sums = params.x + row * params.x_stride + i * params.x_block;
    float* y = params.y + row * params.y_stride + i * params.y_block;
    if (size == kExl3Block) return transform_output(sums, svh, add, y);
    alignas(64) float whole[kExl3Block] = {};
    if (add) std::copy_n(y, size, whole);
    transform_output(sums, svh, add, whole);
    std::copy_n(whole, size, y);
  });
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(transform_inputs);
HWY_EXPORT(transform_outputs);

ATLAS_CPU_KERNEL(exl3_input, Exl3TransformParams) {
  HWY_DYNAMIC_DISPATCH(transform_inputs)(params, begin, end);
}

ATLAS_CPU_KERNEL(exl3_output, Exl3TransformParams) {
  HWY_DYNAMIC_DISPATCH(transform_outputs)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif

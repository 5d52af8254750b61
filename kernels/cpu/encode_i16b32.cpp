// Encodes float32 rows as i16b32 (kernels/common/i16b32.h): one task a row, a block at a time.
#include "kernels/common/i16b32.h"
#include "kernels/common/linear.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/encode_i16b32.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void encode_block(const float* x, I16B32Block* block) { encode_i16b32_block(x, block); }

#else

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;
using I16 = hn::Rebind<int16_t, F32>;
constexpr size_t kLanes = HWY_MIN(HWY_MAX_BYTES / sizeof(float), size_t{16});

/// The bits of the block's largest magnitude. Compared as integers, infinities and NaN come last.
HWY_INLINE int32_t largest_bits(const float* x) {
  const I32 di;
  const auto magnitude = hn::Set(di, 0x7fffffff);
  auto largest = hn::Zero(di);
  for (size_t i = 0; i < kI16B32Elements; i += kLanes) {
    const auto bits = hn::LoadU(di, reinterpret_cast<const int32_t*>(x + i));
    largest = hn::Max(largest, hn::And(bits, magnitude));
  }
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

HWY_INLINE void encode_block(const float* x, I16B32Block* block) {
  const F32 df;
  const I32 di;
  const I16 dh;
  const int32_t bits = largest_bits(x);
  float largest;
  std::memcpy(&largest, &bits, sizeof(largest));
  const bool finite = bits < 0x7f800000;
  if (!finite || largest < kI16B32Smallest) {
    std::memset(block, 0, sizeof(*block));
    if (!finite) block->scale = block->sum = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const float scale = largest / static_cast<float>(kI16B32Largest);
  const auto inverse = hn::Set(df, static_cast<float>(kI16B32Largest) / largest);
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 1, 4,  5,  2,  3,  6,  7,
                                                     8, 9, 12, 13, 10, 11, 14, 15};
  const auto order = hn::BitCast(dh, hn::LoadDup128(hn::Repartition<uint8_t, I16>(), kOrder));
  decltype(hn::Zero(di)) sums[2] = {hn::Zero(di), hn::Zero(di)};
  for (size_t i = 0; i < kI16B32Elements; i += kLanes) {
    const auto code = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
    sums[i / 16] = hn::Add(sums[i / 16], code);
    hn::StoreU(hn::TableLookupBytes(hn::DemoteTo(dh, code), order), dh, block->code + i);
  }
  block->scale = scale;
  for (int half = 0; half < 2; ++half) {
    block->half_sums[half] = hn::GetLane(hn::SumOfLanes(di, sums[half]));
  }
  block->sum = scale * static_cast<float>(block->half_sums[0] + block->half_sums[1]);
}

#endif  // HWY_SCALAR

void encode_rows(const EncodeParams& params, uint32_t begin, uint32_t end) {
  const uint32_t rows = *params.row_count;
  for (uint32_t row = begin; row < end && row < rows; ++row) {
    const float* x = params.x + row * params.x_stride;
    auto* out = reinterpret_cast<I16B32Block*>(static_cast<std::byte*>(params.out) +
                                               row * params.out_row_bytes);
    const uint32_t full = params.k / kI16B32Elements, rest = params.k % kI16B32Elements;
    for (uint32_t b = 0; b < full; ++b) encode_block(x + b * kI16B32Elements, out + b);
    if (rest != 0) {
      float last[kI16B32Elements] = {};
      std::memcpy(last, x + full * kI16B32Elements, rest * sizeof(float));
      encode_block(last, out + full);
    }
  }
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
HWY_EXPORT(encode_rows);

ATLAS_CPU_KERNEL(encode_i16b32, EncodeParams) {
  HWY_DYNAMIC_DISPATCH(encode_rows)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif

// Gated residual streams: stream_mix (the gated mean of a row's streams) and stream_inject (a
// block's output added to each of them).
#include "kernels/common/core.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/streams.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

void MixRows(const StreamMixParams& p, uint32_t begin, uint32_t end) {
  const F16 streams = Set16(static_cast<float>(p.streams));
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    const float* gate = p.gate + row * p.gate_stride;
    const float* x = p.x + row * p.x_stride;
    float* u = p.u + row * p.u_stride;
    for (size_t i = 0; i < p.n; i += 16) {
      F16 sum = Set16(0.0f);
      for (uint64_t s = 0; s < p.streams; ++s) {
        const uint64_t at = s * p.n;
        sum = MulAdd(Sigmoid16(LoadUpTo(gate + at, i, p.n)), LoadUpTo(x + at, i, p.n), sum);
      }
      StoreUpTo(Div(sum, streams), u, i, p.n);
    }
  }
}

void InjectRows(const StreamInjectParams& p, uint32_t begin, uint32_t end) {
  for (uint64_t row = begin; row < std::min(end, *p.row_count); ++row) {
    const float* c = p.c + row * p.c_stride;
    const float* y = p.y + row * p.y_stride;
    for (uint64_t s = 0; s < p.streams; ++s) {
      const F16 scale = Set16(2.0f * SigmoidOf(c[s] / static_cast<float>(p.streams)));
      float* x = p.x + row * p.x_stride + s * p.n;
      for (size_t i = 0; i < p.n; i += 16) {
        StoreUpTo(MulAdd(scale, LoadUpTo(y, i, p.n), LoadUpTo(x, i, p.n)), x, i, p.n);
      }
    }
  }
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(MixRows);
HWY_EXPORT(InjectRows);

ATLAS_CPU_KERNEL(stream_mix, StreamMixParams) { HWY_DYNAMIC_DISPATCH(MixRows)(params, begin, end); }

ATLAS_CPU_KERNEL(stream_inject, StreamInjectParams) {
  HWY_DYNAMIC_DISPATCH(InjectRows)(params, begin, end);
}

}  // namespace atlas::kernels::cpu
#endif

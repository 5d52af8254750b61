// rope: rotary position embedding, one task a row. Cosines and sines are made once a row and pair,
// 64 pairs at a time, in float64 so that large positions lose nothing; then every head is rotated.
#include "kernels/common/core.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "kernels/cpu/angles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

/// Rotates `count` pairs that lie side by side.
void RotateNeighbours(float* x, size_t count, const float* cosine, const float* sine) {
  const F32 d;
  size_t i = 0;
  for (; i + kRegisterLanes <= count; i += kRegisterLanes) {
    const VF32 c = hn::LoadU(d, cosine + i), s = hn::LoadU(d, sine + i);
    VF32 a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)),
                          hn::Add(hn::Mul(b, c), hn::Mul(a, s)), d, x + 2 * i);
  }
  for (; i < count; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cosine[i] - b * sine[i];
    x[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

void RotateRows(const RopeParams& p, uint32_t begin, uint32_t end) {
  float cosine[kPairs], sine[kPairs];
  const size_t half = p.rotary_dim / 2;
  for (uint64_t row = begin; row < std::min(end, p.rows->row_count); ++row) {
    const auto position = static_cast<float>(p.rows->rows[row].position[0]);
    float* heads = p.x + row * p.x_stride;
    for (size_t first = 0; first < half; first += kPairs) {
      const size_t count = std::min(kPairs, half - first);
      Angles(p.inverse_frequency + first, count, position, p.magnitude, cosine, sine);
      for (size_t h = 0; h < p.heads; ++h) {
        float* head = heads + h * p.head_dim;
        if (p.interleaved != 0) {
          RotateNeighbours(head + 2 * first, count, cosine, sine);
        } else {
          RotateHalves(head + first, half, count, cosine, sine);
        }
      }
    }
  }
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {

HWY_EXPORT(RotateRows);
ATLAS_CPU_KERNEL(rope, RopeParams) { HWY_DYNAMIC_DISPATCH(RotateRows)(params, begin, end); }

}  // namespace atlas::kernels::cpu
#endif

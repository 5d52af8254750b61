// Kernels that do two operations of the core at once, for every GPU pack. Their contracts are
// core_fused.h's, their bits those of the two.
#pragma once

#include "kernels/common/core_fused.h"
#include "kernels/common/gpu/quads.h"

namespace atlas::kernels {

/// Grid (rows, streams). The injected stream stands in shared memory, from where its squares are
/// summed in 16 lanes.
ATLAS_DEVICE_KERNEL(inject_norm, InjectNormParams, kInjectNormThreads) {
  using namespace device;
  const uint64_t row = block_index(), s = block_index<1>();
  const uint32_t n = params.n;
  if (row >= load(params.row_count) || n > kMaxInjectNorm) return;
  float* staged = shared_memory<float>();
  float* shared_scale = staged + kMaxInjectNorm;
  const float* y = params.y + row * params.y_stride;
  float* x = params.x + row * params.x_stride + s * n;
  const float* weight = params.weight + s * params.weight_stream_stride;
  float* normed = params.normed + row * params.normed_stride + s * params.normed_stream_stride;
  const bool aligned =
      has_quads(y, 0) && has_quads(x, 0) && has_quads(weight, 0) && has_quads(normed, 0);

  const float c = load(params.c + row * params.c_stride + s);
  const float factor = 2.0f * sigmoid(divide(c, static_cast<float>(params.streams)));
  for (uint32_t i = 4 * thread_index(); i < n; i += 4 * kInjectNormThreads) {
    const Quad added = load_quad(y, i, n, aligned);
    Quad quad = load_quad(x, i, n, aligned);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) quad.f[j] = fma(factor, added.f[j], quad.f[j]);
    store_quad(x, i, n, aligned, quad);
    store_quad(staged, i, n, true, quad);
  }
  block_barrier();  // elements are written before lanes of other warps read them
  if (thread_index() < 16) {
    float squares = add_products(0.0f, staged, staged, n);
    for (uint32_t apart = 8; apart > 0; apart /= 2) squares += shuffle_xor(squares, apart, 0xffff);
    if (thread_index() == 0) {
      const float mean = divide(squares, static_cast<float>(n));
      store(shared_scale, divide(1.0f, square_root(mean + params.epsilon)));
    }
  }
  block_barrier();  // the scale is written before all read it
  const float scale = load(shared_scale);
  for (uint32_t i = 4 * thread_index(); i < n; i += 4 * kInjectNormThreads) {
    const Quad weights = load_quad(weight, i, n, aligned);
    Quad quad = load_quad(staged, i, n, true);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) quad.f[j] = (quad.f[j] * scale) * weights.f[j];
    store_quad(normed, i, n, aligned, quad);
  }
}

}  // namespace atlas::kernels

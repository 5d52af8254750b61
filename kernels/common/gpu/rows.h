// Kernels over the rows of activations, for every GPU pack: rms_norm, add, silu_mul, copy_groups.
// Their contracts are core.h's, so their bits are those of the CPU pack.
#pragma once

#include "kernels/common/core.h"
#include "kernels/common/device/device.h"
#include "kernels/common/gpu_grids.h"

namespace atlas::kernels {

/// The block's threads bring `count` elements of x to shared memory.
ATLAS_DEVICE void stage_elements(const float* x, uint32_t count, float* staged) {
  using namespace device;
  for (uint32_t i = thread_index(); i < count; i += kNormThreads) store(staged + i, load(x + i));
}

/// y[i] = (x[i] * scale) * weight[i]. The sum of squares is a chain in each of 16 lanes; the whole
/// block brings elements to shared memory, so that the chains wait for nothing farther away.
ATLAS_DEVICE_KERNEL(rms_norm, RmsNormParams, kNormThreads) {
  using namespace device;
  const uint64_t row = block_index(), group = block_index<1>();
  if (row >= load(params.row_count)) return;
  float* staged = shared_memory<float>();
  float* shared_scale = staged + kNormChunk;
  const float* x = params.x + row * params.x_stride + group * params.x_group_stride;
  const float* weight = params.weight + group * params.weight_group_stride;
  float* y = params.y + row * params.y_stride + group * params.y_group_stride;

  float squares = 0.0f;
  for (uint32_t first = 0; first < params.n; first += kNormChunk) {
    const uint32_t left = params.n - first, count = left < kNormChunk ? left : kNormChunk;
    if (first != 0) block_barrier();  // the last chunk has been read before this one overwrites it
    stage_elements(x + first, count, staged);
    block_barrier();  // elements are written before lanes of other warps read them
    if (thread_index() >= 16) continue;
    for (uint32_t i = thread_index(); i < count; i += 16) {
      const float v = load(staged + i);
      squares = fma(v, v, squares);
    }
  }
  if (thread_index() < 16) {
    for (uint32_t apart = 8; apart > 0; apart /= 2) squares += shuffle_xor(squares, apart, 0xffff);
    if (thread_index() == 0) {
      const float mean = divide(squares, static_cast<float>(params.n));
      store(shared_scale, divide(1.0f, square_root(mean + params.epsilon)));
    }
  }
  block_barrier();  // the scale is written before all read it
  const float scale = load(shared_scale);
  const bool whole = params.n <= kNormChunk;  // then x stands in shared memory still
  for (uint32_t i = thread_index(); i < params.n; i += kNormThreads) {
    const float v = whole ? load(staged + i) : load(x + i);
    store(y + i, (v * scale) * load(weight + i));
  }
}

/// Calls body(row, i) for each element of a row that this block does.
template <typename Body>
ATLAS_DEVICE void each_element(const uint32_t* row_count, uint32_t n, const Body& body) {
  using namespace device;
  const uint64_t row = block_index();
  if (row >= load(row_count)) return;
  const uint32_t first = block_index<1>() * kRowPart;
  ATLAS_UNROLL
  for (uint32_t step = 0; step < kRowPart / kRowThreads; ++step) {
    const uint32_t i = first + step * kRowThreads + thread_index();
    if (i < n) body(row, i);
  }
}

ATLAS_DEVICE_KERNEL(add, AddParams, kRowThreads) {
  each_element(params.row_count, params.n, [&](uint64_t row, uint32_t i) {
    float* y = params.y + row * params.y_stride + i;
    device::store(y, device::load(y) + device::load(params.x + row * params.x_stride + i));
  });
}

ATLAS_DEVICE_KERNEL(silu_mul, SiluMulParams, kRowThreads) {
  each_element(params.row_count, params.n, [&](uint64_t row, uint32_t i) {
    const float* gate = params.x + row * params.x_stride + i;
    device::store(params.y + row * params.y_stride + i,
                  device::silu(device::load(gate)) * device::load(gate + params.n));
  });
}

ATLAS_DEVICE_KERNEL(copy_groups, CopyGroupsParams, kRowThreads) {
  using namespace device;
  const uint64_t row = block_index(), group = block_index<1>();
  if (row >= load(params.row_count)) return;
  const float* x = params.x + row * params.x_stride + group * params.x_group_stride;
  float* y = params.y + row * params.y_stride + group * params.y_group_stride;
  for (uint32_t i = thread_index(); i < params.n; i += kRowThreads) store(y + i, load(x + i));
}

}  // namespace atlas::kernels

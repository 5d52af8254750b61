// Four neighbouring elements of a row in one access, where memory is aligned to them; one by one
// elsewhere.
#pragma once

#include "kernels/common/core_grids.h"
#include "kernels/common/device/device.h"

namespace atlas::kernels {

using Quad = device::Floats4;

/// Whether quads of rows that begin at `at`, `stride` elements apart, are aligned.
ATLAS_DEVICE bool has_quads(const void* at, uint64_t stride) {
  return ((reinterpret_cast<uint64_t>(at) | stride * sizeof(float)) & 15) == 0;
}

/// Elements [i, i + 4) of an array of n; those past its end are 0. `aligned`: the array is.
ATLAS_DEVICE Quad load_quad(const float* x, uint32_t i, uint32_t n, bool aligned) {
  if (aligned && i + 4 <= n) return device::load_as<Quad>(x + i);
  Quad quad = {};
  ATLAS_UNROLL
  for (uint32_t j = 0; j < 4; ++j) {
    if (i + j < n) quad.f[j] = device::load(x + i + j);
  }
  return quad;
}

ATLAS_DEVICE void store_quad(float* y, uint32_t i, uint32_t n, bool aligned, const Quad& quad) {
  if (aligned && i + 4 <= n) return device::store_as<Quad>(y + i, quad);
  ATLAS_UNROLL
  for (uint32_t j = 0; j < 4; ++j) {
    if (i + j < n) device::store(y + i + j, quad.f[j]);
  }
}

/// One of 16 chains, of lane thread_index() < 16: sum + a[i] * b[i], by fma, of every 16th element
/// of two arrays in shared memory. The chain itself is what it takes, so elements are loaded well
/// before they are its turn.
ATLAS_DEVICE float add_products(float sum, const float* a, const float* b, uint32_t count) {
  using namespace device;
  constexpr uint32_t kAhead = 16;
  uint32_t i = thread_index();
  ATLAS_ROLLED
  for (; i + 16 * (kAhead - 1) < count; i += 16 * kAhead) {
    float x[kAhead], y[kAhead];
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) x[j] = load(a + i + 16 * j);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) y[j] = load(b + i + 16 * j);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) sum = fma(x[j], y[j], sum);
  }
  ATLAS_ROLLED
  for (; i < count; i += 16) sum = fma(load(a + i), load(b + i), sum);
  return sum;
}

/// Calls body(row, group, i) for the quad of a row that this thread does: elements [i, i + 4) of
/// group `group`. Grid (rows, quad_blocks(groups, n)).
template <typename Body>
ATLAS_DEVICE void each_quad(const uint32_t* row_count, uint32_t groups, uint32_t n,
                            const Body& body) {
  using namespace device;
  const uint64_t row = block_index();
  const uint32_t quads = quads_of(n), item = block_index<1>() * kQuadThreads + thread_index();
  if (row >= load(row_count) || item >= groups * quads) return;
  const uint32_t group = groups == 1 ? 0 : item / quads;
  body(row, group, (item - group * quads) * 4);
}

}  // namespace atlas::kernels

// Kernels over the rows of activations, for every GPU pack: rms_norm, norm_gate, add,
// copy_groups.
// Their contracts are core.h's, so their bits are those of the CPU pack.
#pragma once

#include "kernels/common/core_fused.h"
#include "kernels/common/gpu/encoded_rows.h"
#include "kernels/common/gpu_grids.h"

namespace atlas::kernels {

/// Whether rows at these places can be moved 16 bytes at a time.
ATLAS_DEVICE bool aligned_quads(const void* a, const void* b) {
  return ((reinterpret_cast<uint64_t>(a) | reinterpret_cast<uint64_t>(b)) & 15) == 0;
}

/// The block's threads bring `count` elements of x to shared memory.
ATLAS_DEVICE void stage_elements(const float* x, uint32_t count, float* staged) {
  using namespace device;
  uint32_t first = 0;
  if (aligned_quads(x, staged)) {
    for (uint32_t i = 4 * thread_index(); i + 3 < count; i += 4 * kNormThreads) {
      store_as(staged + i, load_as<Floats4>(x + i));
    }
    first = count / 4 * 4;
  }
  for (uint32_t i = first + thread_index(); i < count; i += kNormThreads) {
    store(staged + i, load(x + i));
  }
}

/// One of 16 chains: sum + squares of elements thread_index(), + 16, ... The chain itself is what
/// it takes, so elements are loaded well before they are its turn.
ATLAS_DEVICE float add_squares(float sum, const float* staged, uint32_t count) {
  using namespace device;
  constexpr uint32_t kAhead = 16;
  uint32_t i = thread_index();
  for (; i + 16 * (kAhead - 1) < count; i += 16 * kAhead) {
    float ahead[kAhead];
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) ahead[j] = load(staged + i + 16 * j);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) sum = fma(ahead[j], ahead[j], sum);
  }
  for (; i < count; i += 16) {
    const float v = load(staged + i);
    sum = fma(v, v, sum);
  }
  return sum;
}

/// y[i] = (x[i] * scale) * weight[i] of a group, and the same encoded if the parameters say so.
ATLAS_DEVICE void scale_elements(const RmsNormParams& params, uint64_t row, uint32_t group,
                                 const float* x, float scale) {
  using namespace device;
  const uint32_t n = params.n;
  const float* weight = params.weight + uint64_t{group} * params.weight_group_stride;
  float* y = params.y + row * params.y_stride + uint64_t{group} * params.y_group_stride;
  const bool x_aligned = has_quads(x, 0), y_aligned = has_quads(y, 0);
  const bool weight_aligned = has_quads(weight, 0);
  const EncodedRows encoded{params.encoded, params.encoded_f16};
  // Warps encode as a whole: a row that is one group goes on to its encoding's end.
  const auto end =
      encoded.any() && params.groups == 1 ? static_cast<uint32_t>(encoded_elements(n)) : n;
  ATLAS_ROLLED
  for (uint32_t i = 4 * thread_index(); i < end; i += 4 * kNormThreads) {
    const Quad v = load_quad(x, i, n, x_aligned), w = load_quad(weight, i, n, weight_aligned);
    Quad out;
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) out.f[j] = (v.f[j] * scale) * w.f[j];
    store_quad(y, i, n, y_aligned, out);
    encode_quad(encoded, row, params.groups * n, group * n + i, out);
  }
}

/// Quads 16 apart of a row of n elements, from element `at` on; what lies past the end is 0.
/// `whole`: no quad crosses the end, and they are aligned.
template <uint32_t kQuads>
ATLAS_DEVICE void load_quads(const float* x, uint32_t at, uint32_t n, bool whole,
                             Quad (&quads)[kQuads]) {
  if (whole) {  // one decision for all, so that they are under way together
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kQuads; ++q) {
      quads[q] = {};
      if (16 * q + at < n) quads[q] = device::load_as<Quad>(x + 16 * q + at);
    }
    return;
  }
  ATLAS_UNROLL
  for (uint32_t q = 0; q < kQuads; ++q) quads[q] = load_quad(x, 16 * q + at, n, false);
}

/// Quads of a thread that are stored together: weights, which may not pass stores.
inline constexpr uint32_t kNormAtOnce = 4;

/// rms_norm of groups of at most 16 * kQuads elements, four threads each. A thread has quads of
/// four lanes of the contract's 16, so that a group is read once, 64 bytes at a time, and its
/// chains are four threads' four. Before kNormAtOnce quads, 16 apart from element `at` on, are
/// stored, all threads of a warp call finish(row, group, at, n, quads), with n 0 past the last
/// group.
template <uint32_t kQuads, typename Finish>
ATLAS_DEVICE void norm_narrow(const RmsNormParams& params, const Finish& finish) {
  using namespace device;
  constexpr uint32_t kBlockGroups = kNormThreads / kNormNarrowThreads;
  const uint64_t first = uint64_t{block_index()} * kBlockGroups;
  const uint64_t groups = uint64_t{load(params.row_count)} * params.groups;
  if (first >= groups) return;
  const uint64_t item = first + thread_index() / kNormNarrowThreads;
  // Threads past the last group come along with nothing, as shuffles are the whole warp's.
  const uint32_t n = item < groups ? params.n : 0;
  // Grids are counted in 32 bits.
  const uint32_t row = static_cast<uint32_t>(item) / params.groups;
  const uint32_t group = static_cast<uint32_t>(item) - row * params.groups;
  const float* x = params.x + row * params.x_stride + uint64_t{group} * params.x_group_stride;
  const float* weight = params.weight + uint64_t{group} * params.weight_group_stride;
  float* y = params.y + row * params.y_stride + uint64_t{group} * params.y_group_stride;
  const uint32_t at = 4 * (thread_index() % kNormNarrowThreads);
  const bool whole = n % 4 == 0 && has_quads(x, 0) && has_quads(weight, 0) && has_quads(y, 0);

  Quad held[kQuads];
  load_quads(x, at, n, whole, held);
  Quad sums = {};
  ATLAS_UNROLL
  for (uint32_t q = 0; q < kQuads; ++q) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) sums.f[i] = fma(held[q].f[i], held[q].f[i], sums.f[i]);
  }
  ATLAS_UNROLL
  for (uint32_t flip = 2; flip > 0; flip /= 2) {  // lanes 8 apart, then 4
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) sums.f[i] += shuffle_xor(sums.f[i], flip);
  }
  const float squares = (sums.f[0] + sums.f[2]) + (sums.f[1] + sums.f[3]);
  const float mean = divide(squares, static_cast<float>(params.n));
  const float scale = divide(1.0f, square_root(mean + params.epsilon));
  ATLAS_UNROLL
  for (uint32_t begin = 0; begin < kQuads; begin += kNormAtOnce) {
    Quad weights[kNormAtOnce];
    const uint32_t part = 16 * begin + at;
    load_quads(weight, part, n, whole, weights);
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kNormAtOnce; ++q) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        weights[q].f[i] = (held[begin + q].f[i] * scale) * weights[q].f[i];
      }
    }
    finish(row, group, part, n, weights);
    if (whole) {
      ATLAS_UNROLL
      for (uint32_t q = 0; q < kNormAtOnce; ++q) {
        if (16 * q + part < n) store_as(y + 16 * q + part, weights[q]);
      }
    } else {
      ATLAS_UNROLL
      for (uint32_t q = 0; q < kNormAtOnce; ++q) store_quad(y, 16 * q + part, n, false, weights[q]);
    }
  }
}

/// y[i] = (x[i] * scale) * weight[i]. The sum of squares is a chain in each of 16 lanes; the whole
/// block brings elements to shared memory, so that the chains wait for nothing farther away.
ATLAS_DEVICE_KERNEL(rms_norm, RmsNormParams, kNormThreads) {
  using namespace device;
  const auto as_it_is = [](auto&&...) {};
  if (params.n <= kNormNarrow / 2) return norm_narrow<kNormNarrow / 32>(params, as_it_is);
  if (params.n <= kNormNarrow) return norm_narrow<kNormNarrow / 16>(params, as_it_is);
  const uint64_t row = block_index(), group = block_index<1>();
  if (row >= load(params.row_count)) return;
  float* staged = shared_memory<float>();
  float* shared_scale = staged + kNormChunk;
  const float* x = params.x + row * params.x_stride + group * params.x_group_stride;

  float squares = 0.0f;
  for (uint32_t first = 0; first < params.n; first += kNormChunk) {
    const uint32_t left = params.n - first, count = left < kNormChunk ? left : kNormChunk;
    if (first != 0) block_barrier();  // the last chunk has been read before this one overwrites it
    stage_elements(x + first, count, staged);
    block_barrier();  // elements are written before lanes of other warps read them
    if (thread_index() < 16) squares = add_squares(squares, staged, count);
  }
  if (thread_index() < 16) {
    for (uint32_t apart = 8; apart > 0; apart /= 2) squares += shuffle_xor(squares, apart, 0xffff);
    if (thread_index() == 0) {
      const float mean = divide(squares, static_cast<float>(params.n));
      store(shared_scale, divide(1.0f, square_root(mean + params.epsilon)));
    }
  }
  block_barrier();  // the scale is written before all read it
  // A group that is no longer than a chunk stands in shared memory still.
  scale_elements(params, row, static_cast<uint32_t>(group), params.n <= kNormChunk ? staged : x,
                 load(shared_scale));
}

/// Threads have whole pieces of an encoding's blocks: quads 16 apart.
ATLAS_DEVICE_KERNEL(norm_gate, NormGateParams, kNormThreads) {
  const GateMulParams& gate = params.gate;
  const auto finish = [&](uint32_t row, uint32_t group, uint32_t at, uint32_t n,
                          Quad(&quads)[kNormAtOnce]) {
    using namespace device;
    const float* from =
        gate.gate + row * gate.gate_stride + uint64_t{group} * gate.gate_group_stride;
    Quad gates[kNormAtOnce];
    load_quads(from, at, n, n % 4 == 0 && has_quads(from, 0), gates);
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kNormAtOnce; ++q) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const float divisor = 1.0f + exp(-gates[q].f[i]);
        quads[q].f[i] = quads[q].f[i] * divide(gate.silu != 0 ? gates[q].f[i] : 1.0f, divisor);
      }
    }
    if (gate.encoded == nullptr) return;
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kNormAtOnce; q += 2) {
      const Quad &low = quads[q], &high = quads[q + 1];
      const uint32_t i = at + 16 * q;
      encode_piece(gate.encoded, row, gate.groups * gate.n, (group * gate.n + i) / kBlockElements,
                   at / 4 % 4,
                   {{bf16_pair(low.f[0], low.f[1]), bf16_pair(low.f[2], low.f[3]),
                     bf16_pair(high.f[0], high.f[1]), bf16_pair(high.f[2], high.f[3])}},
                   i < n);
    }
  };
  if (params.norm.n <= kNormNarrow / 2) return norm_narrow<kNormNarrow / 32>(params.norm, finish);
  if (params.norm.n <= kNormNarrow) return norm_narrow<kNormNarrow / 16>(params.norm, finish);
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

ATLAS_DEVICE_KERNEL(copy_groups, CopyGroupsParams, kRowThreads) {
  using namespace device;
  const uint64_t row = block_index(), group = block_index<1>();
  if (row >= load(params.row_count)) return;
  const float* x = params.x + row * params.x_stride + group * params.x_group_stride;
  float* y = params.y + row * params.y_stride + group * params.y_group_stride;
  for (uint32_t i = thread_index(); i < params.n; i += kRowThreads) store(y + i, load(x + i));
}

}  // namespace atlas::kernels

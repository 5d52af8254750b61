// Kernels that do several operations of the core at once, for every GPU pack. Their contracts are
// core_fused.h's, their bits those of the operations.
#pragma once

#include "kernels/common/core_fused.h"
#include "kernels/common/device/early.h"
#include "kernels/common/gpu/combined_rows.h"
#include "kernels/common/gpu/encoded_rows.h"

namespace atlas::kernels {

/// One of 16 chains, of lane thread_index() < 16: the squares of every 16th element of a stream in
/// shared memory. The chain itself is what it takes: elements are loaded a round before their turn.
ATLAS_DEVICE float lane_squares(const float* staged, uint32_t n) {
  using namespace device;
  constexpr uint32_t kAhead = 16, kRound = 16 * kAhead;
  float sum = 0.0f;
  uint32_t first = 0;
  if (n >= kRound) {
    float held[kAhead], next[kAhead];
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) held[j] = load(staged + thread_index() + 16 * j);
    ATLAS_ROLLED
    for (first = kRound; first + kRound <= n; first += kRound) {
      const float* from = staged + first + thread_index();
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kAhead; ++j) next[j] = load(from + 16 * j);
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kAhead; ++j) {
        sum = fma(held[j], held[j], sum);
        held[j] = next[j];
      }
    }
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) sum = fma(held[j], held[j], sum);
  }
  ATLAS_ROLLED
  for (uint32_t i = first + thread_index(); i < n; i += 16) {
    const float x = load(staged + i);
    sum = fma(x, x, sum);
  }
  return sum;
}

/// 1 / sqrt(mean of squares + epsilon) of a stream in shared memory, for the whole block. `shared`
/// has room for the result.
ATLAS_DEVICE float block_norm_scale(const float* staged, uint32_t n, float epsilon, float* shared) {
  using namespace device;
  block_barrier();  // elements are written before lanes of other warps read them
  if (thread_index() < 16) {
    float squares = lane_squares(staged, n);
    for (uint32_t apart = 8; apart > 0; apart /= 2) squares += shuffle_xor(squares, apart, 0xffff);
    if (thread_index() == 0) {
      const float mean = divide(squares, static_cast<float>(n));
      store(shared, divide(1.0f, square_root(mean + epsilon)));
    }
  }
  block_barrier();  // the scale is written before all read it
  return load(shared);
}

/// Quads i, i + apart, ... of an array of n, as load_quad and store_quad have them, with one
/// decision for all, so that they are under way together; with kWhole there is none.
template <bool kWhole, uint32_t kCount>
ATLAS_DEVICE void load_quads(Quad (&quads)[kCount], const float* x, uint32_t i, uint32_t apart,
                             uint32_t n, bool aligned) {
  const bool whole = kWhole || (aligned && i + (kCount - 1) * apart + 4 <= n);
  if (whole) {
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kCount; ++q) quads[q] = device::load_as<Quad>(x + i + q * apart);
  } else {
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kCount; ++q) quads[q] = load_quad(x, i + q * apart, n, aligned);
  }
}
template <bool kWhole, uint32_t kCount>
ATLAS_DEVICE void store_quads(float* y, uint32_t i, uint32_t apart, uint32_t n, bool aligned,
                              const Quad (&quads)[kCount]) {
  const bool whole = kWhole || (aligned && i + (kCount - 1) * apart + 4 <= n);
  if (whole) {
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kCount; ++q) device::store_as<Quad>(y + i + q * apart, quads[q]);
  } else {
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kCount; ++q) store_quad(y, i + q * apart, n, aligned, quads[q]);
  }
}

/// One stream of one row, at most kMost elements, four at a time of each of a block's threads;
/// added.ask<kWhole>(ys, row, i, is_there, meanwhile) gives kTogether quads of y and calls
/// meanwhile() when their loads are under way. A kernel of few rows is a chain of memory's
/// latencies: weights are asked for before the kernel before this one has ended, then kTogether of
/// a thread's quads at once, and beside the count of rows, as grids bound memory; with many rows,
/// what counts is that blocks have few registers, and that those without a row read nothing. The
/// injected stream stands in shared memory, from where its squares are summed in 16 lanes. kWhole:
/// the stream is kTogether quads of each thread, and all memory aligned.
template <bool kWhole, uint32_t kMost, uint32_t kThreads, uint32_t kTogether, typename Added>
ATLAS_DEVICE void inject_and_norm(const InjectNormParams& params, const Added& added) {
  using namespace device;
  constexpr uint32_t kApart = 4 * kThreads, kQuads = kWhole ? kTogether : blocks_of(kMost, kApart);
  static_assert(kApart % kEncodedPad == 0);
  const uint64_t row = block_index(), s = block_index<1>();
  const uint32_t n = kWhole ? kTogether * kApart : params.n, first = 4 * thread_index();
  float* staged = shared_memory<float>();
  float* x = params.x + row * params.x_stride + s * n;
  const float* weight = params.weight + s * params.weight_stream_stride;
  float* normed = params.normed + row * params.normed_stride + s * params.normed_stream_stride;
  const bool x_aligned = has_quads(x, 0), weight_aligned = has_quads(weight, 0);
  Quad weights[kTogether];
  load_quads<kWhole>(weights, weight, first, kApart, n, weight_aligned);
  previous_done();
  if (grid_blocks() > kCombineInjectRows) {
    if (row >= load(params.row_count)) return;
  }
  const uint32_t rows = n > kMost ? 0 : load(params.row_count);
  const float c = load(params.c + row * params.c_stride + s);
  ATLAS_UNROLL
  for (uint32_t begin = 0; begin < kQuads; begin += kTogether) {
    if (begin != 0 && begin * kApart >= n) break;
    const uint32_t i = first + begin * kApart;
    Quad quads[kTogether], ys[kTogether];
    float factor = 0.0f;
    load_quads<kWhole>(quads, x, i, kApart, n, x_aligned);
    added.template ask<kWhole>(ys, row, i, row < rows, [&] {
      factor = 2.0f * sigmoid(divide(c, static_cast<float>(params.streams)));
    });
    if (begin == 0 && row >= rows) return;
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kTogether; ++q) {
      ATLAS_UNROLL
      for (uint32_t j = 0; j < 4; ++j) quads[q].f[j] = fma(factor, ys[q].f[j], quads[q].f[j]);
    }
    store_quads<kWhole>(staged, i, kApart, n, true, quads);
    store_quads<kWhole>(x, i, kApart, n, x_aligned, quads);
  }
  const float scale = block_norm_scale(staged, n, params.epsilon, staged + kMost);
  const bool normed_aligned = has_quads(normed, 0);
  const uint32_t k = params.streams * n, base = static_cast<uint32_t>(s) * n;
  Quad outs[kTogether];
  load_quads<kWhole>(outs, staged, first, kApart, n, true);
  ATLAS_UNROLL
  for (uint32_t q = 0; q < kTogether; ++q) {
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) outs[q].f[j] = (outs[q].f[j] * scale) * weights[q].f[j];
  }
  store_quads<kWhole>(normed, first, kApart, n, normed_aligned, outs);
  const EncodedRows encoded{params.encoded, params.encoded_f16};
  if constexpr (kWhole) {
    encode_quads(encoded, row, k, base + first, kApart, outs);
  } else {
    ATLAS_UNROLL
    for (uint32_t q = 0; q < kQuads; ++q) {
      const uint32_t i = first + q * kApart;
      Quad out = {};
      if (q < kTogether) {
        out = outs[q < kTogether ? q : 0];
      } else if (i < n) {
        const Quad in = load_quad(staged, i, n, true);
        const Quad by = load_quad(weight, i, n, weight_aligned);
        ATLAS_UNROLL
        for (uint32_t j = 0; j < 4; ++j) out.f[j] = (in.f[j] * scale) * by.f[j];
        store_quad(normed, i, n, normed_aligned, out);
      }
      if (params.streams == 1 || i < n) encode_quad(encoded, row, k, base + i, out);
    }
  }
}

/// The same for any shape. That of one width, all aligned, is code of its own: a third of the
/// instructions, which one after the other take their time where each is run once.
template <uint32_t kMost, uint32_t kThreads, uint32_t kTogether, typename Added>
ATLAS_DEVICE void inject_and_norm(const InjectNormParams& params, const Added& added) {
  const uint64_t strides = params.x_stride | params.normed_stride | params.normed_stream_stride |
                           params.weight_stream_stride;
  if (params.n == 4 * kThreads * kTogether && has_quads(params.x, strides) &&
      has_quads(params.weight, 0) && has_quads(params.normed, 0) && added.is_whole()) {
    inject_and_norm<true, kMost, kThreads, kTogether>(params, added);
  } else {
    inject_and_norm<false, kMost, kThreads, kTogether>(params, added);
  }
}

/// y of inject_norm.
struct AddedRow {
  const InjectNormParams& params;
  ATLAS_DEVICE bool is_whole() const { return has_quads(params.y, params.y_stride); }
  template <bool kWhole, typename Meanwhile>
  ATLAS_DEVICE void ask(Quad (&ys)[4], uint64_t row, uint32_t i, bool,
                        const Meanwhile& meanwhile) const {
    load_quads<kWhole>(ys, params.y + row * params.y_stride, i, 4 * kInjectNormThreads, params.n,
                       has_quads(params.y, params.y_stride));
    meanwhile();
  }
};

/// Grid (rows, streams).
ATLAS_EARLY_KERNEL(inject_norm, InjectNormParams, kInjectNormThreads, 5) {
  inject_and_norm<kMaxInjectNorm, kInjectNormThreads, 4>(params, AddedRow{params});
}

/// The row that combine_inject_norm puts together; stream 0's block writes it.
struct AddedExperts {
  const CombineExpertsParams& params;
  uint32_t n;  // of the stream
  ATLAS_DEVICE bool is_whole() const {
    return params.n == n && CombinedRow<10>::is_whole(params) &&
           has_quads(params.y, params.y_stride);
  }
  template <bool kWhole, typename Meanwhile>
  ATLAS_DEVICE void ask(Quad (&ys)[1], uint64_t row, uint32_t i, bool is_there,
                        const Meanwhile& meanwhile) const {
    const CombinedRow<10> combined(params, row);
    if (!is_there) return;
    ys[0] = combined.template quad<kWhole>(i, meanwhile);
    if (device::block_index<1>() != 0) return;
    float* y = params.y + row * params.y_stride;
    if (kWhole) {
      device::store_as<Quad>(y + i, ys[0]);
    } else {
      store_quad(y, i, params.n, has_quads(params.y, params.y_stride), ys[0]);
    }
  }
};

/// Grid (rows, streams). Every stream's block puts the row together.
ATLAS_EARLY_KERNEL(combine_inject_norm, CombineInjectNormParams, kCombineInjectNormThreads, 1) {
  inject_and_norm<kMaxCombineInjectNorm, kCombineInjectNormThreads, 1>(
      params.inject, AddedExperts{params.combine, params.inject.n});
}

}  // namespace atlas::kernels

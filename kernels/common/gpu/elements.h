// Kernels in which every element of a row stands alone, for every GPU pack: add_bias, gate_mul,
// silu, silu_mul, select_rows, stream_mix, stream_inject, rope. Their contracts are core.h's.
#pragma once

#include "kernels/common/core.h"
#include "kernels/common/gpu/encoded_rows.h"

namespace atlas::kernels {

ATLAS_DEVICE_KERNEL(add_bias, AddBiasParams, kQuadThreads) {
  const bool aligned = has_quads(params.bias, 0) && has_quads(params.y, params.y_stride);
  each_quad(params.row_count, 1, params.n, [&](uint64_t row, uint32_t, uint32_t i) {
    float* y = params.y + row * params.y_stride;
    const Quad bias = load_quad(params.bias, i, params.n, aligned);
    Quad sum = load_quad(y, i, params.n, aligned);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) sum.f[j] = sum.f[j] + bias.f[j];
    store_quad(y, i, params.n, aligned, sum);
  });
}

ATLAS_DEVICE_KERNEL(gate_mul, GateMulParams, kQuadThreads) {
  const bool aligned = has_quads(params.x, params.x_stride | params.x_group_stride) &&
                       has_quads(params.gate, params.gate_stride | params.gate_group_stride) &&
                       has_quads(params.y, params.y_stride | params.y_group_stride);
  const auto make = [&](uint64_t row, uint64_t g, uint32_t i) {
    const float* x = params.x + row * params.x_stride + g * params.x_group_stride;
    const float* gate = params.gate + row * params.gate_stride + g * params.gate_group_stride;
    float* y = params.y + row * params.y_stride + g * params.y_group_stride;
    const Quad gates = load_quad(gate, i, params.n, aligned);
    Quad out = load_quad(x, i, params.n, aligned);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      const float divisor = 1.0f + device::exp(-gates.f[j]);
      out.f[j] = out.f[j] * device::divide(params.silu != 0 ? gates.f[j] : 1.0f, divisor);
    }
    store_quad(y, i, params.n, aligned, out);
    return out;
  };
  make_quads(params.row_count, params.groups, params.n, {params.encoded}, make);
}

ATLAS_DEVICE_KERNEL(silu, SiluParams, kQuadThreads) {
  const bool aligned = has_quads(params.x, params.x_stride) && has_quads(params.y, params.y_stride);
  const auto make = [&](uint64_t row, uint32_t, uint32_t i) {
    Quad quad = load_quad(params.x + row * params.x_stride, i, params.n, aligned);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) quad.f[j] = device::silu(quad.f[j] * params.scale);
    store_quad(params.y + row * params.y_stride, i, params.n, aligned, quad);
    return quad;
  };
  make_quads(params.row_count, 1, params.n, {params.encoded}, make);
}

ATLAS_DEVICE_KERNEL(silu_mul, SiluMulParams, kQuadThreads) {
  const uint32_t n = params.n;
  const bool aligned =
      has_quads(params.x, params.x_stride | n) && has_quads(params.y, params.y_stride);
  const auto make = [&](uint64_t row, uint32_t, uint32_t i) {
    const float* gate = params.x + row * params.x_stride;
    Quad quad = load_quad(gate, i, n, aligned);
    const Quad up = load_quad(gate + n, i, n, aligned);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) quad.f[j] = device::silu(quad.f[j]) * up.f[j];
    store_quad(params.y + row * params.y_stride, i, n, aligned, quad);
    return quad;
  };
  make_quads(params.row_count, 1, n, {params.encoded}, make);
}

ATLAS_DEVICE_KERNEL(select_rows, SelectRowsParams, kQuadThreads) {
  const bool aligned = has_quads(params.x, params.x_stride) && has_quads(params.y, params.y_stride);
  each_quad(params.row_count, 1, params.n, [&](uint64_t row, uint32_t, uint32_t i) {
    const uint64_t from = device::load(params.index + row);
    store_quad(params.y + row * params.y_stride, i, params.n, aligned,
               load_quad(params.x + from * params.x_stride, i, params.n, aligned));
  });
}

/// Streams whose loads are under way together.
inline constexpr uint32_t kStreamsAhead = 4;

ATLAS_DEVICE_KERNEL(stream_mix, StreamMixParams, kQuadThreads) {
  const uint32_t n = params.n;
  const bool aligned = has_quads(params.gate, params.gate_stride | n) &&
                       has_quads(params.x, params.x_stride) && has_quads(params.u, params.u_stride);
  const auto make = [&](uint64_t row, uint32_t, uint32_t i) {
    const float* gate = params.gate + row * params.gate_stride;
    const float* x = params.x + row * params.x_stride;
    Quad sum = {};
    for (uint32_t first = 0; first < params.streams; first += kStreamsAhead) {
      Quad gates[kStreamsAhead], values[kStreamsAhead];
      ATLAS_UNROLL
      for (uint32_t s = 0; s < kStreamsAhead; ++s) {
        if (first + s >= params.streams) break;
        gates[s] = load_quad(gate + uint64_t{first + s} * n, i, n, aligned);
        values[s] = load_quad(x + uint64_t{first + s} * n, i, n, aligned);
      }
      ATLAS_UNROLL
      for (uint32_t s = 0; s < kStreamsAhead; ++s) {
        if (first + s >= params.streams) break;
        for (uint32_t j = 0; j < 4; ++j) {
          sum.f[j] = device::fma(device::sigmoid(gates[s].f[j]), values[s].f[j], sum.f[j]);
        }
      }
    }
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      sum.f[j] = device::divide(sum.f[j], static_cast<float>(params.streams));
    }
    store_quad(params.u + row * params.u_stride, i, n, aligned, sum);
    return sum;
  };
  make_quads(params.row_count, 1, n, {params.encoded, params.encoded_f16}, make);
}

/// Grid (rows, quad_blocks(1, n), streams).
ATLAS_DEVICE_KERNEL(stream_inject, StreamInjectParams, kQuadThreads) {
  const uint32_t n = params.n;
  const uint64_t s = device::block_index<2>();
  const bool aligned =
      has_quads(params.y, params.y_stride) && has_quads(params.x, params.x_stride | n);
  each_quad(params.row_count, 1, n, [&](uint64_t row, uint32_t, uint32_t i) {
    float* x = params.x + row * params.x_stride + s * n;
    const Quad y = load_quad(params.y + row * params.y_stride, i, n, aligned);
    Quad out = load_quad(x, i, n, aligned);
    const float c = device::load(params.c + row * params.c_stride + s);
    const float scale =
        2.0f * device::sigmoid(device::divide(c, static_cast<float>(params.streams)));
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) out.f[j] = device::fma(scale, y.f[j], out.f[j]);
    store_quad(x, i, n, aligned, out);
  });
}

/// Grid (rows, blocks of rope_heads heads). Cosines and sines are made once a block, for all of its
/// heads, in float64.
ATLAS_DEVICE_KERNEL(rope, RopeParams, kRopeThreads) {
  using namespace device;
  const uint64_t row = block_index();
  if (row >= load(&params.rows->row_count)) return;
  float* cosines = shared_memory<float>();
  float* sines = cosines + kRopePairs;
  const RowInput* input = load(&params.rows->rows) + row;
  const auto position = static_cast<float>(load(&input->position[0]));
  const uint32_t half = params.rotary_dim / 2, of_block = rope_heads(params.rotary_dim);
  const uint32_t first_head = block_index<1>() * of_block;
  const uint32_t left = first_head < params.heads ? params.heads - first_head : 0;
  const uint32_t heads = left < of_block ? left : of_block;
  float* x = params.x + row * params.x_stride + uint64_t{first_head} * params.head_dim;
  const uint32_t apart = params.interleaved != 0 ? 1 : half;  // of the two elements of a pair

  for (uint32_t first = 0; first < half; first += kRopePairs) {
    const uint32_t count = half - first < kRopePairs ? half - first : kRopePairs;
    if (first != 0) block_barrier();  // the last pairs' angles have been read by all
    for (uint32_t i = thread_index(); i < count; i += kRopeThreads) {
      float cosine, sine;
      rotary_angle(position, load(params.inverse_frequency + first + i), params.magnitude, cosine,
                   sine);
      store(cosines + i, cosine);
      store(sines + i, sine);
    }
    block_barrier();  // angles are written before other threads read them
    constexpr uint32_t kAhead = kRopeItems / kRopeThreads;  // loads under way together
    for (uint32_t base = thread_index(); base < heads * count; base += kRopeItems) {
      float* at[kAhead];
      uint32_t pair[kAhead];
      float a[kAhead], b[kAhead];
      ATLAS_UNROLL
      for (uint32_t k = 0; k < kAhead; ++k) {
        const uint32_t item = base + k * kRopeThreads, head = item / count;
        pair[k] = item - head * count;
        const uint32_t place = first + pair[k];
        at[k] =
            x + uint64_t{head} * params.head_dim + (params.interleaved != 0 ? 2 * place : place);
        if (item >= heads * count) continue;
        a[k] = load(at[k]);
        b[k] = load(at[k] + apart);
      }
      ATLAS_UNROLL
      for (uint32_t k = 0; k < kAhead; ++k) {
        if (base + k * kRopeThreads >= heads * count) continue;
        const float c = load(cosines + pair[k]), s = load(sines + pair[k]);
        store(at[k], a[k] * c - b[k] * s);
        store(at[k] + apart, b[k] * c + a[k] * s);
      }
    }
  }
}

}  // namespace atlas::kernels

// A kernel that calls every function of the device layer, so that each is compiled for each
// platform. The build looks for the instructions that it should have become; nothing runs it.
#pragma once

#include "kernels/common/device/byte_sums.h"
#include "kernels/common/device/device.h"

namespace atlas::kernels {

// clang-format off
ATLAS_PARAMS(LayerParams,
  const float* x;
  float* y;
  uint32_t* words;
  uint64_t* long_words;
);
// clang-format on

ATLAS_DEVICE float call_memory(const LayerParams& params) {
  using namespace device;
  float* tile = shared_memory<float>();
  const uint32_t t = thread_index();
  async_copy<16>(tile + 4 * t, params.x + 4 * t);
  async_copy<8>(tile + 4 * t, params.x + 4 * t);
  async_commit();
  async_copy<4>(tile + 4 * t, params.x + 4 * t);
  async_commit();
  async_wait<1>();
  async_wait<0>();
  block_barrier();
  const Words4 four = load_once(params.x + 8 * t);
  store_as(params.y + 8 * t, load_as<Floats4>(tile + 4 * t));
  store_as(params.y + 8 * t + 4, load_as<Floats2>(tile + 4 * t));
  return load(tile + t) + bits_as<float>(four.w[0]);
}

ATLAS_DEVICE uint32_t call_atomics(const LayerParams& params) {
  using namespace device;
  uint32_t* at = params.words;
  uint32_t sum = atomic_add<Order::kAcqRel>(at, 1u) + atomic_or<Order::kRelease>(at + 1, 2u) +
                 atomic_and<Order::kAcquire>(at + 2, 3u) + atomic_max(at + 3, 4u) +
                 atomic_min(at + 4, 5u) + atomic_exchange<Order::kRelease>(at + 5, 1u);
  sum += atomic_compare_exchange<Order::kAcqRel, Scope::kSystem>(at + 6, 1u, 2u);
  sum += static_cast<uint32_t>(atomic_add(params.long_words, uint64_t{7}));
  while (atomic_load<Order::kAcquire>(at + 7) != grid_blocks()) pause();
  device_fence();
  atomic_store<Order::kRelease, Scope::kSystem>(at + 8, static_cast<uint32_t>(clock_ns()));
  system_fence();
  return sum;
}

ATLAS_DEVICE uint32_t call_bits(uint32_t a, uint32_t b) {
  using namespace device;
  const uint32_t c = funnel_right(a, b, b % 32) + sum_of_bytes(a, b) + sum_of_bytes_beside(b);
  return f16_fma(low_halves(a, c), high_halves(b, c), f16_add(a, b));
}

ATLAS_DEVICE float call_warp(float value) {
  using namespace device;
  warp_barrier();
  value +=
      shuffle(value, 3) + shuffle_xor(value, 3) + shuffle_up(value, 2) + shuffle_down(value, 1);
  value += static_cast<float>(shuffle_xor(uint64_t{lane_index()} << 32, 1) >> 32);
  const uint32_t votes = ballot(value > 1.0f);
  if (any(value > 3.0f) || all(value > 4.0f)) value += static_cast<float>(count_bits(votes));
  return value + static_cast<float>(lowest_bit(votes | 1u << 31));
}

ATLAS_DEVICE float call_numbers(float x) {
  using namespace device;
  const uint32_t code =
      bf16_pair(x, 1.0f) + f16_pair(x, 2.0f) + e4m3_of(x) + e2m1_of(x) + ue8m0_up(x);
  x += bf16_low(code) + bf16_high(code) + f16_low(code) + f16_high(code) + e4m3_value(code & 255) +
       e2m1_value(code & 15) + ue8m0_value(code & 255);
  x += exp(x) + silu(x) + sigmoid(x) + square_root(x) + fma(x, x, 1.0f) + divide(1.0f, x);
  return x + static_cast<float>(dot4(code, code, 1));
}

ATLAS_DEVICE float call_matrix(uint32_t code) {
  using namespace device;
#if defined(ATLAS_HAS_MMA_SYNC)
  const MmaA a{{code, code + 1, code + 2, code + 3}};
  const MmaB b{{code, code * 3}};
  MmaSums sums{};
  MmaIntSums counts{};
  mma_f16(sums, a, b);
  mma_bf16(sums, a, b);
  mma_e4m3(sums, a, b);
  mma_s8(counts, a, b);
#if defined(ATLAS_HAS_MMA_FP4)
  mma_nvfp4(sums, a, b, code, code + 1);
#endif
#else
  const WmmaHalves halves{{code, code + 1}};
  const WmmaBytes bytes{{code, code + 4, 1, 2}};
  WmmaSums sums{};
  WmmaIntSums counts{};
  wmma_f16(sums, halves, halves);
  wmma_bf16(sums, halves, halves);
  wmma_s8(counts, bytes, bytes);
#endif
  return sums.r[0] + static_cast<float>(counts.r[1]);
}

ATLAS_DEVICE_KERNEL(layer, LayerParams, 64) {
  using namespace device;
  const float value = call_numbers(call_warp(call_memory(params)));
  const float product = call_matrix(call_bits(bits_as<uint32_t>(value), call_atomics(params)));
  const uint32_t place = (block_index<2>() * grid_blocks<1>() + block_index<1>()) * grid_blocks() +
                         block_index() + warp_index() + grid_blocks<2>();
  store(params.y + place + block_threads(), value + product);
}

}  // namespace atlas::kernels

// Logits in an order of integers, for reductions in any order of lanes and blocks.
#pragma once

#include "kernels/common/device/device.h"

namespace atlas::kernels {

/// The order of logits as integers: -infinity and NaN are the lowest (kLowestOrder), 0 and -0
/// equal. No logit has 0.
inline constexpr uint32_t kLowestOrder = 0x007fffffu;
ATLAS_DEVICE uint32_t order_of(float x) {
  if (!(x == x)) return kLowestOrder;
  const uint32_t bits = device::bits_as<uint32_t>(x == 0.0f ? 0.0f : x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
ATLAS_DEVICE float value_of(uint32_t order) {
  return device::bits_as<float>((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

/// The largest of all threads' orders, and the lowest id that has it. `shared` has 2 * kWarpLanes
/// words; all threads of the block come and get the result.
struct OrderedId {
  uint32_t order, id;
};
ATLAS_DEVICE OrderedId warp_first(OrderedId own) {
  const uint32_t order = device::warp_max(own.order);
  return {order, device::warp_min(own.order == order ? own.id : 0xffffffffu)};
}
template <uint32_t kThreads>
ATLAS_DEVICE OrderedId block_first(OrderedId own, uint32_t* shared) {
  using namespace device;
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  const OrderedId of_warp = warp_first(own);
  if (lane_index() == 0) {
    store(shared + warp_index(), of_warp.order);
    store(shared + kWarpLanes + warp_index(), of_warp.id);
  }
  block_barrier();  // every warp's first is there
  OrderedId held = {0, 0xffffffffu};
  if (lane_index() < kWarps) {
    held = {load(shared + lane_index()), load(shared + kWarpLanes + lane_index())};
  }
  const OrderedId first = warp_first(held);
  block_barrier();  // read by all before `shared` is used again
  return first;
}

}  // namespace atlas::kernels

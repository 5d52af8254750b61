// A row of a router's logits as the lanes of a warp share it, for the kernels that choose experts.
#pragma once

#include "kernels/common/gpu/order.h"

namespace atlas::kernels {

/// A logit's order and its expert. Larger logits come first, then lower experts.
struct Ranked {
  uint32_t order, expert;
};

/// The logits of a row as one lane sees them: those of experts lane, lane + 32, ... The first 512
/// stand in registers.
class LaneLogits {
 public:
  ATLAS_DEVICE LaneLogits(const float* logits, uint32_t experts)
      : logits_(logits), experts_(experts) {
    using namespace device;
    // All are under way before the first is used; a whole row's without conditions.
    const auto* from = reinterpret_cast<const uint32_t*>(logits) + lane_index();
    left_ = experts > lane_index() ? experts - lane_index() : 0;
    if (experts >= kHeld * kWarpLanes) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kHeld; ++i) held_[i] = load(from + i * kWarpLanes);
    } else {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kHeld; ++i) {
        held_[i] = 0;
        if (i * kWarpLanes < left_) held_[i] = load(from + i * kWarpLanes);
      }
    }
  }

  /// Waits for them. Until then they are not to be used.
  ATLAS_DEVICE void arrive() {
    using namespace device;
    uint32_t highest = 0, lowest = 0xffffffffu;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kHeld; ++i) {  // order_of, but for NaN
      // With 0 added, -0 has the bits of 0.
      const auto bits = bits_as<uint32_t>(bits_as<float>(held_[i]) + 0.0f);
      held_[i] = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
      highest = held_[i] > highest ? held_[i] : highest;
      lowest = held_[i] < lowest ? held_[i] : lowest;
    }
    // NaN lies past the infinities.
    numbers_ = highest <= kHighestOrder && lowest >= kLowestOrder;
    if (!numbers_) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kHeld; ++i) {
        if (held_[i] > kHighestOrder || held_[i] < kLowestOrder) held_[i] = kLowestOrder;
      }
    }
    if (experts_ < kHeld * kWarpLanes) {
      ATLAS_UNROLL
      for (uint32_t i = 0; i < kHeld; ++i) held_[i] = i * kWarpLanes < left_ ? held_[i] : 0;
    }
    ATLAS_ROLLED
    for (uint32_t expert = first_left(); expert < experts_; expert += kWarpLanes) {
      const float x = load(logits_ + expert);
      numbers_ = numbers_ && x == x;
    }
  }
  ATLAS_DEVICE bool numbers() const { return numbers_; }

  /// The largest order of this lane's; 0 without experts.
  ATLAS_DEVICE uint32_t most() const {
    uint32_t most = 0;
    each([&](uint32_t order, uint32_t) { most = order > most ? order : most; });
    return most;
  }

  /// Calls body(order, expert) for each of this lane's experts, and may do so with an order of 0.
  template <typename Body>
  ATLAS_DEVICE void each(const Body& body) const {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kHeld; ++i) {
      body(held_[i], i * device::kWarpLanes + device::lane_index());
    }
    ATLAS_ROLLED
    for (uint32_t expert = first_left(); expert < experts_; expert += device::kWarpLanes) {
      body(order_of(device::load(logits_ + expert)), expert);
    }
  }

  /// The first of this lane's experts that comes after `last`; an order of 0 if there is none.
  ATLAS_DEVICE Ranked after(const Ranked& last) const {
    Ranked best = {0, 0xffffffffu};
    each([&](uint32_t order, uint32_t expert) {
      if (order > last.order || (order == last.order && expert <= last.expert)) return;
      // Experts ascend, so that of equal ones the first stays.
      if (order > best.order) best = {order, expert};
    });
    return best;
  }

 private:
  static constexpr uint32_t kHeld = 16;
  static constexpr uint32_t kHighestOrder = 0xff800000u;  // of infinity
  ATLAS_DEVICE static uint32_t first_left() {
    return kHeld * device::kWarpLanes + device::lane_index();
  }
  const float* logits_;
  uint32_t experts_, left_;  // left_: from this lane's first on
  uint32_t held_[kHeld];
  bool numbers_ = true;
};

/// The first `top` of a row one after the other: lane j gets choice j.
ATLAS_DEVICE Ranked choose_in_turn(const LaneLogits& own, uint32_t top) {
  using namespace device;
  Ranked best = own.after({0xffffffffu, 0}), chosen = {0, 0};
  ATLAS_ROLLED
  for (uint32_t j = 0; j < top; ++j) {
    const uint32_t order = warp_max(best.order);
    const uint32_t expert = warp_min(best.order == order ? best.expert : 0xffffffffu);
    if (lane_index() == j) chosen = {order, expert};
    if (best.order == order && best.expert == expert) best = own.after({order, expert});
  }
  return chosen;
}

}  // namespace atlas::kernels

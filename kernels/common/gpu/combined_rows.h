// A row's experts put together, as combine_experts of core.h says, for the kernels that do so.
#pragma once

#include "kernels/common/core.h"
#include "kernels/common/gpu/quads.h"

namespace atlas::kernels {

/// One row as a warp sees it: lane j has the place and the weight of choice j, so that an element's
/// loads wait for two others and not for two a choice. `kAhead`: choices whose loads are under way
/// together.
template <uint32_t kAhead>
class CombinedRow {
 public:
  ATLAS_DEVICE CombinedRow(const CombineExpertsParams& params, uint64_t row) : params_(params) {
    if (device::lane_index() < params.top) {
      const uint64_t at = row * params.top + device::lane_index();
      place_ = device::load(params.place + at);
      weight_ = device::load(params.weights + at);
    }
    if (params.shared == nullptr) return;
    shared_ = params.shared + row * params.shared_stride;
    if (params.shared_gate != nullptr) {
      gate_ = device::load(params.shared_gate + row * params.shared_gate_stride);
    }
  }

  /// Whether all rows are aligned, and all their choices under way together.
  ATLAS_DEVICE static bool is_whole(const CombineExpertsParams& params) {
    return takes_quads(params) && params.top <= kAhead && params.n % 4 == 0 &&
           has_quads(params.shared, params.shared_stride);
  }

  /// Elements [i, i + 4) of y; those past the end are 0. Warps come whole. `meanwhile` is called
  /// when the first loads are under way. With kWhole, is_whole() and i + 4 <= n.
  template <bool kWhole = false, typename Meanwhile>
  ATLAS_DEVICE Quad quad(uint32_t i, const Meanwhile& meanwhile) const {
    using namespace device;
    const uint32_t n = params_.n, top = params_.top;
    Quad shared = {}, values[kAhead] = {}, sum = {};
    if (kWhole && shared_ != nullptr) {
      shared = load_as<Quad>(shared_ + i);
    } else if (shared_ != nullptr) {
      shared = load_quad(shared_, i, n, has_quads(shared_, 0));
    }
    ask<kWhole>(values, 0, i);
    meanwhile();
    const bool gated = shared_ != nullptr && params_.shared_gate != nullptr;
    const float factor = gated ? sigmoid(gate_) : 1.0f;
    add_choices(sum, values, 0);
    constexpr uint32_t kNext = kAhead < 5 ? kAhead : 5;
    for (uint32_t first = kAhead; !kWhole && first < top; first += kNext) {
      Quad next[kNext] = {};
      ask<false>(next, first, i);
      add_choices(sum, next, first);
    }
    if (shared_ != nullptr) add(sum, factor, shared);
    return sum;
  }

 private:
  ATLAS_DEVICE static bool takes_quads(const CombineExpertsParams& params) {
    return has_quads(params.x, params.x_stride) && params.x_stride >> 30 == 0;
  }
  ATLAS_DEVICE static void add(Quad& sum, float scale, const Quad& value) {
    ATLAS_UNROLL
    for (uint32_t e = 0; e < 4; ++e) sum.f[e] = device::fma(scale, value.f[e], sum.f[e]);
  }

  template <uint32_t kCount>
  ATLAS_DEVICE void add_choices(Quad& sum, const Quad (&values)[kCount], uint32_t first) const {
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kCount; ++j) {
      const float scale = device::shuffle(weight_, first + j);
      if (first + j < params_.top) add(sum, scale, values[j]);
    }
  }

  /// Quads at i of kCount choices from `first` on.
  template <bool kWhole, uint32_t kCount>
  ATLAS_DEVICE void ask(Quad (&values)[kCount], uint32_t first, uint32_t i) const {
    using namespace device;
    uint32_t places[kCount];
    ATLAS_UNROLL
    for (uint32_t j = 0; j < kCount; ++j) places[j] = shuffle(place_, first + j);
    // One decision for all, so that they are under way together, with a short multiplication each.
    const uint64_t row_bytes = params_.x_stride * sizeof(float);
    if (kWhole || (takes_quads(params_) && i + 4 <= params_.n)) {
      const auto* x = reinterpret_cast<const uint8_t*>(params_.x + i);
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kCount; ++j) {
        const uint8_t* from = x + uint64_t{places[j]} * static_cast<uint32_t>(row_bytes);
        if (first + j < params_.top) values[j] = load_as<Quad>(from);
      }
    } else {
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kCount; ++j) {
        if (first + j >= params_.top) continue;
        values[j] = load_quad(params_.x + places[j] * params_.x_stride, i, params_.n, false);
      }
    }
  }

  const CombineExpertsParams& params_;
  uint32_t place_ = 0;
  float weight_ = 0.0f, gate_ = 0.0f;
  const float* shared_ = nullptr;
};

}  // namespace atlas::kernels

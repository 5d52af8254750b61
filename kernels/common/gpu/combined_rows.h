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

  /// Elements [i, i + 4) of y; those past the end are 0. Warps come whole.
  ATLAS_DEVICE Quad quad(uint32_t i) const {
    using namespace device;
    const uint32_t n = params_.n, top = params_.top;
    const bool aligned = has_quads(params_.x, params_.x_stride);
    Quad shared = {}, sum = {};
    if (shared_ != nullptr) shared = load_quad(shared_, i, n, has_quads(shared_, 0));
    for (uint32_t first = 0; first < top; first += kAhead) {
      const float* from[kAhead];
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kAhead; ++j) {
        from[j] = params_.x + shuffle(place_, first + j) * params_.x_stride;
      }
      Quad values[kAhead] = {};
      if (aligned && i + 4 <= n) {  // one decision for all, so that they are under way together
        ATLAS_UNROLL
        for (uint32_t j = 0; j < kAhead; ++j) {
          if (first + j < top) values[j] = load_as<Quad>(from[j] + i);
        }
      } else {
        ATLAS_UNROLL
        for (uint32_t j = 0; j < kAhead; ++j) {
          if (first + j < top) values[j] = load_quad(from[j], i, n, false);
        }
      }
      ATLAS_UNROLL
      for (uint32_t j = 0; j < kAhead; ++j) {
        const float scale = shuffle(weight_, first + j);
        ATLAS_UNROLL
        for (uint32_t e = 0; e < 4; ++e) {
          if (first + j < top) sum.f[e] = fma(scale, values[j].f[e], sum.f[e]);
        }
      }
    }
    if (shared_ == nullptr) return sum;
    const float factor = params_.shared_gate != nullptr ? sigmoid(gate_) : 1.0f;
    ATLAS_UNROLL
    for (uint32_t e = 0; e < 4; ++e) sum.f[e] = fma(factor, shared.f[e], sum.f[e]);
    return sum;
  }

 private:
  const CombineExpertsParams& params_;
  uint64_t place_ = 0;
  float weight_ = 0.0f, gate_ = 0.0f;
  const float* shared_ = nullptr;
};

}  // namespace atlas::kernels

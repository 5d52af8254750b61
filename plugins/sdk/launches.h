// The list of launches that step_create is given: how to walk it, and what every platform checks.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/sdk/guard.h"

namespace atlas::sdk {

/// What every runtime takes; CUDA before 12.1 refuses more.
inline constexpr uint32_t kMaxParamsBytes = 4096;

/// A view of step_create's launches that has been checked: grids of 1 to 2^32 - 1 tasks, parameters
/// that are there and not too large, kernels that are known.
class LaunchList {
 public:
  /// `known_kernel(handle)` says whether the device gave that handle out. Throws Failure
  /// (ATLAS_INVALID_ARGUMENT) that names the launch.
  template <typename KnownKernel>
  LaunchList(const AtlasLaunch* launches, uint32_t count, AtlasStepMode mode,
             const KnownKernel& known_kernel)
      : first_(reinterpret_cast<const char*>(launches)), count_(count) {
    if (mode != ATLAS_STEP_GRAPH && mode != ATLAS_STEP_EAGER) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "step mode " + std::to_string(mode) + " is unknown");
    }
    if (launches == nullptr || count == 0) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "a step needs at least one launch");
    }
    // The array's stride is the caller's size of the struct, which a later minor version may
    // extend.
    stride_ = launches->struct_size;
    if (stride_ < ATLAS_LAUNCH_SIZE_1_0) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "AtlasLaunch has " + std::to_string(stride_) +
                                                " bytes, ABI 1.0's has " +
                                                std::to_string(ATLAS_LAUNCH_SIZE_1_0));
    }
    for (uint32_t i = 0; i < count_; ++i) {
      check(i);
      if (!known_kernel((*this)[i].kernel)) {
        refuse(i, "names kernel handle " + std::to_string((*this)[i].kernel) +
                      ", which no module of this device gave out");
      }
    }
  }

  uint32_t size() const { return count_; }
  const AtlasLaunch& operator[](uint32_t i) const {
    return *reinterpret_cast<const AtlasLaunch*>(first_ + size_t{stride_} * i);
  }
  /// The launches that must have ended when this one begins; none for the first.
  std::vector<uint32_t> after(uint32_t i) const {
    const AtlasLaunch& launch = (*this)[i];
    if (says_after() && launch.after_count != 0) {
      return {launch.after, launch.after + launch.after_count};
    }
    return i == 0 ? std::vector<uint32_t>() : std::vector<uint32_t>{i - 1};
  }
  /// Grid x * y * z.
  uint32_t tasks(uint32_t i) const {
    const AtlasLaunch& launch = (*this)[i];
    return launch.grid[0] * launch.grid[1] * launch.grid[2];
  }

 private:
  [[noreturn]] void refuse(uint32_t i, const std::string& reason) const {
    const char* name = (*this)[i].name;
    throw Failure(ATLAS_INVALID_ARGUMENT, "launch " + std::to_string(i) + " (" +
                                              (name == nullptr ? "unnamed" : name) + ") " + reason);
  }

  void check(uint32_t i) const {
    const AtlasLaunch& launch = (*this)[i];
    if (launch.struct_size != stride_) refuse(i, "has another struct_size than launch 0");
    uint64_t tasks = 1;
    for (const uint32_t side : launch.grid) {
      if (side == 0) refuse(i, "has a grid of 0 tasks");
      // Each factor is below 2^32 and the product so far too, so 64 bits hold it.
      tasks *= side;
      if (tasks > std::numeric_limits<uint32_t>::max()) {
        refuse(i, "has more than 2^32 - 1 tasks in its grid");
      }
    }
    if (launch.params_size > kMaxParamsBytes) {
      refuse(i, "has " + std::to_string(launch.params_size) + " bytes of parameters; at most " +
                    std::to_string(kMaxParamsBytes) + " are taken");
    }
    if (launch.params_size != 0 && launch.params == nullptr) {
      refuse(i, "has a params_size and no params");
    }
    if (!says_after()) return;
    if (launch.after_count != 0 && launch.after == nullptr)
      refuse(i, "has an after_count and no after");
    for (uint32_t k = 0; k < launch.after_count; ++k) {
      if (launch.after[k] < i) continue;
      refuse(i, "is to follow launch " + std::to_string(launch.after[k]) +
                    ", which does not stand before it");
    }
  }
  /// A caller of ABI 1.2 or earlier has launches in a row.
  bool says_after() const { return stride_ >= sizeof(AtlasLaunch); }

  const char* first_;
  uint32_t count_;
  uint32_t stride_ = 0;
};

}  // namespace atlas::sdk

// A step: a graph of its launches, or the list that an eager walk launches one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/gpu_common/device.h"
#include "plugins/sdk/launches.h"

namespace atlas::gpu {

class Step {
 public:
  /// Throws sdk::Failure: ATLAS_INVALID_ARGUMENT names a launch that the device cannot run,
  /// ATLAS_UNIMPLEMENTED says why there is no graph.
  Step(Device& device, const AtlasLaunch* launches, uint32_t count, AtlasStepMode mode);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  /// Submits one run to `stream`. Allocates nothing.
  void launch(void* stream);

 private:
  void add(const AtlasLaunch& launch, uint32_t index);
  void build_graph(const sdk::LaunchList& list);
  std::string name_of(uint32_t index) const;

  Device& device_;
  StepText text_;
  std::vector<Shape> shapes_;  // of an eager step, or while a graph is built
  std::vector<std::string> names_;
  std::vector<std::vector<std::byte>> params_;
  void* executable_ = nullptr;  // of a graph
};

}  // namespace atlas::gpu

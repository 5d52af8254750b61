// Buffers of a plan on a device: allocated by ledger line, so that generations can share some.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/device.h"
#include "daemon/plan/plan.h"

namespace atlas::exec {

/// Buffers that belong together: all weights, or all state, or all workspace of a generation.
class BufferSet {
 public:
  /// Allocates the plan's buffers that are on one of `lines`. Errors name the buffer.
  static Result<std::shared_ptr<BufferSet>> allocate(const std::shared_ptr<Device>& device,
                                                     const plan::Plan& plan,
                                                     const std::vector<plan::LedgerLine>& lines);
  /// By the plan's name; null if this set has none.
  const DeviceBuffer* find(const std::string& name) const;

 private:
  std::map<std::string, DeviceBuffer> buffers_;
};

/// Addresses of all buffers of one plan, by BufferId, and what keeps them alive.
class BufferTable {
 public:
  /// kInternal if a buffer of the plan is in none of the sets or smaller than planned.
  static Result<BufferTable> bind(const plan::Plan& plan,
                                  std::vector<std::shared_ptr<const BufferSet>> sets);
  const DeviceBuffer& at(plan::BufferId id) const { return *buffers_[id]; }

 private:
  std::vector<std::shared_ptr<const BufferSet>> sets_;
  std::vector<const DeviceBuffer*> buffers_;
};

}  // namespace atlas::exec

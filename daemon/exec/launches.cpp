#include "daemon/exec/launches.h"

#include <cstring>

namespace atlas::exec {
namespace {

/// Parameters with the addresses of their buffers in place.
std::vector<std::byte> relocate(const plan::Record& record, const BufferTable& buffers) {
  std::vector<std::byte> params = record.params;
  for (const AtlasRelocation& relocation : record.relocations) {
    const uint64_t address =
        buffers.at(relocation.target.buffer).address() + relocation.target.offset;
    std::memcpy(params.data() + relocation.param_offset, &address, sizeof(address));
  }
  return params;
}

Status check_relocations(const plan::Record& record, const plan::Plan& plan) {
  for (const AtlasRelocation& relocation : record.relocations) {
    const bool inside = relocation.param_offset <= record.params.size() &&
                        record.params.size() - relocation.param_offset >= sizeof(uint64_t);
    if (!inside || relocation.target.buffer >= plan.buffers.size() ||
        relocation.target.offset >= plan.buffers[relocation.target.buffer].bytes) {
      return internal_error(
          "{}: kernel '{}' of {} has a relocation outside of its parameters or of "
          "its buffer",
          record.operation, record.kernel, record.owner);
    }
  }
  return {};
}

}  // namespace

Result<StepLaunches> step_launches(const plan::Plan& plan, const plan::StepPlan& step,
                                   const KernelTable& kernels, const BufferTable& buffers) {
  StepLaunches result;
  for (const plan::Record& record : step.records) {
    ATLAS_RETURN_IF_ERROR(check_relocations(record, plan));
    result.params.push_back(relocate(record, buffers));
    result.launches.push_back({kernels.at(record.kernel), record.grid, record.block,
                               record.shared_bytes, result.params.back(),
                               record.operation + " (" + record.kernel + ")", record.after});
  }
  return result;
}

}  // namespace atlas::exec

#include "daemon/exec/buffers.h"

#include <algorithm>

namespace atlas::exec {

Result<std::shared_ptr<BufferSet>> BufferSet::allocate(const std::shared_ptr<Device>& device,
                                                       const plan::Plan& plan,
                                                       const std::vector<plan::LedgerLine>& lines) {
  auto set = std::make_shared<BufferSet>();
  for (const plan::Buffer& buffer : plan.buffers) {
    if (std::find(lines.begin(), lines.end(), buffer.line) == lines.end()) continue;
    auto memory = device->alloc(static_cast<MemoryKind>(buffer.memory), buffer.bytes);
    if (!memory) return memory.error().with_context(fmt::format("buffer '{}'", buffer.name));
    set->buffers_.emplace(buffer.name, std::move(*memory));
  }
  return set;
}

const DeviceBuffer* BufferSet::find(const std::string& name) const {
  const auto found = buffers_.find(name);
  return found == buffers_.end() ? nullptr : &found->second;
}

Result<BufferTable> BufferTable::bind(const plan::Plan& plan,
                                      std::vector<std::shared_ptr<const BufferSet>> sets) {
  BufferTable table;
  table.sets_ = std::move(sets);
  for (const plan::Buffer& buffer : plan.buffers) {
    const DeviceBuffer* found = nullptr;
    for (const auto& set : table.sets_) {
      if (found == nullptr) found = set->find(buffer.name);
    }
    if (found == nullptr || found->bytes() < buffer.bytes) {
      return internal_error("buffer '{}' of {} bytes is not allocated", buffer.name, buffer.bytes);
    }
    table.buffers_.push_back(found);
  }
  return table;
}

}  // namespace atlas::exec

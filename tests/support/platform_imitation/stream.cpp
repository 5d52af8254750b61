// Pageable memory never reaches the device process: it is copied here, to or from pinned memory.
#include "tests/support/platform_imitation/stream.h"

#include <algorithm>
#include <cstring>

namespace atlas::imitation {

Stream::Stream(Device& device) : device_(device), index_(device.open_stream()) {
  try {
    staging_ = device_.take_memory(ATLAS_MEMORY_PINNED, kStages * kStageBytes);
  } catch (...) {
    device_.close_stream(index_);
    throw;
  }
}

Stream::~Stream() {
  device_.close_stream(index_);
  try {
    device_.free(ATLAS_MEMORY_PINNED, staging_);
  } catch (const std::exception&) {
    // The device is lost, and with it the memory.
  }
}

void Stream::launch(uint64_t step) {
  device_.check_not_lost();
  device_.submit(shared(), device_.next_launch(step));
}

void Stream::copy(AtlasAddress to, AtlasAddress from, uint64_t bytes) {
  Command command{};
  command.kind = CommandKind::kCopy;
  command.to = to;
  command.from = from;
  command.bytes = bytes;
  device_.submit(shared(), command);
}

void Stream::fill(AtlasAddress to, uint8_t value, uint64_t bytes) {
  device_.check_range("fill", to, bytes);
  if (bytes == 0) return;
  Command command{};
  command.kind = CommandKind::kFill;
  command.to = to;
  command.bytes = bytes;
  command.value = value;
  device_.submit(shared(), command);
}

void Stream::copy_to_device(AtlasAddress to, const void* from, uint64_t bytes) {
  device_.check_range("copy to the device", to, bytes);
  if (bytes == 0) return;
  if (device_.is_pinned(from, bytes)) {
    return copy(to, reinterpret_cast<AtlasAddress>(from), bytes);
  }
  const char* next = static_cast<const char*>(from);
  while (bytes != 0) {
    const uint64_t part = std::min(bytes, kStageBytes);
    const uint32_t stage = next_stage_++ % kStages;
    device_.wait(shared(), stage_ticket_[stage], Device::kForever);
    const AtlasAddress staged = staging_ + stage * kStageBytes;
    std::memcpy(reinterpret_cast<void*>(staged), next, part);
    copy(to, staged, part);
    stage_ticket_[stage] = submitted();
    to += part;
    next += part;
    bytes -= part;
  }
}

void Stream::copy_to_host(void* to, AtlasAddress from, uint64_t bytes) {
  device_.check_range("copy to the host", from, bytes);
  if (bytes == 0) return;
  if (device_.is_pinned(to, bytes)) return copy(reinterpret_cast<AtlasAddress>(to), from, bytes);
  char* next = static_cast<char*>(to);
  while (bytes != 0) {
    const uint64_t part = std::min(bytes, kStageBytes * kStages);
    copy(staging_, from, part);
    synchronize();
    std::memcpy(next, reinterpret_cast<const void*>(staging_), part);
    from += part;
    next += part;
    bytes -= part;
  }
}

void Stream::synchronize() { device_.wait(shared(), submitted(), Device::kForever); }

}  // namespace atlas::imitation

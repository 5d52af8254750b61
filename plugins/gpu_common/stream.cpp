// Waiting is polling, with a deadline: the runtimes' own waits have none, and a kernel may hang.
#include "plugins/gpu_common/stream.h"

#include <algorithm>
#include <cstring>

namespace atlas::gpu {

Mark::Mark(Device& device) : device_(device) {
  device_.enter();
  device_.check(device_.runtime().event_create(&handle_));
}

Mark::~Mark() {
  if (device_.is_lost() || device_.runtime().bind().result != 0) return;
  (void)device_.runtime().event_destroy(handle_);
}

Queue::Queue(Device& device) : device_(device) {
  device_.enter();
  device_.check(device_.runtime().stream_create(&handle_));
  device_.add_stream(handle_);
}

Queue::~Queue() {
  try {
    device_.enter();
    drain();
  } catch (const std::exception&) {
    // Who waited for the work has been told; here nothing is left to do for a lost device.
  }
  device_.remove_stream(handle_);
  if (!device_.is_lost()) (void)device_.runtime().stream_destroy(handle_);
}

void Queue::drain() {
  device_.wait([this] { return device_.runtime().stream_query(handle_); }, kForever,
               [] { return std::string("a stream's work"); });
}

Stream::Stream(Device& device)
    : device_(device),
      staging_(device.alloc(ATLAS_MEMORY_PINNED, kStages * kStageBytes)),
      queue_(device),
      marks_{Mark(device), Mark(device), Mark(device), Mark(device)} {}

Stream::~Stream() {
  try {
    device_.enter();
    queue_.drain();
    device_.free(ATLAS_MEMORY_PINNED, staging_);
  } catch (const std::exception&) {
    // The device is lost, and with it the memory.
  }
}

void Stream::launch(Step& step) {
  device_.enter();
  step.launch(handle());
}

char* Stream::stage(uint64_t part) const {
  return reinterpret_cast<char*>(staging_ + part % kStages * kStageBytes);
}

void Stream::mark_stage(uint64_t part) {
  device_.check(device_.runtime().event_record(marks_[part % kStages].handle(), handle()));
}

void Stream::wait_for_stage(uint64_t part) {
  void* mark = marks_[part % kStages].handle();
  device_.wait([&] { return device_.runtime().event_query(mark); }, kForever,
               [] { return std::string("the work before a copy"); });
}

void Stream::copy_to_device(AtlasAddress to, const void* from, uint64_t bytes) {
  device_.enter();
  device_.check_range("copy to the device", to, bytes);
  if (bytes == 0) return;
  Runtime& runtime = device_.runtime();
  if (device_.is_pinned(from, bytes)) {
    device_.check(runtime.copy_to_device(to, from, bytes, handle()));
    return;
  }
  const char* next = static_cast<const char*>(from);
  while (bytes != 0) {
    const uint64_t size = std::min(bytes, kStageBytes);
    const uint64_t part = next_part_++;
    if (part >= kStages) wait_for_stage(part);
    std::memcpy(stage(part), next, size);
    device_.check(runtime.copy_to_device(to, stage(part), size, handle()));
    mark_stage(part);
    to += size;
    next += size;
    bytes -= size;
  }
}

void Stream::copy_to_host(void* to, AtlasAddress from, uint64_t bytes) {
  device_.enter();
  device_.check_range("copy to the host", from, bytes);
  if (bytes == 0) return;
  Runtime& runtime = device_.runtime();
  if (device_.is_pinned(to, bytes)) {
    device_.check(runtime.copy_to_host(to, from, bytes, handle()));
    return;
  }
  const uint64_t first = next_part_;
  const uint64_t parts = (bytes + kStageBytes - 1) / kStageBytes;
  const auto size_of = [&](uint64_t i) { return std::min(kStageBytes, bytes - i * kStageBytes); };
  for (uint64_t drained = 0; drained < parts; ++drained) {
    // As many copies ahead as there are stages. The stream's order keeps them behind whatever
    // still reads a stage.
    for (; next_part_ - first < std::min(parts, drained + kStages); ++next_part_) {
      const uint64_t i = next_part_ - first;
      device_.check(
          runtime.copy_to_host(stage(next_part_), from + i * kStageBytes, size_of(i), handle()));
      mark_stage(next_part_);
    }
    wait_for_stage(first + drained);
    std::memcpy(static_cast<char*>(to) + drained * kStageBytes, stage(first + drained),
                size_of(drained));
  }
}

void Stream::fill(AtlasAddress to, uint8_t value, uint64_t bytes) {
  device_.enter();
  device_.check_range("fill", to, bytes);
  if (bytes != 0) device_.check(device_.runtime().fill(to, value, bytes, handle()));
}

void Stream::synchronize() {
  device_.enter();
  queue_.drain();
}

void Event::record(const Stream& stream) {
  device_.enter();
  device_.check(device_.runtime().event_record(mark_.handle(), stream.handle()));
  recorded_.store(true, std::memory_order_release);
}

bool Event::wait(uint64_t timeout_ns) {
  device_.enter();
  if (!recorded_.load(std::memory_order_acquire)) return true;
  return device_.wait([this] { return device_.runtime().event_query(mark_.handle()); }, timeout_ns,
                      [] { return std::string("the work before an event"); });
}

}  // namespace atlas::gpu

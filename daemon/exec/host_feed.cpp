#include "daemon/exec/host_feed.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "daemon/base/log.h"
#include "kernels/common/core.h"

namespace atlas::exec {

using namespace std::chrono_literals;
using kernels::FeedAnswer;
using kernels::FeedRequest;

namespace {

/// How often a step that has not asked yet is looked at. A step lasts milliseconds; nobody can wake
/// a host thread from inside a graph.
constexpr auto kPoll = 20us;

}  // namespace

HostFeed::HostFeed(const plan::Plan& plan, const BufferTable& buffers,
                   std::shared_ptr<RowSource> source)
    : feed_(*plan.feed),
      ring_entries_(plan.limits.ring_entries),
      max_rows_(plan.limits.max_rows),
      requests_(reinterpret_cast<unsigned char*>(buffers.at(feed_.requests).host().data())),
      answers_(reinterpret_cast<unsigned char*>(buffers.at(feed_.answers).host().data())),
      source_(std::move(source)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

HostFeed::~HostFeed() {
  thread_.request_stop();
  wake_.notify_all();
}

void HostFeed::expect(uint64_t step) {
  const std::scoped_lock lock(mutex_);
  expected_.push_back(step);
  wake_.notify_one();
}

void HostFeed::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    uint64_t step = 0;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [this] { return !expected_.empty(); })) return;
      step = expected_.front();
      expected_.pop_front();
    }
    if (wait_for_keys(step, stop)) answer(step);
  }
}

bool HostFeed::wait_for_keys(uint64_t step, const std::stop_token& stop) const {
  unsigned char* at = requests_ + (step - 1) % ring_entries_ * feed_.request_bytes;
  std::atomic_ref<uint64_t> published(reinterpret_cast<FeedRequest*>(at)->step);
  while (!stop.stop_requested()) {
    const uint64_t found = published.load(std::memory_order_acquire);
    // A later step in this place: the device gave this one up.
    if (found >= step) return found == step;
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

void HostFeed::answer(uint64_t step) {
  const uint64_t place = (step - 1) % ring_entries_;
  const unsigned char* request_bytes = requests_ + place * feed_.request_bytes;
  const auto& request = *reinterpret_cast<const FeedRequest*>(request_bytes);
  unsigned char* answer_bytes = answers_ + place * feed_.answer_bytes;
  auto& head = *reinterpret_cast<FeedAnswer*>(answer_bytes);
  auto* status = reinterpret_cast<uint32_t*>(answer_bytes + kernels::feed_status_offset());
  auto* rows = reinterpret_cast<float*>(answer_bytes + kernels::feed_rows_offset(max_rows_));
  const auto* keys = reinterpret_cast<const uint64_t*>(request_bytes + kernels::feed_keys_offset());
  const uint32_t count = std::min(request.row_count, max_rows_);
  const uint64_t heads = feed_.heads;
  std::fill_n(status, count, 0u);
  Status read = source_->read({keys, count * heads}, rows);
  if (!read.ok()) {
    log_error("n-gram rows of step {}: {}", step, read.message());
    // Only the rows that cannot be read fail, and with them their sequences.
    for (uint32_t row = 0; row < count; ++row) {
      const bool good = source_->read({keys + row * heads, heads}, rows + row * feed_.width).ok();
      status[row] = good ? 0u : uint32_t{kernels::kErrorFeed};
    }
  }
  std::atomic_ref<uint64_t>(head.step).store(step, std::memory_order_release);
}

}  // namespace atlas::exec

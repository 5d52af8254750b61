// HostFeed: brings a step the rows that it asks for while it runs (kernels/common/core.h,
// FeedRequest).
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "daemon/exec/buffers.h"
#include "daemon/exec/row_table.h"
#include "daemon/plan/plan.h"

namespace atlas::exec {

/// One a control block. A thread of its own waits for each step's keys, reads their rows and
/// answers; a step that gets no answer in time goes on with an error of its own.
class HostFeed {
 public:
  HostFeed(const plan::Plan& plan, const BufferTable& buffers, std::shared_ptr<RowSource> source);
  ~HostFeed();

  /// Step `step` is about to be launched.
  void expect(uint64_t step);

 private:
  void run(const std::stop_token& stop);
  /// Whether the device has published the step's keys; waits for them until stopped.
  bool wait_for_keys(uint64_t step, const std::stop_token& stop) const;
  void answer(uint64_t step);

  const plan::FeedPlan feed_;
  const uint32_t ring_entries_, max_rows_;
  unsigned char* const requests_;
  unsigned char* const answers_;
  const std::shared_ptr<RowSource> source_;

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<uint64_t> expected_;
  std::jthread thread_;  // last: stops before the rest goes away
};

}  // namespace atlas::exec

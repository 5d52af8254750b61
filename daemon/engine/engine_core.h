// EngineCore: the one thread that submits steps. Takes requests, keeps two steps in flight, hands
// out what they sampled, and changes generations between steps.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "daemon/device/device.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/generation.h"
#include "daemon/engine/scheduler.h"
#include "daemon/engine/sequence.h"

namespace atlas::engine {

struct EngineOptions {
  uint32_t queue_limit = 256;              // requests that wait for a slot
  double latency_bound_s = 0.1;            // of a prefill step between decode steps
  std::chrono::seconds step_deadline{60};  // a step that takes longer means a lost device
};

class EngineCore final : public Engine {
 public:
  EngineCore(std::shared_ptr<Device> device, EngineOptions options);
  ~EngineCore() override;  // cancels what runs, waits for the steps in flight

  // Engine
  std::shared_ptr<const ModelInfo> model() const override;
  Result<RequestId> submit(RequestSpec spec, UpdateSink sink) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;

  /// New sequences run on `generation` from the next step on; the answer comes once its first graph
  /// of each kind has been compared with the eager walk. Old sequences end on what they began with.
  std::future<Status> install(std::shared_ptr<Generation> generation);
  /// New sequences wait in the queue; the answer comes when none runs any more and the engine has
  /// let go of its generation, so that its memory is free for another.
  std::future<Status> release();
  /// Refuses new requests; the answer comes when all have ended.
  std::future<Status> drain();
  /// Ends every request with kCancelled (a drain past its deadline).
  void cancel_all();

  /// For `stats` while there is no generation yet.
  void report_loading(const std::string& phase, double progress);
  void report_failure(const Status& status);

 private:
  struct NewRequest {
    SequencePtr sequence;
  };
  struct Cancel {
    RequestId id;  // 0: all
  };
  struct Install {
    std::shared_ptr<Generation> generation;
    std::promise<Status> done;
  };
  struct Release {
    std::promise<Status> done;
  };
  struct Drain {
    std::promise<Status> done;
  };
  using Command = std::variant<NewRequest, Cancel, Install, Release, Drain>;

  /// A step that has been submitted and not yet been read back.
  struct Flight {
    uint64_t step = 0;
    StepDraft draft;
    std::vector<uint32_t> epochs;  // of the draft's sequences, when it was submitted
    Event event;
    std::chrono::steady_clock::time_point submitted;
    bool alone = false;  // nothing was in flight before it: its time is its own
  };

  Status check(const RequestSpec& spec, const ModelInfo& info, const plan::Plan& plan) const;

  // On the engine's thread.
  void run(const std::stop_token& stop);
  Status prepare();
  void take_commands(std::unique_lock<std::mutex>& lock);
  void handle(NewRequest& command);
  void handle(Cancel& command);
  void handle(Install& command);
  void handle(Release& command);
  void handle(Drain& command);
  /// A queued request was checked against the generation of its time: fits it to the present one,
  /// or ends it with the reason.
  void fit_to_current(const SequencePtr& sequence);
  void answer_waiting_promises();
  void admit();
  /// Slot, pages and what the prefix cache has for a sequence; false if they are not free.
  bool admit_resources(Sequence& sequence);
  bool wants_prefix(const Sequence& sequence) const;
  bool room_to_announce(const CachedPrefix& prefix) const;
  /// Keeps what a sequence has computed so far for others.
  void keep_prefix(Sequence& sequence);
  Status submit_next(bool& submitted);
  Status submit_step(StepDraft draft);
  uint64_t write_entry(StepDraft& draft);
  Status complete_oldest();
  Status wait(const Flight& flight);
  void read_result(const Flight& flight, const exec::ResultView& result);
  void take_scores(Sequence& sequence, const Share& share,
                   std::span<const kernels::RowScore> scores);
  void take_tokens(const SequencePtr& sequence, const Share& share,
                   const kernels::SequenceResult& outcome, const exec::ResultView& result);
  void take_token(const SequencePtr& sequence, TokenId token, const kernels::RowScore* score);
  /// The state that the step left goes to the sequence, or the anchor meant for one goes back.
  void take_anchor(Sequence& sequence, const Share& share, const kernels::SequenceResult& outcome,
                   bool current);
  /// An anchor for a state that `share`'s rows may reach; nothing if they reach none.
  std::optional<uint32_t> spare_anchor(const Sequence& sequence, uint32_t rows);
  bool ensure_pages(Sequence& sequence, uint32_t positions);
  bool preempt_for(const Sequence& sequence);
  /// Back to the head of the queue, to be computed again from its tokens.
  void requeue(const SequencePtr& sequence);
  void finish(const SequencePtr& sequence, FinishReason reason, Status error, Update update);
  void release_resources(Sequence& sequence);
  void fail_everything(const Status& status);
  void drop_finished();
  void count_request(const Generation& of, int32_t change);
  /// Those before the current one that some request still runs on, the oldest request's first.
  std::vector<OldGeneration> old_generations() const;
  void publish_stats();

  const std::shared_ptr<Device> device_;
  const EngineOptions options_;

  mutable std::mutex mutex_;  // guards the block below
  std::condition_variable wake_;
  std::deque<Command> inbox_;
  std::shared_ptr<const ModelInfo> model_;
  std::shared_ptr<Generation> serving_;  // for checks at submission
  EngineStats stats_;
  uint32_t waiting_count_ = 0;  // queued requests, in the inbox or in queue_
  bool refuse_new_ = false;

  std::atomic<uint64_t> next_id_{1};
  std::atomic<uint64_t> ticks_{0};

  // The engine's thread only.
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<Generation> current_;
  std::unique_ptr<Scheduler> scheduler_;
  std::deque<SequencePtr> queue_;     // not admitted, in order
  std::vector<SequencePtr> running_;  // admitted, in order
  /// Generations with requests that were admitted and have not ended.
  struct GenerationUse {
    const Generation* generation;
    uint32_t requests;
  };
  std::vector<GenerationUse> uses_;
  std::deque<Flight> flights_;
  std::vector<Event> spare_events_;
  std::vector<std::promise<Status>> release_waiters_, drain_waiters_;
  bool releasing_ = false;
  uint64_t admissions_ = 0;
  Status failed_;
  EngineStats counters_;

  std::jthread thread_;  // last: stops before anything else goes away
};

/// The scheduler's limits that follow from a plan's buckets.
SchedulerLimits scheduler_limits(const plan::Plan& plan, double latency_bound_s);

}  // namespace atlas::engine

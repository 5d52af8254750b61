// FakeEngine: an engine that plays scripts, for tests of what stands in front of engines.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"

namespace atlas::testing {

/// One update, and how long to wait before it.
struct Beat {
  engine::Update update;
  std::chrono::microseconds wait{0};
};

/// What to play for a request; the last beat should have `finish`. Called on the engine's thread.
using Script = std::function<std::vector<Beat>(const engine::RequestSpec&)>;

class FakeEngine : public engine::Engine {
 public:
  explicit FakeEngine(std::shared_ptr<const engine::ModelInfo> model, Script script = {})
      : model_(std::move(model)), script_(std::move(script)), thread_([this] { run(); }) {
    stats_.state =
        model_ == nullptr ? engine::EngineState::kLoading : engine::EngineState::kServing;
  }
  ~FakeEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::shared_ptr<const engine::ModelInfo> model() const override {
    const std::lock_guard lock(mutex_);
    return model_;
  }

  Result<engine::RequestId> submit(engine::RequestSpec spec, engine::UpdateSink sink) override {
    const std::lock_guard lock(mutex_);
    if (!refusal_.ok()) return refusal_;
    if (queue_limit_ != 0 && waiting_.size() >= queue_limit_) {
      return resource_exhausted("{} requests are waiting", waiting_.size());
    }
    if (specs_.size() < kKeptSpecs) specs_.push_back(spec);
    waiting_.push_back({++last_id_, std::move(spec), std::move(sink)});
    changed_.notify_all();
    return last_id_;
  }

  void cancel(engine::RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id);
    changed_.notify_all();
  }

  engine::EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  // What tests set and see.
  void set_script(Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  void set_model(std::shared_ptr<const engine::ModelInfo> model) {
    const std::lock_guard lock(mutex_);
    model_ = std::move(model);
  }
  /// Every submit from now on answers with this.
  void refuse_with(Status status) {
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(status);
  }
  void set_queue_limit(size_t limit) {
    const std::lock_guard lock(mutex_);
    queue_limit_ = limit;
  }
  void set_stats(engine::EngineStats stats) {
    const std::lock_guard lock(mutex_);
    stats_ = std::move(stats);
  }
  std::vector<engine::RequestSpec> specs() const {
    const std::lock_guard lock(mutex_);
    return specs_;
  }
  size_t cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_.size();
  }
  size_t played() const { return played_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kKeptSpecs = 1000;
  struct Waiting {
    engine::RequestId id;
    engine::RequestSpec spec;
    engine::UpdateSink sink;
  };
  struct Playing {
    engine::UpdateSink sink;
    std::vector<Beat> beats;
    size_t next = 0;
    Clock::time_point due;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      begin_waiting(lock);
      const auto next = play_due(lock);
      if (stopping_ || !waiting_.empty()) continue;
      if (playing_.empty()) {
        changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      } else if (next > Clock::now()) {
        changed_.wait_until(lock, next);
      }
    }
  }

  void begin_waiting(std::unique_lock<std::mutex>& lock) {
    while (!waiting_.empty()) {
      Waiting one = std::move(waiting_.front());
      waiting_.pop_front();
      const Script script = script_;
      lock.unlock();
      Playing playing{std::move(one.sink), script ? script(one.spec) : std::vector<Beat>()};
      playing.due = Clock::now() + (playing.beats.empty() ? std::chrono::microseconds(0)
                                                          : playing.beats.front().wait);
      lock.lock();
      playing_.emplace(one.id, std::move(playing));
    }
  }

  // One beat of every request whose time has come, as a step would; when the next is due.
  Clock::time_point play_due(std::unique_lock<std::mutex>& lock) {
    auto next = Clock::time_point::max();
    for (auto at = playing_.begin(); at != playing_.end();) {
      Playing& playing = at->second;
      engine::Update update;
      if (cancelled_.contains(at->first)) {
        update.finish = engine::Finish{.reason = engine::FinishReason::kCancelled};
      } else if (playing.next >= playing.beats.size() || playing.due > Clock::now()) {
        // A script without an end plays until it is cancelled.
        if (playing.next < playing.beats.size()) next = std::min(next, playing.due);
        ++at;
        continue;
      } else {
        update = playing.beats[playing.next].update;
        if (++playing.next < playing.beats.size()) {
          playing.due = Clock::now() + playing.beats[playing.next].wait;
          next = std::min(next, playing.due);
        }
      }
      const bool ends = update.finish.has_value();
      ++played_;
      lock.unlock();
      playing.sink(at->first, std::move(update));
      lock.lock();
      at = ends ? playing_.erase(at) : std::next(at);
    }
    return next;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::shared_ptr<const engine::ModelInfo> model_;
  Script script_;
  Status refusal_;
  size_t queue_limit_ = 0;
  engine::EngineStats stats_;
  engine::RequestId last_id_ = 0;
  std::deque<Waiting> waiting_;
  std::map<engine::RequestId, Playing> playing_;
  std::set<engine::RequestId> cancelled_;
  std::vector<engine::RequestSpec> specs_;
  std::atomic<size_t> played_{0};
  std::thread thread_;  // last: it uses the others
};

/// Beats that say `words` one by one with consecutive token ids, then stop.
inline std::vector<Beat> say(const std::vector<std::string>& words, const engine::RequestSpec& spec,
                             std::chrono::microseconds wait = std::chrono::microseconds(0)) {
  std::vector<Beat> beats;
  engine::TokenId id = 0;
  for (const std::string& word : words) {
    engine::Update update;
    update.text = word;
    update.tokens = {id++};
    beats.push_back({std::move(update), wait});
  }
  engine::Update last;
  last.finish = engine::Finish{.reason = engine::FinishReason::kStop};
  last.finish->usage = {static_cast<uint32_t>(spec.prompt.size()), 0,
                        static_cast<uint32_t>(words.size())};
  beats.push_back({std::move(last), wait});
  return beats;
}

}  // namespace atlas::testing

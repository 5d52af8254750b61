// Loop: how other threads hand work to the thread that owns the sockets.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

namespace atlas::serve {

/// Thread safe. What is posted together is run together: one wake-up for a whole step of tokens.
/// Outlives the server in the hands of engines; once closed it drops what it is given.
class Loop {
 public:
  using Work = std::function<void()>;
  /// `wake` makes the loop thread call drain() soon; it is called under a lock and must not block.
  explicit Loop(std::function<void()> wake) : wake_(std::move(wake)) {}

  void post(Work work) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    pending_.push_back(std::move(work));
    if (pending_.size() == 1) wake_();
  }

  /// Runs everything posted up to now. Loop thread only.
  void drain() {
    {
      const std::lock_guard lock(mutex_);
      running_.swap(pending_);
    }
    for (Work& work : running_) {
      work();
      work = nullptr;  // frees what it holds before the next one runs
    }
    running_.clear();
  }

  void close() {
    std::vector<Work> dropped;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(pending_);
  }

 private:
  std::mutex mutex_;
  std::vector<Work> pending_;
  std::vector<Work> running_;  // loop thread only; keeps its capacity
  bool closed_ = false;
  std::function<void()> wake_;
};

}  // namespace atlas::serve

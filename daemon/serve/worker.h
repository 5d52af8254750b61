// Worker: one thread for what would hold up the sockets, such as tokenizing a long prompt.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace atlas::serve {

/// Runs work in order. Its queue is bounded by the callers: one piece a connection.
class Worker {
 public:
  Worker() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    ready_.notify_one();
  }

 private:
  void run(const std::stop_token& stop) {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        if (!ready_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any ready_;
  std::deque<std::function<void()>> queue_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace atlas::serve

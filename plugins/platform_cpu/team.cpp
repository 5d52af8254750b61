// Sharing tasks without a barrier; see team.h for the idea.
#include "plugins/platform_cpu/team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cfenv>
#include <utility>

namespace atlas::platform_cpu {
namespace {

// Long enough to bridge the gap between two steps of a busy engine, short enough that an idle
// daemon uses no CPU: a futex wake costs 5 to 50 microseconds (2 cores of an EPYC under KVM,
// 2026-12).
constexpr uint64_t kSpinNs = 50'000;

uint32_t left_of(uint64_t claim) { return static_cast<uint32_t>(claim); }

}  // namespace

void prepare_thread(const char* name, int core) {
  ::pthread_setname_np(::pthread_self(), name);
  std::fesetenv(FE_DFL_ENV);
  if (core < 0) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<size_t>(core), &mask);
  // A core that went away meanwhile leaves the thread where it is: slower, not wrong.
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof(mask), &mask);
}

std::thread start_thread(void (*body)(void*, uint32_t), void* self, uint32_t index) {
  sigset_t block;
  sigset_t before;
  sigfillset(&block);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&block, fault);
  ::pthread_sigmask(SIG_BLOCK, &block, &before);
  struct Restore {
    sigset_t* mask;
    ~Restore() { ::pthread_sigmask(SIG_SETMASK, mask, nullptr); }
  } restore{&before};
  return std::thread(body, self, index);
}

Team::Team(uint32_t threads, std::vector<int> cores)
    : threads_(threads), divisor_(kSharesAhead * threads), cores_(std::move(cores)) {
  workers_.reserve(threads_ - 1);
  try {
    for (uint32_t i = 1; i < threads_; ++i) workers_.push_back(start_thread(worker, this, i));
  } catch (...) {
    stop_.store(true);
    work_door_.wake();
    for (std::thread& thread : workers_) thread.join();
    throw;
  }
}

Team::~Team() {
  stop_.exchange(true);
  work_door_.wake();
  for (std::thread& thread : workers_) thread.join();
}

void Team::worker(void* self, uint32_t index) { static_cast<Team*>(self)->work(index); }

void Team::work(uint32_t thread) {
  prepare_thread("atlas-cpu", cores_.empty() ? -1 : cores_[thread % cores_.size()]);
  for (;;) {
    work_door_.wait([this] { return left_of(claim_.load()) != 0 || stop_.load(); }, kSpinNs);
    if (!help(thread) && stop_.load()) return;
  }
}

void Team::run_alone(const Record* records, uint32_t count, const Scratch& scratch) {
  for (uint32_t i = 0; i < count; ++i) {
    records[i].function(records[i].params, 0, records[i].tasks, scratch.base);
  }
}

void Team::run(const Record* records, uint32_t count, const Scratch& scratch) {
  const std::lock_guard lock(turn_);
  if (threads_ == 1) return run_alone(records, count, scratch);
  records_ = records;
  count_ = count;
  scratch_ = scratch;
  finished_.store(false, std::memory_order_relaxed);  // published with the first claim
  proceed(0, 0);
  while (!finished_.load(std::memory_order_acquire)) {
    if (help(0)) continue;
    caller_door_.wait([this] { return finished_.load() || left_of(claim_.load()) != 0; }, kSpinNs);
  }
}

// Runs on from record `index`; the calling thread holds the baton, and gives it away by returning.
void Team::proceed(uint32_t thread, uint32_t index) {
  for (;; ++index) {
    for (; index < count_ && records_[index].tasks == 1; ++index) {
      records_[index].function(records_[index].params, 0, 1, scratch(thread));
    }
    if (index == count_) {
      finished_.exchange(true);
      caller_door_.wake();
      return;
    }
    const Record record = records_[index];
    const uint32_t taken =
        share_of(record.tasks, std::max(record.tasks / (kFinestShares * threads_), 1u));
    publish(index, taken);
    record.function(record.params, 0, taken, scratch(thread));
    if (!drain(thread, taken)) return;
  }
}

// Opens record `index` to all threads, with `taken` tasks already the caller's.
void Team::publish(uint32_t index, uint32_t taken) {
  current_ = records_[index];
  index_ = index;
  finest_.store(std::max(current_.tasks / (kFinestShares * threads_), 1u),
                std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  // The sequence number makes every claim word new, so that a compare-and-swap with an old one
  // fails. Sequentially consistent: orders the writes above before what a claimer reads, and the
  // exchange itself before the look for sleepers.
  claim_.exchange(uint64_t{++sequence_} << 32 | (current_.tasks - taken));
  work_door_.wake();
  caller_door_.wake();
}

uint32_t Team::share_of(uint32_t left, uint32_t finest) const {
  return std::min(std::max(left / divisor_, finest), left);
}

// Takes and runs tasks until none is left. The caller has run `held` tasks of the current record
// and not yet reported them, so the record cannot end meanwhile. True: it has ended, by this call.
bool Team::drain(uint32_t thread, uint32_t held) {
  uint64_t claim = claim_.load(std::memory_order_relaxed);
  while (left_of(claim) != 0) {
    const uint32_t left = left_of(claim);
    const uint32_t share = share_of(left, finest_.load(std::memory_order_relaxed));
    if (!claim_.compare_exchange_weak(claim, claim - share, std::memory_order_relaxed)) continue;
    const uint32_t begin = current_.tasks - left;
    current_.function(current_.params, begin, begin + share, scratch(thread));
    held += share;
    claim = claim_.load(std::memory_order_relaxed);
  }
  // Releases this thread's results to whoever ends the record, and acquires the others' if that is
  // us. Nothing of the record may be read after it by any other thread.
  const uint32_t tasks = current_.tasks;
  return done_.fetch_add(held, std::memory_order_acq_rel) + held == tasks;
}

// Takes part in the record that is open now. False: there was nothing to take.
bool Team::help(uint32_t thread) {
  uint64_t claim = claim_.load(std::memory_order_relaxed);
  while (left_of(claim) != 0) {
    const uint32_t left = left_of(claim);
    const uint32_t share = share_of(left, finest_.load(std::memory_order_relaxed));
    // Acquires what publish wrote; only from here on may the record be read, for it cannot end
    // before the share that was taken.
    if (!claim_.compare_exchange_weak(claim, claim - share, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
      continue;
    }
    const uint32_t begin = current_.tasks - left;
    current_.function(current_.params, begin, begin + share, scratch(thread));
    if (drain(thread, share)) proceed(thread, index_ + 1);
    return true;
  }
  return false;
}

}  // namespace atlas::platform_cpu

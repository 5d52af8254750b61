// A stream's queue has one producer (the caller of the ABI) and one consumer (its thread).
#include "plugins/platform_cpu/stream.h"

#include <cstring>

namespace atlas::platform_cpu {
namespace {

constexpr uint64_t kExecutorSpinNs = 50'000;
// A waiting host thread gives its core to the team almost at once.
constexpr uint64_t kHostSpinNs = 2'000;

}  // namespace

bool Progress::wait(uint64_t ticket, uint64_t timeout_ns) {
  return door.wait([&] { return completed.load() >= ticket; }, kHostSpinNs, timeout_ns);
}

Stream::Stream(Team& team) : team_(team), progress_(std::make_shared<Progress>()) {
  thread_ = start_thread(executor, this, 0);
}

Stream::~Stream() {
  stop_.exchange(true);
  door_.wake();
  thread_.join();
}

void Stream::executor(void* self, uint32_t) { static_cast<Stream*>(self)->execute(); }

void Stream::execute() {
  prepare_thread("atlas-stream", team_.caller_core());
  for (uint64_t done = 0;;) {
    door_.wait([&] { return submitted_.load() != done || stop_.load(); }, kExecutorSpinNs);
    if (submitted_.load() == done) return;  // asked to stop, and nothing is left
    run(queue_[done % kCapacity]);
    // Sequentially consistent: orders the command's effects before what a waiter reads next, and
    // the exchange before the look for sleepers.
    progress_->completed.exchange(++done);
    progress_->door.wake();
  }
}

void Stream::run(const Command& command) {
  if (command.step != nullptr) {
    command.step->run(team_);
    command.step->pending.fetch_sub(1, std::memory_order_release);
  } else if (command.from != nullptr) {
    std::memmove(command.to, command.from, command.bytes);
  } else {
    std::memset(command.to, command.value, command.bytes);
  }
}

void Stream::submit(const Command& command) {
  const uint64_t number = submitted_.load(std::memory_order_relaxed);
  if (number >= kCapacity) progress_->wait(number - kCapacity + 1, Door::kForever);
  queue_[number % kCapacity] = command;
  submitted_.exchange(number +
                      1);  // orders the slot before it, and it before the look for sleepers
  door_.wake();
}

void Stream::launch(Step& step) {
  step.pending.fetch_add(1, std::memory_order_relaxed);
  submit({&step, nullptr, nullptr, 0, 0});
}

void Stream::copy(void* to, const void* from, uint64_t bytes) {
  submit({nullptr, from, to, bytes, 0});
}

void Stream::fill(void* to, uint8_t value, uint64_t bytes) {
  submit({nullptr, nullptr, to, bytes, value});
}

void Stream::synchronize() { progress_->wait(submitted(), Door::kForever); }

void Stream::copy_now(void* to, const void* from, uint64_t bytes) {
  synchronize();
  std::memmove(to, from, bytes);
}

void Event::record(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  progress_ = stream.progress();
  ticket_ = stream.submitted();
}

bool Event::wait(uint64_t timeout_ns) {
  std::shared_ptr<Progress> progress;
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    progress = progress_;
    ticket = ticket_;
  }
  return progress == nullptr || progress->wait(ticket, timeout_ns);
}

}  // namespace atlas::platform_cpu

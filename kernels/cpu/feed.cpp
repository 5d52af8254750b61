// Data that the host brings while a step runs: ngram_keys asks for rows of the n-gram table,
// feed_take waits for them.
#include <hwy/cache_control.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/common/core.h"
#include "kernels/cpu/kernel.h"

namespace atlas::kernels::cpu {
namespace {

/// Which record of the ring is the running step's.
uint64_t ring_place(const StepControl& control) {
  return (control.next_step - 1) % control.limits.ring_entries;
}

/// The ids before a row, the nearest first; those that do not count are the end-of-text id.
struct Window {
  uint32_t before[kHistoryIds];

  /// The window of the row after one with this window and the id `token`.
  Window after(uint32_t token, uint32_t eos) const {
    Window next{};
    next.before[0] = token;
    for (uint32_t i = 1; i < kHistoryIds; ++i) {
      next.before[i] = token == eos ? eos : before[i - 1];
    }
    return next;
  }
};

/// What the slot remembers, as a window. Behind an end of text or the sequence's begin nothing
/// counts.
Window window_of(const SlotState& slot, uint32_t eos) {
  Window window{};
  bool ended = false;
  for (uint32_t i = 0; i < kHistoryIds; ++i) {
    ended |= slot.history[i] == eos || slot.history[i] == kNoToken;
    window.before[i] = ended ? eos : slot.history[i];
  }
  return window;
}

void row_keys(const NgramKeysParams& params, uint32_t token, const Window& window,
              unsigned char* to) {
  const uint32_t sizes = params.ngram - 1;
  const uint32_t heads = params.heads / sizes;
  uint64_t mix = token * params.multipliers[0];
  uint32_t head = 0;
  for (uint32_t s = 1; s <= sizes; ++s) {
    mix ^= window.before[s - 1] * params.multipliers[s];
    for (const uint32_t end = head + heads; head < end; ++head) {
      const uint64_t key = params.head_offsets[head] + mix % params.head_sizes[head];
      std::memcpy(to + head * sizeof(key), &key, sizeof(key));
    }
  }
}

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

/// Spins at first, since an answer is usually there or near; sleeps then, so that a host with few
/// processors has one to read with.
class Patience {
 public:
  explicit Patience(uint64_t timeout_ns) : start_(now_ns()), timeout_ns_(timeout_ns) {}

  /// Lets some time pass; false if there is none left.
  bool pass() {
    const uint64_t waited = now_ns() - start_;
    if (waited >= timeout_ns_) return false;
    if (waited < kSpinNs) {
      for (int i = 0; i < 8; ++i) hwy::Pause();
    } else {
      const timespec nap{0, kNapNs};
      nanosleep(&nap, nullptr);
    }
    return true;
  }

 private:
  static constexpr uint64_t kSpinNs = 20'000;
  static constexpr long kNapNs = 3'000;
  uint64_t start_;
  uint64_t timeout_ns_;
};

/// Whether the answer to `step` is there, within the time.
bool await_answer(const unsigned char* answer, uint64_t step, uint64_t timeout_ns) {
  auto* word = const_cast<uint64_t*>(reinterpret_cast<const uint64_t*>(answer));
  // Pairs with the host's release store: who sees the number sees the rows and their status.
  const auto there = [word, step] {
    return std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire) == step;
  };
  if (there()) return true;
  for (Patience patience(timeout_ns); patience.pass();) {
    if (there()) return true;
  }
  return there();
}

void add_error(uint32_t* word, uint32_t error) {
  std::atomic_ref<uint32_t>(*word).fetch_or(error, std::memory_order_relaxed);
}

}  // namespace

ATLAS_CPU_KERNEL(ngram_keys, NgramKeysParams) {
  if (begin != 0 || end == 0) return;
  const StepControl& control = *params.control;
  const RowSet& rows = control.step;
  unsigned char* request = params.requests + ring_place(control) * params.request_bytes;
  unsigned char* keys = request + feed_keys_offset();
  for (uint32_t s = 0; s < rows.span_count; ++s) {
    const RowSpan& span = rows.spans[s];
    if (span.row_count == 0) continue;
    Window window = window_of(control.slots[span.slot], params.eos_id);
    for (uint64_t row = span.first_row; row < uint64_t{span.first_row} + span.row_count; ++row) {
      const uint32_t token = rows.rows[row].token;
      row_keys(params, token, window, keys + row * params.heads * sizeof(uint64_t));
      window = window.after(token, params.eos_id);
    }
  }
  auto& head = *reinterpret_cast<FeedRequest*>(request);
  head.row_count = rows.row_count;
  head.heads = params.heads;
  // Pairs with the host's acquire load: who sees the number sees the keys before it.
  std::atomic_ref<uint64_t>(head.step).store(control.next_step, std::memory_order_release);
}

ATLAS_CPU_KERNEL(feed_take, FeedTakeParams) {
  StepControl& control = *params.control;
  const uint64_t last = std::min(end, control.step.row_count);
  if (begin >= last) return;
  const unsigned char* answer = params.answers + ring_place(control) * params.answer_bytes;
  // Where one task has waited in vain the others only look, or a step would wait once for each.
  const bool late = (std::atomic_ref<uint32_t>(control.error).load(std::memory_order_relaxed) &
                     kErrorFeedLate) != 0;
  const bool answered = await_answer(answer, control.next_step, late ? 0 : params.timeout_ns);
  if (!answered) add_error(&control.error, kErrorFeedLate);
  const auto* status = reinterpret_cast<const uint32_t*>(answer + feed_status_offset());
  const auto* from = reinterpret_cast<const float*>(answer + feed_rows_offset(params.max_rows));
  for (uint64_t row = begin; row < last; ++row) {
    float* y = params.y + row * params.y_stride;
    uint32_t error = kErrorFeedLate;
    if (answered) error = row < params.max_rows ? status[row] : uint32_t{kErrorFeed};
    if (error == 0) {
      std::memcpy(y, from + row * params.width, params.width * sizeof(float));
    } else {
      std::fill_n(y, params.width, 0.0f);
      add_error(&control.slots[control.step.rows[row].slot].error, error);
    }
  }
}

}  // namespace atlas::kernels::cpu

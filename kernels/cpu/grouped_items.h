// How a product of experts is cut into items and dealt out to tasks. An item is one expert that has
// rows and a run of row groups of its weight; item i belongs to task i % tasks. So a few rows on a
// few of many experts keep every task busy, and experts without rows cost a look at their offsets.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/linear.h"

namespace atlas::kernels::cpu {

/// Row groups [group_begin, group_end) of an expert's weight, times rows [row_begin, row_end) of y.
struct GroupedItem {
  uint32_t expert;
  uint32_t group_begin, group_end;
  uint32_t row_begin, row_end;
};

/// The items of tasks [begin, end), in the order of experts and groups: a thread that has several
/// tasks reads neighbouring groups one after the other.
class GroupedItems {
 public:
  GroupedItems(const GroupedParams& params, uint32_t begin, uint32_t end)
      : GroupedItems(params.offsets, params.experts,
                     params.n / kRowGroup + (params.n % kRowGroup != 0 ? 1 : 0), params.tasks,
                     begin, end) {}
  /// `groups`: of each expert's weight, however many outputs they have.
  GroupedItems(const uint32_t* offsets, uint32_t experts, uint32_t groups, uint32_t tasks,
               uint32_t begin, uint32_t end)
      : offsets_(offsets),
        experts_(experts),
        groups_(groups),
        tasks_(tasks),
        begin_(begin),
        end_(end) {
    uint64_t busy = 0;
    for (uint32_t e = 0; e < experts_; ++e) busy += offsets_[e] < offsets_[e + 1] ? 1 : 0;
    // Long runs read the rows of x from a near cache; but first every task shall have four items.
    const uint64_t wanted = busy * groups_ / (uint64_t{4} * tasks_);
    run_ = static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, kLongestRun));
    runs_ = groups_ / run_ + (groups_ % run_ != 0 ? 1 : 0);
    next_run_ = runs_;
  }

  /// False: there are no more.
  bool next(GroupedItem& item) {
    while (!skip_to_own_task()) {
      while (next_expert_ < experts_ && offsets_[next_expert_] >= offsets_[next_expert_ + 1]) {
        ++next_expert_;
      }
      if (next_expert_ == experts_) return false;
      ++next_expert_;
      next_run_ = 0;
    }
    item.expert = next_expert_ - 1;
    item.group_begin = next_run_ * run_;
    item.group_end = std::min(groups_, item.group_begin + run_);
    item.row_begin = offsets_[item.expert];
    item.row_end = offsets_[item.expert + 1];
    pass_runs(1);
    return true;
  }

 private:
  static constexpr uint32_t kLongestRun = 8;

  // Passes the runs of this expert that are other tasks'. False: there are no others.
  bool skip_to_own_task() {
    if (next_run_ == runs_) return false;
    uint32_t others = 0;
    if (task_ < begin_) others = begin_ - task_;
    if (task_ >= end_) others = tasks_ - task_ + begin_;
    pass_runs(std::min(others, runs_ - next_run_));
    return next_run_ < runs_;
  }
  void pass_runs(uint32_t count) {
    next_run_ += count;
    task_ += count;
    if (task_ >= tasks_) task_ %= tasks_;
  }

  const uint32_t* offsets_;
  uint32_t experts_, groups_, tasks_, begin_, end_;
  uint32_t run_, runs_;       // groups of a run; runs of an expert
  uint32_t next_expert_ = 0;  // the one after the expert whose runs are walked
  uint32_t next_run_;
  uint32_t task_ = 0;  // that the next run belongs to
};

}  // namespace atlas::kernels::cpu

// score for every GPU pack: a block a logit row. Its contract is core.h's.
//
// The first pass over the logits finds the largest, and a bound that the alternatives lie above;
// the second one adds up exponentials, counts what precedes the target, and lists what lies above
// the bound.
#pragma once

#include "kernels/common/core.h"
#include "kernels/common/core_grids.h"
#include "kernels/common/gpu/block.h"
#include "kernels/common/gpu/order.h"
#include "kernels/common/log_sum.h"

namespace atlas::kernels {

/// A row's logits, what is asked of them and what the first pass found.
struct ScoreRow {
  const float* x;
  uint32_t n;
  uint32_t top;     // alternatives
  uint32_t target;  // or kNoToken
  float max;
  uint32_t bound;  // of orders: at least `top` logits have this or more
};

/// Sorts the alternatives first: descending order, ascending id.
ATLAS_DEVICE uint64_t rank_of(uint32_t order, uint32_t id) { return uint64_t{~order} << 32 | id; }

/// Finds the largest logit and the bound; false if a logit is NaN or +infinity, or all -infinity.
ATLAS_DEVICE bool find_largest(ScoreRow& row) {
  using namespace device;
  uint32_t* reduce = shared_memory<uint32_t>(ScoreShared::kReduce);
  uint32_t order = 0;
  bool bad = false;
  for (uint32_t i = thread_index(); i < row.n; i += kScoreThreads) {
    const float x = load(row.x + i);
    bad = bad || !(x < bits_as<float>(0x7f800000u));
    const uint32_t own = order_of(x);
    order = own > order ? own : order;
  }
  if (block_any<kScoreThreads>(bad, reduce)) return false;
  order = warp_max(order);
  if (lane_index() == 0) store(reduce + warp_index(), order);
  block_barrier();  // every warp's largest is there
  static_assert(kScoreThreads == kWarpLanes * kWarpLanes);
  const uint32_t own = load(reduce + lane_index());
  const uint32_t largest = warp_max(own);
  // The warps' largest in order: that of rank `top` is a bound.
  uint32_t rank = 0;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    const uint32_t other = shuffle(own, lane);
    rank += other > own || (other == own && lane < lane_index()) ? 1 : 0;
  }
  row.bound = warp_max(row.top != 0 && rank == row.top - 1 ? own : 0);
  row.max = value_of(largest);
  block_barrier();  // read by all before the words are used again
  return largest > kLowestOrder;
}

/// The second pass. A run of kScoreRun logits is summed by 16 lanes.
ATLAS_DEVICE double sum_row(const ScoreRow& row, uint32_t& before_target) {
  using namespace device;
  float* sums = shared_memory<float>(ScoreShared::kSums);
  double* shared_total = shared_memory<double>(ScoreShared::kTotal);
  uint64_t* list = shared_memory<uint64_t>(ScoreShared::kList);
  uint32_t* listed = shared_memory<uint32_t>(ScoreShared::kListed);
  constexpr uint32_t kRuns = kScoreThreads / 16;  // at a time
  const uint32_t own_run = thread_index() / 16, lane = thread_index() % 16;
  const float target_value = row.target != kNoToken ? load(row.x + row.target) : 0.0f;
  before_target = 0;
  if (thread_index() == 0) {
    store(listed, 0u);
    store(shared_total, 0.0);
  }
  block_barrier();  // 0 before anything is listed
  for (uint32_t first = 0; first < row.n; first += kRuns * kScoreRun) {
    const uint32_t begin = first + own_run * kScoreRun;
    float sum = 0.0f;
    ATLAS_ROLLED
    for (uint32_t step = lane; step < kScoreRun; step += 16 * 4) {
      float x[4];  // under way together
      ATLAS_UNROLL
      for (uint32_t k = 0; k < 4; ++k) {
        const uint32_t i = begin + step + 16 * k;
        x[k] = i < row.n ? load(row.x + i) : bits_as<float>(0xff800000u);
      }
      ATLAS_UNROLL
      for (uint32_t k = 0; k < 4; ++k) {
        const uint32_t i = begin + step + 16 * k;
        if (i >= row.n) break;
        sum = sum + device::exp(x[k] - row.max);
        before_target += x[k] > target_value || (x[k] == target_value && i < row.target) ? 1 : 0;
        if (row.top == 0 || order_of(x[k]) < row.bound) continue;
        const uint32_t place = atomic_add(listed, 1u);
        if (place < kScoreListed) store(list + place, rank_of(order_of(x[k]), i));
      }
    }
    for (uint32_t apart = 8; apart > 0; apart /= 2) sum = sum + shuffle_xor(sum, apart);
    if (lane == 0) store(sums + own_run, sum);
    block_barrier();  // the runs' sums are there
    if (thread_index() == 0) {
      double total = load(shared_total);
      for (uint32_t run = 0; run < kRuns && first + run * kScoreRun < row.n; ++run) {
        total = total + static_cast<double>(load(sums + run));
      }
      store(shared_total, total);
    }
    block_barrier();  // they are added before the next ones take their place
  }
  return static_cast<double>(row.max) + log_of_sum(load(shared_total));
}

/// Of more logits above the bound than can be listed: the alternatives one by one.
ATLAS_DEVICE void list_slowly(const ScoreRow& row, uint32_t count, uint64_t* list) {
  using namespace device;
  uint32_t* reduce = shared_memory<uint32_t>(ScoreShared::kReduce);
  uint64_t last = 0;
  ATLAS_ROLLED
  for (uint32_t k = 0; k < count; ++k) {
    OrderedId best = {0, kNoToken};
    for (uint32_t i = thread_index(); i < row.n; i += kScoreThreads) {
      const uint32_t order = order_of(load(row.x + i));
      if ((k == 0 || rank_of(order, i) > last) && order > best.order) best = {order, i};
    }
    best = block_first<kScoreThreads>(best, reduce);
    last = rank_of(best.order, best.id);
    if (thread_index() == 0) store(list + k, last);
  }
  block_barrier();  // the list is there for all
}

ATLAS_DEVICE_KERNEL(score, ScoreParams, kScoreThreads) {
  using namespace device;
  StepControl* control = params.control;
  const uint32_t j = block_index();
  if (j >= load(&control->logit_count)) return;
  const uint32_t s =
      load(&load(&control->step.rows)[load(load(&control->logit_rows) + j)].sequence);
  const unsigned char* entry = load(&control->entry);
  const SequenceInput* input =
      reinterpret_cast<const SequenceInput*>(entry + load(&control->entry_layout.sequences)) + s;
  if (load(&input->score) == 0) return;
  const auto* targets =
      reinterpret_cast<const uint32_t*>(entry + load(&control->entry_layout.targets));
  const uint32_t logit_first = load(&load(&control->step.spans)[s].logit_first);

  ScoreRow row{};
  row.n = load(&control->limits.vocab);
  row.x = params.logits + uint64_t{j} * row.n;
  row.top = load(&input->score_top);
  row.target = load(targets + load(&input->logit_first) + (j - logit_first));
  if (row.target == kNoToken) row.target = load(load(&control->sampled) + j);

  const bool finite = find_largest(row);
  uint64_t* list = shared_memory<uint64_t>(ScoreShared::kList);
  const uint32_t count = finite ? (row.top < row.n ? row.top : row.n) : 0;
  double total = 0.0;
  uint32_t before = 0;
  if (finite) {
    total = sum_row(row, before);
    uint32_t all;
    block_before<kScoreThreads>(before, shared_memory<uint32_t>(ScoreShared::kReduce), all);
    before = all;
    const uint32_t listed = load(shared_memory<uint32_t>(ScoreShared::kListed));
    if (listed > kScoreListed) {
      list_slowly(row, count, list);
    } else if (count != 0) {
      block_sort<kScoreThreads>(list, listed);
    }
  }
  RowScore* to = load(&control->scores) + j;
  const auto log_probability = [total](float logit) {
    return static_cast<float>(static_cast<double>(logit) - total);
  };
  if (thread_index() < kMaxTopLogprobs) {
    uint32_t id = 0;
    float probability = 0.0f;
    if (thread_index() < count) {
      id = static_cast<uint32_t>(load(list + thread_index()));
      probability = log_probability(load(row.x + id));
    }
    store(&to->top_ids[thread_index()], id);
    store(&to->top_logprobs[thread_index()], probability);
  }
  if (thread_index() != 0) return;
  const bool scored = finite && row.target != kNoToken;
  store(&to->target, row.target);
  store(&to->target_logprob,
        scored ? log_probability(load(row.x + row.target)) : bits_as<float>(0xff800000u));
  store(&to->target_rank, scored ? before + 1 : 0);
  store(&to->top_count, count);
  // Rows of one sequence are scored by several blocks.
  if (!finite) {
    atomic_or(&load(&control->slots)[load(&input->slot)].error, uint32_t{kErrorNotFinite});
  }
}

}  // namespace atlas::kernels

// Mixture of experts for every GPU pack: route, group_experts, choose_experts (both for few rows),
// combine_experts. Their contracts are core.h's and core_fused.h's.
#pragma once

#include "kernels/common/core_fused.h"
#include "kernels/common/gpu/combined_rows.h"
#include "kernels/common/gpu/order.h"

namespace atlas::kernels {

/// A logit's order and its expert. Larger logits come first, then lower experts.
struct Ranked {
  uint32_t order, expert;
};

/// The logits of a row as one lane sees them: those of experts lane, lane + 32, ... The first 512
/// stand in registers.
class LaneLogits {
 public:
  ATLAS_DEVICE LaneLogits(const float* logits, uint32_t experts)
      : logits_(logits), experts_(experts) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kHeld; ++i) {
      const uint32_t expert = i * device::kWarpLanes + device::lane_index();
      held_[i] = 0;
      if (expert >= experts) continue;
      const float x = device::load(logits + expert);
      numbers_ = numbers_ && x == x;
      held_[i] = order_of(x);
    }
    for (uint32_t expert = first_left(); expert < experts; expert += device::kWarpLanes) {
      const float x = device::load(logits + expert);
      numbers_ = numbers_ && x == x;
    }
  }
  ATLAS_DEVICE bool numbers() const { return numbers_; }

  /// The first of this lane's experts that comes after `last`; an order of 0 if there is none.
  ATLAS_DEVICE Ranked after(const Ranked& last) const {
    Ranked best = {0, 0xffffffffu};
    // Experts ascend, so that of equal ones the first stays.
    const auto consider = [&](uint32_t order, uint32_t expert) {
      if (order > last.order || (order == last.order && expert <= last.expert)) return;
      if (order > best.order) best = {order, expert};
    };
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kHeld; ++i) {
      consider(held_[i], i * device::kWarpLanes + device::lane_index());
    }
    for (uint32_t expert = first_left(); expert < experts_; expert += device::kWarpLanes) {
      consider(order_of(device::load(logits_ + expert)), expert);
    }
    return best;
  }

 private:
  static constexpr uint32_t kHeld = 16;
  ATLAS_DEVICE static uint32_t first_left() {
    return kHeld * device::kWarpLanes + device::lane_index();
  }
  const float* logits_;
  uint32_t experts_;
  uint32_t held_[kHeld];
  bool numbers_ = true;
};

/// Sum of e^(x - max) over n values in 16 lanes, given to all lanes of the warp. `value(i)` is
/// asked of lane i % 32 only.
template <typename Value>
ATLAS_DEVICE float sum_of_exp(uint32_t n, float max, const Value& value) {
  using namespace device;
  float sum = 0.0f;
  for (uint32_t first = 0; first < n; first += kWarpLanes) {
    const uint32_t i = first + lane_index();
    const float term = i < n ? device::exp(value(i) - max) : 0.0f;
    sum = sum + term;  // lanes 16 to 31 bring theirs to those 16 below
    sum = sum + shuffle(term, lane_index() % 16 + 16);
  }
  for (uint32_t apart = 8; apart > 0; apart /= 2) sum = sum + shuffle_xor(sum, apart);
  return shuffle(sum, 0);
}

/// Lane j of a warp brings a row's choice j. `numbers`: no logit of the row is NaN.
ATLAS_DEVICE void store_choice(const RouteParams& params, uint64_t row, const Ranked& chosen,
                               bool numbers) {
  using namespace device;
  const uint32_t top = params.top;
  const float* logits = params.logits + row * params.logits_stride;
  const float value = value_of(chosen.order);
  const float max = shuffle(value, 0);
  const float sum = params.normalize != 0 ? sum_of_exp(top, max, [&](uint32_t) { return value; })
                                          : sum_of_exp(params.experts, max, [&](uint32_t i) {
                                              return value_of(order_of(load(logits + i)));
                                            });
  if (lane_index() >= top) return;
  const float weight = divide(device::exp(value - max), sum);
  store(params.chosen + row * top + lane_index(), chosen.expert);
  store(params.weights + row * top + lane_index(), numbers ? weight : bits_as<float>(0x7fc00000u));
}

ATLAS_DEVICE_KERNEL(route, RouteParams, kRouteThreads) {
  using namespace device;
  const uint64_t row = block_index() * (kRouteThreads / kWarpLanes) + warp_index();
  const uint32_t top = params.top;
  if (row >= load(params.row_count) || top == 0 || top > params.experts ||
      top > kMaxExpertsPerToken) {
    return;
  }
  const float* logits = params.logits + row * params.logits_stride;
  const LaneLogits own(logits, params.experts);
  const bool numbers = all(own.numbers());
  Ranked best = own.after({0xffffffffu, 0}), chosen = {0, 0};
  for (uint32_t j = 0; j < top; ++j) {
    const uint32_t order = warp_max(best.order);
    const uint32_t expert = warp_min(best.order == order ? best.expert : 0xffffffffu);
    if (lane_index() == j) chosen = {order, expert};
    if (best.order == order && best.expert == expert) best = own.after({order, expert});
  }
  store_choice(params, row, chosen, numbers);
}

/// A block sorts the choices of kGroupedExperts experts. Each warp takes a run of choices, in their
/// order: it counts them, learns from the warps before it where its own begin, and then walks them
/// again. So every place follows from counts alone, whichever thread comes first.
ATLAS_DEVICE_KERNEL(group_experts, GroupExpertsParams, kGroupThreads) {
  using namespace device;
  constexpr uint32_t kWarps = kGroupThreads / kWarpLanes, kStride = kGroupedExperts + 1;
  constexpr uint32_t kNone = 0xffffffffu;
  static_assert(kWarps == kWarpLanes && kGroupedExperts == kWarpLanes);
  uint32_t* counts = shared_memory<uint32_t>();  // [warp, kStride]: choices, then those before
  uint32_t* totals = counts + kWarps * kStride;  // of an expert
  uint32_t* begins = totals + kGroupedExperts;   // its first place
  uint32_t* before = begins + kGroupedExperts;   // choices of experts of the blocks before

  const uint32_t first = block_index() * kGroupedExperts, warp = warp_index(), lane = lane_index();
  const uint32_t choices = load(params.row_count) * params.top;
  const uint32_t steps = (choices + kGroupThreads - 1) / kGroupThreads;  // of a warp
  const uint32_t begin = warp * steps * kWarpLanes;
  const uint32_t end = begin + steps * kWarpLanes < choices ? begin + steps * kWarpLanes : choices;
  for (uint32_t i = thread_index(); i < kWarps * kStride; i += kGroupThreads) store(counts + i, 0u);
  if (thread_index() == 0) store(before, 0u);
  block_barrier();  // counts are 0 before the first one is raised

  uint32_t lower = 0;
  for (uint32_t i = begin + lane; i < end; i += kWarpLanes) {
    const uint32_t expert = load(params.chosen + i);
    lower += expert < first ? 1 : 0;
    if (expert - first < kGroupedExperts) atomic_add(counts + warp * kStride + expert - first, 1u);
  }
  lower = warp_add(lower);
  if (lane == 0 && lower != 0) atomic_add(before, lower);
  block_barrier();  // all choices are counted

  // Warp w turns the counts of expert w into those of the warps before each.
  const uint32_t own = load(counts + lane * kStride + warp);
  uint32_t sum = own;
  for (uint32_t apart = 1; apart < kWarpLanes; apart *= 2) {
    const uint32_t other = shuffle_up(sum, apart);
    if (lane >= apart) sum += other;
  }
  store(counts + lane * kStride + warp, sum - own);
  if (lane == kWarpLanes - 1) store(totals + warp, sum);
  block_barrier();  // totals are there
  if (warp == 0) {
    const uint32_t total = load(totals + lane);
    uint32_t place = total;
    for (uint32_t apart = 1; apart < kWarpLanes; apart *= 2) {
      const uint32_t other = shuffle_up(place, apart);
      if (lane >= apart) place += other;
    }
    place += load(before) - total;
    store(begins + lane, place);
    if (first + lane <= params.experts) store(params.offsets + first + lane, place);
    // The end of the last expert stands behind it, in this block or past its experts.
    if (first + lane + 1 == params.experts && lane + 1 == kGroupedExperts) {
      store(params.offsets + params.experts, place + total);
    }
  }
  block_barrier();  // every expert's first place is there

  constexpr uint32_t kAhead = 4;  // loads under way together
  for (uint32_t step = begin; step < end; step += kAhead * kWarpLanes) {
    uint32_t experts[kAhead];
    ATLAS_UNROLL
    for (uint32_t k = 0; k < kAhead; ++k) {
      const uint32_t i = step + k * kWarpLanes + lane;
      experts[k] = i < end ? load(params.chosen + i) - first : kNone;
    }
    ATLAS_UNROLL
    for (uint32_t k = 0; k < kAhead; ++k) {
      const bool mine = experts[k] < kGroupedExperts;
      uint32_t same = ballot(mine);  // lanes with the same expert
      if (same == 0) continue;
      for (uint32_t bit = 1; bit < kGroupedExperts; bit *= 2) {
        const uint32_t set = ballot((experts[k] & bit) != 0);
        same &= (experts[k] & bit) != 0 ? set : ~set;
      }
      const uint32_t rank = count_bits(same & ((1u << lane) - 1));
      uint32_t* placed = counts + warp * kStride + (mine ? experts[k] : 0);
      const uint32_t so_far = mine ? load(placed) : 0;
      warp_barrier();  // read by all before the first of them raises it
      if (mine && rank == 0) store(placed, so_far + count_bits(same));
      warp_barrier();  // raised before the next step reads it
      if (!mine) continue;
      const uint32_t i = step + k * kWarpLanes + lane;
      const uint32_t place = load(begins + experts[k]) + so_far + rank;
      store(params.place + i, place);
      store(params.source + place, i / params.top);
    }
  }
}

/// Where a warp's order stands among its 32 in descending order, of equal ones the lower lane's
/// first. `staged` holds all of them.
ATLAS_DEVICE uint32_t warp_rank(uint32_t order, const uint32_t* staged) {
  using namespace device;
  const uint32_t lane = lane_index(), own = lane / 4;
  uint32_t rank = 0;
  ATLAS_UNROLL
  for (uint32_t quad = 0; quad < kWarpLanes / 4; ++quad) {
    const Words4 others = load_as<Words4>(staged + 4 * quad);
    const uint32_t above = quad < own ? order - 1 : order;
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) rank += others.w[j] > above ? 1 : 0;
  }
  const Words4 near = load_as<Words4>(staged + 4 * own);
  ATLAS_UNROLL
  for (uint32_t j = 0; j < 3; ++j) rank += j < lane % 4 && near.w[j] == order ? 1 : 0;
  return rank;
}

/// One block. Each run of 32 logits is sorted by a warp, then a warp a row merges its runs: lane i
/// has the best that is left of run i. At last every thread counts the choices before a place.
ATLAS_DEVICE_KERNEL(choose_experts, ChooseExpertsParams, kChooseThreads) {
  using namespace device;
  constexpr uint32_t kWarps = kChooseThreads / kWarpLanes, kHeld = kChooseRuns / kWarps;
  constexpr uint32_t kNoOrder = 1;  // below that of every logit, and not the lowest number
  const RouteParams& route = params.route;
  const uint32_t experts = route.experts, top = route.top, rows = load(route.row_count);
  if (!chooses_together(experts, top, rows)) return;
  const uint32_t of_row = blocks_of(experts, kWarpLanes), runs = rows * of_row;
  const uint32_t warp = warp_index(), lane = lane_index();
  uint32_t* orders = shared_memory<uint32_t>();           // [run, 32], descending
  uint32_t* sorted = orders + kChooseRuns * kWarpLanes;   // their experts
  uint32_t* numbers = sorted + kChooseRuns * kWarpLanes;  // of a run: whether it has no NaN
  uint32_t* keys = numbers + kChooseRuns;                 // [row, top]: expert, then place in all

  const uint32_t rows_apart = kWarps / of_row, columns_apart = kWarps - rows_apart * of_row;
  uint32_t row = warp / of_row, column = warp - row * of_row;
  float held[kHeld];
  uint32_t ids[kHeld];
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kHeld; ++i) {  // all are under way before the first is used
    ids[i] = column * kWarpLanes + lane;
    held[i] = 0.0f;
    if (warp + i * kWarps < runs && ids[i] < experts) {
      held[i] = load(route.logits + row * route.logits_stride + ids[i]);
    }
    row += rows_apart;
    column += columns_apart;
    if (column >= of_row) {
      column -= of_row;
      ++row;
    }
  }
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kHeld; ++i) {
    const uint32_t run = warp + i * kWarps;
    if (run >= runs) break;
    store(orders + run * kWarpLanes + lane, ids[i] < experts ? order_of(held[i]) : kNoOrder);
    store(sorted + run * kWarpLanes + lane, ids[i]);
    const bool whole = all(held[i] == held[i]);
    if (lane == 0) store(numbers + run, whole ? 1u : 0u);
  }
  warp_barrier();  // a warp's runs are there before its lanes read them
  ATLAS_ROLLED
  for (uint32_t run = warp; run < runs; run += kWarps) {
    const uint32_t begin = run * kWarpLanes, order = load(orders + begin + lane);
    const uint32_t id = load(sorted + begin + lane), rank = warp_rank(order, orders + begin);
    warp_barrier();  // all have read the run before it is put in order
    store(orders + begin + rank, order);
    store(sorted + begin + rank, id);
  }
  block_barrier();  // all runs are sorted

  for (row = warp; row < rows; row += kWarps) {
    const uint32_t first = row * of_row, begin = (first + lane) * kWarpLanes;
    const bool has_run = lane < of_row;
    uint32_t at = 0, order = 0, next = 0;
    if (has_run) {
      order = load(orders + begin);
      next = load(orders + begin + 1);
    }
    Ranked chosen = {0, 0};
    ATLAS_ROLLED
    for (uint32_t j = 0; j < top; ++j) {
      const uint32_t most = warp_max(order);
      const uint32_t from = lowest_bit(ballot(order == most));  // lower runs have lower experts
      const uint32_t place = shuffle(begin + at, from);
      if (lane == j) chosen = {most, place};
      if (lane == from) {
        ++at;
        order = next;
        next = at + 1 < kWarpLanes ? load(orders + begin + at + 1) : 0;
      }
    }
    if (lane < top) {
      chosen.expert = load(sorted + chosen.expert);
      const uint32_t choice = row * top + lane;
      store(keys + choice, chosen.expert << 16 | choice);
    }
    store_choice(route, row, chosen, all(!has_run || load(numbers + first + lane) != 0));
  }
  block_barrier();  // all choices are there

  // An expert's first place is the number of choices of lower ones, a choice's that of those
  // before.
  const uint32_t choices = rows * top;
  for (uint32_t i = thread_index(); i <= experts + choices; i += kChooseThreads) {
    const bool is_expert = i <= experts;
    const uint32_t choice = i - experts - 1, key = is_expert ? i << 16 : load(keys + choice);
    uint32_t before = 0;
    for (uint32_t k = 0; k < choices; ++k) before += load(keys + k) < key ? 1 : 0;
    if (is_expert) {
      store(params.group.offsets + i, before);
    } else {
      store(params.group.place + choice, before);
      store(params.group.source + before, choice / top);
    }
  }
}

ATLAS_DEVICE_KERNEL(combine_experts, CombineExpertsParams, kQuadThreads) {
  using namespace device;
  const uint64_t row = block_index();
  if (row >= load(params.row_count)) return;
  const CombinedRow<5> combined(params, row);
  const uint32_t i = 4 * (block_index<1>() * kQuadThreads + thread_index());
  store_quad(params.y + row * params.y_stride, i, params.n, has_quads(params.y, params.y_stride),
             combined.quad(i));
}

}  // namespace atlas::kernels

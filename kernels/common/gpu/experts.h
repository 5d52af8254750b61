// Mixture of experts for every GPU pack: route, group_experts, choose_experts (both for few rows),
// combine_experts. Their contracts are core.h's and core_fused.h's.
#pragma once

#include "kernels/common/core_fused.h"
#include "kernels/common/device/early.h"
#include "kernels/common/gpu/combined_rows.h"
#include "kernels/common/gpu/lane_logits.h"

namespace atlas::kernels {

/// Sum of n values in 16 lanes, given to all lanes of the warp. `term(i)` is asked of lane i % 32
/// only.
template <typename Term>
ATLAS_DEVICE float sum_of_terms(uint32_t n, const Term& term) {
  using namespace device;
  float sum = 0.0f;
  for (uint32_t first = 0; first < n; first += kWarpLanes) {
    const uint32_t i = first + lane_index();
    const float own = i < n ? term(i) : 0.0f;
    sum = sum + own;  // lanes 16 to 31 bring theirs to those 16 below
    sum = sum + shuffle(own, lane_index() % 16 + 16);
  }
  for (uint32_t apart = 8; apart > 0; apart /= 2) sum = sum + shuffle_xor(sum, apart);
  return shuffle(sum, 0);
}

/// e^(x - max) of a logit, by its order.
ATLAS_DEVICE float term_of(uint32_t order, uint32_t most) {
  return device::exp(value_of(order) - value_of(most));
}

/// Lane j of a warp brings the term of a row's choice j and stores its weight. `most`: the largest
/// order; `numbers`: no logit of the row is NaN.
ATLAS_DEVICE void store_weight(const RouteParams& params, uint64_t row, float term, uint32_t most,
                               bool numbers) {
  using namespace device;
  const float* logits = params.logits + row * params.logits_stride;
  const float sum = params.normalize != 0 ? sum_of_terms(params.top, [&](uint32_t) { return term; })
                                          : sum_of_terms(params.experts, [&](uint32_t i) {
                                              return term_of(order_of(load(logits + i)), most);
                                            });
  if (lane_index() >= params.top) return;
  store(params.weights + row * params.top + lane_index(),
        numbers ? divide(term, sum) : bits_as<float>(0x7fc00000u));
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
  LaneLogits own(logits, params.experts);
  own.arrive();
  const bool numbers = all(own.numbers());
  const Ranked chosen = choose_in_turn(own, top);
  const uint32_t most = shuffle(chosen.order, 0);
  if (lane_index() < top) store(params.chosen + row * top + lane_index(), chosen.expert);
  store_weight(params, row, term_of(chosen.order, most), most, numbers);
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

/// Shared memory of choose_experts, in bytes.
struct ChooseShared {
  static constexpr uint32_t kKeys = 0;                             // of a warp: uint64[2, 32]
  static constexpr uint32_t kMosts = kKeys + kChooseThreads * 16;  // of a warp: [32]
  static constexpr uint32_t kRows = kMosts + kChooseThreads * 4;   // [row]: its largest order
  static constexpr uint32_t kTerms = kRows + kChooseRuns * 4;      // [row, top]
  static constexpr uint32_t kChosen = kTerms + kChooseChoices * 4;
  static constexpr uint32_t kNumbers = kChosen + kChooseChoices * 4;  // [row, words, 32]
  static constexpr uint32_t kBytes = kNumbers + kChooseRuns * device::kWarpLanes * 4;
};
static_assert(ChooseShared::kBytes <= kChooseSharedBytes);

/// A row's choices, a lane each that has a rank below `top`. At least `top` lanes have a logit that
/// is not below `least`, so every choice is among those that are not; some `top` they are, as a
/// rule, and each counts those before itself. `mosts` has a word for each lane, `keys` has 0 there.
ATLAS_DEVICE Ranked choose_together(const LaneLogits& own, uint32_t most, uint32_t top,
                                    uint64_t* keys, uint32_t* mosts, uint32_t& rank) {
  using namespace device;
  const uint32_t lane = lane_index();
  store(mosts + lane, most / 2);
  warp_barrier();  // those of all lanes are there, and keys are 0
  // Without their last bit, so that the sign of a difference says which is larger.
  const uint32_t half = most / 2;
  uint32_t above[2] = {0, 0};
  ATLAS_UNROLL
  for (uint32_t i = 0; i < kWarpLanes; i += 4) {
    const Words4 others = load_as<Words4>(mosts + i);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) above[j % 2] += (half - others.w[j]) >> 31;
  }
  const uint32_t least = 2 * warp_min(above[0] + above[1] < top ? half : 0x7fffffffu);
  uint32_t count = 0;
  own.each([&](uint32_t order, uint32_t) { count += (least / 2 - 1 - order / 2) >> 31; });
  const uint32_t all_counts = warp_add(count);
  if (all_counts > kWarpLanes) {
    rank = lane;
    return choose_in_turn(own, top);
  }
  uint32_t before = 0;  // of lower lanes
  ATLAS_UNROLL
  for (uint32_t bit = 0; bit < 6; ++bit) {
    before += count_bits(ballot((count >> bit & 1) != 0) & ((1u << lane) - 1)) << bit;
  }
  // What cannot be chosen goes to a place that nobody reads: a store without a condition.
  uint64_t *to = keys + before, *unread = keys + kWarpLanes + lane;
  own.each([&](uint32_t order, uint32_t expert) {
    store(order >= least ? to : unread, uint64_t{order} << 10 | (expert ^ 1023));
    to += order >= least ? 1 : 0;
  });
  warp_barrier();  // keys are there
  const uint64_t key = load(keys + lane);
  rank = lane < all_counts ? 0 : kWarpLanes;
  ATLAS_ROLLED
  for (uint32_t first = 0; first < all_counts; first += kWarpLanes / 2) {
    ATLAS_UNROLL
    for (uint32_t i = 0; i < kWarpLanes / 2; ++i) {
      rank += static_cast<uint32_t>((key - load(keys + first + i)) >> 63);
    }
  }
  return {static_cast<uint32_t>(key >> 10), static_cast<uint32_t>(key & 1023) ^ 1023};
}

/// One block: a warp chooses for a row, then a warp gives places to 32 experts: behind the choices
/// of lower ones, in the order of rows.
ATLAS_EARLY_KERNEL(choose_experts, ChooseExpertsParams, kChooseThreads, 1) {
  using namespace device;
  constexpr uint32_t kWarps = kChooseThreads / kWarpLanes;
  const RouteParams& route = params.route;
  const GroupExpertsParams& group = params.group;
  const uint32_t experts = route.experts, top = route.top;
  const uint32_t words = blocks_of(experts, kWarpLanes), lane = lane_index();
  uint64_t* keys = shared_memory<uint64_t>(ChooseShared::kKeys) + warp_index() * 2 * kWarpLanes;
  uint32_t* mosts = shared_memory<uint32_t>(ChooseShared::kMosts) + warp_index() * kWarpLanes;
  uint32_t* row_mosts = shared_memory<uint32_t>(ChooseShared::kRows);  // 0: there is a NaN
  float* terms = shared_memory<float>(ChooseShared::kTerms);
  uint32_t* all_chosen = shared_memory<uint32_t>(ChooseShared::kChosen);
  uint32_t* numbers = shared_memory<uint32_t>(ChooseShared::kNumbers);  // choice + 1; 0: not chosen

  store(keys + lane, uint64_t{0});
  for (uint32_t i = 4 * thread_index(); i < kChooseRuns * kWarpLanes; i += 4 * kChooseThreads) {
    store_as<Words4>(numbers + i, {{0, 0, 0, 0}});
  }
  block_barrier();  // numbers are 0
  previous_done();
  // Row 0 is there whatever the count says, so it is asked for beside the count.
  const uint32_t rows = load(route.row_count);
  LaneLogits own(route.logits, warp_index() == 0 ? experts : 0);
  own.arrive();
  bool whole = all(own.numbers());
  if (!chooses_together(experts, top, rows)) return;
  for (uint32_t row = warp_index(); row < rows; row += kWarps) {
    if (row != 0) {
      own = LaneLogits(route.logits + row * route.logits_stride, experts);
      store(keys + lane, uint64_t{0});
      own.arrive();
      whole = all(own.numbers());
    }
    const uint32_t most = own.most(), row_most = warp_max(most);
    uint32_t rank = 0;
    const Ranked chosen = choose_together(own, most, top, keys, mosts, rank);
    if (rank < top) {
      const uint32_t choice = row * top + rank;
      store(route.chosen + choice, chosen.expert);
      store(all_chosen + choice, chosen.expert);
      store(terms + choice, term_of(chosen.order, row_most));
      store(numbers + row * words * kWarpLanes + chosen.expert, rank + 1);
    }
    if (lane == 0) store(row_mosts + row, whole ? row_most : 0u);
    warp_barrier();  // keys have been read before those of the next row
  }
  block_barrier();  // all choices are there

  const uint32_t choices = rows * top;
  for (uint32_t word = warp_index(); word < words; word += kWarps) {
    const uint32_t expert = word * kWarpLanes + lane;
    const uint32_t* of_rows = numbers + expert;
    uint32_t place = 0;
    ATLAS_ROLLED
    for (uint32_t i = lane; i < choices; i += kWarpLanes) {
      place += load(all_chosen + i) / kWarpLanes < word ? 1 : 0;
    }
    place = warp_add(place);
    // Of four rows at a time: their numbers are under way together.
    const auto each_row = [&](const auto& body) {
      for (uint32_t first = 0; first < rows; first += 4) {
        uint32_t held[4];
        ATLAS_UNROLL
        for (uint32_t k = 0; k < 4; ++k) {
          held[k] = first + k < rows ? load(of_rows + (first + k) * words * kWarpLanes) : 0;
        }
        ATLAS_UNROLL
        for (uint32_t k = 0; k < 4; ++k) {
          if (first + k < rows) body(first + k, held[k]);
        }
      }
    };
    each_row([&](uint32_t, uint32_t number) {
      place += count_bits(ballot(number != 0) & ((1u << lane) - 1));
    });
    if (expert < experts) store(group.offsets + expert, place);
    each_row([&](uint32_t row, uint32_t number) {
      if (number == 0) return;
      store(group.place + row * top + number - 1, place);
      store(group.source + place, row);
      ++place;
    });
    if (expert + 1 == experts) store(group.offsets + experts, place);
  }
  for (uint32_t row = warp_index(); row < rows; row += kWarps) {
    const uint32_t most = load(row_mosts + row);
    store_weight(route, row, lane < top ? load(terms + row * top + lane) : 0.0f, most, most != 0);
  }
}

ATLAS_DEVICE_KERNEL(combine_experts, CombineExpertsParams, kQuadThreads) {
  using namespace device;
  const uint64_t row = block_index();
  if (row >= load(params.row_count)) return;
  const CombinedRow<5> combined(params, row);
  const uint32_t i = 4 * (block_index<1>() * kQuadThreads + thread_index());
  store_quad(params.y + row * params.y_stride, i, params.n, has_quads(params.y, params.y_stride),
             combined.quad(i, [] {}));
}

}  // namespace atlas::kernels

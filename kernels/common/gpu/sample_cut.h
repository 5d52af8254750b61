// top_k, top_p and the final choice of `sample`, by one block, once all parts of the vocabulary
// have told how many tokens, or how much weight, lies in which interval of z.
//
// Tokens are ordered by places: a key (the bits of -z, so that 0 is the largest) and the id. Every
// filter keeps the places below some limit. To find it, an interval of places is narrowed until its
// few tokens can be sorted; sums are of integers and have no order. A chunk of tokens whose lowest
// key lies past the limit is passed over.
#pragma once

#include "kernels/common/gpu/draw.h"
#include "kernels/common/gpu/order.h"

namespace atlas::kernels {

inline constexpr uint32_t kDroppedKey = 0x7f800000u;                 // of -infinity
inline constexpr uint64_t kAllPlaces = uint64_t{kDroppedKey} << 32;  // places below this are tokens

ATLAS_DEVICE uint32_t key_of(float z) { return device::bits_as<uint32_t>(z) & 0x7fffffffu; }
ATLAS_DEVICE float z_of(uint32_t key) { return device::bits_as<float>(key | 0x80000000u); }
ATLAS_DEVICE uint64_t place_of(uint32_t key, uint32_t id) { return uint64_t{key} << 32 | id; }

/// A token's weight, e^z * 2^44 cut to an integer.
ATLAS_DEVICE uint64_t weight_of(uint32_t key) {
  return static_cast<uint64_t>(device::exp(z_of(key)) * 0x1p44f);
}
/// What a filter counts of a token: its weight, or 1.
ATLAS_DEVICE uint64_t mass_of(uint32_t key, bool weights) { return weights ? weight_of(key) : 1; }

/// First keys of the intervals in which parts sum: of z = 0, -1.5, -2, -3, -4, -6, -8, -12 (half
/// octaves), and behind the last one that of -infinity.
inline constexpr uint32_t kFirstEdge = 0x3fc00000u;
ATLAS_DEVICE uint32_t interval_begin(uint32_t i) {
  if (i == 0) return 0;
  return i == kSampleIntervals ? kDroppedKey : kFirstEdge + (i - 1) * (1u << 22);
}
ATLAS_DEVICE uint32_t interval_of(uint32_t key) {
  if (key < kFirstEdge) return 0;
  const uint32_t interval = (key - kFirstEdge) / (1u << 22) + 1;
  return interval < kSampleIntervals ? interval : kSampleIntervals - 1;
}

/// Counts and masses of intervals as one thread has seen them.
struct IntervalSums {
  uint64_t mass[kSampleIntervals] = {};
  uint32_t count[kSampleIntervals] = {};

  ATLAS_DEVICE void add(uint32_t interval, uint64_t one) {
    ATLAS_UNROLL
    for (uint32_t k = 0; k < kSampleIntervals; ++k) {
      mass[k] += k == interval ? one : 0;
      count[k] += k == interval ? 1 : 0;
    }
  }
};

ATLAS_DEVICE uint64_t warp_sum(uint64_t value) {
  for (uint32_t flip = device::kWarpLanes / 2; flip > 0; flip /= 2) {
    value += device::shuffle_xor(value, flip);
  }
  return value;
}

/// Adds up the sums of all threads of the block, in shared memory; all come.
ATLAS_DEVICE void block_sums(const IntervalSums& own, uint64_t* masses, uint32_t* counts) {
  using namespace device;
  if (thread_index() < kSampleIntervals) {
    store(masses + thread_index(), uint64_t{0});
    store(counts + thread_index(), 0u);
  }
  block_barrier();  // 0 before anything is added
  ATLAS_UNROLL
  for (uint32_t k = 0; k < kSampleIntervals; ++k) {
    const uint32_t count = warp_add(own.count[k]);
    if (count == 0) continue;
    const uint64_t mass = warp_sum(own.mass[k]);
    if (lane_index() != 0) continue;
    atomic_add(masses + k, mass);
    atomic_add(counts + k, count);
  }
  block_barrier();  // all sums are there
}

/// The block that finishes a draw with filters.
class Chooser {
 public:
  ATLAS_DEVICE Chooser(const Draw* draw, const DrawLogits& logits, float max)
      : draw_(draw),
        logits_(logits),
        max_(max),
        list_(device::shared_memory<uint64_t>(SampleShared::kList)),
        masses_(device::shared_memory<uint64_t>(SampleShared::kMasses)),
        counts_(device::shared_memory<uint32_t>(SampleShared::kCounts)),
        reduce_(device::shared_memory<uint64_t>(SampleShared::kReduce)) {}

  /// The token. All threads come and get it.
  ATLAS_DEVICE uint32_t choose() {
    sum_parts();
    bool summed = true;  // the sums in shared memory are those of all tokens, by the filter's mass
    ATLAS_ROLLED
    for (uint32_t filter = 0; filter < 2; ++filter) {
      const bool weights = filter != 0;
      if (weights ? !keeps_top_p(draw_) : !keeps_top_k(draw_)) continue;
      apply(weights, summed);
      summed = false;
    }
    NoisyBest best(draw_);
    each_below(limit_, [&](uint64_t place) {
      best.consider(z_of(key_in(place)), static_cast<uint32_t>(place));
    });
    return block_first<kSampleThreads>(best.first(), reinterpret_cast<uint32_t*>(reduce_)).id;
  }

 private:
  /// Places that a filter's limit is sought among: those in [begin, begin + kSampleIntervals *
  /// step), or, at first, intervals of the parts.
  struct Search {
    uint64_t begin, end;
    uint64_t before;  // mass of the places before it
    uint32_t count;   // of its tokens
  };

  ATLAS_DEVICE static uint32_t key_in(uint64_t place) { return static_cast<uint32_t>(place >> 32); }

  /// Calls body(place) for the tokens whose places lie below `limit`. A warp a chunk.
  template <typename Body>
  ATLAS_DEVICE void each_below(uint64_t limit, const Body& body) const {
    using namespace device;
    const auto* lowest = scratch_of<const uint32_t>(draw_, SampleScratch::kChunkKeys);
    const uint32_t vocab = load(&draw_->vocab), chunks = sample_chunks(vocab);
    const float temperature = load(&draw_->sampling.temperature);
    // Neighbouring chunks go to different warps: what is likely often stands together.
    constexpr uint32_t kWarps = kSampleThreads / kWarpLanes;
    ATLAS_ROLLED
    for (uint32_t first = warp_index(); first < chunks; first += kWarps * kWarpLanes) {
      const uint32_t chunk = first + lane_index() * kWarps;
      uint32_t left = ballot(chunk < chunks && place_of(load(lowest + chunk), 0) < limit);
      ATLAS_ROLLED
      for (; left != 0; left &= left - 1) {
        const uint32_t begin = (first + lowest_bit(left) * kWarps) * kSampleChunk;
        ATLAS_ROLLED
        for (uint32_t i = lane_index(); i < kSampleChunk; i += kWarpLanes) {
          const uint32_t token = begin + i;
          if (token >= vocab) continue;
          const float z = divide(logits_(token) - max_, temperature);
          const uint64_t place = place_of(key_of(z), token);
          if (place < limit) body(place);
        }
      }
    }
  }

  /// The sums of all parts, in shared memory.
  ATLAS_DEVICE void sum_parts() {
    using namespace device;
    const auto* masses = scratch_of<const uint64_t>(draw_, SampleScratch::kMasses);
    const auto* counts = scratch_of<const uint32_t>(draw_, SampleScratch::kCounts);
    const uint32_t parts = sample_parts(load(&draw_->vocab));
    for (uint32_t k = warp_index(); k < kSampleIntervals; k += kSampleThreads / kWarpLanes) {
      const bool some = lane_index() < parts;
      const uint32_t at = lane_index() * kSampleIntervals + k;
      const uint64_t mass = warp_sum(some ? load(masses + at) : uint64_t{0});
      const uint32_t count = warp_add(some ? load(counts + at) : 0u);
      if (lane_index() != 0) continue;
      store(masses_ + k, mass);
      store(counts_ + k, count);
    }
    block_barrier();  // sums are there for all
  }

  /// Sums over eight intervals of [begin, end), into shared memory; gives their width.
  ATLAS_DEVICE uint64_t sum_intervals(uint64_t begin, uint64_t end, bool weights) {
    const uint64_t step = (end - begin + kSampleIntervals - 1) / kSampleIntervals;
    IntervalSums sums;
    each_below(end, [&](uint64_t place) {
      if (place < begin) return;
      uint32_t interval = 0;
      ATLAS_UNROLL
      for (uint32_t k = 1; k < kSampleIntervals; ++k) interval += place >= begin + k * step ? 1 : 0;
      sums.add(interval, mass_of(key_in(place), weights));
    });
    block_sums(sums, masses_, counts_);
    return step;
  }

  /// Lowers the limit to where the mass of the tokens below it, largest z first, reaches what the
  /// filter keeps.
  ATLAS_DEVICE void apply(bool weights, bool summed) {
    using namespace device;
    Search search{0, limit_, 0, 0xffffffffu};
    uint64_t target = 0;
    for (bool first = true; search.count > kSampleListed; first = false) {
      uint64_t step = 0;  // of the parts' intervals: none
      if (!first || !summed) step = sum_intervals(search.begin, search.end, weights);
      if (first) {
        uint64_t all = 0;
        for (uint32_t k = 0; k < kSampleIntervals; ++k) all += load(masses_ + k);
        target = weights ? share_of(all) : load(&draw_->sampling.top_k);
        if (target >= all) {
          block_barrier();  // read by all before the sums are others
          return;
        }
      }
      uint32_t k = 0;
      for (; k + 1 < kSampleIntervals; ++k) {
        const uint64_t mass = load(masses_ + k);
        if (search.before + mass >= target) break;
        search.before += mass;
      }
      search.count = load(counts_ + k);
      block_barrier();  // read by all before the sums are others
      const uint64_t end =
          step != 0 ? search.begin + (k + 1) * step : place_of(interval_begin(k + 1), 0);
      search.begin = step != 0 ? search.begin + k * step : place_of(interval_begin(k), 0);
      search.end = end < search.end ? end : search.end;
    }
    limit_ = sorted_limit(search, weights, target);
  }

  ATLAS_DEVICE uint64_t share_of(uint64_t all) const {
    const float p = device::load(&draw_->sampling.top_p);
    const double share = p > 0.0f ? static_cast<double>(p) * static_cast<double>(all) : 0.0;
    const auto target = static_cast<uint64_t>(share);
    return target != 0 ? target : 1;
  }

  /// Sorts the tokens of an interval and adds up their masses.
  ATLAS_DEVICE uint64_t sorted_limit(const Search& search, bool weights, uint64_t target) {
    using namespace device;
    constexpr uint32_t kRun = kSampleListed / kSampleThreads;  // places of a thread
    auto* listed = reinterpret_cast<uint32_t*>(reduce_);
    if (thread_index() == 0) store(listed, 0u);
    block_barrier();  // 0 before the first token
    each_below(search.end, [&](uint64_t place) {
      if (place >= search.begin) store(list_ + atomic_add(listed, 1u), place);
    });
    block_barrier();  // all are listed
    const uint32_t count = load(listed);
    block_sort<kSampleThreads>(list_, count);
    uint64_t own = 0, all;
    ATLAS_ROLLED
    for (uint32_t i = 0; i < kRun; ++i) {
      const uint32_t at = thread_index() * kRun + i;
      if (at < count) own += mass_of(key_in(load(list_ + at)), weights);
    }
    uint64_t sum = search.before + block_before<kSampleThreads>(own, reduce_, all);
    ATLAS_ROLLED
    for (uint32_t i = 0; i < kRun; ++i) {
      const uint32_t at = thread_index() * kRun + i;
      if (at >= count) break;
      const uint64_t place = load(list_ + at);
      const uint64_t next = sum + mass_of(key_in(place), weights);
      if (sum < target && next >= target) store(reduce_, place + 1);
      sum = next;
    }
    block_barrier();  // the one thread that has found it has written it
    const uint64_t found = load(reduce_);
    block_barrier();  // read by all before the words are used again
    return found;
  }

  const Draw* draw_;
  const DrawLogits& logits_;
  float max_;
  uint64_t* list_;
  uint64_t* masses_;
  uint32_t* counts_;
  uint64_t* reduce_;
  uint64_t limit_ = kAllPlaces;  // places below it stay
};

}  // namespace atlas::kernels

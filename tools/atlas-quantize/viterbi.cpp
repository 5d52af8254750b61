// Costs are 32-bit integers. The low K bits of a node's cost hold the number of the edge that
// leaves it, which is the same for all edges of a node: a sum with multiples of 2^K keeps them, so
// that one integer minimum yields cost and winner. Costs that are floats are none below zero, so
// that their bits are ordered as they are; the number takes the place of K bits of each sum. An
// edge is the state s = p * nodes + n: from node s >> K = p * (nodes >> K) + (n >> K), whose edges
// have the number p, to node n. For neighbouring n, values are neighbours and predecessors are the
// same or neighbours.
#include "tools/atlas-quantize/viterbi.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/atlas-quantize/viterbi.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#ifndef ATLAS_QUANTIZE_VITERBI_ONCE
#define ATLAS_QUANTIZE_VITERBI_ONCE
namespace atlas::quantize {

constexpr uint32_t kRun = 16;  // nodes whose values lie together in the ordered table
/// Above every cost of a node that is reached, and room for as much above it.
constexpr int32_t kForbidden = 1 << 30;
constexpr float kForbiddenFloat = 1e30f;

/// The number of the edges that leave a node.
constexpr uint32_t edge_of(uint32_t node, uint32_t bits) { return node >> (16 - 2 * bits); }

/// One position for several tiles: costs before and after [tile], choices [tile].
struct Position {
  const int32_t* table;
  uint32_t bits;
  int32_t factors[TileSearch::kTiles];
  int32_t rest[TileSearch::kTiles];  // added to every cost, a multiple of 2^K
  const int32_t* before[TileSearch::kTiles];
  int32_t* after[TileSearch::kTiles];
  uint8_t* choices[TileSearch::kTiles];
  int32_t* least[TileSearch::kTiles];  // out: of the costs after
};

}  // namespace atlas::quantize
#endif

// Highway 1.0.3 names AVX-VNNI where its target AVX3_DL checks for AVX512-VNNI.
#undef ATLAS_QUANTIZE_VNNI
#define ATLAS_QUANTIZE_VNNI (HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL)

HWY_BEFORE_NAMESPACE();
#if ATLAS_QUANTIZE_VNNI
#pragma GCC push_options
#pragma GCC target("avx512vnni")
#endif
namespace atlas::quantize::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<int32_t, kRun>;
using V = hn::Vec<D>;

/// sum + low half times low half + high half times high half, of 16-bit numbers.
HWY_INLINE V add_products(V sum, V a, V b) {
#if ATLAS_QUANTIZE_VNNI
  return V{_mm512_dpwssd_epi32(sum.raw, a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  return hn::Add(sum, V{_mm512_madd_epi16(a.raw, b.raw)});
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(sum, V{_mm256_madd_epi16(a.raw, b.raw)});
#else
  const auto low = [](V v) { return hn::ShiftRight<16>(hn::ShiftLeft<16>(v)); };
  const V products =
      hn::Add(hn::Mul(low(a), low(b)), hn::Mul(hn::ShiftRight<16>(a), hn::ShiftRight<16>(b)));
  return hn::Add(sum, products);
#endif
}

/// body(0), ..., body(kCount - 1), the numbers being types: an index that is left over would keep
/// the arrays of a tile's vectors in memory.
template <class Body, uint32_t... kAt>
HWY_INLINE void for_each(std::integer_sequence<uint32_t, kAt...>, const Body& body) {
  (body(std::integral_constant<uint32_t, kAt>()), ...);
}
#undef ATLAS_INLINE_LAMBDA
#define ATLAS_INLINE_LAMBDA __attribute__((always_inline))

/// The cost of edge `edge` in bits of a float.
HWY_INLINE V float_cost(V before, V value, V target, V high, V edge) {
  const hn::RebindToFloat<D> df;
  const auto apart = hn::Sub(hn::BitCast(df, value), hn::BitCast(df, target));
  const auto cost = hn::MulAdd(apart, apart, hn::BitCast(df, before));
  return hn::OrAnd(edge, hn::BitCast(D(), cost), high);
}

/// kBroadcast: all lanes of a vector have one predecessor.
template <uint32_t kTiles, bool kBroadcast, bool kFloats>
void advance_position(const Position& at) {
  constexpr auto kEach = std::make_integer_sequence<uint32_t, kTiles>();
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint8_t, D> d8;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  const uint32_t bits = at.bits, nodes = kStates >> bits, edges = 1u << bits;
  const uint32_t stride = nodes >> bits;  // of predecessors of one node
  const V low = hn::Set(d, static_cast<int32_t>(edges - 1));
  const V high = hn::Not(low);
  const auto iota = hn::Iota(du, 0);
  const auto spread = hn::IndicesFromVec(d, hn::ShiftRightSame(iota, static_cast<int>(bits)));
  V factors[kTiles], rest[kTiles], least[kTiles];
  for_each(kEach, [&](auto i) ATLAS_INLINE_LAMBDA {
    factors[i] = hn::Set(d, at.factors[i]);
    rest[i] = hn::Set(d, at.rest[i]);
    least[i] = hn::Set(d, INT32_MAX);
  });
  for (uint32_t run = 0; run < nodes; run += kRun) {
    const int32_t* values = at.table + uint64_t{run} * edges;
    for (uint32_t part = 0; part < kRun; part += lanes) {
      const uint32_t n = run + part, first = n >> bits;
      V best[kTiles];
      for_each(kEach, [&](auto i) ATLAS_INLINE_LAMBDA { best[i] = hn::Set(d, INT32_MAX); });
      for (uint32_t p = 0; p < edges; ++p) {
        const V value = hn::LoadU(d, values + p * kRun + part);
        for_each(kEach, [&](auto i) ATLAS_INLINE_LAMBDA {
          const int32_t* costs = at.before[i] + p * stride + first;
          const V before =
              kBroadcast ? hn::Set(d, *costs) : hn::TableLookupLanes(hn::LoadU(d, costs), spread);
          if constexpr (kFloats) {
            const V edge = hn::Set(d, static_cast<int32_t>(p));
            best[i] = hn::Min(best[i], float_cost(before, value, factors[i], high, edge));
          } else {
            best[i] = hn::Min(best[i], add_products(before, value, factors[i]));
          }
        });
      }
      const V edge = hn::BitCast(
          d, hn::ShiftRightSame(hn::Add(iota, hn::Set(du, n)), static_cast<int>(16 - 2 * bits)));
      for_each(kEach, [&](auto i) ATLAS_INLINE_LAMBDA {
        const V cost = hn::Add(hn::AndNot(low, best[i]), rest[i]);
        least[i] = hn::Min(least[i], cost);
        hn::StoreU(kFloats ? cost : hn::Or(cost, edge), d, at.after[i] + n);
        // Not TruncateTo, which mixes up lanes on AVX-512 with VBMI in Highway 1.0.3.
        hn::StoreU(hn::U8FromU32(hn::BitCast(du, hn::And(best[i], low))), d8, at.choices[i] + n);
      });
    }
  }
  for_each(kEach, [&](auto i) ATLAS_INLINE_LAMBDA {
    *at.least[i] = hn::GetLane(hn::MinOfLanes(d, least[i]));
  });
}

template <uint32_t kTiles>
void advance_tiles(const Position& at) {
  if (at.bits >= SearchTable::kFloatBits) {
    advance_position<kTiles, true, true>(at);
  } else if ((1u << at.bits) >= hn::Lanes(D())) {
    advance_position<kTiles, true, false>(at);
  } else {
    advance_position<kTiles, false, false>(at);
  }
}

void advance(const Position& at, uint32_t tiles) {
  static_assert(TileSearch::kTiles == 4);
  if (tiles == 1) advance_tiles<1>(at);
  if (tiles == 2) advance_tiles<2>(at);
  if (tiles == 3) advance_tiles<3>(at);
  if (tiles == 4) advance_tiles<4>(at);
}

}  // namespace atlas::quantize::HWY_NAMESPACE
#if ATLAS_QUANTIZE_VNNI
#pragma GCC pop_options
#endif
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::quantize {

HWY_EXPORT(advance);

namespace {

int32_t pair_of(int32_t low, int32_t high) {
  return static_cast<int32_t>(static_cast<uint32_t>(low & 0xffff) | static_cast<uint32_t>(high)
                                                                        << 16);
}

/// Node costs are read a vector beyond the last.
uint32_t padded_nodes(uint32_t bits) { return (kStates >> bits) + 64; }

}  // namespace

SearchTable::SearchTable(std::vector<float> values, uint32_t bits)
    : bits_(bits), values_(std::move(values)), ordered_(kStates) {
  constexpr double kRoom = 32767;  // of a half
  double span = 0;
  for (const float value : values_) span = std::max(span, std::fabs(double{value}));
  largest_ = span + 1;
  // Every node is reached from the cheapest one in 16 / K steps, so that no cost lies further above
  // the least than as many steps of the largest distance.
  const double steps = std::ceil(16.0 / bits);
  per_unit_ = 0.9 * kForbidden / (steps * (span + largest_) * (span + largest_));
  // Steps of v and of 2 w whose products are 2^K: errors of v and of w are alike.
  const auto edges = static_cast<int32_t>(1u << bits);
  const double value_step = std::sqrt(edges / (2 * per_unit_));
  factor_step_ = 2 * value_step;
  const int32_t value_unit = 1 << bits / 2;
  factor_unit_ = 1 << (bits + 1) / 2;
  centre_ = 0.5 * span * span;
  const double square_unit = centre_ * per_unit_ / kRoom;
  square_unit_ = static_cast<int32_t>(std::ceil(square_unit / edges)) * edges;
  const uint32_t nodes = kStates >> bits;
  for (uint32_t n = 0; n < nodes; ++n) {
    for (int32_t p = 0; p < edges; ++p) {
      const double value = values_[static_cast<uint32_t>(p) * nodes + n];
      const double rounded = std::nearbyint(value / value_step);
      const double square = rounded * rounded * value_step * value_step - centre_;
      int32_t& place =
          ordered_[(n / kRun * static_cast<uint32_t>(edges) + static_cast<uint32_t>(p)) * kRun +
                   n % kRun];
      place =
          has_floats()
              ? std::bit_cast<int32_t>(static_cast<float>(value))
              : pair_of(static_cast<int32_t>(rounded) * value_unit,
                        static_cast<int32_t>(std::nearbyint(square * per_unit_ / square_unit_)));
    }
  }
}

SearchTable::Target SearchTable::target(float w) const {
  // In this order a target that is no number becomes the largest.
  const double within = std::max(-largest_, std::min(largest_, double{w}));
  if (has_floats()) return {std::bit_cast<int32_t>(static_cast<float>(within)), 0};
  const double rounded = std::nearbyint(-2 * within / factor_step_);
  const double at = 0.5 * rounded * factor_step_;
  const double edges = 1u << bits_;
  return {.factors = pair_of(static_cast<int32_t>(rounded) * factor_unit_, square_unit_),
          .rest = static_cast<int32_t>(edges *
                                       std::nearbyint((at * at + centre_) * per_unit_ / edges))};
}

TileSearch::TileSearch(const SearchTable& table, uint32_t seam)
    : table_(table),
      seam_(seam),
      costs_(uint64_t{2} * kTiles * padded_nodes(table.bits())),
      choices_(uint64_t{kTiles} * kTileWeights * (kStates >> table.bits())) {}

void TileSearch::search(const float* targets, uint16_t* states, uint32_t count) {
  const uint32_t bits = table_.bits(), nodes = kStates >> bits, padded = padded_nodes(bits);
  const auto costs = [&](uint32_t side, uint32_t tile) {
    return costs_.data() + uint64_t{side * kTiles + tile} * padded;
  };
  const auto choices = [&](uint32_t tile, uint32_t t) {
    return choices_.data() + (uint64_t{tile} * kTileWeights + t) * nodes;
  };
  uint32_t side = 0;
  int32_t least[kTiles] = {};  // of the costs before: taken off, so that they stay small
  const auto step = [&](uint32_t t) {
    Position at{.table = table_.ordered(), .bits = bits};
    for (uint32_t i = 0; i < count; ++i) {
      const SearchTable::Target target = table_.target(targets[i * kTileWeights + t]);
      at.factors[i] = target.factors;
      at.rest[i] = table_.has_floats() ? 0 : target.rest - least[i];
      at.before[i] = costs(side, i);
      at.after[i] = costs(1 - side, i);
      at.choices[i] = choices(i, t);
      at.least[i] = &least[i];
    }
    HWY_DYNAMIC_DISPATCH(advance)(at, count);
    side = 1 - side;
  };
  const auto cost_of_start = [&](uint32_t node, bool open) {
    if (table_.has_floats()) return open ? 0 : std::bit_cast<int32_t>(kForbiddenFloat);
    return (open ? 0 : kForbidden) | static_cast<int32_t>(edge_of(node, bits));
  };
  const auto begin_with = [&](uint32_t tile, bool open) {
    for (uint32_t n = 0; n < nodes; ++n) costs(side, tile)[n] = cost_of_start(n, open);
    least[tile] = 0;
  };
  // From a state's node after position t to the state, and to the node before it.
  const auto state_of = [&](uint32_t tile, uint32_t t, uint32_t node) {
    return choices(tile, t)[node] * nodes + node;
  };

  for (uint32_t i = 0; i < count; ++i) begin_with(i, true);
  for (uint32_t t = kTileWeights - seam_; t < kTileWeights; ++t) step(t);
  for (uint32_t t = 0; t < seam_; ++t) step(t);
  uint32_t seam_node[kTiles] = {};
  for (uint32_t i = 0; i < count; ++i) {
    const int32_t* end = costs(side, i);
    auto node = static_cast<uint32_t>(std::min_element(end, end + nodes) - end);
    for (uint32_t t = seam_; t-- > 0;) node = state_of(i, t, node) >> bits;
    seam_node[i] = node;
  }
  for (uint32_t i = 0; i < count; ++i) {
    begin_with(i, false);
    costs(side, i)[seam_node[i]] = cost_of_start(seam_node[i], true);
  }
  for (uint32_t t = 0; t < kTileWeights; ++t) step(t);
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t node = seam_node[i];
    for (uint32_t t = kTileWeights; t-- > 0;) {
      const uint32_t state = state_of(i, t, node);
      states[i * kTileWeights + t] = static_cast<uint16_t>(state);
      node = state >> bits;
    }
  }
}

}  // namespace atlas::quantize
#endif

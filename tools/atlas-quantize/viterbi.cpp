// Costs are float32 whose low K bits hold the number of the edge that won, so that one integer
// minimum keeps both; what that takes from a cost is below 2^-15 of it. An edge is the state
// s = p * nodes + n: from node s >> K = p * (nodes >> K) + (n >> K) to node n. For neighbouring n,
// values are neighbours and predecessors are the same or neighbours.
#include "tools/atlas-quantize/viterbi.h"

#include <algorithm>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/atlas-quantize/viterbi.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#ifndef ATLAS_QUANTIZE_VITERBI_ONCE
#define ATLAS_QUANTIZE_VITERBI_ONCE
namespace atlas::quantize {

constexpr uint32_t kRun = 16;        // nodes whose values lie together in the ordered table
constexpr float kForbidden = 1e30f;  // larger than any sum of costs

/// One position for several tiles: costs before and after [tile], choices [tile].
struct Position {
  const float* table;
  uint32_t bits;
  float targets[TileSearch::kTiles];
  const float* before[TileSearch::kTiles];
  float* after[TileSearch::kTiles];
  uint8_t* choices[TileSearch::kTiles];
};

}  // namespace atlas::quantize
#endif

HWY_BEFORE_NAMESPACE();
namespace atlas::quantize::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// kBroadcast: all lanes of a vector have one predecessor.
template <uint32_t kTiles, bool kBroadcast>
void advance_position(const Position& at) {
  const hn::CappedTag<float, kRun> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  using V = hn::Vec<decltype(d)>;
  using U = hn::Vec<decltype(du)>;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  const uint32_t bits = at.bits, nodes = kStates >> bits, edges = 1u << bits;
  const uint32_t stride = nodes >> bits;  // of predecessors of one node
  const U low = hn::Set(du, edges - 1);
  const auto spread =
      hn::IndicesFromVec(d, hn::ShiftRightSame(hn::Iota(du, 0), static_cast<int>(bits)));
  V target[kTiles];
  for (uint32_t i = 0; i < kTiles; ++i) target[i] = hn::Set(d, at.targets[i]);
  for (uint32_t run = 0; run < nodes; run += kRun) {
    const float* values = at.table + uint64_t{run} * edges;
    for (uint32_t part = 0; part < kRun; part += lanes) {
      const uint32_t n = run + part, first = n >> bits;
      U best[kTiles];
      for (uint32_t i = 0; i < kTiles; ++i) best[i] = hn::Set(du, 0x7f800000u);
      for (uint32_t p = 0; p < edges; ++p) {
        const V value = hn::LoadU(d, values + p * kRun + part);
        const U edge = hn::Set(du, p);
        for (uint32_t i = 0; i < kTiles; ++i) {
          const float* costs = at.before[i] + p * stride + first;
          const V before =
              kBroadcast ? hn::Set(d, *costs) : hn::TableLookupLanes(hn::LoadU(d, costs), spread);
          const V apart = hn::Sub(value, target[i]);
          const V cost = hn::MulAdd(apart, apart, before);
          best[i] = hn::Min(best[i], hn::IfVecThenElse(low, edge, hn::BitCast(du, cost)));
        }
      }
      for (uint32_t i = 0; i < kTiles; ++i) {
        hn::StoreU(hn::BitCast(d, best[i]), d, at.after[i] + n);
        // Not TruncateTo, which mixes up lanes on AVX-512 with VBMI in Highway 1.0.3.
        hn::StoreU(hn::U8FromU32(hn::And(best[i], low)), d8, at.choices[i] + n);
      }
    }
  }
}

template <uint32_t kTiles>
void advance_tiles(const Position& at) {
  const hn::CappedTag<float, kRun> d;
  if ((1u << at.bits) >= hn::Lanes(d)) {
    advance_position<kTiles, true>(at);
  } else {
    advance_position<kTiles, false>(at);
  }
}

void advance_one(const Position& at) { advance_tiles<1>(at); }
void advance_two(const Position& at) { advance_tiles<2>(at); }

}  // namespace atlas::quantize::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::quantize {

HWY_EXPORT(advance_one);
HWY_EXPORT(advance_two);

SearchTable::SearchTable(std::vector<float> values, uint32_t bits)
    : bits_(bits), values_(std::move(values)), ordered_(kStates) {
  const uint32_t nodes = kStates >> bits, edges = 1u << bits;
  for (uint32_t n = 0; n < nodes; ++n) {
    for (uint32_t p = 0; p < edges; ++p) {
      ordered_[(n / kRun) * kRun * edges + p * kRun + n % kRun] = values_[p * nodes + n];
    }
  }
}

namespace {

/// Node costs are read a vector beyond the last.
uint32_t padded_nodes(uint32_t bits) { return (kStates >> bits) + 64; }

}  // namespace

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
  const auto step = [&](uint32_t t) {
    Position at{.table = table_.ordered(), .bits = bits};
    for (uint32_t i = 0; i < count; ++i) {
      at.targets[i] = targets[i * kTileWeights + t];
      at.before[i] = costs(side, i);
      at.after[i] = costs(1 - side, i);
      at.choices[i] = choices(i, t);
    }
    if (count == 1) {
      HWY_DYNAMIC_DISPATCH(advance_one)(at);
    } else {
      HWY_DYNAMIC_DISPATCH(advance_two)(at);
    }
    side = 1 - side;
  };
  // From a state's node after position t to the state, and to the node before it.
  const auto state_of = [&](uint32_t tile, uint32_t t, uint32_t node) {
    return choices(tile, t)[node] * nodes + node;
  };

  for (uint32_t i = 0; i < count; ++i) std::fill_n(costs(side, i), padded, 0.0f);
  for (uint32_t t = kTileWeights - seam_; t < kTileWeights; ++t) step(t);
  for (uint32_t t = 0; t < seam_; ++t) step(t);
  uint32_t seam_node[kTiles] = {};
  for (uint32_t i = 0; i < count; ++i) {
    const float* end = costs(side, i);
    auto node = static_cast<uint32_t>(std::min_element(end, end + nodes) - end);
    for (uint32_t t = seam_; t-- > 0;) node = state_of(i, t, node) >> bits;
    seam_node[i] = node;
  }
  for (uint32_t i = 0; i < count; ++i) {
    std::fill_n(costs(side, i), padded, kForbidden);
    costs(side, i)[seam_node[i]] = 0;
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

// The search for a tile's states: of all closed walks through the trellis, one whose values come
// closest to 256 targets.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tools/atlas-quantize/trellis.h"

namespace atlas::quantize {

/// A codebook as the search reads it, for `bits` a weight. Shared by all threads.
///
/// (v - w)^2 - w^2 = v^2 - 2 v w is one product of two pairs of 16-bit numbers, (v, v^2) and
/// (-2 w, 1), each in steps of its own; their 32-bit sum is the cost in steps of 1 / per_unit_,
/// and a multiple of 2^K, which leaves room for the number of an edge. From kFloatBits on, errors
/// are too small for what is left of the sum, and costs are float32.
class SearchTable {
 public:
  SearchTable(std::vector<float> values, uint32_t bits);
  uint32_t bits() const { return bits_; }
  const std::vector<float>& values() const { return values_; }  // by state
  static constexpr uint32_t kFloatBits = 6;
  bool has_floats() const { return bits_ >= kFloatBits; }
  /// In the order of the walk over edges: pairs (v in the low half, v^2 in the high half), or the
  /// bits of v as a float.
  const int32_t* ordered() const { return ordered_.data(); }

  /// What a target brings to a position.
  struct Target {
    int32_t factors;  // (-2 w in the low half, the step of v^2 in the high half), or bits of w
    int32_t rest;     // w^2 and what the table's v^2 lack: makes costs squared distances
  };
  Target target(float w) const;

 private:
  uint32_t bits_;
  std::vector<float> values_;
  std::vector<int32_t> ordered_;
  double per_unit_ = 0;  // of a cost of 1
  double largest_ = 0;   // of targets; others count as that
  double factor_step_ = 0;
  double centre_ = 0;  // squares are stored less this
  int32_t factor_unit_ = 0, square_unit_ = 0;
};

/// Scratch and search of one thread. Before position t stands a node, the 16 - K bits that
/// neighbouring states share. Two passes (as exllamav3's quantize.cu has them): the first walks
/// over the ring's seam from free nodes and finds the node that enters position 0; the second goes
/// round once from that node and back to it, so that the ring closes. The first needs no whole
/// turn: the survivors of two starting points meet within a few times 16 / K positions, so that it
/// takes `seam` positions on each side (128: a whole turn).
class TileSearch {
 public:
  /// Tiles that are searched at once, sharing the codebook's loads.
  static constexpr uint32_t kTiles = 4;
  /// Half a turn before and after: for 0.4 to 0.8 % more squared error than a whole one (Gaussian
  /// targets, K 2 to 6) a quarter of the time is saved.
  static constexpr uint32_t kSeam = 64;
  explicit TileSearch(const SearchTable& table, uint32_t seam = kSeam);

  /// targets and states: [count][256] in ring order, count 1 to kTiles.
  void search(const float* targets, uint16_t* states, uint32_t count);

 private:
  const SearchTable& table_;
  uint32_t seam_;
  std::vector<int32_t> costs_;    // or bits of floats, [2][kTiles][nodes + a vector]
  std::vector<uint8_t> choices_;  // [kTiles][256][nodes]: the edge that won
};

}  // namespace atlas::quantize

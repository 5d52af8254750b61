// The search for a tile's states: of all closed walks through the trellis, one whose values come
// closest to 256 targets.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tools/atlas-quantize/trellis.h"

namespace atlas::quantize {

/// A codebook as the search reads it, for `bits` a weight. Shared by all threads.
class SearchTable {
 public:
  SearchTable(std::vector<float> values, uint32_t bits);
  uint32_t bits() const { return bits_; }
  const std::vector<float>& values() const { return values_; }  // by state
  const float* ordered() const { return ordered_.data(); }

 private:
  uint32_t bits_;
  std::vector<float> values_;
  std::vector<float> ordered_;  // in the order of the walk over edges
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
  static constexpr uint32_t kTiles = 2;
  /// Half a turn before and after: for 0.4 to 0.8 % more squared error than a whole one (Gaussian
  /// targets, K 2 to 6) a quarter of the time is saved.
  static constexpr uint32_t kSeam = 64;
  explicit TileSearch(const SearchTable& table, uint32_t seam = kSeam);

  /// targets and states: [count][256] in ring order, count 1 or 2.
  void search(const float* targets, uint16_t* states, uint32_t count);

 private:
  const SearchTable& table_;
  uint32_t seam_;
  std::vector<float> costs_;      // [2][kTiles][nodes + a vector]
  std::vector<uint8_t> choices_;  // [kTiles][256][nodes]: the edge that won
};

}  // namespace atlas::quantize

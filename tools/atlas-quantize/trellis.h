// The EXL3 trellis: codebooks, the order of weights in a tile, and the bits of a tile.
// A tile of 16 x 16 weights is a closed ring of 256 * K bits; weight t is a function of the 16 bits
// that end with bit (t + 1) * K - 1, its state. Source: exllamav3's quant/codebook.cuh and pack.cu,
// in the words of the format's description.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::quantize {

inline constexpr uint32_t kTileSide = 16;
inline constexpr uint32_t kTileWeights = kTileSide * kTileSide;
inline constexpr uint32_t kStates = 65536;

enum class Codebook { k3Inst, kMcg, kMul1 };
Result<Codebook> parse_codebook(const std::string& name);

/// The value of each state, float16 numbers as float32.
std::vector<float> codebook_values(Codebook codebook);

/// Where position t of the ring lies in its tile: row (input) and column (output).
struct TilePlace {
  uint8_t row, column;
};
const std::array<TilePlace, kTileWeights>& tile_places();

/// The 8 * `bits` words of a tile from its 256 states. `bits` is 1 to 8.
void pack_tile(const uint16_t* states, uint32_t bits, uint32_t* words);

}  // namespace atlas::quantize

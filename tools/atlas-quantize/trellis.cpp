#include "tools/atlas-quantize/trellis.h"

#include <algorithm>

#include "kernels/common/codecs.h"
#include "tools/atlas-quantize/number_codes.h"

namespace atlas::quantize {

namespace {

float half_value(uint32_t bits) { return kernels::f16_to_f32(static_cast<uint16_t>(bits)); }

float state_value(Codebook codebook, uint32_t state) {
  if (codebook == Codebook::kMul1) {
    const uint32_t u = state * 0x83DCD12Du;
    const uint32_t sum = (u & 255) + (u >> 8 & 255) + (u >> 16 & 255) + (u >> 24);
    // Product and sum are exact in float32, so that this is the one rounding of an f16 fma.
    const float value = static_cast<float>(1024 + sum) * half_value(0x1EEE) + half_value(0xC931);
    return half_value(f16_from_float(value));
  }
  const uint32_t u =
      codebook == Codebook::kMcg ? state * 0xCBAC1FEDu : state * 89226354u + 64248484u;
  const uint32_t v = (u & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return half_value(f16_from_float(half_value(v & 0xFFFF) + half_value(v >> 16)));
}

}  // namespace

Result<Codebook> parse_codebook(const std::string& name) {
  if (name == "mul1") return Codebook::kMul1;
  if (name == "mcg") return Codebook::kMcg;
  if (name == "3inst") return Codebook::k3Inst;
  return invalid_argument("codebook '{}' is not known: mul1, mcg and 3inst are", name);
}

std::vector<float> codebook_values(Codebook codebook) {
  std::vector<float> values(kStates);
  for (uint32_t state = 0; state < kStates; ++state) values[state] = state_value(codebook, state);
  return values;
}

const std::array<TilePlace, kTileWeights>& tile_places() {
  // Each of 32 lanes owns eight positions, those of the B operand of an m16n8k16 product.
  static const std::array<TilePlace, kTileWeights> places = [] {
    std::array<TilePlace, kTileWeights> out{};
    for (uint32_t t = 0; t < kTileWeights; ++t) {
      const uint32_t lane = t >> 3, j = t & 7;
      out[t].row = static_cast<uint8_t>(2 * (lane & 3) + (j & 1) + 8 * (j >> 1 & 1));
      out[t].column = static_cast<uint8_t>((lane >> 2) + 8 * (j >> 2));
    }
    return out;
  }();
  return places;
}

void pack_tile(const uint16_t* states, uint32_t bits, uint32_t* words) {
  std::fill(words, words + 8 * bits, 0u);
  for (uint32_t t = 0; t < kTileWeights; ++t) {
    for (uint32_t b = 0; b < bits; ++b) {
      const uint32_t bit = states[t] >> (bits - 1 - b) & 1u;
      const uint32_t place = t * bits + b;
      words[place / 32] |= bit << (31 - place % 32);
    }
  }
}

}  // namespace atlas::quantize

// Philox4x32-10, the counter-based generator behind sampling: four random words from a counter and
// a key, with no state. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1,
// 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace atlas::kernels {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

/// One block: the reference of every vectorised form.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, uint32_t key0,
                                             uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

/// The 31 random bits of a token's noise: see `sample` in core.h.
constexpr uint32_t sampling_bits(uint64_t seed, uint32_t position, uint32_t token) {
  const auto words = philox4x32({token / 64 * 16 + token % 16, position, 0, 0},
                                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return words[token / 16 % 4] >> 1;
}

}  // namespace atlas::kernels

// The format int8g: signed 8-bit codes, and one float32 scale for each group of codes along k.
//
// In a checkpoint a module has two tensors: `<module>.codes`, I8 [n, k], and `<module>.scales`,
// F32 [n, k / group]; W[i,j] = codes[i,j] * scales[i, j / group].
//
// Resident, 16 rows at a time, so that the lanes of a vector are outputs: for each group of k, 16
// scales, then for each of its positions 16 codes. Rows past n have scale 0 and codes 0.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace int8g {

inline constexpr uint32_t kRows = 16;

struct Layout {
  uint64_t k;
  uint32_t group;

  uint64_t groups() const { return k / group; }
  /// Bytes of 16 rows' share of one group: scales, then codes.
  uint64_t block_bytes() const { return kRows * (sizeof(float) + group); }
  /// Bytes of 16 whole rows.
  uint64_t row_group_bytes() const { return groups() * block_bytes(); }
};

/// "int8g_g64". The group size is part of the name, for a product's problem names only the format.
inline std::string format_name(uint32_t group) { return "int8g_g" + std::to_string(group); }

/// The group of a format's name, or 0 if it is no name of ours.
inline uint32_t group_of(std::string_view format) {
  constexpr std::string_view kPrefix = "int8g_g";
  if (!format.starts_with(kPrefix)) return 0;
  return static_cast<uint32_t>(
      std::strtoul(std::string(format.substr(kPrefix.size())).c_str(), nullptr, 10));
}

/// Writes rows [first, first + 16) of a weight to `out` (row_group_bytes). `codes` is [n, k] and
/// `scales` [n, k / group], row-major.
inline void pack_rows(const Layout& layout, uint64_t n, uint64_t first, const int8_t* codes,
                      const float* scales, std::byte* out) {
  std::memset(out, 0, layout.row_group_bytes());
  for (uint64_t lane = 0; lane < kRows && first + lane < n; ++lane) {
    const uint64_t row = first + lane;
    for (uint64_t g = 0; g < layout.groups(); ++g) {
      std::byte* block = out + g * layout.block_bytes();
      std::memcpy(block + lane * sizeof(float), &scales[row * layout.groups() + g], sizeof(float));
      std::byte* lanes = block + kRows * sizeof(float) + lane;
      for (uint32_t j = 0; j < layout.group; ++j) {
        lanes[j * kRows] = static_cast<std::byte>(codes[row * layout.k + g * layout.group + j]);
      }
    }
  }
}

}  // namespace int8g

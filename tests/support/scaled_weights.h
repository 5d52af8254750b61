// Random weights in NVFP4 and FP8 as a checkpoint has them, decoded by the formats' definitions and
// nothing of the code under test.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/quant_plugin.h"

namespace atlas::test {

/// e2m1, e4m3 and ue8m0 by their definitions, in float64.
inline double number_e2m1(uint8_t code) {
  static constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}
inline double number_e4m3(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return std::nan("");
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}
inline double number_ue8m0(uint8_t code) {
  return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127);
}

template <typename Number>
std::vector<uint8_t> bytes_of(const std::vector<Number>& numbers) {
  std::vector<uint8_t> bytes(numbers.size() * sizeof(Number));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

/// A matrix [n, k]: the first tensor, those beside it, and the numbers.
struct ScaledWeights {
  std::string format, name = "weight";
  uint32_t n = 0, k = 0, columns = 0;
  AtlasDType dtype = ATLAS_U8;
  std::vector<uint8_t> codes;
  std::vector<MoreTensor> more;
  std::vector<float> values;

  WeightFile file(const std::string& module) const {
    return {module, dtype, n, columns, codes.data(), codes.size(), name, more};
  }
};

/// `compressed`: the names of compressed-tensors, whose matrix scale is the reciprocal. Every e2m1
/// code is met, and e4m3 scales from the smallest to 416.
inline ScaledWeights nvfp4_weights(uint32_t n, uint32_t k, bool compressed, float matrix_scale,
                                   uint32_t seed = 3) {
  ScaledWeights w;
  w.format = "nvfp4";
  w.n = n;
  w.k = k;
  w.columns = k / 2;
  w.name = compressed ? "weight_packed" : "weight";
  std::mt19937 random(seed);
  w.codes.resize(size_t{n} * k / 2);
  for (uint8_t& byte : w.codes) byte = static_cast<uint8_t>(random());
  std::vector<uint8_t> scales(size_t{n} * k / 16);
  for (uint8_t& scale : scales) {
    scale = static_cast<uint8_t>(random() % 8 == 0 ? random() % 0x7e : 0x30 + random() % 0x20);
  }
  const float factor = compressed ? 1.0f / matrix_scale : matrix_scale;
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t j = 0; j < k; ++j) {
      const uint8_t byte = w.codes[(size_t{i} * k + j) / 2];
      const double code = number_e2m1(j % 2 == 0 ? byte & 15 : byte >> 4);
      const double scale = number_e4m3(scales[(size_t{i} * k + j) / 16]);
      w.values.push_back(static_cast<float>(code * scale * factor));
    }
  }
  w.more = {{"weight_scale", ATLAS_F8_E4M3, {n, k / 16}, std::move(scales)},
            {compressed ? "weight_global_scale" : "weight_scale_2", ATLAS_F32,
             compressed ? std::vector<uint64_t>{1} : std::vector<uint64_t>{},
             bytes_of(std::vector<float>{matrix_scale})},
            {compressed ? "input_global_scale" : "input_scale",
             ATLAS_F32,
             {},
             bytes_of(std::vector<float>{3.5f})}};
  return w;
}

/// How FP8 scales lie in a checkpoint.
enum class Fp8Kind { kTensor, kRow, kRowFlat, kBlockF32, kBlockBF16, kMx };

inline ScaledWeights fp8_weights(uint32_t n, uint32_t k, Fp8Kind kind, uint32_t seed = 4) {
  ScaledWeights w;
  w.format = kind == Fp8Kind::kMx                                        ? "mxfp8"
             : kind == Fp8Kind::kBlockF32 || kind == Fp8Kind::kBlockBF16 ? "fp8_b128"
                                                                         : "fp8";
  w.n = n;
  w.k = w.columns = k;
  w.dtype = ATLAS_F8_E4M3;
  std::mt19937 random(seed);
  w.codes.resize(size_t{n} * k);
  for (uint8_t& code : w.codes) {
    do code = static_cast<uint8_t>(random());
    while ((code & 0x7f) == 0x7f);
  }
  const uint64_t block_rows = (n + 127) / 128, block_columns = (k + 127) / 128;
  std::vector<uint64_t> dims;
  if (kind == Fp8Kind::kRow) dims = {n, 1};
  if (kind == Fp8Kind::kRowFlat) dims = {n};
  if (kind == Fp8Kind::kBlockF32 || kind == Fp8Kind::kBlockBF16) dims = {block_rows, block_columns};
  if (kind == Fp8Kind::kMx) dims = {n, k / 32};
  uint64_t count = 1;
  for (const uint64_t dim : dims) count *= dim;
  std::vector<float> scales;
  std::vector<uint8_t> stored;
  std::uniform_real_distribution<float> uniform(1e-4f, 9e-4f);
  for (uint64_t i = 0; i < count; ++i) {
    if (kind == Fp8Kind::kMx) {
      stored.push_back(
          static_cast<uint8_t>(random() % 16 == 0 ? random() % 40 : 108 + random() % 9));
      scales.push_back(static_cast<float>(number_ue8m0(stored.back())));
      continue;
    }
    float scale = uniform(random);
    uint32_t bits;
    std::memcpy(&bits, &scale, 4);
    if (kind == Fp8Kind::kBlockBF16) {
      bits &= 0xffff0000;
      std::memcpy(&scale, &bits, 4);
      stored.push_back(static_cast<uint8_t>(bits >> 16));
      stored.push_back(static_cast<uint8_t>(bits >> 24));
    }
    scales.push_back(scale);
  }
  if (stored.empty()) stored = bytes_of(scales);
  for (uint64_t i = 0; i < n; ++i) {
    for (uint64_t j = 0; j < k; ++j) {
      uint64_t at = 0;
      if (kind == Fp8Kind::kRow || kind == Fp8Kind::kRowFlat) at = i;
      if (kind == Fp8Kind::kBlockF32 || kind == Fp8Kind::kBlockBF16) {
        at = i / 128 * block_columns + j / 128;
      }
      if (kind == Fp8Kind::kMx) at = i * (k / 32) + j / 32;
      w.values.push_back(static_cast<float>(number_e4m3(w.codes[i * k + j]) * double{scales[at]}));
    }
  }
  const bool blocks = w.format == "fp8_b128";
  if (blocks && count == 1) w.format = "fp8";  // one block is one scale
  w.more = {{blocks ? "weight_scale_inv" : "weight_scale",
             kind == Fp8Kind::kMx          ? AtlasDType{ATLAS_U8}
             : kind == Fp8Kind::kBlockBF16 ? AtlasDType{ATLAS_BF16}
                                           : AtlasDType{ATLAS_F32},
             dims, std::move(stored)}};
  return w;
}

}  // namespace atlas::test

// Products of NVFP4 and FP8 weights: every instruction set against a scalar walk of the contract,
// bit for bit; and products of experts against plain ones.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/fp8.h"
#include "kernels/common/i16b32.h"
#include "kernels/common/nvfp4.h"
#include "kernels/common/packed_float.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/scaled_weights.h"

namespace atlas::test {
namespace {

using kernels::I16B32Block;

/// The resident bytes, made by the plugin.
Aligned packed(const QuantPlugin& plugin, const ScaledWeights& weights) {
  const WeightFile file = weights.file("m");
  AtlasWeightClaim claim{};
  claim.struct_size = sizeof(claim);
  AtlasError error{sizeof(AtlasError), {}};
  REQUIRE_MESSAGE(plugin.api.claim(&file.query, &claim, &error) == ATLAS_OK, error.message);
  REQUIRE(claim.claimed == 1);
  const uint64_t groups = (claim.n + 15) / 16;
  Aligned out(groups * claim.group_bytes);
  REQUIRE(plugin.api.pack(&file.query, &claim, 0, groups, out.data(), &error) == ATLAS_OK);
  return out;
}

/// Rows of x, plain and (with zeros behind an end that is no multiple of 32) encoded.
struct Rows {
  Rows(uint32_t rows, uint32_t columns)
      : m(rows), k(columns), x(size_t{m} * k), blocks(kernels::i16b32_blocks(k)) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    encoded.resize(m * blocks);
    for (uint32_t row = 0; row < m; ++row) {
      for (uint64_t b = 0; b < blocks; ++b) {
        float part[32] = {};
        const uint64_t count = std::min<uint64_t>(32, k - 32 * b);
        std::memcpy(part, &x[row * k + 32 * b], count * sizeof(float));
        kernels::encode_i16b32_block(part, &encoded[row * blocks + b]);
      }
    }
  }
  uint32_t m, k;
  std::vector<float> x;
  uint64_t blocks;
  std::vector<I16B32Block> encoded;
};

float nvfp4_contract(const ScaledWeights& w, const Rows& rows, uint32_t row, uint32_t output) {
  float sum = 0.0f, matrix;
  std::memcpy(&matrix, w.more[1].bytes.data(), sizeof(matrix));
  if (w.name == "weight_packed") matrix = 1.0f / matrix;
  for (uint32_t b = 0; b < w.k / 16; ++b) {
    const I16B32Block& x = rows.encoded[row * rows.blocks + b / 2];
    int64_t sum512 = 0;
    for (uint32_t i = 0; i < 16; ++i) {
      const uint8_t byte = w.codes[(size_t{output} * w.k + 16 * b + i) / 2];
      const uint8_t code = i % 2 == 0 ? byte & 15 : byte >> 4;
      sum512 += static_cast<int64_t>(512 * number_e2m1(code)) *
                x.code[kernels::i16b32_position(16 * (b % 2) + i)];
    }
    const auto scale =
        static_cast<float>(number_e4m3(w.more[0].bytes[size_t{output} * (w.k / 16) + b]));
    sum = std::fma(scale * x.scale, static_cast<float>(sum512), sum);
  }
  return sum * (matrix * 0x1p-9f);
}

float f32_contract(const ScaledWeights& w, const Rows& rows, uint32_t row, uint32_t output) {
  float total = 0.0f;
  for (uint32_t begin = 0; begin < w.k; begin += kernels::kF32Segment) {
    float parts[2] = {0.0f, 0.0f};
    for (uint32_t i = begin; i < std::min(w.k, begin + kernels::kF32Segment); ++i) {
      parts[i % 2] = std::fma(w.values[size_t{output} * w.k + i], rows.x[size_t{row} * rows.k + i],
                              parts[i % 2]);
    }
    total += parts[0] + parts[1];
  }
  return total;
}

/// Runs linear_<format>, and grouped_<format> with two experts that are the same matrix; counts
/// outputs without the contract's bits.
size_t wrong_bits(const CpuPack& pack, const ScaledWeights& w, const Aligned& weight,
                  const Rows& rows) {
  const bool encoded = w.format == "nvfp4";
  kernels::LinearParams linear{};
  std::vector<float> y(size_t{rows.m} * w.n), grouped_y(y.size());
  linear.x = encoded ? static_cast<const void*>(rows.encoded.data()) : rows.x.data();
  linear.x_row_bytes = encoded ? kernels::i16b32_row_bytes(w.k) : w.k * sizeof(float);
  linear.weight = weight.data();
  linear.y = y.data();
  linear.row_count = &rows.m;
  linear.y_stride = linear.n = w.n;
  linear.k = w.k;
  pack.run("linear_" + w.format, linear, kernels::linear_tasks(w.n));
  const uint32_t offsets[3] = {0, rows.m / 3, rows.m};
  kernels::GroupedParams grouped{};
  grouped.x = linear.x;
  grouped.x_row_bytes = linear.x_row_bytes;
  std::vector<std::byte> twice(weight.data(), weight.data() + weight.size());
  twice.insert(twice.end(), weight.data(), weight.data() + weight.size());
  grouped.weight = twice.data();
  grouped.expert_bytes = weight.size();
  grouped.y = grouped_y.data();
  grouped.offsets = offsets;
  grouped.y_stride = grouped.n = w.n;
  grouped.k = w.k;
  grouped.experts = 2;
  grouped.tasks = kernels::grouped_tasks(w.n, 2);
  pack.run("grouped_" + w.format, grouped, grouped.tasks);
  size_t wrong = 0;
  for (uint32_t i = 0; i < y.size(); ++i) {
    const float expected = encoded ? nvfp4_contract(w, rows, i / w.n, i % w.n)
                                   : f32_contract(w, rows, i / w.n, i % w.n);
    wrong += y[i] != expected || grouped_y[i] != expected;
  }
  return wrong;
}

void check(const CpuPack& pack, const QuantPlugin& plugin, const ScaledWeights& weights) {
  CHECK(pack.params_digest("linear_" + weights.format) == kernels::kLinearParamsDigest);
  const Aligned weight = packed(plugin, weights);
  for (const uint32_t m : {1u, 2u, 3u, 9u, 41u}) {
    const Rows rows(m, weights.k);
    for (const CpuTarget& target : cpu_targets()) {
      const ForcedTarget forced(target);
      CAPTURE(weights.format);
      CAPTURE(target.name);
      CAPTURE(weights.n);
      CAPTURE(weights.k);
      CAPTURE(m);
      CHECK(wrong_bits(pack, weights, weight, rows) == 0);
    }
  }
}

}  // namespace

TEST_SUITE("quant_scaled") {
  TEST_CASE("nvfp4: every instruction set has the contract's bits, odd sizes included") {
    const CpuPack pack;
    const QuantPlugin plugin("quant_nvfp4.so");
    check(pack, plugin, nvfp4_weights(1, 16, false, 0.003f));
    check(pack, plugin, nvfp4_weights(37, 176, true, 1234.5f));
    check(pack, plugin, nvfp4_weights(48, 320, false, 1.0f));
  }

  TEST_CASE("nvfp4: the largest codes and activations do not overflow their integers") {
    const CpuPack pack;
    const QuantPlugin plugin("quant_nvfp4.so");
    ScaledWeights weights = nvfp4_weights(16, 64, false, 1.0f);
    for (size_t i = 0; i < weights.codes.size(); ++i) weights.codes[i] = i % 2 == 0 ? 0x77 : 0xff;
    const Aligned weight = packed(plugin, weights);
    Rows rows(9, 64);
    for (I16B32Block& block : rows.encoded) {
      for (uint32_t i = 0; i < 32; ++i) {  // the sign of 6 at each place
        block.code[kernels::i16b32_position(i)] = i % 4 < 2 ? 32767 : -32767;
      }
    }
    for (const CpuTarget& target : cpu_targets()) {
      const ForcedTarget forced(target);
      CAPTURE(target.name);
      CHECK(wrong_bits(pack, weights, weight, rows) == 0);
    }
  }

  TEST_CASE("fp8: every instruction set has the contract's bits, odd sizes included") {
    const CpuPack pack;
    const QuantPlugin plugin("quant_fp8.so");
    check(pack, plugin, fp8_weights(1, 1, Fp8Kind::kTensor));
    check(pack, plugin, fp8_weights(37, 301, Fp8Kind::kRow));
    check(pack, plugin, fp8_weights(150, 643, Fp8Kind::kBlockBF16));
    check(pack, plugin, fp8_weights(33, 127, Fp8Kind::kBlockF32));
    check(pack, plugin, fp8_weights(37, 352, Fp8Kind::kMx));
  }
}

}  // namespace atlas::test

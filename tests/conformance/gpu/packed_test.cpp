// Products with the block formats of GGUF on every GPU platform: product_suite.h says what is
// checked. Weights are random groups of the CPU's layout, whose decoder gives their values.
#include <doctest/doctest.h>

#include <random>

#include "kernels/common/gpu_packed.h"
#include "tests/conformance/gpu/product_suite.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

struct BlockCase {
  const char* name;
  PackedLayout layout;
};
constexpr BlockCase kCases[] = {{"q4_0", kPackedQ4_0}, {"q4_1", kPackedQ4_1}, {"q5_0", kPackedQ5_0},
                                {"q5_1", kPackedQ5_1}, {"q8_0", kPackedQ8_0}, {"q4_k", kPackedQ4_K},
                                {"q5_k", kPackedQ5_K}, {"q6_k", kPackedQ6_K}};

/// Random bits of codes and scales; f16 numbers of moderate size, of both signs.
std::vector<uint8_t> random_group(const PackedLayout& layout, uint32_t k, std::mt19937& random) {
  std::vector<uint8_t> group(layout.group_bytes(k));
  for (uint8_t& byte : group) byte = static_cast<uint8_t>(random());
  const auto put_f16 = [&](uint8_t* to, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t bits = (random() & 0x83ff) | (6 + random() % 4) << 10;
      std::memcpy(to + 2 * i, &bits, 2);
    }
  };
  for (uint64_t at = 0; at < group.size(); at += layout.unit_bytes()) {
    put_f16(group.data() + at, layout.has_min() ? 32 : 16);
  }
  return group;
}

GpuWeights block_weights(const BlockCase& one, uint32_t n, uint32_t k) {
  const GpuPacked gpu{one.layout};
  GpuWeights weights{one.name, n, k, {}, {}};
  weights.values.resize(size_t{tiles_of(n)} * kTileOutputs * k);
  std::mt19937 random(n + k);
  for (auto& packed : weights.packed) packed.resize(tiles_of(n) * gpu.group_bytes(k), 0xc3);
  for (uint32_t group = 0; group < tiles_of(n); ++group) {
    const std::vector<uint8_t> bytes = random_group(one.layout, k, random);
    for (uint32_t row = 0; row < kTileOutputs; ++row) {
      for (uint32_t b = 0; b < k / 32; ++b) {
        decode_packed(one.layout, bytes.data(), row, b,
                      weights.values.data() + (size_t{group} * kTileOutputs + row) * k + 32 * b);
      }
    }
    for (const MatrixFamily family : {MatrixFamily::kMma, MatrixFamily::kWmma}) {
      pack_gpu_packed(
          family, gpu, bytes.data(), k,
          weights.packed[static_cast<uint32_t>(family)].data() + group * gpu.group_bytes(k));
    }
  }
  weights.values.resize(size_t{n} * k);
  return weights;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: products with GGUF's block formats") {
    for (const BlockCase& one : kCases) {
      const GpuWeights weights = block_weights(one, 40, one.layout.large() ? 768 : 352);
      for (const char* platform : kGpuPlatforms) ProductSuite(platform, weights).check(18);
    }
  }

  TEST_CASE("gpu: products with GGUF's block formats read weights once") {
    for (const BlockCase& one : kCases) {
      const GpuWeights weights = block_weights(one, 72, 1536);
      for (const char* platform : kGpuPlatforms) ProductSuite(platform, weights).check_traffic();
    }
  }
}

}  // namespace atlas::test

// Modules that are wrong or another plugin's: each mistake is refused with the tensor's name, and
// no plugin takes what is not its own.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/scaled_weights.h"

namespace atlas::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Claimed {
  Answer answer;
  AtlasWeightClaim claim;
};

Claimed claim_of(const QuantPlugin& plugin, const WeightFile& file) {
  Claimed result{{}, {}};
  result.claim.struct_size = sizeof(result.claim);
  result.answer = answer_of(
      [&](AtlasError* error) { return plugin.api.claim(&file.query, &result.claim, error); });
  return result;
}

bool claims(const QuantPlugin& plugin, const WeightFile& file) {
  const Claimed claimed = claim_of(plugin, file);
  REQUIRE_MESSAGE(claimed.answer.code == ATLAS_OK, claimed.answer.message);
  return claimed.claim.claimed != 0;
}

void refuses(const QuantPlugin& plugin, const ScaledWeights& weights, const std::string& tensor,
             const std::string& part, AtlasCode code = ATLAS_INVALID_ARGUMENT) {
  CAPTURE(part);
  const WeightFile file = weights.file("m.7");
  const Claimed claimed = claim_of(plugin, file);
  CHECK(claimed.answer.code == code);
  CHECK(claimed.claim.claimed == 0);
  CHECK_MESSAGE(contains(claimed.answer.message, "m.7." + tensor), claimed.answer.message);
  CHECK_MESSAGE(contains(claimed.answer.message, part), claimed.answer.message);
}

/// Shapes are right, and what stands in the tensors is not.
void refuses_data(const QuantPlugin& plugin, const ScaledWeights& weights,
                  const std::string& tensor, const std::string& part) {
  CAPTURE(part);
  const WeightFile file = weights.file("m.7");
  const Claimed claimed = claim_of(plugin, file);
  REQUIRE_MESSAGE(claimed.answer.code == ATLAS_OK, claimed.answer.message);
  std::vector<uint8_t> out((weights.n + 15) / 16 * claimed.claim.group_bytes);
  const Answer answer = answer_of([&](AtlasError* error) {
    return plugin.api.pack(&file.query, &claimed.claim, 0, (weights.n + 15) / 16, out.data(),
                           error);
  });
  CHECK(answer.code == ATLAS_INVALID_ARGUMENT);
  CHECK_MESSAGE(contains(answer.message, "m.7." + tensor), answer.message);
  CHECK_MESSAGE(contains(answer.message, part), answer.message);
}

/// `weights` without the tensor beside its first, or with another type of it.
ScaledWeights without(ScaledWeights weights, const std::string& name) {
  std::erase_if(weights.more, [&](const MoreTensor& one) { return one.name == name; });
  return weights;
}
ScaledWeights with(ScaledWeights weights, MoreTensor more) {
  std::erase_if(weights.more, [&](const MoreTensor& one) { return one.name == more.name; });
  weights.more.push_back(std::move(more));
  return weights;
}
MoreTensor number(const std::string& name, float value) {
  return {name, ATLAS_F32, {}, bytes_of(std::vector<float>{value})};
}

}  // namespace

TEST_SUITE("quant_scaled") {
  TEST_CASE("nvfp4: what is missing or of the wrong shape is refused by name") {
    const QuantPlugin plugin("quant_nvfp4.so");
    const ScaledWeights good = nvfp4_weights(20, 64, false, 0.01f);
    const ScaledWeights packed = nvfp4_weights(20, 64, true, 100.0f);
    refuses(plugin, without(good, "weight_scale_2"), "weight_scale_2", "is missing");
    refuses(plugin, without(good, "weight_scale"), "weight_scale", "is missing");
    refuses(plugin, without(packed, "weight_global_scale"), "weight_global_scale", "is missing");
    const std::vector<uint8_t> bytes(20 * 4, 0x38);
    refuses(plugin, with(good, {"weight_scale", ATLAS_F8_E4M3, {20, 5}, bytes}), "weight_scale",
            "must be f8_e4m3 [20, 4]");
    refuses(plugin, with(good, {"weight_scale", ATLAS_F8_E4M3, {80}, bytes}), "weight_scale",
            "must be f8_e4m3 [20, 4]");
    refuses(plugin, with(good, {"weight_scale", ATLAS_U8, {20, 4}, bytes}), "weight_scale",
            "must be f8_e4m3 [20, 4]");
    refuses(plugin, with(good, {"weight_scale", ATLAS_F8_E4M3, {20, 4}, {1, 2}}), "weight_scale",
            "has 2 bytes, not 80");
    refuses(plugin, with(good, {"weight_scale_2", ATLAS_F32, {2}, bytes}), "weight_scale_2",
            "must be one f32 number");
    refuses(plugin, with(good, {"weight_scale_2", ATLAS_BF16, {}, {0, 0}}), "weight_scale_2",
            "must be one f32 number");
    refuses(plugin, with(packed, {"weight", ATLAS_BF16, {20, 64}, {}}), "weight_packed",
            "are both there");
    refuses(plugin, with(good, {"pre_quant_scale", ATLAS_BF16, {64}, bytes}), "pre_quant_scale",
            "not read", ATLAS_UNIMPLEMENTED);
    ScaledWeights odd = good;
    odd.columns = 31;
    refuses(plugin, odd, "weight", "no multiple of NVFP4's 16");
    odd.columns = 0;
    refuses(plugin, odd, "weight", "");
    odd = good;
    odd.codes.pop_back();
    refuses(plugin, odd, "weight", "has 639 bytes, not 640");
    WeightFile cube = good.file("m.7");
    cube.tensor.rank = 3;
    cube.tensor.dims[2] = 1;
    cube.list_all();
    CHECK(contains(claim_of(plugin, cube).answer.message, "must be a matrix"));
    WeightFile huge = good.file("m.7");
    huge.tensor.dims[0] = huge.tensor.dims[1] = uint64_t{1} << 62;
    huge.list_all();
    CHECK(claim_of(plugin, huge).answer.code == ATLAS_INVALID_ARGUMENT);
    WeightFile other = good.file("m.7");
    other.query.k = 128;
    CHECK(contains(claim_of(plugin, other).answer.message, "configuration makes it 0 x 128"));
  }

  TEST_CASE("nvfp4: scales that are NaN, negative or beyond float32 are refused by name") {
    const QuantPlugin plugin("quant_nvfp4.so");
    const ScaledWeights good = nvfp4_weights(20, 64, false, 0.01f);
    for (const uint8_t bad : {0x7f, 0xff, 0x80, 0xb8}) {
      ScaledWeights weights = good;
      weights.more[0].bytes[18 * 4 + 2] = bad;
      refuses_data(plugin, weights, "weight_scale", "at row 18, column 2");
    }
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {std::nanf(""), -1.0f, infinity, 1e-40f, 1e35f}) {
      refuses_data(plugin, with(good, number("weight_scale_2", bad)), "weight_scale_2",
                   "must be from 2^-100 to 2^100, or 0");
    }
    // Not as "0.000000", which would be a good scale.
    refuses_data(plugin, with(good, number("weight_scale_2", 1e-40f)), "weight_scale_2",
                 "is 1e-40");
    const ScaledWeights packed = nvfp4_weights(20, 64, true, 100.0f);
    for (const float bad : {std::nanf(""), -1.0f, 0.0f}) {
      refuses_data(plugin, with(packed, number("weight_global_scale", bad)), "weight_global_scale",
                   "must be from 2^-100 to 2^100, or inf");
    }
  }

  TEST_CASE("fp8: what is missing, contradicts or has the wrong shape is refused by name") {
    const QuantPlugin plugin("quant_fp8.so");
    const ScaledWeights blocks = fp8_weights(130, 300, Fp8Kind::kBlockF32);
    const ScaledWeights mx = fp8_weights(20, 64, Fp8Kind::kMx);
    refuses(plugin, without(blocks, "weight_scale_inv"), "weight_scale", "is missing");
    refuses(plugin, with(blocks, number("weight_scale", 1)), "weight_scale", "are both there");
    for (const std::vector<uint64_t>& dims :
         {std::vector<uint64_t>{2, 2}, {3, 2}, {6}, {2, 3, 1}, {131, 1}}) {
      refuses(plugin, with(blocks, {"weight_scale_inv", ATLAS_F32, dims, {}}), "weight_scale_inv",
              "[2, 3] (blocks of 128 x 128)");
    }
    refuses(plugin, with(blocks, {"weight_scale_inv", ATLAS_F32, {2, 3}, {1}}), "weight_scale_inv",
            "has 1 bytes, not 24");
    refuses(plugin, with(blocks, {"weight_scale_inv", ATLAS_F8_E4M3, {2, 3}, {}}),
            "weight_scale_inv", "must be f32, bf16 or f16");
    refuses(plugin, with(mx, {"weight_scale", ATLAS_U8, {20, 3}, {}}), "weight_scale",
            "a scale for each 32");
    ScaledWeights odd = fp8_weights(20, 40, Fp8Kind::kTensor);
    odd.more = {{"weight_scale", ATLAS_F8_UE8M0, {20, 1}, {}}};
    refuses(plugin, odd, "weight_scale", "a scale for each 32");
    odd = blocks;
    odd.codes.pop_back();
    refuses(plugin, odd, "weight", "has 38999 bytes, not 39000");
    WeightFile cube = blocks.file("m.7");
    cube.tensor.rank = 3;
    cube.list_all();
    CHECK(contains(claim_of(plugin, cube).answer.message, "must be a matrix"));
    WeightFile huge = blocks.file("m.7");
    huge.tensor.dims[0] = uint64_t{1} << 63;
    huge.list_all();
    CHECK(claim_of(plugin, huge).answer.code == ATLAS_INVALID_ARGUMENT);
  }

  TEST_CASE("fp8: NaN among codes or scales is refused by name") {
    const QuantPlugin plugin("quant_fp8.so");
    ScaledWeights weights = fp8_weights(20, 64, Fp8Kind::kRow);
    weights.codes[19 * 64 + 63] = 0xff;
    refuses_data(plugin, weights, "weight", "NaN in row 19");
    for (const float bad : {std::nanf(""), -1.0f, 129.0f}) {
      refuses_data(plugin, with(fp8_weights(20, 64, Fp8Kind::kTensor), number("weight_scale", bad)),
                   "weight_scale", "must be from 0 to 2^7");
    }
    for (const uint8_t bad : {135, 255}) {
      weights = fp8_weights(20, 64, Fp8Kind::kMx);
      weights.more[0].bytes[2 * 17 + 1] = bad;
      refuses_data(plugin, weights, "weight_scale", "at row 17, column 1");
    }
  }

  TEST_CASE("nvfp4, fp8: each takes its own modules and leaves those of others") {
    const QuantPlugin nvfp4("quant_nvfp4.so"), fp8("quant_fp8.so"), bf16("quant_bf16.so"),
        gguf("quant_gguf.so");
    const auto takers = [&](const ScaledWeights& weights) {
      const WeightFile file = weights.file("m");
      std::string names;
      if (claims(nvfp4, file)) names += "nvfp4 ";
      if (claims(fp8, file)) names += "fp8 ";
      if (claims(bf16, file)) names += "bf16 ";
      if (claims(gguf, file)) names += "gguf ";
      return names;
    };
    CHECK(takers(nvfp4_weights(20, 64, false, 0.01f)) == "nvfp4 ");
    CHECK(takers(nvfp4_weights(20, 64, true, 0.01f)) == "nvfp4 ");
    for (const Fp8Kind kind : {Fp8Kind::kTensor, Fp8Kind::kRow, Fp8Kind::kBlockF32, Fp8Kind::kMx}) {
      CHECK(takers(fp8_weights(20, 64, kind)) == "fp8 ");
    }
    // A plain matrix; 4-bit codes with the scales of MXFP4; 8-bit codes that nobody here reads.
    ScaledWeights other;
    other.n = 20;
    other.k = other.columns = 64;
    other.dtype = ATLAS_BF16;
    other.codes.resize(20 * 64 * 2);
    CHECK(takers(other) == "bf16 gguf ");
    other.dtype = ATLAS_U8;
    other.codes.resize(20 * 64);
    CHECK(takers(other).empty());
    other.more = {{"weight_scale", ATLAS_U8, {20, 4}, std::vector<uint8_t>(80)}};
    CHECK(takers(other).empty());
    other.dtype = ATLAS_F8_E5M2;
    CHECK(takers(other).empty());
  }

  TEST_CASE("nvfp4: a matrix of zeros, and the infinity that compressed-tensors gives it") {
    const QuantPlugin plugin("quant_nvfp4.so");
    const float infinity = std::numeric_limits<float>::infinity();
    for (const ScaledWeights& weights :
         {with(nvfp4_weights(16, 32, true, 1.0f), number("weight_global_scale", infinity)),
          with(nvfp4_weights(16, 32, false, 1.0f), number("weight_scale_2", 0.0f))}) {
      const WeightFile file = weights.file("m");
      const Claimed claimed = claim_of(plugin, file);
      REQUIRE(claimed.answer.code == ATLAS_OK);
      CHECK(claimed.claim.bits_per_weight == doctest::Approx(10.0));  // a group's head counts
      std::vector<uint8_t> out(claimed.claim.group_bytes);
      AtlasError error{sizeof(AtlasError), {}};
      CHECK(plugin.api.pack(&file.query, &claimed.claim, 0, 1, out.data(), &error) == ATLAS_OK);
    }
  }
}

}  // namespace atlas::test

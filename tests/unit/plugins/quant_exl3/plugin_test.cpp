// What the plugin "exl3" says to tensors that do not fit together, and to problems that it cannot
// plan.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/common/exl3.h"
#include "tests/support/exl3_module.h"
#include "tests/support/quant_plugin.h"

using namespace atlas;
using test::Answer;
using test::answer_of;
using test::Exl3Module;
using test::SlowMatrix;

namespace {

const test::QuantPlugin& plugin() {
  static const test::QuantPlugin loaded("quant_exl3.so");
  return loaded;
}

/// The plugin's answer to a module that `damage` changed.
Answer claim_after(const std::function<void(Exl3Module&)>& damage, uint64_t n = 0, uint64_t k = 0) {
  Exl3Module module(SlowMatrix("mul1", 3, 256, 128, 1));
  damage(module);
  AtlasWeightQuery query = module.query();
  query.n = n;
  query.k = k;
  AtlasWeightClaim claim{};
  claim.struct_size = sizeof(claim);
  return answer_of([&](AtlasError* error) { return plugin().api.claim(&query, &claim, error); });
}

/// The answer to packing a module that was claimed and then damaged.
Answer pack_after(const std::function<void(Exl3Module&)>& damage) {
  Exl3Module module(SlowMatrix("mul1", 3, 256, 128, 1));
  AtlasWeightQuery query = module.query();
  AtlasWeightClaim claim{};
  claim.struct_size = sizeof(claim);
  AtlasError unused{sizeof(AtlasError), {}};
  REQUIRE(plugin().api.claim(&query, &claim, &unused) == ATLAS_OK);
  damage(module);
  query = module.query();
  std::vector<std::byte> out(kernels::exl3_bytes(6, 256, 128));
  return answer_of([&](AtlasError* error) {
    return plugin().api.pack(&query, &claim, 0, 2, out.data(), error);
  });
}

void check_refused(const Answer& answer, const std::vector<std::string>& parts) {
  CHECK(answer.code == ATLAS_INVALID_ARGUMENT);
  for (const std::string& part : parts) {
    CHECK_MESSAGE(answer.message.find(part) != std::string::npos,
                  "'" << answer.message << "' lacks '" << part << "'");
  }
}

}  // namespace

TEST_SUITE_BEGIN("plugins/quant_exl3");

TEST_CASE("claim: modules without a trellis are others'") {
  SlowMatrix matrix("mul1", 3, 256, 128, 1);
  Exl3Module module(matrix);
  module.tensors.clear();
  module.add("weight", ATLAS_F16, {256, 128}, nullptr);
  const AtlasWeightQuery query = module.query();
  AtlasWeightClaim claim{};
  claim.struct_size = sizeof(claim);
  AtlasError error{sizeof(AtlasError), {}};
  CHECK(plugin().api.claim(&query, &claim, &error) == ATLAS_OK);
  CHECK(claim.claimed == 0);
}

TEST_CASE("claim: the format is named by the trellis, whatever a configuration says") {
  for (const auto& [codebook, bits, name] : {std::tuple{"mul1", 3.0, "exl3_k3_mul1"},
                                             {"mcg", 8.0, "exl3_k8_mcg"},
                                             {"3inst", 1.0, "exl3_k1_3inst"},
                                             {"mul1", 2.5, "exl3_k2.5_mul1"}}) {
    Exl3Module module(SlowMatrix(codebook, bits, 256, 128, 1));
    for (AtlasTensor& tensor : module.tensors) tensor.data = nullptr;
    const AtlasWeightQuery query = module.query();
    AtlasWeightClaim claim{};
    claim.struct_size = sizeof(claim);
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin().api.claim(&query, &claim, &error) == ATLAS_OK);
    CHECK(claim.claimed == 1);
    CHECK(std::string(claim.format) == name);
    CHECK(claim.head_bytes == 768);
    CHECK(claim.group_bytes * 2 == static_cast<uint64_t>(256 * 128 * bits / 8));
  }
}

TEST_CASE("claim: tensors that are missing, doubled or of a wrong shape are named") {
  const std::string module = "model.layers.0.mlp.up_proj";
  check_refused(claim_after([](Exl3Module& m) { m.remove("suh"); }), {module, ".suh", "missing"});
  check_refused(claim_after([](Exl3Module& m) { m.remove("svh"); }), {module, ".svh", "missing"});
  check_refused(claim_after([](Exl3Module& m) { m.remove("trellis"); }), {module, "no .trellis"});
  check_refused(claim_after([](Exl3Module& m) { m.add("mcg", ATLAS_I32, {}, nullptr); }),
                {module, ".mcg and .mul1"});
  check_refused(claim_after([](Exl3Module& m) { m.add("su", ATLAS_I16, {8}, nullptr); }),
                {module, ".suh and .su"});
  check_refused(claim_after([](Exl3Module& m) {
                  m.add("weight", ATLAS_F16, {256, 128}, nullptr);
                }),
                {module + ".trellis", module + ".weight", "another format"});
  check_refused(claim_after([](Exl3Module& m) { m.at("suh").dims[0] = 112; }),
                {module + ".suh", "[112]", "f16 [128]"});
  check_refused(claim_after([](Exl3Module& m) { m.at("svh").dtype = ATLAS_BF16; }),
                {module + ".svh", "f16 [256]"});
  check_refused(claim_after([](Exl3Module& m) { m.at("mul1").bytes = 8; }),
                {module + ".mul1", "one i32"});
  check_refused(claim_after([](Exl3Module& m) { m.at("trellis").dtype = ATLAS_U8; }),
                {module + ".trellis", "i16"});
  check_refused(claim_after([](Exl3Module& m) { m.at("trellis").rank = 2; }),
                {module + ".trellis", "[8, 16]"});
  check_refused(claim_after([](Exl3Module& m) { m.at("trellis").bytes -= 2; }),
                {module + ".trellis", "bytes, not"});
}

TEST_CASE("claim: a number of bits that no codebook or not this one has is an error") {
  const std::string module = "model.layers.0.mlp.up_proj";
  for (const uint64_t words : {0u, 8u, 36u, 49u, 72u, 136u, 4096u}) {
    CAPTURE(words);
    check_refused(claim_after([&](Exl3Module& m) { m.at("trellis").dims[2] = words; }),
                  {module + ".trellis", "bits a weight"});
  }
  check_refused(claim_after([](Exl3Module& m) {
                  m.at("trellis").dims[2] = 40;  // 2.5 bits
                  m.remove("mul1");
                }),
                {module + ".trellis", "2.5", "3inst"});
}

TEST_CASE("claim: sizes of a trellis that are no multiple of 128, or not the model's, are errors") {
  const std::string module = "model.layers.0.mlp.up_proj";
  check_refused(claim_after([](Exl3Module& m) { m.at("trellis").dims[0] = 9; }),
                {module + ".trellis", "256 x 144", "multiples of 128"});
  check_refused(claim_after([](Exl3Module& m) { m.at("trellis").dims[1] = 20; }),
                {module + ".trellis", "320 x 128", "multiples of 128"});
  check_refused(claim_after([](Exl3Module& m) { m.at("trellis").dims[1] = 0; }),
                {module + ".trellis"});
  check_refused(claim_after([](Exl3Module& m) { m.at("trellis").dims[1] = uint64_t{1} << 60; }),
                {module + ".trellis", "2^31"});
  // A matrix of up to 127 less is padded to the trellis's size; any other is another's.
  for (const auto& [n, k] :
       {std::pair<uint64_t, uint64_t>{257, 128}, {320, 128}, {128, 128}, {256, 129}, {256, 256}}) {
    check_refused(
        claim_after([](Exl3Module&) {}, n, k),
        {module + ".trellis", "256 x 128", std::to_string(n) + " x " + std::to_string(k)});
  }
  check_refused(claim_after([](Exl3Module&) {}, UINT64_MAX, 128), {module + ".trellis"});
  for (const auto& [n, k] : {std::pair<uint64_t, uint64_t>{256, 128}, {129, 1}, {192, 127}}) {
    CHECK(claim_after([](Exl3Module&) {}, n, k).code == ATLAS_OK);
  }
}

TEST_CASE("pack: what only the data shows: foreign multipliers and scales that are no numbers") {
  const std::string module = "model.layers.0.mlp.up_proj";
  CHECK(pack_after([](Exl3Module&) {}).code == ATLAS_OK);
  check_refused(pack_after([](Exl3Module& m) { m.mul1 = 0xff7a83e5; }),
                {module + ".mul1", "4286219237"});
  std::vector<uint16_t> scales(256, 0x3c00);
  scales[77] = 0x7e00;
  check_refused(pack_after([&](Exl3Module& m) { m.at("suh").data = scales.data(); }),
                {module + ".suh", "at 77"});
  scales[77] = 0xfc00;
  check_refused(pack_after([&](Exl3Module& m) { m.at("svh").data = scales.data(); }),
                {module + ".svh", "at 77"});
  check_refused(pack_after([](Exl3Module& m) { m.at("trellis").data = nullptr; }),
                {module + ".trellis", "data"});
  check_refused(pack_after([](Exl3Module& m) { m.remove("mul1"); }), {"do not fit its claim"});
}

TEST_CASE("plan: other platforms, formats and sizes are refused in words") {
  AtlasLinearProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = 4;
  problem.platform = "cpu";
  problem.format = "exl3_k3_mul1";
  problem.n = 256;
  problem.k = 128;
  const auto needs_after = [&](const std::function<void(AtlasLinearProblem&)>& change) {
    AtlasLinearProblem changed = problem;
    change(changed);
    AtlasLinearNeeds needs{};
    needs.struct_size = sizeof(needs);
    return answer_of(
        [&](AtlasError* error) { return plugin().api.linear_needs(&changed, &needs, error); });
  };
  CHECK(needs_after([](AtlasLinearProblem&) {}).code == ATLAS_OK);
  CHECK(needs_after([](AtlasLinearProblem& p) { p.platform = "h100"; }).code ==
        ATLAS_UNIMPLEMENTED);
  CHECK(needs_after([](AtlasLinearProblem& p) { p.format = "exl3_k9_mul1"; }).code ==
        ATLAS_UNIMPLEMENTED);
  CHECK(needs_after([](AtlasLinearProblem& p) { p.format = "exl3_k2.5_mcg"; }).code ==
        ATLAS_UNIMPLEMENTED);
  CHECK(needs_after([](AtlasLinearProblem& p) { p.n = 320; }).code == ATLAS_OK);
  check_refused(needs_after([](AtlasLinearProblem& p) { p.n = 0; }), {"0 x 128"});
  check_refused(needs_after([](AtlasLinearProblem& p) { p.k = uint64_t{1} << 31; }),
                {"256 x 2147483648"});
  check_refused(needs_after([](AtlasLinearProblem& p) { p.max_rows = 0; }), {"0 rows"});
}

TEST_SUITE_END();

// What the plugin says about input that is wrong: a code and a message that names the tensor.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/quant_plugin.h"

namespace atlas::test {
namespace {

constexpr uint64_t kRowBytes = 64 / 32 * 20;  // Q4_1, 64 columns

struct Fixture {
  QuantPlugin plugin{"quant_gguf.so"};
  std::vector<uint8_t> data = std::vector<uint8_t>(18 * kRowBytes);
  WeightFile file{"blk.0.attn_q", ATLAS_Q4_1, 18, 64, data.data(), data.size()};
  AtlasWeightClaim claim{};

  Answer ask_claim() {
    return answer_of(
        [&](AtlasError* error) { return plugin.api.claim(&file.query, &claim, error); });
  }
  Answer ask_pack(uint64_t begin, uint64_t end, void* out) {
    return answer_of([&](AtlasError* error) {
      return plugin.api.pack(&file.query, &claim, begin, end, out, error);
    });
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

AtlasLinearProblem a_problem() {
  AtlasLinearProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = 4;
  problem.platform = "cpu";
  problem.format = "q4_1";
  problem.n = 18;
  problem.k = 64;
  problem.y_stride = 18;
  problem.x_stride = 64;
  return problem;  // all buffers are number 0
}

}  // namespace

TEST_SUITE("quant_gguf") {
  TEST_CASE_FIXTURE(Fixture, "claim: format, contract, layout and sizes of a Q4_1 matrix") {
    REQUIRE(ask_claim().code == ATLAS_OK);
    CHECK(claim.claimed == 1);
    CHECK(std::string(claim.format) == "q4_1");
    CHECK(std::string(claim.contract) == "i16b32");
    CHECK(std::string(claim.layout) == "q4_1 rows16 v1");
    CHECK(claim.row_group == 16);
    CHECK(claim.group_bytes == 16 * kRowBytes);
    CHECK(claim.bits_per_weight == 5.0);
  }

  TEST_CASE("claim: on GPUs floats whose rows a norm makes are multiplied in f16") {
    QuantPlugin plugin{"quant_gguf.so"};
    std::vector<uint8_t> data(18 * 64 * 2);
    for (const char* platform : {"cpu", "h200", "gb10", "strix-hip"}) {
      for (const bool normed : {false, true}) {
        for (const bool f16 : {false, true}) {
          CAPTURE(platform);
          CAPTURE(normed);
          WeightFile file{"blk.0.attn_q", f16 ? ATLAS_F16 : ATLAS_BF16, 18, 64, data.data(),
                          data.size()};
          file.query.platform = platform;
          file.query.normed_rows = normed ? 1 : 0;
          AtlasWeightClaim claim{};
          const Answer answer = answer_of(
              [&](AtlasError* error) { return plugin.api.claim(&file.query, &claim, error); });
          REQUIRE_MESSAGE(answer.code == ATLAS_OK, answer.message);
          const bool gpu = platform != std::string("cpu");
          CHECK(claim.format == std::string(f16 ? "f16" : "bf16") + (gpu && normed ? "_half" : ""));
          CHECK(claim.contract == std::string(!gpu     ? "f32"
                                              : normed ? "f16_k16_s256"
                                                       : "bf16_k16_s256"));
          std::vector<uint8_t> out(2 * claim.group_bytes);
          CHECK(answer_of([&](AtlasError* error) {
                  return plugin.api.pack(&file.query, &claim, 0, 2, out.data(), error);
                }).code == ATLAS_OK);
        }
      }
    }
  }

  TEST_CASE_FIXTURE(Fixture, "claim: a tensor of another type or name is left to others") {
    file.tensor.dtype = ATLAS_F8_E4M3;
    CHECK(ask_claim().code == ATLAS_OK);
    CHECK(claim.claimed == 0);
    file.tensor.dtype = ATLAS_Q4_1;
    file.tensor.name = "blk.0.attn_q.bias";
    CHECK(ask_claim().code == ATLAS_OK);
    CHECK(claim.claimed == 0);
  }

  TEST_CASE_FIXTURE(Fixture, "claim: sizes that do not fit are refused and the tensor is named") {
    const auto refused = [&](const std::string& part) {
      const Answer answer = ask_claim();
      CHECK(answer.code == ATLAS_INVALID_ARGUMENT);
      CHECK(contains(answer.message, "blk.0.attn_q.weight"));
      CHECK_MESSAGE(contains(answer.message, part), answer.message);
    };
    file.tensor.rank = 1;
    refused("1 dimensions");
    file.tensor.rank = 2;
    file.tensor.dims[1] = 80;
    refused("no multiple of the format's block of 32");
    file.tensor.dims[1] = 0;
    refused("must be 1 to");
    file.tensor.dims[1] = uint64_t{1} << 60;
    refused("must be 1 to");
    file.tensor.dims[1] = 64;
    file.tensor.bytes -= 1;
    refused("has 719 bytes, not 720");
    file.tensor.bytes += 1;
    file.query.n = 20;
    refused("the model's configuration makes it 20");
  }

  TEST_CASE_FIXTURE(Fixture, "claim: a struct of an older version or another platform is refused") {
    file.query.struct_size = 8;
    CHECK(ask_claim().code == ATLAS_INVALID_ARGUMENT);
    file.query.struct_size = sizeof(file.query);
    file.query.platform = "abacus";
    const Answer answer = ask_claim();
    CHECK(answer.code == ATLAS_UNIMPLEMENTED);
    CHECK(contains(answer.message, "'abacus' is not served; this plugin serves 'cpu', 'h200'"));
  }

  TEST_CASE_FIXTURE(Fixture, "claim: tensors are walked in steps of the caller's struct") {
    struct Longer {
      AtlasTensor tensor;
      uint64_t of_a_later_version[2];
    };
    Longer longer[2] = {{file.tensor, {1, 1}}, {file.tensor, {2, 2}}};
    for (Longer& each : longer) each.tensor.struct_size = sizeof(Longer);
    longer[0].tensor.name = "blk.0.attn_q.bias";
    file.query.tensors = &longer[0].tensor;
    file.query.tensor_count = 2;
    REQUIRE(ask_claim().code == ATLAS_OK);
    CHECK(claim.claimed == 1);
  }

  TEST_CASE_FIXTURE(Fixture, "pack: groups beyond the matrix, missing data or memory are refused") {
    REQUIRE(ask_claim().code == ATLAS_OK);
    std::vector<uint8_t> out(2 * claim.group_bytes);
    CHECK(ask_pack(0, 2, out.data()).code == ATLAS_OK);
    CHECK(ask_pack(0, 3, out.data()).code == ATLAS_INVALID_ARGUMENT);
    CHECK(ask_pack(2, 1, out.data()).code == ATLAS_INVALID_ARGUMENT);
    CHECK(ask_pack(0, 1, nullptr).code == ATLAS_INVALID_ARGUMENT);
    CHECK(ask_pack(1, 1, nullptr).code == ATLAS_OK);
    file.tensor.data = nullptr;
    const Answer answer = ask_pack(0, 2, out.data());
    CHECK(answer.code == ATLAS_INVALID_ARGUMENT);
    CHECK(contains(answer.message, "blk.0.attn_q.weight"));
  }

  TEST_CASE_FIXTURE(Fixture, "plans: what cannot be done is refused before a record is made") {
    RecordRunner runner;
    const auto code_of = [&](const AtlasLinearProblem& problem) {
      return answer_of([&](AtlasError* error) {
               return plugin.api.plan_linear(&problem, &runner.sink, error);
             })
          .code;
    };
    AtlasLinearProblem problem = a_problem();
    problem.k = 48;
    CHECK(code_of(problem) == ATLAS_INVALID_ARGUMENT);
    problem = a_problem();
    problem.y_stride = 17;
    CHECK(code_of(problem) == ATLAS_INVALID_ARGUMENT);
    problem = a_problem();
    problem.epilogue = 7;
    CHECK(code_of(problem) == ATLAS_UNIMPLEMENTED);
    problem = a_problem();
    problem.format = "exl3_k4";
    CHECK(code_of(problem) == ATLAS_UNIMPLEMENTED);
    problem = a_problem();
    problem.max_rows = 0;
    CHECK(code_of(problem) == ATLAS_INVALID_ARGUMENT);
    problem = a_problem();
    problem.weight.buffer = ATLAS_NO_BUFFER;
    CHECK(code_of(problem) == ATLAS_INVALID_ARGUMENT);
    CHECK(runner.emitted.empty());
    CHECK(code_of(a_problem()) == ATLAS_OK);
    CHECK(runner.emitted.size() == 1);
  }

  TEST_CASE_FIXTURE(Fixture, "plans: a product of experts is checked size by size") {
    RecordRunner runner;
    const auto ask = [&](const AtlasGroupedProblem& problem) {
      return answer_of([&](AtlasError* error) {
        return plugin.api.plan_grouped(&problem, &runner.sink, error);
      });
    };
    const auto refused = [&](const AtlasGroupedProblem& problem, const std::string& part) {
      const Answer answer = ask(problem);
      CHECK(answer.code == ATLAS_INVALID_ARGUMENT);
      CHECK_MESSAGE(contains(answer.message, part), answer.message);
    };
    AtlasGroupedProblem good{};
    good.struct_size = sizeof(good);
    good.max_rows = 4;
    good.platform = "cpu";
    good.format = "q4_1";
    good.n = 18;
    good.k = 64;
    good.experts = 512;
    good.expert_bytes = 2 * 16 * kRowBytes;
    good.y_stride = 18;
    AtlasGroupedProblem problem = good;
    problem.struct_size -= 8;
    refused(problem, "AtlasGroupedProblem has");
    problem = good;
    problem.experts = 0;
    refused(problem, "has 0 experts");
    problem = good;
    problem.experts = 0x80000000;
    refused(problem, "has 2147483648 experts");
    problem = good;
    problem.expert_bytes -= 1;
    refused(problem, "expert_bytes is 1279, one of the 512 experts has 1280 bytes");
    problem = good;
    problem.expert_bytes = uint64_t{1} << 55;
    refused(problem, "expert_bytes is 36028797018963968");
    problem = good;
    problem.n = problem.y_stride = 0x7fffffff;
    problem.k = 0x7fffffe0;
    refused(problem, "expert_bytes is 1280");
    problem = good;
    problem.n = uint64_t{1} << 32;
    refused(problem, "must be 1 to 2^31 - 1");
    problem = good;
    problem.max_rows = 0;
    refused(problem, "with 0 rows");
    problem = good;
    problem.y_stride = 17;
    refused(problem, "y_stride is 17");
    problem = good;
    problem.format = "f32";  // has no encoding, so the stride of x counts
    problem.expert_bytes = uint64_t{1} << 20;
    refused(problem, "x_stride is 0");
    problem = good;
    problem.offsets.buffer = ATLAS_NO_BUFFER;
    refused(problem, "offsets is no buffer");
    problem = good;
    problem.weight.buffer = ATLAS_NO_BUFFER;
    refused(problem, "the weight is no buffer");
    problem = good;
    problem.format = "exl3_k4";
    CHECK(ask(problem).code == ATLAS_UNIMPLEMENTED);
    CHECK(runner.emitted.empty());
    problem = good;
    problem.source.buffer = ATLAS_NO_BUFFER;
    CHECK(ask(problem).code == ATLAS_OK);
    REQUIRE(runner.emitted.size() == 1);
    CHECK(runner.emitted[0].kernel == "grouped_q4_1");
    CHECK(runner.emitted[0].relocations.size() == 4);
    CHECK(runner.emitted[0].bytes_read == 4 * 1280);  // four rows have at most four experts
  }

  TEST_CASE_FIXTURE(Fixture, "entry: a host of another major version gets no table") {
    void* handle = dlopen(ATLAS_BINARY_DIR "/lib/atlas/plugins/quant_gguf.so", RTLD_NOW);
    REQUIRE(handle != nullptr);
    const auto entry = reinterpret_cast<AtlasPluginEntry>(dlsym(handle, ATLAS_PLUGIN_ENTRY));
    AtlasHost host{};
    host.struct_size = sizeof(host);
    host.abi_major = ATLAS_ABI_MAJOR + 1;
    AtlasError error{sizeof(AtlasError), {}};
    CHECK(entry(&host, &error) == nullptr);
    CHECK(contains(error.message, "ABI"));
  }
}

}  // namespace atlas::test

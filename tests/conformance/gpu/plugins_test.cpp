// The quantization plugins' own claims, packing and records for every GPU platform, run by the
// platform's kernels: products against float64 of the checkpoint's numbers, and rows by number.
#include <doctest/doctest.h>

#include "tests/conformance/gpu/product_suite.h"
#include "tests/support/float_weights.h"
#include "tests/support/gguf_weights.h"
#include "tests/support/quant_plugin.h"
#include "tests/support/scaled_weights.h"

namespace atlas::test {
namespace {

/// A matrix as a checkpoint has it, and its numbers.
struct Source {
  std::string format;
  AtlasDType dtype;
  uint32_t n, k, columns;
  const std::vector<uint8_t>& bytes;
  std::vector<float> values;
  std::string name = "weight";
  std::vector<MoreTensor> more = {};
};

class PluginRun {
 public:
  PluginRun(const QuantPlugin& plugin, const char* platform, const Source& source)
      : plugin_(plugin),
        platform_(platform),
        source_(source),
        machine_(platform),
        file_("model.proj", source.dtype, source.n, source.columns, source.bytes.data(),
              source.bytes.size(), source.name, source.more) {
    file_.query.platform = platform;
    claim_.struct_size = sizeof(claim_);
    done([&](AtlasError* e) { return plugin_.api.claim(&file_.query, &claim_, e); });
    REQUIRE(claim_.claimed == 1);
    CHECK(source.format == claim_.format);
    const uint64_t groups = (claim_.n + claim_.row_group - 1) / claim_.row_group;
    std::vector<uint8_t> packed(groups * claim_.group_bytes, 0xc3);
    for (uint64_t g = groups; g-- > 0;) {
      done([&](AtlasError* e) {
        return plugin_.api.pack(&file_.query, &claim_, g, g + 1,
                                packed.data() + g * claim_.group_bytes, e);
      });
    }
    packed_ = machine_.in_out("weight", packed);
    weight_ = place(packed_);
  }

  std::vector<float> product(const std::vector<float>& x, uint32_t rows) {
    auto problem = product_of<AtlasLinearProblem>(rows);
    const AtlasLinearNeeds needs = needs_of(problem, plugin_.api.linear_needs);
    divided = needs.workspace_bytes != 0;
    const AtlasBufferRef count = place(machine_.input("rows", std::vector<uint32_t>{rows}));
    problem.x = encoded(x, rows, problem.max_rows, needs, count);
    const float* y = machine_.output<float>("y", size_t{rows} * source_.n);
    problem.y = place(y);
    problem.weight = weight_;
    problem.row_count = count;
    done([&](AtlasError* e) { return plugin_.api.plan_linear(&problem, &sink_, e); });
    return machine_.contents(y);
  }

  bool divided = false;  // the last product

  /// The same as the rows of one expert, from the last to the first.
  std::vector<float> of_expert(const std::vector<float>& x, uint32_t rows) {
    auto problem = product_of<AtlasGroupedProblem>(rows);
    problem.experts = 1;
    problem.expert_bytes = machine_.contents(packed_).size();
    const AtlasLinearNeeds needs = needs_of(problem, plugin_.api.grouped_needs);
    const AtlasBufferRef count = place(machine_.input("rows", std::vector<uint32_t>{rows}));
    std::vector<uint32_t> backwards(rows);
    for (uint32_t i = 0; i < rows; ++i) backwards[i] = rows - 1 - i;
    problem.x = encoded(x, rows, rows + 1, needs, count);
    problem.offsets = place(machine_.input("offsets", std::vector<uint32_t>{0, rows}));
    problem.source = place(machine_.input("source", backwards));
    const float* y = machine_.output<float>("y", size_t{rows} * source_.n);
    problem.y = place(y);
    problem.weight = weight_;
    done([&](AtlasError* e) { return plugin_.api.plan_grouped(&problem, &sink_, e); });
    return machine_.contents(y);
  }

  std::vector<float> gather(const std::vector<uint32_t>& ids) {
    AtlasGatherProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = static_cast<uint32_t>(ids.size());
    problem.platform = platform_;
    problem.format = claim_.format;
    problem.n = source_.n;
    problem.k = source_.k;
    problem.id_stride = 4;
    problem.y_stride = source_.k;
    problem.ids = place(machine_.input("ids", ids));
    problem.weight = weight_;
    problem.row_count = place(machine_.input("count", std::vector<uint32_t>{problem.max_rows}));
    const float* y = machine_.output<float>("rows of W", ids.size() * source_.k);
    problem.y = place(y);
    done([&](AtlasError* e) { return plugin_.api.plan_gather(&problem, &sink_, e); });
    return machine_.contents(y);
  }

 private:
  /// What products of both kinds say of themselves.
  template <class Problem>
  Problem product_of(uint32_t rows) const {
    Problem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = rows + 1;
    problem.platform = platform_;
    problem.format = claim_.format;
    problem.n = source_.n;
    problem.k = source_.k;
    problem.y_stride = source_.n;
    problem.workspace = {ATLAS_NO_BUFFER, 0, 0};
    return problem;
  }
  /// What it needs; its workspace is there afterwards.
  template <class Problem, class Ask>
  AtlasLinearNeeds needs_of(Problem& problem, Ask ask) {
    AtlasLinearNeeds needs{};
    needs.struct_size = sizeof(needs);
    done([&](AtlasError* e) { return ask(&problem, &needs, e); });
    if (needs.workspace_bytes != 0) {
      problem.workspace = place(machine_.output<uint8_t>("workspace", needs.workspace_bytes));
    }
    return needs;
  }
  AtlasBufferRef encoded(const std::vector<float>& x, uint32_t rows, uint32_t max_rows,
                         const AtlasLinearNeeds& needs, AtlasBufferRef count) {
    AtlasEncodeProblem encode{};
    encode.struct_size = sizeof(encode);
    encode.max_rows = max_rows;
    encode.platform = platform_;
    encode.encoding = needs.input_encoding;
    encode.k = source_.k;
    encode.x = place(machine_.input("x", x));
    encode.x_stride = source_.k;
    encode.out =
        place(machine_.output<uint8_t>("encoded", (rows + 31) / 32 * 32 * needs.encoded_row_bytes));
    encode.row_count = count;
    done([&](AtlasError* e) { return plugin_.api.plan_encode(&encode, &sink_, e); });
    return encode.out;
  }
  template <class Call>
  static void done(const Call& call) {
    const Answer answer = answer_of(call);
    REQUIRE_MESSAGE(answer.code == ATLAS_OK, answer.message);
  }
  AtlasBufferRef place(const void* memory) {
    memory_.push_back(memory);
    return {static_cast<uint32_t>(memory_.size() - 1), 0, 0};
  }
  /// Runs a record at once.
  AtlasCode take(const AtlasRecord& record) {
    const auto* bytes = static_cast<const uint8_t*>(record.params);
    std::vector<uint8_t> params(bytes, bytes + record.params_size);
    for (uint32_t i = 0; i < record.relocation_count; ++i) {
      const AtlasRelocation& relocation = record.relocations[i];
      const auto address =
          reinterpret_cast<uint64_t>(memory_[relocation.target.buffer]) + relocation.target.offset;
      std::memcpy(params.data() + relocation.param_offset, &address, sizeof(address));
    }
    const auto report =
        machine_.run_raw(record.kernel, record.params_digest, params.data(), params.size(),
                         {.shape = {record.grid[0], record.grid[1], record.grid[2], record.block[0],
                                    record.shared_bytes}});
    INFO(report.text());
    REQUIRE(report.ok());
    return ATLAS_OK;
  }

  const QuantPlugin& plugin_;
  const char* platform_;
  const Source& source_;
  GpuMachine machine_;
  WeightFile file_;
  AtlasWeightClaim claim_{};
  const uint8_t* packed_ = nullptr;
  AtlasBufferRef weight_{};
  std::vector<const void*> memory_;
  AtlasRecordSink sink_{sizeof(AtlasRecordSink), 0, this,
                        [](void* self, const AtlasRecord* record, AtlasError*) -> AtlasCode {
                          return static_cast<PluginRun*>(self)->take(*record);
                        }};
};

void check(const std::string& file, const Source& source, bool divided = false) {
  const QuantPlugin plugin(file);
  for (const char* platform : kGpuPlatforms) {
    CAPTURE(platform);
    CAPTURE(source.format);
    PluginRun run(plugin, platform, source);
    // A bucket for the kernel for few rows, and one for that for many.
    constexpr uint32_t kMany = 50;
    const std::vector<float> x = normal_values(size_t{kMany} * source.k, 3);
    const std::vector<float> y = run.product(x, kMany);
    const GpuWeights weights{source.format, source.n, source.k, source.values, {}};
    ProductSuite(platform, weights).check_values(x, y);
    const std::vector<float> few(x.begin(), x.begin() + 2 * source.k);
    CHECK(same_bits(run.product(few, 2), {y.begin(), y.begin() + 2 * source.n}));
    CHECK(run.divided == divided);
    std::vector<float> backwards;
    for (uint32_t i = kMany; i-- > 0;) {
      backwards.insert(backwards.end(), y.begin() + i * source.n, y.begin() + (i + 1) * source.n);
    }
    CHECK(same_bits(run.of_expert(x, kMany), backwards));
    const std::vector<float> rows = run.gather({source.n - 1, 0});
    std::vector<double> expected(source.values.end() - source.k, source.values.end());
    expected.insert(expected.end(), source.values.begin(), source.values.begin() + source.k);
    CHECK(largest_difference(rows, expected) < 1e-6);
  }
}

Source source_of(const ScaledWeights& w) {
  return {w.format, w.dtype, w.n, w.k, w.columns, w.codes, w.values, w.name, w.more};
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: plugin bf16 packs, plans and gathers for every platform") {
    for (const auto& [layout, dtype] :
         {std::pair{kernels::FloatLayout::kF32, AtlasDType{ATLAS_F32}},
          {kernels::FloatLayout::kF16, ATLAS_F16},
          {kernels::FloatLayout::kBF16, ATLAS_BF16}}) {
      const FloatWeights w(layout, 37, 77);
      check("quant_bf16.so", {name_of(layout), dtype, w.n, w.k, w.k, w.bytes, w.values});
    }
  }

  TEST_CASE("gpu: plugin bf16 divides k where a matrix has few outputs") {
    const FloatWeights w(kernels::FloatLayout::kBF16, 13, 8200);
    check("quant_bf16.so", {"bf16", ATLAS_BF16, w.n, w.k, w.k, w.bytes, w.values}, true);
  }

  TEST_CASE("gpu: every plugin with bf16 weights ends products of few rows in what follows them") {
    // The streams' gates of Qwen3.8-Flash-Next. Which plugin claims such weights is a matter of
    // order.
    for (const char* file : {"quant_bf16.so", "quant_gguf.so"}) {
      const QuantPlugin plugin(file);
      for (const char* platform : kGpuPlatforms) {
        for (const uint32_t rows : {1u, 16u, 17u}) {
          for (const uint32_t epilogue : {ATLAS_EPILOGUE_SILU, ATLAS_EPILOGUE_STREAM_MEAN}) {
            CAPTURE(file);
            CAPTURE(platform);
            CAPTURE(rows);
            const bool silu = epilogue == ATLAS_EPILOGUE_SILU;
            AtlasLinearProblem problem{};
            problem.struct_size = sizeof(problem);
            problem.max_rows = rows;
            problem.platform = platform;
            problem.format = "bf16";
            problem.n = problem.y_stride = silu ? 324 : 10240;
            problem.k = problem.x_stride = silu ? 10240 : 320;
            problem.epilogue = epilogue;
            problem.columns = silu ? 320 : 2560;
            AtlasLinearNeeds needs{};
            needs.struct_size = sizeof(needs);
            AtlasError error{sizeof(AtlasError), {}};
            REQUIRE(plugin.api.linear_needs(&problem, &needs, &error) == ATLAS_OK);
            CHECK((needs.fused_epilogues >> epilogue & 1) == (rows <= 16 ? 1 : 0));
            CHECK((needs.encoded_offset != 0) == (rows <= 16));
          }
        }
      }
    }
  }

  TEST_CASE("gpu: plugin nvfp4 packs, plans and gathers for every platform") {
    for (const bool compressed : {false, true}) {
      check("quant_nvfp4.so", source_of(nvfp4_weights(37, 336, compressed, 3e-2f)));
    }
  }

  TEST_CASE("gpu: plugin fp8 packs, plans and gathers for every platform") {
    for (const Fp8Kind kind : {Fp8Kind::kTensor, Fp8Kind::kRow, Fp8Kind::kBlockF32, Fp8Kind::kMx}) {
      check("quant_fp8.so", source_of(fp8_weights(150, 288, kind)));
    }
  }

  TEST_CASE("gpu: plugin gguf packs, plans and gathers for every platform") {
    for (const quant_gguf::BlockFormat& format : quant_gguf::kBlockFormats) {
      const GgufWeights w(format, 37, 3 * format.layout.block());
      std::vector<float> values;
      for (uint32_t i = 0; i < w.n; ++i) {
        const std::vector<float> row = w.decode(i);
        values.insert(values.end(), row.begin(), row.end());
      }
      check("quant_gguf.so", {format.name, format.dtype, w.n, w.k, w.k, w.blocks, values});
    }
  }
}

}  // namespace atlas::test

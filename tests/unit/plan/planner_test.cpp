// The planner with plugins made for the test: what it asks of them, and what it makes of answers.
#include "daemon/plan/planner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "kernels/common/core_fused.h"
#include "kernels/common/gdn.h"
#include "kernels/common/gpu_ends.h"
#include "kernels/common/gpu_half.h"
#include "kernels/common/linear.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/record.h"

using namespace atlas;
using namespace atlas::plan;

TEST_SUITE_BEGIN("plan");

namespace {

/// A checkpoint of shapes alone: module to [n, k] and type.
class Shapes final : public WeightSource {
 public:
  struct Entry {
    uint64_t n, k;
    AtlasDType dtype;
  };
  std::map<std::string, Entry> modules;
  std::map<std::string, uint64_t> vectors;

  std::vector<AtlasTensor> module_tensors(const std::string& module) const override {
    const auto found = modules.find(module);
    if (found == modules.end()) return {};
    AtlasTensor tensor{};
    tensor.struct_size = sizeof(tensor);
    tensor.dtype = found->second.dtype;
    tensor.name = found->first.c_str();
    tensor.rank = 2;
    tensor.dims[0] = found->second.n;
    tensor.dims[1] = found->second.k;
    return {tensor};
  }
  Result<AtlasTensor> tensor(const std::string& name) const override {
    const auto found = vectors.find(name);
    if (found == vectors.end()) return not_found("the checkpoint has no tensor '{}'", name);
    AtlasTensor tensor{};
    tensor.dtype = ATLAS_F32;
    tensor.rank = 1;
    tensor.dims[0] = found->second;
    return tensor;
  }
  Status read(const AtlasTensor& tensor, uint64_t, std::span<std::byte>) const override {
    return internal_error("a plan reads no weight, and this one asks for '{}'", tensor.name);
  }
  void drop_cache(const AtlasTensor&) const override {}
  std::string identity() const override { return "shapes"; }
};

/// Claims tensors of one type, in groups of 16 rows; adds by itself only if `kAdds`.
template <AtlasDType kType, bool kAdds>
struct FakeQuant {
  static AtlasCode claim(const AtlasWeightQuery* query, AtlasWeightClaim* claim, AtlasError*) {
    if (query->tensors[0].dtype != kType) return ATLAS_OK;
    claim->claimed = 1;
    sdk::copy_text(claim->format, kType == ATLAS_Q8_0 ? "q8_0" : "bf16");
    sdk::copy_text(claim->contract, "test");
    sdk::copy_text(claim->layout, "test");
    claim->n = query->tensors[0].dims[0];
    claim->k = query->tensors[0].dims[1];
    claim->row_group = 16;
    claim->group_bytes = 16 * claim->k;
    return ATLAS_OK;
  }
  static AtlasCode needs(const AtlasLinearProblem*, AtlasLinearNeeds* needs, AtlasError*) {
    needs->fused_epilogues = 1u | (kAdds ? 1u << ATLAS_EPILOGUE_ADD : 0u);
    if (kAdds) {
      sdk::copy_text(needs->input_encoding, "code");
      needs->encoded_row_bytes = 100;
    }
    return ATLAS_OK;
  }
  static AtlasCode linear(const AtlasLinearProblem* problem, const AtlasRecordSink* sink,
                          AtlasError* error) {
    sdk::Launch<kernels::LinearParams> launch("linear_test", kernels::kLinearParamsDigest);
    launch.point(&launch.params.y, problem->y);
    launch.params.epilogue = problem->epilogue;
    launch.params.n = static_cast<uint32_t>(problem->n);
    return launch.emit(sink, error);
  }
  static AtlasCode encode(const AtlasEncodeProblem*, const AtlasRecordSink* sink,
                          AtlasError* error) {
    return sdk::Launch<kernels::EncodeParams>("encode_test", kernels::kEncodeParamsDigest)
        .emit(sink, error);
  }
  static AtlasCode gather(const AtlasGatherProblem*, const AtlasRecordSink* sink,
                          AtlasError* error) {
    return sdk::Launch<kernels::GatherParams>("gather_test", kernels::kGatherParamsDigest)
        .emit(sink, error);
  }
  static constexpr AtlasQuantApi kApi{
      sizeof(AtlasQuantApi), 0, claim, nullptr, needs, linear, encode, gather, nullptr, nullptr};
};

/// Weights with a head of 64 bytes.
struct HeadQuant : FakeQuant<ATLAS_BF16, false> {
  static AtlasCode claim(const AtlasWeightQuery* query, AtlasWeightClaim* claim,
                         AtlasError* error) {
    claim->head_bytes = 64;
    return FakeQuant::claim(query, claim, error);
  }
  static constexpr AtlasQuantApi kApi{
      sizeof(AtlasQuantApi), 0, claim, nullptr, needs, linear, encode, gather, nullptr, nullptr};
};

/// As a plugin of ABI 1.2 it does not say what its launches read and write.
struct SilentQuant : FakeQuant<ATLAS_BF16, false> {
  static AtlasCode linear(const AtlasLinearProblem* problem, const AtlasRecordSink* sink,
                          AtlasError* error) {
    sdk::Launch<kernels::LinearParams> launch("linear_test", kernels::kLinearParamsDigest);
    launch.point(&launch.params.y, problem->y, ATLAS_ACCESS_UNSAID);
    return launch.emit(sink, error);
  }
  static constexpr AtlasQuantApi kApi{
      sizeof(AtlasQuantApi), 0, claim, nullptr, needs, linear, encode, gather, nullptr, nullptr};
};

/// A plugin of GPUs: products read the core's encoding, experts' too.
struct EncodedQuant : FakeQuant<ATLAS_BF16, true> {
  static void fill(uint64_t k, AtlasLinearNeeds* needs) {
    needs->fused_epilogues = 1u | 1u << ATLAS_EPILOGUE_ADD;
    sdk::copy_text(needs->input_encoding, kernels::kBf16Encoding);
    needs->encoded_row_bytes = kernels::bf16_row_bytes(k);
  }
  static AtlasCode needs(const AtlasLinearProblem* problem, AtlasLinearNeeds* needs, AtlasError*) {
    fill(problem->k, needs);
    return ATLAS_OK;
  }
  static AtlasCode grouped_needs(const AtlasGroupedProblem* problem, AtlasLinearNeeds* needs,
                                 AtlasError*) {
    fill(problem->k, needs);
    return ATLAS_OK;
  }
  static AtlasCode linear(const AtlasLinearProblem* problem, const AtlasRecordSink* sink,
                          AtlasError* error) {
    sdk::Launch<kernels::LinearParams> launch("linear_test", kernels::kLinearParamsDigest);
    launch.point(&launch.params.x, problem->x);
    launch.point(&launch.params.y, problem->y);
    launch.params.n = static_cast<uint32_t>(problem->n);
    return launch.emit(sink, error);
  }
  static AtlasCode grouped(const AtlasGroupedProblem* problem, const AtlasRecordSink* sink,
                           AtlasError* error) {
    sdk::Launch<kernels::GroupedParams> launch("grouped_test", kernels::kGroupedParamsDigest);
    launch.point(&launch.params.x, problem->x);
    return launch.emit(sink, error);
  }
  static AtlasCode encode(const AtlasEncodeProblem* problem, const AtlasRecordSink* sink,
                          AtlasError* error) {
    sdk::Launch<kernels::EncodeParams> launch("encode_test", kernels::kEncodeParamsDigest);
    launch.point(&launch.params.out, problem->out);
    return launch.emit(sink, error);
  }
  static constexpr AtlasQuantApi kApi{
      sizeof(AtlasQuantApi), 0, claim, nullptr, needs, linear, encode, gather, grouped,
      grouped_needs};
};

/// A plugin of GPUs whose products of other than 32 outputs, with many rows, want another encoding.
struct WgmmaQuant : EncodedQuant {
  static AtlasCode needs(const AtlasLinearProblem* problem, AtlasLinearNeeds* needs,
                         AtlasError* error) {
    if (problem->n == 32 || problem->max_rows < 64) {
      return EncodedQuant::needs(problem, needs, error);
    }
    needs->fused_epilogues = 1u | 1u << ATLAS_EPILOGUE_ADD;
    sdk::copy_text(needs->input_encoding, kernels::kWgmmaEncoding);
    needs->encoded_row_bytes = kernels::wgmma_row_bytes(problem->k);
    return ATLAS_OK;
  }
  static constexpr AtlasQuantApi kApi{
      sizeof(AtlasQuantApi), 0, claim, nullptr, needs, linear, encode, gather, grouped,
      grouped_needs};
};

/// A plugin of GPUs whose products multiply in f16 what a norm has made, but for those of 32
/// outputs.
struct HalfQuant : EncodedQuant {
  static AtlasCode claim(const AtlasWeightQuery* query, AtlasWeightClaim* claim,
                         AtlasError* error) {
    EncodedQuant::claim(query, claim, error);
    if (query->normed_rows != 0 && claim->n != 32) sdk::copy_text(claim->format, "bf16_half");
    return ATLAS_OK;
  }
  static AtlasCode needs(const AtlasLinearProblem* problem, AtlasLinearNeeds* needs,
                         AtlasError* error) {
    EncodedQuant::needs(problem, needs, error);
    if (problem->format != std::string_view("bf16_half")) return ATLAS_OK;
    sdk::copy_text(needs->input_encoding, kernels::kHalfEncoding);
    return ATLAS_OK;
  }
  static constexpr AtlasQuantApi kApi{
      sizeof(AtlasQuantApi), 0, claim, nullptr, needs, linear, encode, gather, grouped,
      grouped_needs};
};

/// A plugin of GPUs whose products of few rows end in SiLU and in the mean of streams.
struct EndingQuant : EncodedQuant {
  static AtlasCode needs(const AtlasLinearProblem* problem, AtlasLinearNeeds* needs,
                         AtlasError* error) {
    EncodedQuant::needs(problem, needs, error);
    if (problem->max_rows > 16) return ATLAS_OK;
    needs->fused_epilogues |= 1u << ATLAS_EPILOGUE_SILU | 1u << ATLAS_EPILOGUE_STREAM_MEAN;
    needs->encoded_offset = offsetof(kernels::LinearSiluParams, end.encoded);
    return ATLAS_OK;
  }
  static AtlasCode linear(const AtlasLinearProblem* problem, const AtlasRecordSink* sink,
                          AtlasError* error) {
    if (problem->epilogue < ATLAS_EPILOGUE_SILU) return EncodedQuant::linear(problem, sink, error);
    const bool silu = problem->epilogue == ATLAS_EPILOGUE_SILU;
    sdk::Launch<kernels::LinearSiluParams> launch(silu ? "silu_test" : "mean_test",
                                                  kernels::kLinearSiluParamsDigest);
    launch.point(&launch.params.linear.x, problem->x);
    launch.point(&launch.params.linear.y, problem->y);
    launch.point(&launch.params.linear.row_count, problem->streams);
    launch.params.end.columns = problem->columns;
    launch.params.end.scale = problem->scale;
    return launch.emit(sink, error);
  }
  static constexpr AtlasQuantApi kApi{
      sizeof(AtlasQuantApi), 0, claim, nullptr, needs, linear, encode, gather, grouped,
      grouped_needs};
};

struct FakeAttention {
  static AtlasCode needs(const AtlasAttentionProblem* problem, AtlasAttentionNeeds* needs,
                         AtlasError*) {
    needs->page_tokens = 64;
    needs->bytes_per_page = 64 * problem->kv_heads * problem->head_dim * 8;
    sdk::copy_text(needs->state_layout, "test");
    return ATLAS_OK;
  }
  static AtlasCode plan(const AtlasAttentionProblem* problem, const AtlasRecordSink* sink,
                        AtlasError* error) {
    sdk::Launch<kernels::ControlFetchParams> launch("attend_test", 1);
    launch.point(&launch.params.control, problem->pages);
    return launch.emit(sink, error);
  }
  static constexpr AtlasAttentionApi kApi{sizeof(AtlasAttentionApi), 0, needs, plan};
};

/// Gated DeltaNet whose norm and gate it does in steps of few rows a sequence.
struct FakeDelta {
  static AtlasCode needs(const AtlasAttentionProblem* problem, AtlasAttentionNeeds* needs,
                         AtlasError*) {
    needs->page_tokens = 64;
    needs->can_norm = problem->span_rows != 0 ? 1 : 0;
    needs->encoded_offset = offsetof(kernels::GdnStepParams, encoded);
    sdk::copy_text(needs->state_layout, "test");
    return ATLAS_OK;
  }
  static AtlasCode plan(const AtlasAttentionProblem* problem, const AtlasRecordSink* sink,
                        AtlasError* error) {
    sdk::Launch<kernels::GdnStepParams> launch("delta_test", kernels::kGdnStepParamsDigest);
    launch.point(&launch.params.out, problem->out);
    if (problem->delta->norms != 0) {
      launch.point(&launch.params.gate, problem->delta->gate);
      launch.point(&launch.params.norm_weight, problem->delta->norm_weight);
    }
    return launch.emit(sink, error);
  }
  static constexpr AtlasAttentionApi kApi{sizeof(AtlasAttentionApi), 0, needs, plan};
};

/// q, k, v of 32 + 16 + 16 outputs over one input, attention, and a product added to the residual.
StepProgram program() {
  StepBuilder step;
  const Value residual = step.activation("residual", 32);
  const Value normed = step.activation("normed", 32);
  const Value qkv = step.activation("qkv", 64);
  const Value attended = step.activation("attended", 32);
  const Value last = step.activation("last", 32, RowDomain::kLogitRows);
  const Value logits = step.activation("logits", 96, RowDomain::kLogitRows);
  step.embed({"embed", 96, 32}, residual);
  step.rms_norm(residual, {"norm", 32}, 1e-5f, normed);
  step.linear(normed, {{"q", 32, 32}, {"k", 16, 32}, {"v", 16, 32}}, qkv);
  step.add("attention", AttentionOp{.backend = "gqa",
                                    .layer = 0,
                                    .q = qkv.columns(0, 32),
                                    .k = qkv.columns(32, 16),
                                    .v = qkv.columns(48, 16),
                                    .out = attended,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 16,
                                    .scale = 0.25f});
  step.linear_add(attended, {"o", 32, 32}, residual);
  step.select_rows(residual, last);
  step.linear(last, {{"embed", 96, 32}}, logits);
  step.sample(logits);
  return std::move(step).take();
}

Shapes shapes(AtlasDType dtype) {
  Shapes source;
  source.modules = {{"embed", {96, 32, dtype}},
                    {"q", {32, 32, dtype}},
                    {"k", {16, 32, dtype}},
                    {"v", {16, 32, dtype}},
                    {"o", {32, 32, dtype}}};
  source.vectors = {{"norm", 32}};
  return source;
}

constexpr Bucket kPrefill{StepKind::kPrefill, 64, 4};
constexpr Bucket kDecode{StepKind::kDecode, 4, 4};

Result<Plan> plan_with(
    const WeightSource& source, const StepProgram& steps,
    std::vector<QuantBackend> quant = {{"eight", &FakeQuant<ATLAS_Q8_0, true>::kApi},
                                       {"wide", &FakeQuant<ATLAS_BF16, false>::kApi}},
    std::vector<AttentionBackend> attention = {{"gqa", &FakeAttention::kApi}},
    std::vector<DeclaredFormats> declared = {}, const std::string& platform = "cpu") {
  PlanInput input;
  input.platform = platform;
  input.weights = &source;
  input.quant = quant;
  input.attention = attention;
  input.declared = declared;
  input.program = &steps;
  input.shape.max_sequences = 4;
  input.shape.context_tokens = 256;
  input.shape.cache_tokens = 512;
  input.shape.buckets = {kPrefill, kDecode};
  return make_plan(input);
}

std::vector<std::string> kernels_of(const Plan& plan, const Bucket& bucket) {
  std::vector<std::string> names;
  for (const Record& record : plan.find(bucket)->records) names.push_back(record.kernel);
  return names;
}

}  // namespace

TEST_CASE("planner: weights of one input and format are packed side by side, a tied one once") {
  const auto plan = plan_with(shapes(ATLAS_Q8_0), program());
  REQUIRE_MESSAGE(plan, plan.error().message());
  REQUIRE(plan->weights.size() == 3);  // embed (twice used), q + k + v, o
  CHECK(plan->weights[1].n == 64);
  CHECK(plan->weights[1].parts.size() == 3);
  CHECK(plan->weights[1].parts[2].offset == 48 * 32);
  CHECK(plan->ledger.bytes.at(LedgerLine::kWeights) == (96 + 64 + 32) * 32 + 256);
}

TEST_CASE("planner: weights with a head stand by themselves, the head before their groups") {
  const auto plan = plan_with(shapes(ATLAS_BF16), program(), {{"headed", &HeadQuant::kApi}});
  REQUIRE_MESSAGE(plan, plan.error().message());
  REQUIRE(plan->weights.size() == 5);  // embed, q, k, v, o
  for (const Weight& weight : plan->weights) {
    REQUIRE(weight.parts.size() == 1);
    CHECK(weight.parts[0].bytes == 64 + weight.n * 32);
    CHECK(plan->buffers[weight.buffer].bytes == 64 + weight.n * 32);
  }
}

TEST_CASE("planner: an input is encoded once as long as nothing writes to it") {
  const auto plan = plan_with(shapes(ATLAS_Q8_0), program());
  REQUIRE(plan);
  CHECK(kernels_of(*plan, kDecode) ==
        std::vector<std::string>{"control_fetch", "gather_test", "rms_norm", "encode_test",
                                 "linear_test", "attend_test", "encode_test", "linear_test",
                                 "select_rows", "encode_test", "linear_test", "sample", "score",
                                 "control_commit"});
}

TEST_CASE("planner: a product whose plugin cannot add is added by the core") {
  const auto plan = plan_with(shapes(ATLAS_BF16), program());
  REQUIRE(plan);
  const auto names = kernels_of(*plan, kDecode);
  const auto add = std::find(names.begin(), names.end(), "add");
  REQUIRE(add != names.end());
  CHECK(*(add - 1) == "linear_test");
  CHECK(std::find(names.begin(), names.end(), "encode_test") == names.end());
}

TEST_CASE("planner: on GPUs a block's end and the next one's norm are one record") {
  StepBuilder step;
  const Value y = step.activation("y", 32), other = step.activation("other", 64);
  const Value x = step.activation("streams", 64), c = step.activation("c", 2);
  const Value normed = step.activation("normed", 64);
  const Value last = step.activation("last", 32, RowDomain::kLogitRows);
  const Value logits = step.activation("logits", 96, RowDomain::kLogitRows);
  const Groups by_stream{2, 32, 32};
  step.embed({"embed", 96, 32}, y);
  step.add("inject", StreamInjectOp{c, y, x, 2});
  step.add("norm", RmsNormOp{x, {"norm", 32}, 1e-5f, normed, by_stream, by_stream});
  step.add("inject", StreamInjectOp{c, y, x, 2});
  step.add("norm", RmsNormOp{other, {"norm", 32}, 1e-5f, normed, by_stream, by_stream});
  const Value qkv = step.activation("qkv", 64), attended = step.activation("attended", 32);
  step.add("attention", AttentionOp{.backend = "gqa",
                                    .layer = 0,
                                    .q = qkv.columns(0, 32),
                                    .k = qkv.columns(32, 16),
                                    .v = qkv.columns(48, 16),
                                    .out = attended,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 16,
                                    .scale = 0.25f});
  step.select_rows(y, last);
  step.linear(last, {{"embed", 96, 32}}, logits);
  step.sample(logits);
  const StepProgram steps = std::move(step).take();
  const auto kernels_on = [&](const std::string& platform) {
    const auto plan =
        plan_with(shapes(ATLAS_BF16), steps, {{"wide", &FakeQuant<ATLAS_BF16, false>::kApi}},
                  {{"gqa", &FakeAttention::kApi}}, {}, platform);
    REQUIRE_MESSAGE(plan, plan.error().message());
    return kernels_of(*plan, kDecode);
  };
  CHECK(kernels_on("h200") ==
        std::vector<std::string>{"control_fetch", "gather_test", "inject_norm", "stream_inject",
                                 "rms_norm", "attend_test", "select_rows", "linear_test",
                                 "sample_scan", "sample", "score", "control_commit"});
  CHECK(kernels_on("cpu") ==
        std::vector<std::string>{"control_fetch", "gather_test", "stream_inject", "rms_norm",
                                 "stream_inject", "rms_norm", "attend_test", "select_rows",
                                 "linear_test", "sample", "score", "control_commit"});
}

namespace {

/// A step around what a test adds: attention, and logits of `x`.
StepProgram around(StepBuilder step, Value x) {
  const Value qkv = step.activation("qkv", 64), attended = step.activation("attended", 32);
  step.add("attention", AttentionOp{.backend = "gqa",
                                    .layer = 0,
                                    .q = qkv.columns(0, 32),
                                    .k = qkv.columns(32, 16),
                                    .v = qkv.columns(48, 16),
                                    .out = attended,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 16,
                                    .scale = 0.25f});
  const Value last = step.activation("last", 32, RowDomain::kLogitRows);
  const Value logits = step.activation("logits", 96, RowDomain::kLogitRows);
  step.select_rows(x, last);
  step.linear(last, {{"embed", 96, 32}}, logits);
  step.sample(logits);
  return std::move(step).take();
}

/// The kernels between the embedding and attention, in a plan of platform h200 or cpu.
std::vector<std::string> kernels_between(const Plan& plan, const Bucket& bucket) {
  std::vector<std::string> names = kernels_of(plan, bucket);
  names.erase(std::find(names.begin(), names.end(), "attend_test"), names.end());
  names.erase(names.begin(), std::find(names.begin(), names.end(), "gather_test") + 1);
  return names;
}

/// The records of a step that follow others than the one before them.
std::map<uint32_t, std::vector<uint32_t>> forks_of(const Plan& plan, const Bucket& bucket) {
  std::map<uint32_t, std::vector<uint32_t>> forks;
  const std::vector<Record>& records = plan.find(bucket)->records;
  for (uint32_t i = 0; i < records.size(); ++i) {
    if (!records[i].after.empty()) forks[i] = records[i].after;
  }
  return forks;
}

/// Names of the buffers that a record points to at `offset` of its parameters.
std::string pointed_at(const Plan& plan, const Bucket& bucket, const std::string& kernel,
                       size_t offset) {
  std::string names;
  for (const Record& record : plan.find(bucket)->records) {
    if (record.kernel != kernel) continue;
    for (const AtlasRelocation& one : record.relocations) {
      if (one.param_offset == offset) names += plan.buffers[one.target.buffer].name + ";";
    }
  }
  return names;
}

}  // namespace

TEST_CASE("planner: on GPUs an operation of the core encodes what it makes, if it still can") {
  StepBuilder step;
  const Value x = step.activation("x", 32), a = step.activation("a", 32);
  const Value b = step.activation("b", 32), y = step.activation("y", 32);
  const Value from = step.activation("from", 512), normed = step.activation("normed", 512);
  step.embed({"embed", 96, 32}, x);
  step.rms_norm(from, {"wide_norm", 512}, 1e-5f, normed);
  step.linear(normed, {{"wide", 32, 512}}, y);
  step.rms_norm(x, {"norm", 32}, 1e-5f, a);  // too narrow to be encoded by the way
  step.linear(a, {{"o", 32, 32}}, y);
  step.add("silu", SiluOp{x, a, 1.0f});
  step.add("silu", SiluOp{x, b, 2.0f});
  step.linear(b, {{"o", 32, 32}}, y);
  step.linear(a, {{"o", 32, 32}}, y);  // b stands where a could have been
  step.linear(x, {{"o", 32, 32}}, y);  // a gather encodes nothing
  const StepProgram steps = around(std::move(step), y);
  Shapes source = shapes(ATLAS_BF16);
  source.modules["wide"] = {32, 512, ATLAS_BF16};
  source.vectors["wide_norm"] = 512;
  const auto plan_on = [&](const std::string& platform) {
    auto plan = plan_with(source, steps, {{"encoded", &EncodedQuant::kApi}},
                          {{"gqa", &FakeAttention::kApi}}, {}, platform);
    REQUIRE_MESSAGE(plan, plan.error().message());
    return std::move(*plan);
  };
  const Plan gpu = plan_on("h200");
  CHECK(kernels_between(gpu, kDecode) ==
        std::vector<std::string>{"rms_norm", "linear_test", "rms_norm", "encode_test",
                                 "linear_test", "silu", "silu", "linear_test", "encode_test",
                                 "linear_test", "encode_test", "linear_test"});
  CHECK(pointed_at(gpu, kDecode, "rms_norm", offsetof(kernels::RmsNormParams, encoded)) ==
        "encoded bf16_b32;");
  CHECK(pointed_at(gpu, kDecode, "silu", offsetof(kernels::SiluParams, encoded)) ==
        "encoded bf16_b32;");
  const Plan cpu = plan_on("cpu");
  CHECK(kernels_between(cpu, kDecode) ==
        std::vector<std::string>{"rms_norm", "encode_test", "linear_test", "rms_norm",
                                 "encode_test", "linear_test", "silu", "silu", "encode_test",
                                 "linear_test", "encode_test", "linear_test", "encode_test",
                                 "linear_test"});
}

TEST_CASE("planner: on GPUs an operation of the core encodes in what its first product wants") {
  StepBuilder step;
  const Value x = step.activation("x", 32), a = step.activation("a", 32);
  const Value y = step.activation("y", 32), wide = step.activation("w", 64);
  step.embed({"embed", 96, 32}, x);
  step.add("silu", SiluOp{x, a, 1.0f});
  step.linear(a, {{"wide", 64, 32}}, wide);
  step.linear(a, {{"o", 32, 32}}, y);
  const StepProgram steps = around(std::move(step), y);
  Shapes source = shapes(ATLAS_BF16);
  source.modules["wide"] = {64, 32, ATLAS_BF16};
  const auto plan = plan_with(source, steps, {{"encoded", &WgmmaQuant::kApi}},
                              {{"gqa", &FakeAttention::kApi}}, {}, "h200");
  REQUIRE_MESSAGE(plan, plan.error().message());
  const size_t encoded = offsetof(kernels::SiluParams, encoded);
  CHECK(pointed_at(*plan, kDecode, "silu", encoded) == "encoded bf16_b32;");
  CHECK(pointed_at(*plan, kPrefill, "silu", encoded) == "encoded bf16_w64;");
  // The other encoding takes a record of its own, and the odd address says which the first is in.
  CHECK(kernels_between(*plan, kPrefill) ==
        std::vector<std::string>{"silu", "linear_test", "encode_test", "linear_test"});
  for (const Record& record : plan->find(kPrefill)->records) {
    for (const AtlasRelocation& one : record.relocations) {
      const Buffer& buffer = plan->buffers[one.target.buffer];
      if (buffer.name.find("bf16_w64") == std::string::npos) continue;
      CHECK(one.target.offset == (record.kernel == "silu" ? 1 : 0));
      CHECK(buffer.bytes == 64 * kernels::wgmma_row_bytes(32));
    }
  }
}

TEST_CASE("planner: plugins are told of weights whose products take a norm's rows alone") {
  StepBuilder step;
  const Value x = step.activation("x", 512), normed = step.activation("normed", 512);
  const Value wide = step.activation("w", 64);
  const Value streams = step.activation("streams", 1024), mixed = step.activation("mixed", 512);
  const Groups two{2, 512, 512};
  const Value narrow = step.activation("narrow", 32), ended = step.activation("ended", 32);
  step.embed({"embed", 96, 32}, narrow);
  step.rms_norm(x, {"wide_norm", 512}, 1e-5f, normed);
  step.linear(normed, {{"both", 64, 512}, {"bf16", 32, 512}}, step.activation("all", 96));
  step.linear(normed.columns(256, 256), {{"columns", 64, 256}}, wide);
  step.linear(normed, {{"mostly", 64, 512}}, wide);
  step.linear(x, {{"mostly", 64, 512}, {"never", 64, 512}}, step.activation("more", 128));
  step.add("silu", SiluOp{normed, normed, 1.0f});
  step.linear(normed, {{"later", 64, 512}}, wide);
  step.add("norm", RmsNormOp{streams, {"streams_norm", 1024}, 1e-5f, streams, two, two});
  step.add("mix", StreamMixOp{streams, streams, mixed, 2});
  step.linear(mixed, {{"mixed", 64, 512}}, wide);
  step.rms_norm(narrow, {"norm", 32}, 1e-5f, ended);
  const StepProgram steps = around(std::move(step), ended);  // the head takes the table's weight
  Shapes source = shapes(ATLAS_BF16);
  for (const char* name : {"both", "mostly", "never", "later", "mixed"}) {
    source.modules[name] = {64, 512, ATLAS_BF16};
  }
  source.modules["bf16"] = {32, 512, ATLAS_BF16};
  source.modules["columns"] = {64, 256, ATLAS_BF16};
  source.vectors["wide_norm"] = 512;
  source.vectors["streams_norm"] = 1024;
  const auto plan = plan_with(source, steps, {{"half", &HalfQuant::kApi}},
                              {{"gqa", &FakeAttention::kApi}}, {}, "h200");
  REQUIRE_MESSAGE(plan, plan.error().message());
  std::map<std::string, std::string> formats;
  for (const Weight& weight : plan->weights) {
    for (const auto& part : weight.parts) formats[part.module] = weight.format;
  }
  CHECK(formats == std::map<std::string, std::string>{{"both", "bf16_half"},
                                                      {"bf16", "bf16"},
                                                      {"columns", "bf16_half"},
                                                      {"mostly", "bf16"},
                                                      {"never", "bf16"},
                                                      {"later", "bf16"},
                                                      {"mixed", "bf16_half"},
                                                      {"embed", "bf16_half"}});
  // One record leaves its rows in both kinds of numbers.
  CHECK(pointed_at(*plan, kPrefill, "rms_norm", offsetof(kernels::RmsNormParams, encoded))
            .starts_with("encoded bf16_b32;"));
  CHECK(pointed_at(*plan, kPrefill, "rms_norm", offsetof(kernels::RmsNormParams, encoded_f16))
            .starts_with("encoded f16_b32;"));
  CHECK(pointed_at(*plan, kPrefill, "stream_mix",
                   offsetof(kernels::StreamMixParams, encoded_f16)) == "encoded f16_b32;");
}

TEST_CASE("planner: on GPUs products end in the operation behind them, if their plugin can") {
  StepBuilder step;
  const Value x = step.activation("x", 32), streams = step.activation("streams", 64);
  const Value low = step.activation("low", 36), gate = step.activation("gate", 64);
  const Value down = low.columns(0, 32), u = step.activation("u", 32), y = step.activation("y", 32);
  step.embed({"embed", 96, 32}, x);
  step.linear(x, {{"down", 32, 32}, {"factors", 4, 32}}, low);
  step.add("silu", SiluOp{down, down, 0.5f});
  step.linear(down, {{"up", 64, 32}}, gate);
  step.add("mix", StreamMixOp{gate, streams, u, 2});
  step.linear(u, {{"o", 32, 32}}, y);
  step.add("silu", SiluOp{x, u, 1.0f});  // not of the product
  step.linear(u, {{"o", 32, 32}}, y);
  const StepProgram steps = around(std::move(step), y);
  Shapes source = shapes(ATLAS_BF16);
  source.modules["down"] = {32, 32, ATLAS_BF16};
  source.modules["factors"] = {4, 32, ATLAS_BF16};
  source.modules["up"] = {64, 32, ATLAS_BF16};
  const auto plan_on = [&](const std::string& platform) {
    auto plan = plan_with(source, steps, {{"ending", &EndingQuant::kApi}},
                          {{"gqa", &FakeAttention::kApi}}, {}, platform);
    REQUIRE_MESSAGE(plan, plan.error().message());
    return std::move(*plan);
  };
  const Plan gpu = plan_on("h200");
  CHECK(kernels_between(gpu, kDecode) == std::vector<std::string>{"encode_test", "silu_test",
                                                                  "mean_test", "linear_test",
                                                                  "silu", "linear_test"});
  CHECK(kernels_between(gpu, kPrefill) ==
        std::vector<std::string>{"encode_test", "linear_test", "silu", "linear_test", "stream_mix",
                                 "linear_test", "silu", "linear_test"});
  // What is read and what is made never stand in one place.
  using Params = kernels::LinearSiluParams;
  const auto places = [&](const char* kernel, size_t offset) {
    return pointed_at(gpu, kDecode, kernel, offset);
  };
  CHECK(places("silu_test", offsetof(Params, linear.x)) == "encoded bf16_b32;");
  CHECK(places("silu_test", offsetof(Params, end.encoded)) == "encoded bf16_b32 in turn;");
  CHECK(places("mean_test", offsetof(Params, linear.x)) == "encoded bf16_b32 in turn;");
  CHECK(places("mean_test", offsetof(Params, end.encoded)) == "encoded bf16_b32;");
  CHECK(places("mean_test", offsetof(Params, linear.y)) == "activation u;");
  CHECK(places("mean_test", offsetof(Params, linear.row_count)) == "activation streams;");
  for (const Record& record : gpu.find(kDecode)->records) {
    if (record.kernel != "silu_test") continue;
    Params params{};
    std::memcpy(&params, record.params.data(), sizeof(params));
    CHECK(params.end.columns == 32);
    CHECK(params.end.scale == 0.5f);
    CHECK(record.program_index == 2);  // of SiLU, which is done behind it
  }
  CHECK(kernels_between(plan_on("cpu"), kDecode).front() == "encode_test");
  CHECK(kernels_of(plan_on("cpu"), kDecode) == kernels_of(plan_on("cpu"), kPrefill));
}

TEST_CASE("planner: on GPUs heads are normed and gated in one record, and encoded by it") {
  StepBuilder step;
  const Value heads = step.activation("heads", 128), z = step.activation("z", 128);
  const Value y = step.activation("y", 32), from = step.activation("from", 32);
  const Groups by_head{4, 32, 32};
  step.embed({"embed", 96, 32}, from);
  step.head_norm(heads, by_head, {"norm", 32}, 1e-5f, heads);
  step.add("gate", GateMulOp{heads, z, heads, by_head, by_head, by_head, true});
  step.linear(heads, {{"wide", 32, 128}}, y);
  step.head_norm(z, by_head, {"norm", 32}, 1e-5f, z);
  step.add("gate", GateMulOp{heads, z, heads, by_head, by_head, by_head, true});  // z is the gate
  const StepProgram steps = around(std::move(step), y);
  Shapes source = shapes(ATLAS_BF16);
  source.modules["wide"] = {32, 128, ATLAS_BF16};
  const auto plan = plan_with(source, steps, {{"encoded", &EncodedQuant::kApi}},
                              {{"gqa", &FakeAttention::kApi}}, {}, "h200");
  REQUIRE_MESSAGE(plan, plan.error().message());
  CHECK(kernels_between(*plan, kDecode) ==
        std::vector<std::string>{"norm_gate", "linear_test", "rms_norm", "gate_mul"});
  CHECK(pointed_at(*plan, kDecode, "norm_gate", offsetof(kernels::NormGateParams, gate.encoded)) ==
        "encoded bf16_b32;");
}

TEST_CASE("planner: Gated DeltaNet takes its heads' norm and gate where the backend does them") {
  StepBuilder step;
  const Value heads = step.activation("heads", 128), z = step.activation("z", 128);
  const Value qkv = step.activation("mixed", 192), b = step.activation("b", 4);
  const Value y = step.activation("y", 32), from = step.activation("from", 32);
  const Groups by_head{4, 32, 32};
  const DeltaOp delta{.backend = "gdn",
                      .qkv = qkv,
                      .b = b,
                      .a = b,
                      .out = heads,
                      .key_heads = 1,
                      .value_heads = 4,
                      .key_dim = 32,
                      .value_dim = 32,
                      .conv_kernel = 1,
                      .conv = {"conv", 192},
                      .a_log = {"a_log", 4},
                      .dt_bias = {"dt_bias", 4}};
  step.embed({"embed", 96, 32}, from);
  step.add("delta", delta);
  step.head_norm(heads, by_head, {"norm", 32}, 1e-5f, heads);
  step.add("gate", GateMulOp{heads, z, heads, by_head, by_head, by_head, true});
  step.linear(heads, {{"wide", 32, 128}}, y);
  step.add("delta", delta);
  step.head_norm(z, by_head, {"norm", 32}, 1e-5f, z);  // of something else
  step.add("gate", GateMulOp{z, heads, z, by_head, by_head, by_head, true});
  const StepProgram steps = around(std::move(step), y);
  Shapes source = shapes(ATLAS_BF16);
  source.modules["wide"] = {32, 128, ATLAS_BF16};
  source.vectors["conv"] = 192;
  source.vectors["a_log"] = source.vectors["dt_bias"] = 4;
  const auto plan =
      plan_with(source, steps, {{"encoded", &EncodedQuant::kApi}},
                {{"gdn", &FakeDelta::kApi}, {"gqa", &FakeAttention::kApi}}, {}, "h200");
  REQUIRE_MESSAGE(plan, plan.error().message());
  CHECK(kernels_between(*plan, kDecode) ==
        std::vector<std::string>{"delta_test", "linear_test", "delta_test", "norm_gate"});
  CHECK(kernels_between(*plan, kPrefill) == std::vector<std::string>{"delta_test", "norm_gate",
                                                                     "linear_test", "delta_test",
                                                                     "norm_gate"});
  CHECK(pointed_at(*plan, kDecode, "delta_test", offsetof(kernels::GdnStepParams, encoded)) ==
        "encoded bf16_b32;");
  CHECK(pointed_at(*plan, kDecode, "delta_test", offsetof(kernels::GdnStepParams, gate)) ==
        "activation z;");
}

TEST_CASE("planner: on GPUs few rows choose experts, and combine and inject them, in one record") {
  StepBuilder step;
  const Value u = step.activation("u", 32), y = step.activation("y", 32);
  const Value x = step.activation("streams", 64), c = step.activation("c", 2);
  const Value normed = step.activation("normed", 64);
  const Groups by_stream{2, 32, 32};
  step.embed({"embed", 96, 32}, u);
  step.add("experts", MoeOp{.x = u,
                            .y = y,
                            .module = "mlp",
                            .experts = 16,
                            .top = 5,
                            .intermediate = 16,
                            .shared_intermediate = 16,
                            .shared_gate = true});
  step.add("inject", StreamInjectOp{c, y, x, 2});
  step.add("norm", RmsNormOp{x, {"norm", 32}, 1e-5f, normed, by_stream, by_stream});
  const StepProgram steps = around(std::move(step), y);
  Shapes source = shapes(ATLAS_BF16);
  source.modules["mlp.gate"] = {16, 32, ATLAS_BF16};
  source.modules["mlp.shared_expert_gate"] = {1, 32, ATLAS_BF16};
  const auto add_expert = [&](const std::string& name) {
    source.modules[name + ".gate_proj"] = source.modules[name + ".up_proj"] = {16, 32, ATLAS_BF16};
    source.modules[name + ".down_proj"] = {32, 16, ATLAS_BF16};
  };
  add_expert("mlp.shared_expert");
  for (uint32_t e = 0; e < 16; ++e) add_expert("mlp.experts." + std::to_string(e));
  const auto plan = plan_with(source, steps, {{"encoded", &EncodedQuant::kApi}},
                              {{"gqa", &FakeAttention::kApi}}, {}, "h200");
  REQUIRE_MESSAGE(plan, plan.error().message());
  // One product gives the router's logits and the shared expert's gate.
  CHECK(kernels_between(*plan, kDecode) ==
        std::vector<std::string>{"encode_test", "linear_test", "choose_experts", "grouped_test",
                                 "silu_mul", "grouped_test", "linear_test", "silu_mul",
                                 "linear_test", "combine_inject_norm"});
  // The shared expert runs beside the others, from the encoding to the combination.
  CHECK(forks_of(*plan, kDecode) ==
        std::map<uint32_t, std::vector<uint32_t>>{{8, {2}}, {11, {7, 10}}});
  CHECK(kernels_between(*plan, kPrefill) ==
        std::vector<std::string>{"encode_test", "linear_test", "route", "group_experts",
                                 "grouped_test", "linear_test", "silu_mul", "linear_test",
                                 "silu_mul", "grouped_test", "combine_experts", "inject_norm"});
  CHECK(forks_of(*plan, kPrefill).empty());
  using Combine = kernels::CombineInjectNormParams;
  CHECK(pointed_at(*plan, kDecode, "combine_inject_norm", offsetof(Combine, combine.shared_gate)) ==
        "experts logits;");
  CHECK(pointed_at(*plan, kDecode, "combine_inject_norm", offsetof(Combine, combine.y)) ==
        "activation y;");
  CHECK(pointed_at(*plan, kDecode, "combine_inject_norm", offsetof(Combine, inject.y)) ==
        "activation y;");
}

TEST_CASE("planner: modules of different formats stand in one value, each from its own plugin") {
  Shapes source = shapes(ATLAS_Q8_0);
  source.modules["k"].dtype = ATLAS_BF16;
  const StepProgram steps = program();
  const auto plan = plan_with(source, steps);
  REQUIRE(plan);
  REQUIRE(plan->weights.size() == 5);
  std::vector<uint64_t> columns;
  for (const Record& record : plan->find(kDecode)->records) {
    if (record.operation != "linear" || record.kernel != "linear_test") continue;
    if (plan->buffers[record.relocations[0].target.buffer].name != "activation qkv") continue;
    columns.push_back(record.relocations[0].target.offset / sizeof(float));
  }
  CHECK(columns == std::vector<uint64_t>{0, 32, 48});
}

TEST_CASE("planner: on GPUs few rows' products of different formats run beside one another") {
  Shapes source = shapes(ATLAS_Q8_0);
  source.modules["v"].dtype = ATLAS_BF16;
  const StepProgram steps = program();
  const auto plan_on = [&](const std::string& platform, const AtlasQuantApi* wide) {
    auto plan =
        plan_with(source, steps, {{"eight", &FakeQuant<ATLAS_Q8_0, true>::kApi}, {"wide", wide}},
                  {{"gqa", &FakeAttention::kApi}}, {}, platform);
    REQUIRE_MESSAGE(plan, plan.error().message());
    return std::move(*plan);
  };
  using Forks = std::map<uint32_t, std::vector<uint32_t>>;
  const Plan plan = plan_on("h200", &FakeQuant<ATLAS_BF16, false>::kApi);
  REQUIRE(kernels_of(plan, kDecode)[3] == "encode_test");
  // q and k, which are larger, then v, both after the encoding; attention after
  // both.
  CHECK(forks_of(plan, kDecode) == Forks{{5, {3}}, {6, {4, 5}}});
  const std::vector<Record>& records = plan.find(kDecode)->records;
  CHECK(records[4].relocations[0].target.row_bytes == 48 * sizeof(float));
  CHECK(records[5].relocations[0].target.offset == 48 * sizeof(float));
  CHECK(records[5].relocations[0].target.row_bytes == 16 * sizeof(float));
  CHECK(forks_of(plan, kPrefill).empty());
  CHECK(forks_of(plan_on("cpu", &FakeQuant<ATLAS_BF16, false>::kApi), kDecode).empty());
  CHECK(forks_of(plan_on("strix-hip", &FakeQuant<ATLAS_BF16, false>::kApi), kDecode).empty());
  // Of a plugin that does not say what its launches write nothing runs beside another.
  CHECK(forks_of(plan_on("h200", &SilentQuant::kApi), kDecode).empty());
}

TEST_CASE("planner: pages hold every attention layer, and one page is for scratch") {
  const auto plan = plan_with(shapes(ATLAS_Q8_0), program());
  REQUIRE(plan);
  CHECK(plan->page_tokens == 64);
  CHECK(plan->page_count == 512 / 64 + 1);
  CHECK(plan->page_bytes == 64 * 16 * 8);
  CHECK(plan->limits.max_pages == 4);
  CHECK(plan->limits.max_slots == 5);
  CHECK(plan->buffers[plan->pages].bytes == plan->page_bytes * plan->page_count);
}

TEST_CASE("planner: every relocation lies in its parameters and in its buffer") {
  const auto plan = plan_with(shapes(ATLAS_Q8_0), program());
  REQUIRE(plan);
  for (const StepPlan& step : plan->steps) {
    for (const Record& record : step.records) {
      for (const AtlasRelocation& relocation : record.relocations) {
        CHECK(relocation.param_offset + 8 <= record.params.size());
        REQUIRE(relocation.target.buffer < plan->buffers.size());
        CHECK(relocation.target.offset < plan->buffers[relocation.target.buffer].bytes);
      }
    }
  }
}

TEST_CASE("planner: what is wrong is named") {
  const StepProgram steps = program();
  Shapes source = shapes(ATLAS_Q8_0);
  const auto message = [&] {
    const auto plan = plan_with(source, steps);
    REQUIRE_FALSE(plan);
    return plan.error().message();
  };
  source.modules["v"].n = 32;
  CHECK(message().find("weight 'v' is [32, 32] in the checkpoint and [16, 32] in its config") !=
        std::string::npos);
  source.modules["v"] = {16, 32, ATLAS_Q6_K};
  CHECK(message().find(
            "no quantization plugin reads module 'v': it has v (q6_k); asked: eight, wide") !=
        std::string::npos);
  source.modules.erase("v");
  CHECK(message().find("no tensor of module 'v'") != std::string::npos);
  source = shapes(ATLAS_Q8_0);
  source.vectors["norm"] = 31;
  CHECK(message().find("'norm' has 31 elements in the checkpoint and 32") != std::string::npos);
  source.vectors["norm"] = 32;
  const auto plan = plan_with(source, steps, {{"eight", &FakeQuant<ATLAS_Q8_0, true>::kApi}}, {});
  REQUIRE_FALSE(plan);
  CHECK(plan.error().message().find("needs attention backend 'gqa'") != std::string::npos);
}

TEST_CASE("planner: a declaration that the tensors contradict stops the load and names them") {
  const StepProgram steps = program();
  Shapes source = shapes(ATLAS_Q8_0);
  source.modules["k"].dtype = ATLAS_BF16;
  const auto message = [&](std::vector<DeclaredFormats> declared) {
    const auto plan = plan_with(source, steps,
                                {{"eight", &FakeQuant<ATLAS_Q8_0, true>::kApi},
                                 {"wide", &FakeQuant<ATLAS_BF16, false>::kApi}},
                                {{"gqa", &FakeAttention::kApi}}, std::move(declared));
    return plan ? "" : plan.error().message();
  };
  DeclaredFormats config{.source = "config.json", .remedy = "mend it", .word = "Q8"};
  config.formats = {"q8_0"};
  CHECK(message({config}) == "");  // bf16 is left out by every format
  config.formats = {"nvfp4"};
  CHECK(message({config}).find("'embed' is in format 'q8_0' by its tensors, embed (q8_0); "
                               "config.json says 'Q8': mend it") != std::string::npos);
  DeclaredFormats slip{.source = "settings", .remedy = "mend it", .word = "q8_o"};
  slip.formats = {"q8_o"};
  CHECK(message({slip}).find("settings says 'q8_o' (is 'q8_0' meant?): mend it") !=
        std::string::npos);
  config.formats = {"q8_0"};
  config.modules = {{"q", "ignore", kFloatFormats}};
  CHECK(message({config}).find("'q' is in format 'q8_0' by its tensors, q (q8_0); config.json says "
                               "'ignore' for 'q': mend it") != std::string::npos);
  // An entry wants its format, and no other.
  config.modules = {{"k", "Q8", {"q8_0"}}};
  CHECK(message({config}).find("'k' is in format 'bf16'") != std::string::npos);
  // What stands before it decides, and makes it no error that it fits nothing.
  config.modules.clear();
  config.formats = {"nvfp4"};
  DeclaredFormats user{.source = "settings", .remedy = "change them", .word = "q8_0"};
  user.formats = {"q8_0"};
  CHECK(message({user, config}) == "");
  user.all_match = true;
  user.modules = {{"layers.9", "q8_0", {"q8_0"}}};
  CHECK(message({user, config}).find("settings: 'layers.9' decides about no weight") !=
        std::string::npos);
  // A declaration about all weights that none fits.
  source = shapes(ATLAS_BF16);
  CHECK(message({config}).find("config.json says 'Q8', and no weight of the model is in that "
                               "format: mend it") != std::string::npos);
}

TEST_CASE("planner: of two plugins that read a weight, the one with the declared format has it") {
  struct Other : FakeQuant<ATLAS_Q8_0, false> {
    static AtlasCode claim(const AtlasWeightQuery* query, AtlasWeightClaim* claim,
                           AtlasError* error) {
      const AtlasCode code = FakeQuant::claim(query, claim, error);
      sdk::copy_text(claim->format, "other_8");
      return code;
    }
  };
  static constexpr AtlasQuantApi kOther{sizeof(AtlasQuantApi),
                                        0,
                                        Other::claim,
                                        nullptr,
                                        Other::needs,
                                        Other::linear,
                                        Other::encode,
                                        Other::gather,
                                        nullptr,
                                        nullptr};
  DeclaredFormats user{.source = "settings", .remedy = "change them", .word = "other"};
  user.formats = {"other"};
  const StepProgram steps = program();
  const auto plan = plan_with(shapes(ATLAS_Q8_0), steps,
                              {{"eight", &FakeQuant<ATLAS_Q8_0, true>::kApi}, {"other", &kOther}},
                              {{"gqa", &FakeAttention::kApi}}, {user});
  REQUIRE_MESSAGE(plan, plan.error().message());
  for (const Weight& weight : plan->weights) CHECK(weight.plugin == "other");
}

TEST_CASE("ledger: too little memory is refused with every line and the way out") {
  Ledger ledger;
  ledger.bytes = {{LedgerLine::kWeights, 3 << 20}, {LedgerLine::kCache, 2 << 20}};
  CHECK(ledger.check(5 << 20, true).ok());
  const Status status = ledger.check(4 << 20, true);
  CHECK(status.code() == Code::kResourceExhausted);
  CHECK(status.message().find("needs 5.0 MiB and 4.0 MiB are free") != std::string::npos);
  CHECK(status.message().find("weights 3.0, cache 2.0") != std::string::npos);
  CHECK(status.message().find("engine.cache_tokens") != std::string::npos);
  ledger.bytes[LedgerLine::kHostHeap] = 9 << 20;
  CHECK_FALSE(ledger.check(5 << 20, true).ok());
  CHECK(ledger.check(5 << 20, false).ok());  // a device with memory of its own
}

TEST_SUITE_END();

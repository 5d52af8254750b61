// The example plugin, as sdk_example.cmake has built it out of the tree: host, audit, pack and
// kernels together, without the engine.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "daemon/device/abi_call.h"
#include "daemon/plugin_host/audit.h"
#include "daemon/plugin_host/registry.h"
#include "kernels/common/core_kernels.h"
#include "kernels/cpu/kernel.h"
#include "tests/unit/plugin_host/support.h"

using namespace atlas;
using namespace atlas::plugin_host;
using namespace atlas::plugin_host::testing;

TEST_SUITE_BEGIN("plugin_host");

namespace {

constexpr uint64_t kN = 21;  // not a multiple of 16
constexpr uint64_t kK = 48;
constexpr uint32_t kGroup = 16;
constexpr uint32_t kM = 5;

const std::string kFolder = ATLAS_BINARY_DIR "/tests/sdk_example/build/lib/atlas/plugins";

/// Takes the one record that a plan call emits.
struct Sink {
  std::string kernel;
  uint64_t digest = 0;
  uint32_t tasks = 0;
  std::vector<std::byte> params;
  std::vector<AtlasRelocation> relocations;
  AtlasRecordSink table{sizeof(AtlasRecordSink), 0, this, &take};

  static AtlasCode take(void* context, const AtlasRecord* record, AtlasError*) {
    auto* self = static_cast<Sink*>(context);
    self->kernel = record->kernel;
    self->digest = record->params_digest;
    self->tasks = record->grid[0] * record->grid[1] * record->grid[2];
    const auto* params = static_cast<const std::byte*>(record->params);
    self->params.assign(params, params + record->params_size);
    self->relocations.assign(record->relocations, record->relocations + record->relocation_count);
    return ATLAS_OK;
  }
};

/// The plugin with its packs, loaded as a generation would, and its kernels opened as a platform
/// would.
class Example {
 public:
  Example()
      : registry(PluginRegistry::load_all({"cpu", {{"int8g", ""}}, kFolder, ""})),
        packs(PackIndex::none("cpu")) {
    REQUIRE_MESSAGE(registry.status().ok(), registry.status().message());
    REQUIRE(registry.add_packs(packs).ok());
    REQUIRE(packs.files().size() == 1);
    const auto copy = packs.copy_for_loading(packs.files()[0], "");
    REQUIRE_MESSAGE(copy, copy.error().message());
    library_ = ::dlopen(copy->c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library_ != nullptr);
  }
  const AtlasQuantApi& quant() const { return registry.find("int8g")->quant(); }

  /// Runs a record with `buffers` by id, all tasks in two halves.
  void run(const Sink& record, const std::map<uint32_t, void*>& buffers) const {
    REQUIRE(packs.find(record.kernel) != nullptr);
    CHECK(packs.find(record.kernel)->digest == record.digest);
    std::vector<std::byte> params = record.params;
    for (const AtlasRelocation& relocation : record.relocations) {
      const auto* base = static_cast<const std::byte*>(buffers.at(relocation.target.buffer));
      const std::byte* address = base + relocation.target.offset;
      std::memcpy(params.data() + relocation.param_offset, &address, sizeof(address));
    }
    const auto kernel = reinterpret_cast<kernels::cpu::Kernel>(
        ::dlsym(library_, ("atlas_kernel_" + record.kernel).c_str()));
    const bool found = kernel != nullptr;
    REQUIRE(found);
    const uint32_t half = record.tasks / 2;
    kernel(params.data(), half, record.tasks, nullptr);
    kernel(params.data(), 0, half, nullptr);
  }

  PluginRegistry registry;
  PackIndex packs;

 private:
  void* library_ = nullptr;
};

/// A small weight and what the plugin makes of it.
struct Weight {
  std::vector<int8_t> codes = std::vector<int8_t>(kN * kK);
  std::vector<float> scales = std::vector<float>(kN * kK / kGroup);
  AtlasTensor tensors[2]{};
  AtlasWeightQuery query{};
  AtlasWeightClaim claim{};
  std::vector<std::byte> resident;

  explicit Weight(const AtlasQuantApi& quant) {
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int8_t>(i * 89 % 255 - 127);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.25f + static_cast<float>(i % 7);
    const auto fill = [](AtlasTensor& tensor, const char* name, AtlasDType dtype, uint64_t columns,
                         const auto& data) {
      tensor.struct_size = sizeof(tensor);
      tensor.name = name;
      tensor.dtype = dtype;
      tensor.rank = 2;
      tensor.dims[0] = kN;
      tensor.dims[1] = columns;
      tensor.bytes = data.size() * sizeof(data[0]);
      tensor.data = data.data();
    };
    fill(tensors[0], "layer.codes", ATLAS_I8, kK, codes);
    fill(tensors[1], "layer.scales", ATLAS_F32, kK / kGroup, scales);
    query.struct_size = sizeof(query);
    query.platform = "cpu";
    query.module = "layer";
    query.tensor_count = 2;
    query.tensors = tensors;
    claim.struct_size = sizeof(claim);
    const Status claimed = abi::call("claim", quant.claim, &query, &claim);
    REQUIRE_MESSAGE(claimed.ok(), claimed.message());
    REQUIRE(claim.claimed == 1);
    const uint64_t groups = (kN + claim.row_group - 1) / claim.row_group;
    resident.resize(groups * claim.group_bytes);
    REQUIRE(abi::call("pack", quant.pack, &query, &claim, 0, groups, resident.data()).ok());
  }
  float at(uint64_t i, uint64_t j) const {
    return scales[i * (kK / kGroup) + j / kGroup] * static_cast<float>(codes[i * kK + j]);
  }
};

AtlasBufferRef buffer(uint32_t id) { return {id, 0, 0}; }

}  // namespace

TEST_CASE("example: its descriptor, its pack and the audit agree") {
  const Example example;
  const auto report = audit("cpu", example.registry.descriptors(), {}, example.packs);
  CHECK_MESSAGE(report.ok(), report.to_status().message());
  CHECK(report.kernels_checked == 3);
  CHECK(example.packs.files()[0].plugin == "int8g");
  // Beside it stand no kernels of the core.
  CHECK(audit("cpu", {}, core_needs("cpu"), example.packs).problems.size() ==
        kernels::kCoreKernels.size());
}

TEST_CASE("example: a product is right, the same for one row and for many, and adds where asked") {
  const Example example;
  Weight weight(example.quant());
  CHECK(std::string(weight.claim.format) == "int8g_g16");
  std::vector<float> x(kM * kK);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 11) - 4.5f;

  const auto product = [&](uint32_t rows, uint32_t epilogue, float start) {
    AtlasLinearProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = kM;
    problem.platform = "cpu";
    problem.format = weight.claim.format;
    problem.n = kN;
    problem.k = kK;
    problem.x_stride = kK;
    problem.y_stride = kN + 3;
    problem.epilogue = epilogue;
    problem.x = buffer(0);
    problem.y = buffer(1);
    problem.weight = buffer(2);
    problem.row_count = buffer(3);
    problem.workspace = buffer(ATLAS_NO_BUFFER);
    Sink sink;
    REQUIRE(abi::call("plan", example.quant().plan_linear, &problem, &sink.table).ok());
    std::vector<float> y(kM * problem.y_stride, start);
    example.run(sink, {{0, x.data()}, {1, y.data()}, {2, weight.resident.data()}, {3, &rows}});
    return y;
  };
  const std::vector<float> all = product(kM, ATLAS_EPILOGUE_NONE, -1.0f);
  const std::vector<float> one = product(1, ATLAS_EPILOGUE_NONE, -1.0f);
  const std::vector<float> added = product(kM, ATLAS_EPILOGUE_ADD, 1000.0f);
  for (uint64_t r = 0; r < kM; ++r) {
    for (uint64_t i = 0; i < kN; ++i) {
      double exact = 0;
      for (uint64_t j = 0; j < kK; ++j) exact += double{x[r * kK + j]} * double{weight.at(i, j)};
      CHECK(all[r * (kN + 3) + i] == doctest::Approx(exact).epsilon(1e-5));
      CHECK(added[r * (kN + 3) + i] == 1000.0f + all[r * (kN + 3) + i]);
    }
    CHECK(all[r * (kN + 3) + kN] == -1.0f);  // past n nothing is written
  }
  CHECK(std::equal(one.begin(), one.begin() + kN, all.begin()));
  CHECK(one[kN + 3] == -1.0f);  // nor past the rows that count
}

TEST_CASE("example: products of experts have the bits of each row's product") {
  const Example example;
  Weight weight(example.quant());
  // Two experts whose weights are one weight's row groups, in one order and in the other.
  const size_t half = weight.resident.size() / 2;
  std::vector<std::byte> experts = weight.resident;
  experts.insert(experts.end(), weight.resident.begin() + static_cast<ptrdiff_t>(half),
                 weight.resident.end());
  experts.insert(experts.end(), weight.resident.begin(),
                 weight.resident.begin() + static_cast<ptrdiff_t>(half));
  std::vector<float> x(kM * kK);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 5.5f;
  const auto dense = [&](std::byte* resident) {
    AtlasLinearProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = kM;
    problem.platform = "cpu";
    problem.format = weight.claim.format;
    problem.n = kN;
    problem.k = kK;
    problem.x_stride = kK;
    problem.y_stride = kN;
    problem.x = buffer(0);
    problem.y = buffer(1);
    problem.weight = buffer(2);
    problem.row_count = buffer(3);
    problem.workspace = buffer(ATLAS_NO_BUFFER);
    Sink sink;
    REQUIRE(abi::call("plan", example.quant().plan_linear, &problem, &sink.table).ok());
    std::vector<float> y(kM * kN);
    uint32_t rows = kM;
    example.run(sink, {{0, x.data()}, {1, y.data()}, {2, resident}, {3, &rows}});
    return y;
  };
  const std::vector<float> of[] = {dense(experts.data()), dense(experts.data() + 2 * half)};
  AtlasGroupedProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = 4;
  problem.platform = "cpu";
  problem.format = weight.claim.format;
  problem.n = kN;
  problem.k = kK;
  problem.experts = 2;
  problem.expert_bytes = 2 * half;
  problem.x_stride = kK;
  problem.y_stride = kN;
  problem.x = buffer(0);
  problem.y = buffer(1);
  problem.weight = buffer(2);
  problem.offsets = buffer(3);
  problem.source = buffer(4);
  Sink sink;
  REQUIRE(abi::call("plan", example.quant().plan_grouped, &problem, &sink.table).ok());
  uint32_t offsets[] = {0, 1, 3};
  uint32_t source[] = {4, 0, 2};
  std::vector<float> y(4 * kN, -1.0f);
  example.run(sink, {{0, x.data()}, {1, y.data()}, {2, experts.data()}, {3, offsets}, {4, source}});
  for (uint64_t i = 0; i < kN; ++i) {
    CHECK(y[i] == of[0][4 * kN + i]);
    CHECK(y[kN + i] == of[1][i]);
    CHECK(y[2 * kN + i] == of[1][2 * kN + i]);
    CHECK(y[3 * kN + i] == -1.0f);
  }
}

TEST_CASE("example: rows are gathered by id, exactly") {
  const Example example;
  Weight weight(example.quant());
  AtlasGatherProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = 4;
  problem.platform = "cpu";
  problem.format = weight.claim.format;
  problem.n = kN;
  problem.k = kK;
  problem.id_stride = 8;
  problem.y_stride = kK;
  problem.ids = buffer(0);
  problem.y = buffer(1);
  problem.weight = buffer(2);
  problem.row_count = buffer(3);
  Sink sink;
  REQUIRE(abi::call("plan", example.quant().plan_gather, &problem, &sink.table).ok());
  uint32_t ids[8] = {20, 0, 3, 0, kN, 0, 0, 0};
  uint32_t rows = 3;
  std::vector<float> y(4 * kK, -1.0f);
  example.run(sink, {{0, ids}, {1, y.data()}, {2, weight.resident.data()}, {3, &rows}});
  for (uint64_t j = 0; j < kK; ++j) {
    CHECK(y[j] == weight.at(20, j));
    CHECK(y[kK + j] == weight.at(3, j));
    CHECK(y[2 * kK + j] == 0.0f);
    CHECK(y[3 * kK + j] == -1.0f);
  }
}

TEST_CASE("example: tensors that do not fit are refused with the module's name") {
  const Example example;
  Weight weight(example.quant());
  AtlasWeightClaim claim{};
  claim.struct_size = sizeof(claim);
  const auto ask = [&] { return abi::call("claim", example.quant().claim, &weight.query, &claim); };
  weight.tensors[1].dims[1] = 5;  // does not divide 48
  CHECK(missing_part(ask(), {"layer.codes [n, k] and .scales [n, k / group] do not fit"}) == "");
  weight.query.tensor_count = 1;
  CHECK(missing_part(ask(), {"layer has codes or scales, and needs both"}) == "");
  weight.query.module = "another";
  CHECK(ask().ok());
  CHECK(claim.claimed == 0);
}

TEST_SUITE_END();

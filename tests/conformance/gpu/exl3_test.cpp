// Plugin "exl3" on GPU platforms in the emulator: weights decode exactly; products, experts and
// rows against float64; the same bits for all row counts and ways; traffic and matrix instructions.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/common/exl3_gpu.h"
#include "tests/support/exl3_module.h"
#include "tests/support/exl3_reference.h"
#include "tests/support/gpu_machine.h"
#include "tests/support/gpu_target.h"
#include "tests/support/numbers.h"
#include "tests/support/quant_plugin.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;
using simt::Matrix;

const QuantPlugin& plugin() {
  static const QuantPlugin one("quant_exl3.so");
  return one;
}
bool is_wmma(const std::string& platform) { return platform == "strix-hip"; }
Exl3Lanes lanes_of(const std::string& platform) {
  return is_wmma(platform) ? Exl3Lanes::kWmma : Exl3Lanes::kMmaSync;
}

struct GpuRecord {
  std::string kernel;
  uint64_t digest;
  LaunchShape shape;
  std::vector<std::byte> params;
  std::vector<AtlasRelocation> relocations;
};

/// Buffers by id, and the records of one operation over them, on one machine.
class GpuRecords {
 public:
  explicit GpuRecords(const std::string& platform) : machine(platform) {
    sink.struct_size = sizeof(sink);
    sink.context = this;
    sink.emit = [](void* context, const AtlasRecord* record, AtlasError*) -> AtlasCode {
      static_cast<GpuRecords*>(context)->take(*record);
      return ATLAS_OK;
    };
  }

  AtlasBufferRef buffer(const void* memory) {
    memory_.push_back(memory);
    return {static_cast<uint32_t>(memory_.size() - 1), 0, 0};
  }

  /// Runs all records; the report of each by its kernel's name.
  std::map<std::string, simt::Report> run(uint64_t seed) {
    std::map<std::string, simt::Report> reports;
    for (GpuRecord& record : records) {
      for (const AtlasRelocation& relocation : record.relocations) {
        const auto* address = static_cast<const std::byte*>(memory_[relocation.target.buffer]) +
                              relocation.target.offset;
        std::memcpy(record.params.data() + relocation.param_offset, &address, sizeof(address));
      }
      const simt::Report report =
          machine.run_raw(record.kernel, record.digest, record.params.data(), record.params.size(),
                          {.shape = record.shape, .seed = seed});
      INFO(record.kernel);
      INFO(report.text());
      REQUIRE(report.ok());
      reports[record.kernel] = report;
    }
    return reports;
  }

  GpuMachine machine;
  AtlasRecordSink sink{};
  std::vector<GpuRecord> records;

 private:
  void take(const AtlasRecord& record) {
    const auto* bytes = static_cast<const std::byte*>(record.params);
    records.push_back(
        {record.kernel,
         record.params_digest,
         {record.grid[0], record.grid[1], record.grid[2], record.block[0], record.shared_bytes},
         {bytes, bytes + record.params_size},
         {record.relocations, record.relocations + record.relocation_count}});
  }
  std::vector<const void*> memory_;
};

struct Result {
  std::vector<float> y;
  std::map<std::string, simt::Report> reports;
};

struct Options {
  uint32_t max_rows = 0;  // of the bucket; 0: as many as there are
  uint64_t seed = 0;
  uint32_t stride_more = 0;  // of x and y
  uint32_t epilogue = ATLAS_EPILOGUE_NONE;
  float start = 0;
};

/// A module packed for a platform. The model's matrix is [n, k], `matrix` has that padded.
class GpuModule {
 public:
  GpuModule(const std::string& platform_name, const SlowMatrix& matrix)
      : GpuModule(platform_name, matrix, matrix.n, matrix.k) {}
  GpuModule(std::string platform_name, const SlowMatrix& matrix, uint32_t outputs, uint32_t inputs)
      : platform(std::move(platform_name)), n(outputs), k(inputs), module_(matrix) {
    AtlasWeightQuery query = module_.query();
    query.platform = platform.c_str();
    query.n = n;
    query.k = k;
    claim.struct_size = sizeof(claim);
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE_MESSAGE(plugin().api.claim(&query, &claim, &error) == ATLAS_OK, error.message);
    CHECK(std::string(claim.contract) == "exl3_f16");
    const uint64_t groups = matrix.n / 128;
    packed.resize(claim.head_bytes + groups * claim.group_bytes, 0xc3);
    REQUIRE(packed.size() == exl3_gpu_bytes(static_cast<uint32_t>(2 * matrix.bits), n, k));
    // Backwards and one group at a time: the parts must not matter.
    for (uint64_t g = groups; g-- > 0;) {
      uint8_t* to = packed.data() + (g == 0 ? 0 : claim.head_bytes + g * claim.group_bytes);
      REQUIRE(plugin().api.pack(&query, &claim, g, g + 1, to, &error) == ATLAS_OK);
    }
  }

  Result product(const std::vector<float>& x, uint32_t rows, const Options& options = {}) const {
    GpuRecords records(platform);
    const uint32_t x_stride = k + options.stride_more, y_stride = n + options.stride_more;
    std::vector<float> spread(size_t{rows} * x_stride, -1e30f);
    for (uint32_t r = 0; r < rows; ++r) {
      std::copy_n(x.begin() + size_t{r} * k, k, spread.begin() + size_t{r} * x_stride);
    }
    float* y =
        records.machine.in_out("y", std::vector<float>(size_t{rows} * y_stride, options.start));
    AtlasLinearProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = options.max_rows == 0 ? rows : options.max_rows;
    problem.platform = platform.c_str();
    problem.format = claim.format;
    problem.n = n;
    problem.k = k;
    problem.x_stride = x_stride;
    problem.y_stride = y_stride;
    problem.epilogue = options.epilogue;
    problem.x = records.buffer(records.machine.input("x", spread));
    problem.y = records.buffer(y);
    problem.weight = records.buffer(records.machine.in_out("weight", packed));
    problem.row_count = records.buffer(records.machine.input("row_count", std::vector{rows}));
    AtlasError error{sizeof(AtlasError), {}};
    AtlasLinearNeeds needs{};
    needs.struct_size = sizeof(needs);
    REQUIRE(plugin().api.linear_needs(&problem, &needs, &error) == ATLAS_OK);
    REQUIRE((needs.fused_epilogues & 1u << options.epilogue) != 0);
    problem.workspace =
        records.buffer(records.machine.output<uint8_t>("workspace", needs.workspace_bytes));
    REQUIRE(plugin().api.plan_linear(&problem, &records.sink, &error) == ATLAS_OK);
    Result result;
    result.reports = records.run(options.seed);
    const std::vector<float> all = records.machine.contents(y);
    for (uint32_t r = 0; r < rows; ++r) {
      result.y.insert(result.y.end(), all.begin() + size_t{r} * y_stride,
                      all.begin() + size_t{r} * y_stride + n);
      for (uint32_t i = n; i < y_stride; ++i)
        REQUIRE(all[size_t{r} * y_stride + i] == options.start);
    }
    return result;
  }

  std::vector<float> gather(const std::vector<uint32_t>& ids) const {
    GpuRecords records(platform);
    const auto rows = static_cast<uint32_t>(ids.size());
    float* y = records.machine.output<float>("y", size_t{rows} * k);
    AtlasGatherProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = rows + 1;
    problem.platform = platform.c_str();
    problem.format = claim.format;
    problem.n = n;
    problem.k = k;
    problem.id_stride = 4;
    problem.ids = records.buffer(records.machine.input("ids", ids));
    problem.y = records.buffer(y);
    problem.weight = records.buffer(records.machine.input("weight", packed));
    problem.row_count = records.buffer(records.machine.input("row_count", std::vector{rows}));
    problem.y_stride = k;
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin().api.plan_gather(&problem, &records.sink, &error) == ATLAS_OK);
    records.run(3);
    return records.machine.contents(y);
  }

  /// What[k][n] as exl3_few decodes it: sums of encoded rows that are one 1 and zeros.
  std::vector<float> inner() const {
    const Exl3Lanes lanes = lanes_of(platform);
    GpuMachine machine(platform);
    std::vector<uint8_t> encoded(exl3_encoded_bytes(lanes, k, k));
    for (uint32_t i = 0; i < k; ++i) {
      encoded[exl3_encoded_offset(lanes, k, i, i) + 1] = 0x3c;  // f16 1
    }
    const uint32_t segments = exl3_segments(k);
    float* sums = machine.output<float>("sums", size_t{segments} * k * n);
    Exl3FewParams params{};
    params.encoded[0] = machine.input("encoded", encoded);
    params.powers[0] = machine.input("powers", std::vector<float>(size_t{segments} * k, 1.0f));
    params.weight[0] = machine.in_out("weight", packed);
    params.sums = sums;
    params.y[0] = machine.output<float>("y", size_t{k} * n);
    params.row_count = machine.input("row_count", std::vector{k});
    params.y_stride[0] = n;
    params.n[0] = params.outputs[0] = params.columns = n;
    std::fill(params.first_block + 1, params.first_block + kExl3Parts, 0xffffffffu);
    params.k = params.inputs = k;
    params.units = static_cast<uint32_t>(claim.group_bytes / 8 / k);
    params.rows = k;
    params.turns = 1;
    const std::string format = claim.format;
    const auto report = machine.run(
        "exl3_few_" + format.substr(format.rfind('_') + 1), params, kExl3FewParamsDigest,
        {.shape = {exl3_few_blocks(lanes, n, 1), 1, segments, kExl3FewThreads,
                   exl3_few_shared(lanes, params.units, false)}});
    INFO(report.text());
    REQUIRE(report.ok());
    const std::vector<float> all = machine.contents(sums);
    std::vector<float> values(size_t{k} * n);
    for (uint32_t i = 0; i < k; ++i) {
      for (uint32_t o = 0; o < n; ++o) {
        for (uint32_t s = 0; s < segments; ++s) {
          values[size_t{i} * n + o] += all[(size_t{s} * k + i) * n + o];
        }
      }
    }
    return values;
  }

  const std::string platform;
  const uint32_t n, k;
  AtlasWeightClaim claim{};
  std::vector<uint8_t> packed;

 private:
  Exl3Module module_;
};

/// Rounding x once to 11 bits moves y by this much of |x| |w| at most, were all errors to add up;
/// they do not, as they have no more to do with w than the k numbers of any random direction.
double tolerance(uint32_t k) { return std::min(4.9e-4, 2.5e-3 / std::sqrt(k)) + 1e-6; }

std::vector<float> first_rows(const std::vector<float>& values, uint32_t rows, uint32_t width) {
  return {values.begin(), values.begin() + ptrdiff_t{rows} * width};
}

/// Products of `count` experts, of which the first have `rows_of` rows, against plain products.
/// `more_rows`: that the bucket has room for. `parts` of them beside one another: expert e of part
/// p is module e + p.
void check_experts(const std::string& platform, const std::string& codebook, double bits,
                   uint32_t count, uint32_t more_rows, std::vector<uint32_t> rows_of,
                   uint32_t parts = 1, uint32_t k = 256) {
  constexpr uint32_t kN = 128, kInputs = 40;
  // Experts from the ninth on repeat the first ones' weights.
  const uint32_t different = std::min(count, 8u);
  std::vector<std::unique_ptr<GpuModule>> modules;
  rows_of.resize(count);
  std::vector<uint32_t> offsets(1), source;
  for (const uint32_t each : rows_of) offsets.push_back(offsets.back() + each);
  const uint32_t rows = offsets.back();
  for (uint32_t i = 0; i < rows; ++i) source.push_back((7 * i + 3) % kInputs);
  // What rows that are not there would come from is any number.
  source.resize(std::max(rows, more_rows), 0xc3c3c3c3u);
  const uint64_t expert_bytes = exl3_gpu_bytes(static_cast<uint32_t>(2 * bits), kN, k) + 256;
  for (uint32_t e = 0; e < different; ++e) {
    modules.push_back(
        std::make_unique<GpuModule>(platform, SlowMatrix(codebook, bits, kN, k, 100 + e)));
  }
  const std::vector<float> x = normal_values(size_t{kInputs} * k, 9);
  GpuRecords records(platform);
  float* y = records.machine.output<float>("y", size_t{rows} * kN * parts);
  std::vector<AtlasGroupedProblem> problems(parts);
  for (uint32_t p = 0; p < parts; ++p) {
    std::vector<uint8_t> weights(expert_bytes * count);
    for (uint32_t e = 0; e < count; ++e) {
      const std::vector<uint8_t>& packed = modules[(e + p) % count % different]->packed;
      std::copy(packed.begin(), packed.end(),
                weights.begin() + static_cast<ptrdiff_t>(e * expert_bytes));
    }
    AtlasGroupedProblem& problem = problems[p];
    problem.struct_size = sizeof(problem);
    problem.max_rows = std::max(rows, more_rows);
    problem.platform = platform.c_str();
    problem.format = modules.front()->claim.format;
    problem.n = kN;
    problem.k = k;
    problem.experts = count;
    problem.expert_bytes = expert_bytes;
    problem.x_stride = k;
    problem.y_stride = uint64_t{kN} * parts;
    problem.y = records.buffer(y);
    problem.y.offset = p * kN * sizeof(float);
    problem.weight = records.buffer(records.machine.in_out("weight " + std::to_string(p), weights));
    problem.beside = p + 1 < parts ? &problem + 1 : nullptr;
  }
  AtlasGroupedProblem& problem = problems.front();
  problem.x = records.buffer(records.machine.input("x", x));
  problem.offsets = records.buffer(records.machine.input("offsets", offsets));
  problem.source = records.buffer(records.machine.input("source", source));
  AtlasError error{sizeof(AtlasError), {}};
  AtlasLinearNeeds needs{};
  needs.struct_size = sizeof(needs);
  REQUIRE(plugin().api.grouped_needs(&problem, &needs, &error) == ATLAS_OK);
  REQUIRE(needs.most_beside >= parts);
  problem.workspace =
      records.buffer(records.machine.output<uint8_t>("workspace", needs.workspace_bytes));
  REQUIRE(plugin().api.plan_grouped(&problem, &records.sink, &error) == ATLAS_OK);
  records.run(count);
  const std::vector<float> found = records.machine.contents(y);
  for (uint32_t e = 0; e < count; ++e) {
    std::vector<float> inputs;
    for (uint32_t i = offsets[e]; i < offsets[e + 1]; ++i) {
      const auto from = x.begin() + ptrdiff_t{k} * source[i];
      inputs.insert(inputs.end(), from, from + k);
    }
    for (uint32_t p = 0; rows_of[e] != 0 && p < parts; ++p) {
      const std::vector<float> expected =
          modules[(e + p) % count % different]->product(inputs, rows_of[e]).y;
      for (uint32_t r = 0; r < rows_of[e]; ++r) {
        REQUIRE(std::memcmp(found.data() + (size_t{offsets[e] + r} * parts + p) * kN,
                            expected.data() + size_t{r} * kN, kN * sizeof(float)) == 0);
      }
    }
  }
}

/// Dense products of different sizes beside one another have the bits of those alone.
void check_beside(const std::string& platform, uint32_t rows, uint32_t epilogue) {
  constexpr uint32_t kK = 384;
  const uint32_t widths[] = {128, 384, 256};
  std::vector<std::unique_ptr<GpuModule>> modules;
  const std::vector<float> x = normal_values(size_t{rows} * kK, 19);
  GpuRecords records(platform);
  std::vector<AtlasLinearProblem> problems(std::size(widths));
  std::vector<float*> y;
  for (size_t p = 0; p < problems.size(); ++p) {
    modules.push_back(std::make_unique<GpuModule>(
        platform, SlowMatrix("mul1", 6, widths[p], kK, 40 + static_cast<uint32_t>(p))));
    y.push_back(records.machine.in_out("y " + std::to_string(p),
                                       std::vector<float>(size_t{rows} * widths[p], 1.5f)));
    AtlasLinearProblem& problem = problems[p];
    problem.struct_size = sizeof(problem);
    problem.max_rows = rows;
    problem.platform = platform.c_str();
    problem.format = modules[p]->claim.format;
    problem.n = problem.y_stride = widths[p];
    problem.k = problem.x_stride = kK;
    problem.epilogue = epilogue;
    problem.y = records.buffer(y[p]);
    problem.weight =
        records.buffer(records.machine.in_out("weight " + std::to_string(p), modules[p]->packed));
    problem.beside = p + 1 < problems.size() ? &problem + 1 : nullptr;
  }
  AtlasLinearProblem& problem = problems.front();
  problem.x = records.buffer(records.machine.input("x", x));
  problem.row_count = records.buffer(records.machine.input("row_count", std::vector{rows}));
  AtlasError error{sizeof(AtlasError), {}};
  AtlasLinearNeeds needs{};
  needs.struct_size = sizeof(needs);
  REQUIRE(plugin().api.linear_needs(&problem, &needs, &error) == ATLAS_OK);
  problem.workspace =
      records.buffer(records.machine.output<uint8_t>("workspace", needs.workspace_bytes));
  REQUIRE(plugin().api.plan_linear(&problem, &records.sink, &error) == ATLAS_OK);
  records.run(rows);
  for (size_t p = 0; p < problems.size(); ++p) {
    const Options options{.epilogue = epilogue, .start = 1.5f};
    REQUIRE(same_bits(records.machine.contents(y[p]), modules[p]->product(x, rows, options).y));
  }
}

}  // namespace

TEST_SUITE("conformance/gpu_exl3") {
  TEST_CASE("gpu exl3: every format decodes to the reference's very numbers") {
    for (const auto& [codebook, bits] : all_exl3_formats()) {
      CAPTURE(codebook);
      CAPTURE(bits);
      const SlowMatrix matrix(codebook, bits, 128, 128, static_cast<uint32_t>(16 * bits));
      const std::vector<double> expected = matrix.inner();
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        const std::vector<float> found = GpuModule(platform, matrix).inner();
        REQUIRE(std::equal(found.begin(), found.end(), expected.begin()));
      }
    }
  }

  TEST_CASE("gpu exl3: products are those of float64, with the same bits for all row counts") {
    struct Case {
      const char* codebook;
      double bits;
      uint32_t n, k;
    };
    for (const Case& each : {Case{"mul1", 3, 256, 640},
                             {"mul1", 2.5, 128, 128},
                             {"mcg", 4, 128, 256},
                             {"3inst", 5, 128, 128}}) {
      CAPTURE(each.codebook);
      CAPTURE(each.bits);
      const SlowMatrix matrix(each.codebook, each.bits, each.n, each.k, 5);
      const std::vector<float> x = normal_values(size_t{100} * each.k, 3);
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        const GpuModule module(platform, matrix);
        // 100 rows by exl3_many or its variant, 21 by exl3_few, 1 by exl3_few that encodes itself.
        const std::vector<float> y = module.product(x, 100, {.seed = 2}).y;
        CHECK(largest_share(matrix, x, first_rows(y, 3, each.n), each.n, each.k) <=
              tolerance(each.k));
        for (const uint32_t rows : {1u, 2u, 7u, 21u}) {
          CAPTURE(rows);
          const Result some = module.product(x, rows, {.seed = rows, .stride_more = rows % 3});
          REQUIRE(same_bits(some.y, first_rows(y, rows, each.n)));
        }
        // A bucket's kernel with fewer rows than it has room for.
        REQUIRE(same_bits(module.product(x, 5, {.max_rows = 120}).y, first_rows(y, 5, each.n)));
        // With room for many rows a warp encodes whole segments.
        for (const uint32_t rows : {1u, 13u, 100u}) {
          CAPTURE(rows);
          const Result many =
              module.product(x, rows, {.max_rows = 131, .seed = rows, .stride_more = rows % 3});
          REQUIRE(same_bits(many.y, first_rows(y, rows, each.n)));
        }
        const Result added = module.product(x, 2, {.epilogue = ATLAS_EPILOGUE_ADD, .start = 2.5f});
        for (size_t i = 0; i < added.y.size(); ++i) REQUIRE(added.y[i] == 2.5f + y[i]);
      }
    }
  }

  TEST_CASE("gpu exl3: every format has the bits of one row among many, and of all segments") {
    const auto check = [](const std::string& codebook, double bits, uint32_t n, uint32_t k,
                          uint32_t rows) {
      CAPTURE(codebook);
      CAPTURE(bits);
      CAPTURE(k);
      const SlowMatrix matrix(codebook, bits, n, k, 12);
      const std::vector<float> x = normal_values(size_t{rows} * k, 13);
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        const GpuModule module(platform, matrix);
        const std::vector<float> y = module.product(x, rows, {.seed = 4}).y;
        REQUIRE(same_bits(module.product(x, 18).y, first_rows(y, 18, n)));
        const std::vector<float> last(x.end() - k, x.end());
        REQUIRE(same_bits(module.product(last, 1).y, {y.end() - n, y.end()}));
      }
    };
    // Last tiles of 64 and of 128 rows have one row, and 96 and 97.
    for (const auto& [codebook, bits] : all_exl3_formats()) check(codebook, bits, 128, 256, 129);
    check("mul1", 4, 256, 1408, 97);
    check("mul1", 3, 128, 2176, 224);
    check("mcg", 4, 128, 384, 96);
    check("3inst", 8, 128, 128, 225);
  }

  TEST_CASE("gpu exl3: all 65536 states decode") {
    for (const char* codebook : {"3inst", "mcg", "mul1"}) {
      const SlowMatrix matrix = matrix_of_all_states(codebook);
      const std::vector<double> expected = matrix.inner();
      for (const char* platform : kGpuPlatforms) {
        // gb10's instructions are h200's here; a device runs what it is.
        if (gpu_device().empty() && std::string(platform) == "gb10") continue;
        CAPTURE(platform);
        const std::vector<float> found = GpuModule(platform, matrix).inner();
        REQUIRE(std::equal(found.begin(), found.end(), expected.begin()));
      }
    }
  }

  TEST_CASE("gpu exl3: rows of experts have the bits of plain products") {
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      for (const uint32_t k : {256u, 640u, 1152u}) {
        CAPTURE(k);
        // By exl3_few, which encodes rows as it goes, or reads encoded ones.
        check_experts(platform, "mul1", 3, 7, 0, {1, 2, 0, 9, 0, 1, 1}, 1, k);
        check_experts(platform, "mul1", 4, 20, 70, {0, 1, 17, 30, 0, 2, 0}, 1, k);
      }
      check_experts(platform, "mcg", 3, 3, 60, {5, 30, 20});    // by exl3_many
      check_experts(platform, "mcg", 3, 3, 200, {5, 130, 65});  // by exl3_many or its variant
      check_experts(platform, "mul1", 4, 12, 0, {0, 1, 95, 96, 97, 0, 127, 128, 129, 257, 33, 0});
      // More tiles than an H200 has blocks.
      std::vector<uint32_t> uneven = {3, 0, 0, 130, 2};
      uneven.resize(200, 1);
      check_experts(platform, "mul1", 3, 530, 33 * 530, uneven);
      check_experts(platform, "mul1", 2.5, 50, 45, std::vector<uint32_t>(45, 1));  // by row
      // By row, of more experts than a block looks at together, with room for rows that are not
      // there.
      std::vector<uint32_t> far(700, 0);
      for (const uint32_t e : {0u, 127u, 128u, 399u, 511u, 512u, 640u, 699u}) far[e] = 1 + e % 2;
      for (const uint32_t k : {256u, 640u, 1152u}) {
        CAPTURE(k);
        check_experts(platform, "mul1", 4, 700, 18, far, 1, k);
      }
      // So many blocks that a warp of an instruction with 16 outputs takes two groups of them.
      static_assert(exl3_few_turns(Exl3Lanes::kMmaSync, 2 * 200 * 3, 132) == 2 &&
                    exl3_few_turns(Exl3Lanes::kMmaSync, 2 * 20 * 4 * 6, 132) == 2);
      check_experts(platform, "mul1", 4, 700, 200, far, 1, 1152);
      std::vector<uint32_t> two(24, 0);
      two[0] = two[23] = 1, two[9] = 2;
      check_experts(platform, "mul1", 3, 24, 20, two, 4, 2816);
    }
  }

  TEST_CASE("gpu exl3: products beside one another have the bits of those alone") {
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      check_experts(platform, "mul1", 4, 7, 0, {1, 2, 0, 9, 0, 1, 1}, 2);      // encoded as they go
      check_experts(platform, "mul1", 3, 20, 70, {0, 1, 17, 30, 0, 2, 0}, 2);  // by exl3_few
      check_experts(platform, "mcg", 3, 3, 200, {5, 130, 65}, 3);              // by exl3_many
      check_experts(platform, "mul1", 4, 9, 0, {0, 1, 33, 0, 96, 97, 40, 31, 60}, 2, 1152);
      for (const uint32_t rows : {1u, 5u, 21u, 110u, 139u}) {
        check_beside(platform, rows, ATLAS_EPILOGUE_NONE);
        check_beside(platform, rows, ATLAS_EPILOGUE_ADD);
      }
    }
  }

  TEST_CASE("gpu exl3: products that are not alike are refused beside one another") {
    const GpuModule module("h200", SlowMatrix("mul1", 4, 128, 128, 1));
    AtlasLinearProblem problems[2] = {};
    for (AtlasLinearProblem& problem : problems) {
      problem.struct_size = sizeof(problem);
      problem.max_rows = 1;
      problem.platform = "h200";
      problem.format = module.claim.format;
      problem.n = problem.k = 128;
    }
    problems[0].beside = &problems[1];
    AtlasLinearNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    CHECK(plugin().api.linear_needs(&problems[0], &needs, &error) == ATLAS_OK);
    problems[1].k = 256;
    CHECK(plugin().api.linear_needs(&problems[0], &needs, &error) == ATLAS_INVALID_ARGUMENT);
    CHECK(std::string(error.message).find("beside one another") != std::string::npos);
    problems[1].k = 128;
    problems[1].format = "exl3_k3_mul1";
    CHECK(plugin().api.linear_needs(&problems[0], &needs, &error) == ATLAS_INVALID_ARGUMENT);
  }

  TEST_CASE("gpu exl3: sizes that are no multiples of 128 are those of a padded trellis") {
    struct Size {
      uint32_t n, k;
    };
    for (const Size size : {Size{320, 256}, {129, 127}, {1, 1}}) {
      CAPTURE(size.n);
      CAPTURE(size.k);
      // Older converters leave noise in the padding: its scales are no zeros here.
      const SlowMatrix matrix("mul1", 3, (size.n + 127) / 128 * 128, (size.k + 127) / 128 * 128, 7);
      const std::vector<float> x = normal_values(size_t{100} * size.k, 3);
      const std::vector<double> w = matrix.outer();
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        const GpuModule module(platform, matrix, size.n, size.k);
        const std::vector<float> y = module.product(x, 100).y;
        CHECK(largest_share(matrix, x, y, size.n, size.k) <= tolerance(size.k));
        CHECK(same_bits(module.product(x, 1, {.stride_more = 3}).y, first_rows(y, 1, size.n)));
        CHECK(same_bits(module.product(x, 9, {.stride_more = 3}).y, first_rows(y, 9, size.n)));
        for (const uint32_t more : {0u, 3u}) {
          CAPTURE(more);
          const Result many = module.product(x, 9, {.max_rows = 130, .stride_more = more});
          CHECK(same_bits(many.y, first_rows(y, 9, size.n)));
        }
        const std::vector<float> rows = module.gather({size.n - 1, 0, size.n});
        for (uint32_t i = 0; i < size.k; ++i) {
          REQUIRE(std::fabs(rows[i] - w[size_t{size.n - 1} * matrix.k + i]) < 3e-6);
          REQUIRE(std::fabs(rows[size.k + i] - w[i]) < 3e-6);
          REQUIRE(std::isnan(rows[2 * size.k + i]));
        }
      }
    }
  }

  TEST_CASE("gpu exl3: rows of tables in every format are those of float64") {
    for (const auto& [codebook, bits] : all_exl3_formats()) {
      CAPTURE(codebook);
      CAPTURE(bits);
      const SlowMatrix matrix(codebook, bits, 128, 128, 9);
      const std::vector<double> w = matrix.outer();
      for (const char* platform : kGpuPlatforms) {
        CAPTURE(platform);
        const std::vector<float> row = GpuModule(platform, matrix).gather({77});
        for (uint32_t i = 0; i < matrix.k; ++i) {
          REQUIRE(std::fabs(row[i] - w[size_t{77} * matrix.k + i]) < 3e-6);
        }
      }
    }
  }

  TEST_CASE("gpu exl3: activations past float16's range and below it keep their precision") {
    const SlowMatrix matrix("mul1", 4, 128, 640, 4);
    constexpr uint32_t kTiny = 8;  // rows down to the smallest normal numbers and below
    std::vector<float> x = normal_values((4 + kTiny) * size_t{matrix.k}, 6);
    for (uint32_t i = 0; i < matrix.k; ++i) {
      x[i] *= 1e30f;
      x[matrix.k + i] *= 1e-30f;
      x[2 * matrix.k + i] = 0;
      // Two segments of one row, of different sizes.
      x[3 * matrix.k + i] *= i < 300 ? 1e7f : 1e-7f;
      // Elements of a row are as far apart as float32 allows.
      for (uint32_t r = 0; r < kTiny; ++r) {
        x[(4 + r) * size_t{matrix.k} + i] *=
            (i % 7 == 0 ? 1e-24f : 1e-31f) * std::pow(0.02f, static_cast<float>(r));
      }
    }
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      const GpuModule module(platform, matrix);
      const std::vector<float> y = module.product(x, 4).y;
      CHECK(largest_share(matrix, x, y, matrix.n, matrix.k) <= tolerance(matrix.k));
      for (uint32_t i = 0; i < matrix.n; ++i) REQUIRE(y[2 * matrix.n + i] == 0);
      // With room for many rows they are encoded otherwise.
      const std::vector<float> tiny = module.product(x, 4 + kTiny).y;
      REQUIRE(same_bits(module.product(x, 4 + kTiny, {.max_rows = 131}).y, tiny));
      // What is no number shows, in its own row.
      std::vector<float> bad = x;
      bad[5] = std::numeric_limits<float>::infinity();
      bad[matrix.k + 600] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> found = module.product(bad, 4).y;
      CHECK(std::memcmp(module.product(bad, 4, {.max_rows = 131}).y.data() + 2 * matrix.n,
                        y.data() + 2 * matrix.n, 2 * matrix.n * sizeof(float)) == 0);
      for (uint32_t i = 0; i < 2 * matrix.n; ++i) REQUIRE(!std::isfinite(found[i]));
      CHECK(std::memcmp(found.data() + 2 * matrix.n, y.data() + 2 * matrix.n,
                        2 * matrix.n * sizeof(float)) == 0);
    }
  }

  TEST_CASE("gpu exl3: products are made of matrix instructions, and read weights once") {
    for (const double bits : {3.0, 4.0}) {
      const SlowMatrix matrix("mul1", bits, 512, 2560, 11);
      const std::vector<float> x = normal_values(size_t{8} * matrix.k, 8);
      for (const char* platform : kGpuPlatforms) {
        if (!gpu_counts()) continue;
        const GpuModule module(platform, matrix);
        for (const uint32_t rows : {1u, 8u}) {
          CAPTURE(platform);
          CAPTURE(bits);
          CAPTURE(rows);
          const Result result = module.product(x, rows);
          uint64_t fetched = 0, matrices = 0;
          for (const auto& [kernel, report] : result.reports) {
            fetched += report.of("weight").fetched_bytes;
            matrices += report.matrix_count(is_wmma(platform) ? Matrix::kWmmaF16 : Matrix::kMmaF16);
          }
          CHECK(matrices == uint64_t{matrix.n} / 16 * (matrix.k / 16));
          CHECK(static_cast<double>(fetched) <= 1.1 * static_cast<double>(module.packed.size()));
        }
      }
    }
  }
}

}  // namespace atlas::test

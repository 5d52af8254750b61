// What atlas-quantize writes, read three times: by a reader that follows the formats' descriptions,
// by Python's packages (golden), and by the plugins, whose rows and products must be the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "tests/support/quant_plugin.h"
#include "tests/support/quantized_reader.h"
#include "tests/support/run_program.h"
#include "tests/support/small_moe.h"
#include "tests/support/tiny_llama.h"

using namespace atlas;
using namespace atlas::testing;
using test::Aligned;
using test::QuantPlugin;

namespace {

const std::string kGolden = std::string(ATLAS_SOURCE_DIR) + "/tests/golden/quantize_tool/";

AtlasDType dtype_of(const std::string& name) {
  if (name == "I16") return ATLAS_I16;
  if (name == "I32") return ATLAS_I32;
  for (const AtlasDType dtype : {ATLAS_F32, ATLAS_BF16, ATLAS_F16, ATLAS_U8, ATLAS_F8_E4M3}) {
    if (file_dtype(dtype) == name) return dtype;
  }
  throw std::runtime_error("type " + name);
}

/// A module of a file in its plugin's hands.
class PluginModule {
 public:
  PluginModule(const QuantPlugin& plugin, const FileTensors& file, const std::string& module,
               uint64_t n, uint64_t k)
      : plugin_(plugin) {
    std::vector<AtlasTensor> tensors;
    for (auto at = file.lower_bound(module + ".");
         at != file.end() && at->first.starts_with(module + "."); ++at) {
      AtlasTensor tensor{};
      tensor.struct_size = sizeof(tensor);
      tensor.dtype = dtype_of(at->second.dtype);
      tensor.name = at->first.c_str();
      tensor.rank = static_cast<uint32_t>(at->second.shape.size());
      std::copy(at->second.shape.begin(), at->second.shape.end(), tensor.dims);
      tensor.bytes = at->second.data.size();
      tensor.data = at->second.data.data();
      tensors.push_back(tensor);
    }
    AtlasWeightQuery query{};
    query.struct_size = sizeof(query);
    query.tensor_count = static_cast<uint32_t>(tensors.size());
    query.platform = "cpu";
    query.module = module.c_str();
    query.n = n;
    query.k = k;
    query.tensors = tensors.data();
    claim_.struct_size = sizeof(claim_);
    AtlasError error{sizeof(AtlasError), {}};
    const AtlasCode code = plugin_.api.claim(&query, &claim_, &error);
    REQUIRE_MESSAGE(code == ATLAS_OK, error.message);
    REQUIRE(claim_.claimed == 1);
    const uint64_t groups = (n + claim_.row_group - 1) / claim_.row_group;
    packed_ = Aligned(claim_.head_bytes + groups * claim_.group_bytes);
    const AtlasCode packed = plugin_.api.pack(&query, &claim_, 0, groups, packed_.data(), &error);
    REQUIRE_MESSAGE(packed == ATLAS_OK, error.message);
  }

  const AtlasWeightClaim& claim() const { return claim_; }

  /// All rows of W.
  std::vector<float> rows() {
    test::RecordRunner runner;
    const auto count = static_cast<uint32_t>(claim_.n);
    std::vector<uint32_t> ids(count);
    std::iota(ids.begin(), ids.end(), 0u);
    std::vector<float> y(claim_.n * claim_.k);
    AtlasGatherProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = count;
    fill(problem);
    problem.id_stride = sizeof(uint32_t);
    problem.ids = runner.buffer(ids.data());
    problem.y = runner.buffer(y.data());
    problem.weight = runner.buffer(packed_.data());
    problem.row_count = runner.buffer(&count);
    problem.y_stride = claim_.k;
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin_.api.plan_gather(&problem, &runner.sink, &error) == ATLAS_OK);
    runner.run(pack_, {});
    return y;
  }

  /// y [rows, n] of x [rows, k].
  std::vector<float> product(const std::vector<float>& x, uint32_t rows) {
    test::RecordRunner runner;
    std::vector<float> y(size_t{rows} * claim_.n);
    AtlasLinearProblem problem{};
    problem.struct_size = sizeof(problem);
    problem.max_rows = rows;
    fill(problem);
    problem.x_stride = claim_.k;
    problem.y_stride = claim_.n;
    AtlasLinearNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    REQUIRE(plugin_.api.linear_needs(&problem, &needs, &error) == ATLAS_OK);
    Aligned workspace(needs.workspace_bytes + 1), encoded(needs.encoded_row_bytes * rows + 1);
    problem.x = runner.buffer(x.data());
    problem.y = runner.buffer(y.data());
    problem.weight = runner.buffer(packed_.data());
    problem.row_count = runner.buffer(&rows);
    problem.workspace = runner.buffer(workspace.data());
    if (needs.input_encoding[0] != '\0') {
      AtlasEncodeProblem encode{};
      encode.struct_size = sizeof(encode);
      encode.max_rows = rows;
      encode.platform = "cpu";
      encode.encoding = needs.input_encoding;
      encode.k = claim_.k;
      encode.x_stride = claim_.k;
      encode.x = problem.x;
      encode.out = runner.buffer(encoded.data());
      encode.row_count = problem.row_count;
      REQUIRE(plugin_.api.plan_encode(&encode, &runner.sink, &error) == ATLAS_OK);
      problem.x = encode.out;
    }
    REQUIRE(plugin_.api.plan_linear(&problem, &runner.sink, &error) == ATLAS_OK);
    runner.run(pack_, {});
    return y;
  }

 private:
  template <class Problem>
  void fill(Problem& problem) {
    problem.platform = "cpu";
    problem.format = claim_.format;
    problem.n = claim_.n;
    problem.k = claim_.k;
  }

  const QuantPlugin& plugin_;
  AtlasWeightClaim claim_{};
  Aligned packed_{0};
  test::CpuPack pack_;
};

/// The plugin reads what the reader reads.
void check_plugin(const QuantizedReader& reader, const std::string& module,
                  const std::string& format, uint64_t n, uint64_t k) {
  CAPTURE(module);
  const QuantPlugin plugin("quant_" + format + ".so");
  const std::vector<double> w = reader.weight(module, n, k);
  PluginModule packed(plugin, reader.tensors(), module, n, k);
  CHECK(std::string(packed.claim().format).starts_with(format));
  const std::vector<float> rows = packed.rows();
  REQUIRE(rows.size() == w.size());
  double largest = 0, apart = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    largest = std::max(largest, std::fabs(w[i]));
    apart = std::max(apart, std::fabs(rows[i] - w[i]));
    // NVFP4 and FP8 are one number times another: exact but for float32's rounding.
    if (format != "exl3") REQUIRE(rows[i] == static_cast<float>(w[i]));
  }
  CHECK(apart < 1e-6 * largest);
  constexpr uint32_t kRows = 3;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * k);
  for (float& value : x) value = normal(random);
  const std::vector<float> y = packed.product(x, kRows);
  // NVFP4's activations keep 16 bits a block of 32; the others' are float32.
  const double tolerance = format == "nvfp4" ? 1e-4 : 1e-6;
  for (size_t i = 0; i < y.size(); ++i) {
    double exact = 0, x_size = 0, w_size = 0;
    for (uint64_t j = 0; j < k; ++j) {
      const double a = x[i / n * k + j], b = w[i % n * k + j];
      exact += a * b;
      x_size += a * a;
      w_size += b * b;
    }
    REQUIRE(std::fabs(y[i] - exact) <= tolerance * std::sqrt(x_size * w_size));
  }
}

std::string floats_of(const std::vector<double>& values) {
  std::vector<float> out(values.begin(), values.end());
  return testing::bytes_of(out);
}

}  // namespace

TEST_SUITE("conformance/quantize_reader") {
  TEST_CASE("golden files of atlas-quantize: Python, the reader and the plugin read the same") {
    const auto golden = nlohmann::json::parse(read_text(kGolden + "golden.json"));
    for (const char* format : {"exl3", "nvfp4", "fp8"}) {
      CAPTURE(format);
      const QuantizedReader reader(kGolden + format + ".safetensors");
      const auto modules = reader.modules();
      size_t quantized = 0;
      for (const auto& [module, facts] : golden.at(format).items()) {
        CAPTURE(module);
        if (facts["format"] == "bf16") {
          CHECK_FALSE(modules.contains(module));
          continue;
        }
        ++quantized;
        REQUIRE(modules.at(module) == format);
        const uint64_t n = facts["shape"][0], k = facts["shape"][1];
        const std::vector<double> w = reader.weight(module, n, k);
        if (std::string(format) == "exl3") {
          const test::SlowMatrix matrix = reader.trellis(module);
          CHECK(matrix.bits == facts["bits"].get<double>());
          CHECK(crc32(floats_of(matrix.inner())) == facts["inner_crc32"].get<uint32_t>());
          double squares = 0;
          for (const double value : w) squares += value * value;
          CHECK(squares == doctest::Approx(facts["squares"].get<double>()).epsilon(1e-9));
          for (size_t i = 0; i < facts["diagonal"].size(); ++i) {
            CHECK(std::fabs(w[9 * i * (k + 1)] - facts["diagonal"][i].get<double>()) < 1e-9);
          }
        } else {
          CHECK(crc32(floats_of(w)) == facts["crc32"].get<uint32_t>());
        }
        check_plugin(reader, module, format, n, k);
      }
      CHECK(quantized == modules.size());
      CHECK(quantized >= 5);
    }
  }

  TEST_CASE("a checkpoint that atlas-quantize writes now is read the same by reader and plugin") {
    const TempDir dir;
    TinyLlama model;
    model.hidden = 176;
    model.heads = 4;
    model.head_dim = 44;
    model.intermediate = 144;
    model.layers = 1;
    model.tokenizer = false;
    std::filesystem::create_directory(dir.file("source"));
    write_tiny_llama_folder(model, dir.file("source"));
    const FileTensors source = read_file_tensors(dir.file("source") + "/model.safetensors");
    const std::vector<std::pair<std::string, std::vector<std::string>>> runs = {
        {"exl3", {"--bits", "2.5", "--head-bits", "3", "--no-feedback", "--codebook", "mcg"}},
        {"exl3", {"--bits", "4", "--head-bits", "16", "--no-feedback", "--codebook", "3inst"}},
        {"nvfp4", {"--scales", "mse"}},
        {"fp8", {}}};
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::string& format = runs[i].first;
      const std::string out = dir.file("out" + std::to_string(i));
      std::vector<std::string> command = {
          "atlas-quantize", "--model", dir.file("source"), "--out",     out,
          "--format",       format,    "--quiet",          "--threads", "2"};
      command.insert(command.end(), runs[i].second.begin(), runs[i].second.end());
      const Ran ran = run_program(command);
      REQUIRE_MESSAGE(ran.code == 0, ran.err);
      const QuantizedReader reader(out + "/model.safetensors");
      const auto modules = reader.modules();
      CHECK(modules.size() >= 5);
      for (const auto& [module, found] : modules) {
        CHECK(found == format);
        // A head of its own is the embedding where both are one tensor.
        const std::string name = module == "lm_head" ? "model.embed_tokens" : module;
        const std::vector<uint64_t>& shape = source.at(name + ".weight").shape;
        check_plugin(reader, module, format, shape[0], shape[1]);
      }
    }
  }
}

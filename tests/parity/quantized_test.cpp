// flash-mini with weights rounded to NVFP4 and FP8 (tests/golden/flash_mini_quantized), in a
// mixture of all layouts, against the same model with those very numbers as float32: what differs
// is the rounding of activations before NVFP4 products, and nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/parity/step_walk.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/scaled_weights.h"
#include "tests/unit/checkpoint/safetensors_folder.h"
#include "tools/common/local_model.h"

using namespace atlas;
using namespace atlas::testing;
using engine::TokenId;
using tools::LocalModel;

TEST_SUITE_BEGIN("parity: quantized");

namespace {

const std::string kModel = std::string(ATLAS_SOURCE_DIR) + "/tests/data/flash-mini";
const std::string kGolden = std::string(ATLAS_SOURCE_DIR) + "/tests/golden/flash_mini_quantized";
using Tokens = std::vector<TokenId>;

/// The modules of the golden file, and its tensors.
struct Quantized {
  FileTensors tensors = read_file_tensors(kGolden + "/quantized.safetensors");
  nlohmann::json modules = nlohmann::json::parse(read_text(kGolden + "/golden.json"));

  const FileTensor* find(const std::string& name) const {
    const auto found = tensors.find(name);
    return found == tensors.end() ? nullptr : &found->second;
  }
  uint8_t byte(const FileTensor& tensor, uint64_t i) const {
    return static_cast<uint8_t>(tensor.data[i]);
  }
  float number(const FileTensor& tensor, uint64_t i) const {
    uint32_t bits = 0;
    if (tensor.dtype == "BF16") {
      std::memcpy(reinterpret_cast<char*>(&bits) + 2, tensor.data.data() + 2 * i, 2);
    } else {
      std::memcpy(&bits, tensor.data.data() + 4 * i, 4);
    }
    return std::bit_cast<float>(bits);
  }

  double nvfp4(const std::string& module, uint64_t row, uint64_t column, uint64_t k) const {
    const FileTensor* packed = find(module + ".weight_packed");
    const float matrix = packed != nullptr
                             ? 1.0f / number(*find(module + ".weight_global_scale"), 0)
                             : number(*find(module + ".weight_scale_2"), 0);
    const FileTensor& codes = packed != nullptr ? *packed : *find(module + ".weight");
    const uint8_t pair = byte(codes, (row * k + column) / 2);
    return test::number_e2m1(column % 2 == 0 ? pair & 15 : pair >> 4) *
           test::number_e4m3(byte(*find(module + ".weight_scale"), (row * k + column) / 16)) *
           matrix;
  }
  double fp8(const std::string& module, uint64_t row, uint64_t column, uint64_t k) const {
    const double code = test::number_e4m3(byte(*find(module + ".weight"), row * k + column));
    if (const FileTensor* blocks = find(module + ".weight_scale_inv")) {
      return code * number(*blocks, row / 128 * ((k + 127) / 128) + column / 128);
    }
    const FileTensor& scale = *find(module + ".weight_scale");
    if (scale.dtype == "U8") {
      return code * test::number_ue8m0(byte(scale, (row * k + column) / 32));
    }
    return code * number(scale, scale.shape.empty() ? 0 : row);
  }

  /// The module's numbers as a float32 tensor.
  FileTensor floats(const std::string& module) const {
    const nlohmann::json& facts = modules.at(module);
    const uint64_t n = facts["shape"][0], k = facts["shape"][1];
    std::vector<float> values;
    values.reserve(n * k);
    for (uint64_t row = 0; row < n; ++row) {
      for (uint64_t column = 0; column < k; ++column) {
        values.push_back(static_cast<float>(facts["format"] == "nvfp4"
                                                ? nvfp4(module, row, column, k)
                                                : fp8(module, row, column, k)));
      }
    }
    return {"F32", {n, k}, testing::bytes_of(values)};
  }
};

const Quantized& quantized() {
  static const Quantized all;
  return all;
}

/// flash-mini with the golden modules in the place of its own: as they are stored where
/// `keep(format)`, as float32 elsewhere.
class MixedModel {
 public:
  explicit MixedModel(const std::function<bool(const std::string& format)>& keep,
                      const std::function<void(FileTensors&)>& damage = {}) {
    FileTensors tensors = read_file_tensors(kModel + "/model.safetensors");
    std::erase_if(tensors, [](const auto& one) {
      return one.first.find(".mlp.experts.") != std::string::npos;
    });
    for (const auto& [module, facts] : quantized().modules.items()) {
      tensors.erase(module + ".weight");
      if (!keep(facts["format"])) {
        tensors[module + ".weight"] = quantized().floats(module);
        continue;
      }
      for (auto at = quantized().tensors.lower_bound(module + ".");
           at != quantized().tensors.end() && at->first.starts_with(module + "."); ++at) {
        tensors[at->first] = at->second;
      }
    }
    if (damage) damage(tensors);
    write_text(dir_.file("model.safetensors"), safetensors_text(tensors));
    for (const char* name :
         {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
      write_text(dir_.file(name), read_text(kModel + "/" + name));
    }
  }
  std::string path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

settings::Settings settings_for(const std::string& path, uint32_t drafts) {
  settings::Settings settings = small_settings(path, test_platforms()[0].settings);
  settings.engine.prefill_rows = 256;
  settings.engine.cache_tokens = 4096;
  settings.engine.context_tokens = 2048;
  settings.engine.drafts = drafts;
  return settings;
}

std::unique_ptr<LocalModel> open(const std::string& path, uint32_t drafts = 0) {
  auto model = LocalModel::open(settings_for(path, drafts), 256);
  REQUIRE_MESSAGE(model, model.error().message());
  return std::move(*model);
}

std::vector<Tokens> prompts() {
  std::vector<Tokens> all;
  const auto golden = nlohmann::json::parse(read_text(kModel + "/eval/golden.json"));
  for (const auto& one : golden.at("prompts")) all.push_back(one.at("ids"));
  return all;
}

Walked walked(const LocalModel& model, const std::vector<Tokens>& sequences, bool drafts = false,
              const Cutting& cutting = {{256}}) {
  const auto stepper = model.stepper();
  REQUIRE(stepper);
  return walk(**stepper, sequences, cutting, drafts);
}

/// Mean Kullback-Leibler divergence of rows of logits, in nats.
double mean_divergence(const std::vector<float>& from, const std::vector<float>& to,
                       uint32_t vocab) {
  const auto log_sum = [&](const float* row) {
    const double largest = *std::max_element(row, row + vocab);
    double sum = 0;
    for (uint32_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - largest);
    return largest + std::log(sum);
  };
  double total = 0;
  for (size_t at = 0; at < from.size(); at += vocab) {
    const double of_from = log_sum(&from[at]), of_to = log_sum(&to[at]);
    for (uint32_t i = 0; i < vocab; ++i) {
      const double p = from[at + i] - of_from;
      total += std::exp(p) * (p - (to[at + i] - of_to));
    }
  }
  return total / static_cast<double>(from.size() / vocab);
}

bool all_of(const std::string&) { return true; }
bool none_of(const std::string&) { return false; }
bool fp8_only(const std::string& format) { return format != "nvfp4"; }

}  // namespace

TEST_CASE("quantized: the stored codes and scales are the numbers that ml_dtypes decodes") {
  for (const auto& [module, facts] : quantized().modules.items()) {
    CAPTURE(module);
    CHECK(crc32(quantized().floats(module).data) == facts["crc32"].get<uint32_t>());
  }
}

TEST_CASE("quantized: logits are those of the same numbers as float32") {
  const MixedModel stored(all_of), floats(none_of), half(fp8_only);
  const std::vector<Tokens> sequences = prompts();
  const auto of_floats = open(floats.path());
  const uint32_t vocab = of_floats->info().vocab;
  const Walked expected = walked(*of_floats, sequences);
  // FP8 products have the contract of float32 weights: every bit is the same.
  CHECK(rows_that_differ(walked(*open(half.path()), sequences).logits, expected.logits, vocab) ==
        0);
  const auto of_stored = open(stored.path());
  const Walked found = walked(*of_stored, sequences);
  const double divergence = mean_divergence(expected.logits, found.logits, vocab);
  const float distance = largest_distance(found.logits, expected.logits);
  MESSAGE("stored against float32: KL ", divergence, ", largest distance ", distance);
  CHECK(divergence < 1e-7);
  CHECK(distance < 0.02f);
  // And the bits of a row do not depend on the rows beside it.
  const Walked cut = walked(*of_stored, sequences, false, {{7, 64, 1}});
  CHECK(rows_that_differ(found.logits, cut.logits, vocab) == 0);
}

TEST_CASE("quantized: rounded weights move the model a little") {
  const MixedModel stored(all_of);
  const std::vector<Tokens> sequences = prompts();
  const auto original = open(kModel);
  const Walked expected = walked(*original, sequences);
  const Walked found = walked(*open(stored.path()), sequences);
  const double divergence = mean_divergence(expected.logits, found.logits, original->info().vocab);
  MESSAGE("stored against flash-mini: KL ", divergence);
  CHECK(divergence > 1e-4);
  CHECK(divergence < 0.1);
}

TEST_CASE("quantized: an engine serves it, with drafts and without, with the same answers") {
  const MixedModel stored(all_of);
  std::vector<engine::RequestSpec> specs;
  for (const Tokens& prompt : prompts()) {
    engine::RequestSpec spec;
    spec.prompt = prompt;
    spec.max_tokens = 24;
    spec.ignore_end_of_generation = true;
    spec.sampling.temperature = 0;
    specs.push_back(spec);
  }
  EngineFixture plain(settings_for(stored.path(), 0)), drafting(settings_for(stored.path(), 1));
  const std::vector<Answer> answers = plain.run(specs), drafted = drafting.run(specs);
  for (size_t i = 0; i < answers.size(); ++i) {
    CHECK(answers[i].tokens.size() == 24);
    CHECK(answers[i].tokens == drafted[i].tokens);
  }
  const plan::Plan& plan = drafting.generation().plan();
  std::map<std::string, size_t> formats;
  for (const plan::Weight& weight : plan.weights) ++formats[weight.format];
  for (const char* format : {"nvfp4", "fp8", "fp8_b128", "mxfp8", "bf16"}) {
    CAPTURE(format);
    CHECK(formats[format] != 0);
  }
}

TEST_CASE("quantized: a damaged checkpoint, or plugins that cannot read it, name the tensor") {
  const std::string expert = "model.layers.1.mlp.experts.3.up_proj";
  const auto refused = [&](const std::function<void(FileTensors&)>& damage,
                           const std::vector<std::string>& parts) {
    const MixedModel model(all_of, damage);
    const auto opened = LocalModel::open(settings_for(model.path(), 0), 256);
    REQUIRE(!opened);
    for (const std::string& part : parts) {
      CHECK_MESSAGE(opened.error().message().find(part) != std::string::npos,
                    opened.error().message());
    }
  };
  refused([&](FileTensors& tensors) { tensors.erase(expert + ".weight_scale_2"); },
          {expert + ".weight_scale_2 is missing"});
  refused([&](FileTensors& tensors) { tensors[expert + ".weight_scale"].data[70] = '\x7f'; },
          {expert + ".weight_scale", "NaN at row 4, column 6"});
  refused([&](FileTensors& tensors) { tensors["lm_head.weight"].data[70] = '\x7f'; },
          {"lm_head.weight", "NaN in row 0"});
  const MixedModel model(all_of);
  settings::Settings settings = settings_for(model.path(), 0);
  settings.plugins.quant = {{"bf16", ""}};
  const auto opened = LocalModel::open(settings, 256);
  REQUIRE(!opened);
  CHECK_MESSAGE(
      opened.error().message().find("no quantization plugin reads module") != std::string::npos,
      opened.error().message());
  CHECK(opened.error().message().find("model.embed_tokens.weight (f8_e4m3)") != std::string::npos);
}

TEST_SUITE_END();

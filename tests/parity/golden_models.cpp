#include "tests/parity/golden_models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace atlas::testing {

namespace {

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path);
  return nlohmann::json::parse(file);
}

GoldenModel read_model(const nlohmann::json& entry, const std::string& root) {
  GoldenModel model;
  model.name = entry.at("name").get<std::string>();
  model.architecture = entry.at("architecture").get<std::string>();
  model.folder = root + "/" + model.name;
  const nlohmann::json golden = read_json(model.folder + "/golden.json");
  model.vocab = golden.at("vocab").get<uint32_t>();
  model.sequences = golden.at("sequences").get<std::vector<Tokens>>();
  model.logits = read_floats(model.folder + "/logits.f32");
  REQUIRE(model.logits.size() == uint64_t{model.tokens()} * model.vocab);
  if (golden.at("draft").get<bool>()) {
    model.draft_logits = read_floats(model.folder + "/draft_logits.f32");
    REQUIRE(model.draft_logits.size() ==
            (model.tokens() - model.sequences.size()) * uint64_t{model.vocab});
  }
  return model;
}

}  // namespace

uint32_t GoldenModel::longest() const {
  size_t most = 0;
  for (const Tokens& sequence : sequences) most = std::max(most, sequence.size());
  return static_cast<uint32_t>(most);
}

uint32_t GoldenModel::tokens() const {
  size_t sum = 0;
  for (const Tokens& sequence : sequences) sum += sequence.size();
  return static_cast<uint32_t>(sum);
}

std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  REQUIRE_MESSAGE(file.good(), path);
  std::vector<float> values(static_cast<size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(float)));
  REQUIRE_MESSAGE(file.good(), path);
  return values;
}

const std::vector<GoldenModel>& golden_models() {
  static const std::vector<GoldenModel> models = [] {
    const std::string root = std::string(ATLAS_SOURCE_DIR) + "/tests/golden/qwen";
    std::vector<GoldenModel> all;
    const nlohmann::json index = read_json(root + "/index.json");
    for (const auto& entry : index.at("models")) all.push_back(read_model(entry, root));
    return all;
  }();
  return models;
}

}  // namespace atlas::testing

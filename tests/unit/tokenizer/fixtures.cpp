// Reads what fixtures.h declares.
#include "tests/unit/tokenizer/fixtures.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace atlas::model::testing {

using nlohmann::json;

std::string golden_file(std::string_view name) {
  const std::string path = fmt::format("{}/tests/golden/tokenizer/{}", ATLAS_SOURCE_DIR, name);
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::vector<Text>& corpus() {
  static const std::vector<Text> texts = [] {
    std::vector<Text> out;
    for (const json& entry : json::parse(golden_file("corpus.json"))) {
      out.push_back({entry[0], entry[1]});
    }
    return out;
  }();
  return texts;
}

const Expected& expected(const std::string& name) {
  static const std::map<std::string, Expected> all = [] {
    std::map<std::string, Expected> out;
    const json file = json::parse(golden_file("expected.json"));
    for (const auto& [key, entry] : file.items()) {
      Expected& one = out[key];
      entry["ids"].get_to(one.ids);
      entry["plain"].get_to(one.plain);
      entry["decoded"].get_to(one.decoded);
      for (const auto& [text, large] : entry["large"].items()) {
        one.large[text] = {large[0], large[1]};
      }
    }
    return out;
  }();
  return all.at(name);
}

std::string hash_ids(const std::vector<TokenId>& ids) {
  uint64_t value = 0xCBF29CE484222325u;
  for (const TokenId id : ids) value = (value ^ id) * 0x100000001B3u;
  return fmt::format("{:016x}", value);
}

GgufVocabulary smollm2_vocabulary() {
  static const GgufVocabulary vocabulary = [] {
    const json file = json::parse(golden_file("smollm2_vocabulary.json"));
    GgufVocabulary out;
    file["model"].get_to(out.model);
    file["pre"].get_to(out.pre);
    file["tokens"].get_to(out.tokens);
    file["merges"].get_to(out.merges);
    out.token_types.assign(out.tokens.size(), 1);
    for (const size_t id : file["control"]) out.token_types[id] = 3;
    out.bos = file["bos"].get<TokenId>();
    out.eos = file["eos"].get<TokenId>();
    out.unknown = file["unknown"].get<TokenId>();
    out.padding = file["padding"].get<TokenId>();
    out.add_bos = file["add_bos"].get<bool>();
    return out;
  }();
  return vocabulary;
}

const std::vector<std::string>& tokenizer_names() {
  static const std::vector<std::string> names = {"smollm2", "flash_mini", "llama3",
                                                 "qwen2",   "flags",      "splits"};
  return names;
}

const Tokenizer& tokenizer(const std::string& name) {
  static const std::map<std::string, Result<Tokenizer>> all = [] {
    std::map<std::string, Result<Tokenizer>> out;
    out.emplace("smollm2", Tokenizer::from_gguf(smollm2_vocabulary()));
    out.emplace("flash_mini",
                Tokenizer::from_tokenizer_json(golden_file("flash_mini_tokenizer.json"),
                                               golden_file("flash_mini_tokenizer_config.json"),
                                               golden_file("flash_mini_generation_config.json")));
    for (const char* key : {"llama3", "qwen2", "flags", "splits"}) {
      out.emplace(key, Tokenizer::from_tokenizer_json(golden_file(std::string(key) + ".json")));
    }
    return out;
  }();
  const Result<Tokenizer>& loaded = all.at(name);
  REQUIRE_MESSAGE(loaded.has_value(), name << ": " << loaded.error().to_string());
  return *loaded;
}

}  // namespace atlas::model::testing

// The golden data of tests/golden/tokenizer, read once: texts, tokenizers, expected ids.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/model/tokenizer/tokenizer.h"

namespace atlas::model::testing {

/// A file of tests/golden/tokenizer; fails the test if it cannot be read.
std::string golden_file(std::string_view name);

struct Text {
  std::string name, text;
};
const std::vector<Text>& corpus();

struct Large {
  size_t count;
  std::string hash;  // FNV-1a over the ids, as make_golden.py computes it
};
struct Expected {
  std::vector<std::vector<TokenId>> ids, plain;  // by text of the corpus
  std::map<std::string, std::string> decoded;    // by name, where it is not the text
  std::map<std::string, Large> large;
};
const Expected& expected(const std::string& tokenizer);
std::string hash_ids(const std::vector<TokenId>& ids);

/// "smollm2" (from GGUF metadata), "flash_mini", "llama3", "qwen2", "flags" or "splits".
const Tokenizer& tokenizer(const std::string& name);
const std::vector<std::string>& tokenizer_names();
GgufVocabulary smollm2_vocabulary();

}  // namespace atlas::model::testing

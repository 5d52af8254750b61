// What the loaders hand over: a tokenizer's parts, checked, before they are compiled.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/model/tokenizer/pre_tokenizer.h"
#include "daemon/model/tokenizer/tokenizer.h"
#include "daemon/model/tokenizer/vocabulary.h"

namespace atlas::model {

struct TokenizerParts {
  Vocabulary vocabulary;
  std::vector<SplitStep> steps;
  bool nfc = false;
  bool ignore_merges = false;
  bool fuse_unknown = false;
  std::optional<TokenId> unknown;  // for bytes without token
  std::vector<TokenId> prefix;     // what "add BOS" adds
  std::optional<TokenId> bos, eos;
  std::vector<TokenId> end_of_generation;  // what the files name; any order, may repeat
};

/// The parts of a tokenizer in GGUF metadata. Errors: as Tokenizer::from_gguf.
Result<TokenizerParts> gguf_parts(const GgufVocabulary& vocabulary);

/// Compiles the parts. Errors: those of PreTokenizer::compile.
Result<std::shared_ptr<const Tokenizer::Impl>> assemble(TokenizerParts parts);

}  // namespace atlas::model

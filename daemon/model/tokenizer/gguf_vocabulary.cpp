// A tokenizer from GGUF metadata. The file names its pre-tokenizer; what the name means is the
// knowledge of this table (patterns as in the models' own tokenizer.json; names as llama.cpp's
// converter writes them).
#include <algorithm>

#include "daemon/base/log.h"
#include "daemon/model/tokenizer/parts.h"

namespace atlas::model {

namespace {

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Marks stay with their letters.
constexpr const char* kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Family {
  std::vector<std::string_view> names;
  std::vector<SplitStep> steps;
  bool nfc = false;
  bool ignore_merges = false;
  bool adds_bos = false;  // unless the file says otherwise
};

SplitStep regex(std::string pattern) { return {SplitStep::Kind::kRegex, std::move(pattern)}; }

const std::vector<Family>& families() {
  static const std::vector<Family> table = {
      {.names = {"gpt-2", "phi-2"}, .steps = {regex(kGpt2Pattern)}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       .steps = {{SplitStep::Kind::kDigits, {}}, regex(kGpt2Pattern)}},
      {.names = {"llama-bpe", "llama3", "llama-v3"},
       .steps = {regex(kLlama3Pattern)},
       .ignore_merges = true,
       .adds_bos = true},
      {.names = {"qwen2", "deepseek-r1-qwen"}, .steps = {regex(kQwen2Pattern)}, .nfc = true},
      {.names = {"qwen35"}, .steps = {regex(kQwen35Pattern)}, .nfc = true},
      {.names = {"default"},
       .steps = {regex(R"([\p{P}\$\+<=>\^~\|]+)"), regex(kGpt2Pattern), regex(R"(\p{N}+)"),
                 regex("[0-9][0-9][0-9]")}},
  };
  return table;
}

Result<const Family*> family_of(std::string_view pre) {
  std::string known;
  for (const Family& family : families()) {
    for (const std::string_view name : family.names) {
      if (name == pre) return &family;
      known += known.empty() ? "" : ", ";
      known += name;
    }
  }
  return unimplemented(
      "the GGUF file's pre-tokenizer (tokenizer.ggml.pre) is '{}', which Atlas does not know; "
      "known "
      "are {}",
      pre.substr(0, 60), known);
}

// Values of tokenizer.ggml.token_type.
enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };

Status add_token(Vocabulary& vocabulary, std::string_view text, TokenId id, int32_t type) {
  if (type < kNormal || type > kByte) {
    return invalid_argument("token {} has type {}; token types are 1 to 6", id, type);
  }
  const bool added = type == kUnknown || type == kControl || type == kUserDefined;
  if (!added) {
    // Fillers of a padded vocabulary may all be spelled alike; they are never the result of text.
    constexpr int32_t kUnused = 5;
    return type == kUnused && vocabulary.find(text) ? Status() : vocabulary.add(text, id);
  }
  AddedToken token;
  token.id = id;
  token.content = text;
  token.special = type != kUserDefined;
  return vocabulary.add_added(std::move(token));
}

Status add_merge(Vocabulary& vocabulary, std::string_view merge) {
  const size_t space = merge.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == merge.size()) {
    return invalid_argument("merge '{}' is not two tokens with a space between",
                            merge.substr(0, 60));
  }
  return vocabulary.add_merge(merge.substr(0, space), merge.substr(space + 1));
}

Status check_id(const Vocabulary& vocabulary, std::optional<TokenId> id, std::string_view key) {
  if (!id || *id < vocabulary.size()) return {};
  return invalid_argument("tokenizer.ggml.{} is {}, but the vocabulary has {} tokens", key, *id,
                          vocabulary.size());
}

}  // namespace

Result<TokenizerParts> gguf_parts(const GgufVocabulary& file) {
  if (file.model != "gpt2") {
    return unimplemented(
        "the GGUF file's tokenizer (tokenizer.ggml.model) is '{}'; Atlas knows byte-level BPE, "
        "'gpt2'",
        file.model.substr(0, 60));
  }
  if (file.tokens.empty() || file.tokens.size() > kMaxVocabulary) {
    return invalid_argument("tokenizer.ggml.tokens has {} tokens; 1 to {} are possible",
                            file.tokens.size(), kMaxVocabulary);
  }
  if (!file.token_types.empty() && file.token_types.size() != file.tokens.size()) {
    return invalid_argument("tokenizer.ggml.token_type has {} entries for {} tokens",
                            file.token_types.size(), file.tokens.size());
  }
  if (file.pre.empty()) {
    log_warning(
        "tokenizer: the GGUF file names no pre-tokenizer (tokenizer.ggml.pre); 'default' "
        "is taken, which may not be the model's");
  }
  ATLAS_ASSIGN_OR_RETURN(const Family* family, family_of(file.pre.empty() ? "default" : file.pre));
  TokenizerParts parts;
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    ATLAS_RETURN_IF_ERROR(add_token(parts.vocabulary, file.tokens[id], static_cast<TokenId>(id),
                                    file.token_types.empty() ? kNormal : file.token_types[id]));
  }
  parts.vocabulary.pad_to(file.tokens.size());
  for (const std::string& merge : file.merges) {
    ATLAS_RETURN_IF_ERROR(add_merge(parts.vocabulary, merge));
  }
  for (const auto& [id, key] : {std::pair(file.bos, "bos_token_id"),
                                {file.eos, "eos_token_id"},
                                {file.eot, "eot_token_id"},
                                {file.unknown, "unknown_token_id"},
                                {file.padding, "padding_token_id"}}) {
    ATLAS_RETURN_IF_ERROR(check_id(parts.vocabulary, id, key));
  }
  parts.steps = family->steps;
  parts.nfc = family->nfc;
  parts.ignore_merges = family->ignore_merges;
  parts.bos = file.bos;
  parts.eos = file.eos;
  if (file.eot) parts.end_of_generation.push_back(*file.eot);
  if (file.add_bos.value_or(family->adds_bos) && file.bos) parts.prefix = {*file.bos};
  return parts;
}

Result<Tokenizer> Tokenizer::from_gguf(const GgufVocabulary& vocabulary) {
  try {
    ATLAS_ASSIGN_OR_RETURN(TokenizerParts parts, gguf_parts(vocabulary));
    ATLAS_ASSIGN_OR_RETURN(std::shared_ptr<const Impl> impl, assemble(std::move(parts)));
    return Tokenizer(std::move(impl));
  } catch (const std::bad_alloc&) {
    return resource_exhausted("not enough memory for the GGUF file's vocabulary of {} tokens",
                              vocabulary.tokens.size());
  }
}

}  // namespace atlas::model

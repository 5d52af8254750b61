// A GGUF file as a checkpoint: tensors under Hugging Face names, split files joined, vocabulary.
#include <algorithm>
#include <filesystem>

#include "daemon/model/checkpoint/checkpoint_state.h"

namespace atlas::model {
namespace {

constexpr uint64_t kMaxParts = 99999;  // the file names have five digits

/// "name-00002-of-00005.gguf" without its tail; empty if `path` is not called so.
std::string split_prefix(const std::string& path, uint64_t number, uint64_t count) {
  const std::string tail = fmt::format("-{:05}-of-{:05}.gguf", number, count);
  return path.ends_with(tail) ? path.substr(0, path.size() - tail.size()) : std::string();
}

/// The files that belong to `path`, in order: itself, or all parts of a split file.
Result<std::vector<std::string>> part_paths(const std::string& path, const GgufFile& file) {
  ATLAS_ASSIGN_OR_RETURN(const auto count, file.integer("split.count"));
  ATLAS_ASSIGN_OR_RETURN(const auto number, file.integer("split.no"));
  if (count.value_or(1) <= 1) return std::vector<std::string>{path};
  if (*count > kMaxParts || number.value_or(0) >= *count) {
    return invalid_argument("{}: it says it is part {} of {}", path, number.value_or(0), *count);
  }
  const std::string prefix = split_prefix(path, number.value_or(0) + 1, *count);
  if (prefix.empty()) {
    return invalid_argument(
        "{}: a part of a split file must be called NAME-{:05}-of-{:05}.gguf to find the others",
        path, number.value_or(0) + 1, *count);
  }
  std::vector<std::string> paths;
  for (uint64_t i = 1; i <= *count; ++i) {
    paths.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", prefix, i, *count));
  }
  return paths;
}

void add_part(GgufFile part, InputFile file, CheckpointState* state) {
  const auto number = static_cast<uint32_t>(state->files.size());
  for (TensorInfo tensor : part.tensors()) {
    tensor.name = state->table.intern(huggingface_name(tensor.name));
    tensor.file = number;
    state->table.add(tensor);
  }
  if (part.misaligned() != 0) {
    state->notes.push_back(fmt::format("{}: {} of {} tensors are not aligned to their elements",
                                       part.path(), part.misaligned(), part.tensors().size()));
  }
  // The first part carries the metadata.
  if (number == 0) state->gguf = std::make_unique<GgufFile>(std::move(part));
  state->files.push_back(std::move(file));
}

Status read_parts(const std::string& path, const OpenProgress& progress, CheckpointState* state) {
  ATLAS_ASSIGN_OR_RETURN(InputFile first, InputFile::open(path));
  ATLAS_ASSIGN_OR_RETURN(GgufFile header, GgufFile::read(first));
  ATLAS_ASSIGN_OR_RETURN(const std::vector<std::string> paths, part_paths(path, header));
  for (uint32_t i = 0; i < paths.size(); ++i) {
    if (paths[i] == path) {
      add_part(std::move(header), std::move(first), state);
    } else {
      ATLAS_ASSIGN_OR_RETURN(InputFile file, InputFile::open(paths[i]));
      ATLAS_ASSIGN_OR_RETURN(GgufFile part, GgufFile::read(file));
      add_part(std::move(part), std::move(file), state);
    }
    if (progress) progress(i + 1, static_cast<uint32_t>(paths.size()));
  }
  ATLAS_RETURN_IF_ERROR(state->table.seal(paths));
  ATLAS_ASSIGN_OR_RETURN(const auto total, state->gguf->integer("split.tensors.count"));
  if (total && *total != state->table.tensors().size()) {
    return invalid_argument("{}: the parts hold {} tensors; split.tensors.count is {}", path,
                            state->table.tensors().size(), *total);
  }
  return {};
}

Result<std::optional<uint32_t>> token_id(const GgufFile& file, std::string_view key) {
  ATLAS_ASSIGN_OR_RETURN(const auto id, file.integer(key));
  if (!id) return std::optional<uint32_t>();
  if (*id >= file.array_size("tokenizer.ggml.tokens")) {
    return invalid_argument("{}: key '{}' is {}, but there are {} tokens", file.path(), key, *id,
                            file.array_size("tokenizer.ggml.tokens"));
  }
  return std::optional<uint32_t>(static_cast<uint32_t>(*id));
}

Status read_specials(const GgufFile& file, SpecialTokens* tokens) {
  struct Special {
    std::string_view key;
    std::optional<std::string>* into;
  };
  for (const Special& special : {Special{"tokenizer.ggml.bos_token_id", &tokens->bos},
                                 {"tokenizer.ggml.eos_token_id", &tokens->eos},
                                 {"tokenizer.ggml.unknown_token_id", &tokens->unknown},
                                 {"tokenizer.ggml.padding_token_id", &tokens->padding}}) {
    ATLAS_ASSIGN_OR_RETURN(const auto id, token_id(file, special.key));
    if (!id) continue;
    if (const auto text = file.text_at("tokenizer.ggml.tokens", *id)) {
      *special.into = std::string(*text);
    }
  }
  return {};
}

/// The bytes of rope_freqs.weight; none if it is not there.
Result<std::vector<std::byte>> rope_factors(const CheckpointState& state) {
  constexpr uint64_t kMost = 1 << 20;  // a float for each two dimensions of a head
  const TensorInfo* tensor = state.table.find("rope_freqs.weight");
  if (tensor == nullptr) return std::vector<std::byte>();
  if (tensor->bytes > kMost) {
    return invalid_argument(
        "{}: tensor '{}' has {} bytes; expected a number for each two "
        "dimensions of a head",
        state.files[tensor->file].path(), tensor->name, tensor->bytes);
  }
  std::vector<std::byte> bytes(tensor->bytes);
  ATLAS_RETURN_IF_ERROR(state.files[tensor->file].read_at(tensor->offset, bytes));
  return bytes;
}

}  // namespace

Result<TokenizerSource> read_gguf_vocabulary(const GgufFile& file) {
  ATLAS_ASSIGN_OR_RETURN(const auto tokens, file.texts("tokenizer.ggml.tokens"));
  if (!tokens || tokens->empty()) return TokenizerSource();
  GgufVocabulary out;
  ATLAS_ASSIGN_OR_RETURN(const auto model, file.text("tokenizer.ggml.model"));
  ATLAS_ASSIGN_OR_RETURN(const auto pre, file.text("tokenizer.ggml.pre"));
  ATLAS_ASSIGN_OR_RETURN(const auto types, file.integers("tokenizer.ggml.token_type"));
  ATLAS_ASSIGN_OR_RETURN(const auto merges, file.texts("tokenizer.ggml.merges"));
  ATLAS_ASSIGN_OR_RETURN(out.add_bos, file.boolean("tokenizer.ggml.add_bos_token"));
  ATLAS_ASSIGN_OR_RETURN(out.bos, token_id(file, "tokenizer.ggml.bos_token_id"));
  ATLAS_ASSIGN_OR_RETURN(out.eos, token_id(file, "tokenizer.ggml.eos_token_id"));
  ATLAS_ASSIGN_OR_RETURN(out.eot, token_id(file, "tokenizer.ggml.eot_token_id"));
  ATLAS_ASSIGN_OR_RETURN(out.unknown, token_id(file, "tokenizer.ggml.unknown_token_id"));
  ATLAS_ASSIGN_OR_RETURN(out.padding, token_id(file, "tokenizer.ggml.padding_token_id"));
  out.model = model.value_or("");
  out.pre = pre.value_or("");
  out.tokens.assign(tokens->begin(), tokens->end());
  if (merges) out.merges.assign(merges->begin(), merges->end());
  if (types) out.token_types.assign(types->begin(), types->end());
  if (types && types->size() != tokens->size()) {
    return invalid_argument("{}: {} tokens beside {} token types", file.path(), tokens->size(),
                            types->size());
  }
  return TokenizerSource(std::move(out));
}

Status read_gguf_checkpoint(const std::string& path, const OpenProgress& progress,
                            CheckpointState* state) {
  ATLAS_RETURN_IF_ERROR(read_parts(path, progress, state));
  const GgufFile& file = *state->gguf;
  state->format_name = fmt::format("gguf v{}", file.version());
  ATLAS_ASSIGN_OR_RETURN(const std::vector<std::byte> factors, rope_factors(*state));
  ATLAS_ASSIGN_OR_RETURN(state->config, read_gguf_config(file, state->table, factors));
  ATLAS_ASSIGN_OR_RETURN(const auto text, file.text("tokenizer.chat_template"));
  if (text) state->chat_template = std::string(*text);
  if (file.array_size("tokenizer.ggml.tokens") == 0) {
    state->notes.push_back(
        fmt::format("{}: there is no vocabulary, so the model is served by token ids", path));
    return {};
  }
  return read_specials(file, &state->special_tokens);
}

}  // namespace atlas::model

// A Hugging Face folder: config.json, one model.safetensors or shards with an index, and the files
// of the tokenizer where they exist.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "daemon/model/checkpoint/checkpoint_state.h"
#include "daemon/model/checkpoint/huggingface_tensors.h"
#include "daemon/model/checkpoint/json_events.h"
#include "daemon/model/checkpoint/quantization_config.h"
#include "daemon/model/checkpoint/safetensors.h"

namespace atlas::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kWeights = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

/// The largest configuration, index or tokenizer that is read.
constexpr uint64_t kMaxTextBytes = 1ull << 30;

std::string join(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Result<TextFile> read_text(const std::string& path) {
  ATLAS_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path));
  ATLAS_ASSIGN_OR_RETURN(std::string text, file.read_text(kMaxTextBytes));
  return TextFile{path, std::move(text)};
}

/// An absent file is an empty one; one that cannot be read is an error.
Result<TextFile> read_if_present(const std::string& path) {
  return exists(path) ? read_text(path) : TextFile();
}

/// Says what a folder without weights holds instead.
Status no_weights(const std::string& folder) {
  std::string others;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    for (const std::string_view suffix : {".gguf", ".safetensors", ".bin", ".pth", ".pt"}) {
      if (name.ends_with(suffix)) others += (others.empty() ? " '" : ", '") + name + "'";
    }
  }
  if (others.empty()) {
    return not_found("'{}' holds neither {} nor {}", folder, kWeights, kIndex);
  }
  return not_found(
      "'{}' holds neither {} nor {}, but{}: name a .gguf or .safetensors file itself, convert "
      "others",
      folder, kWeights, kIndex, others);
}

Status read_weights(const std::vector<std::string>& paths, const OpenProgress& progress,
                    CheckpointState* state) {
  for (const std::string& path : paths) {
    ATLAS_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path));
    const auto number = static_cast<uint32_t>(state->files.size());
    ATLAS_ASSIGN_OR_RETURN(const SafetensorsSummary summary,
                           read_safetensors(file, number, &state->table));
    if (summary.misaligned != 0) {
      state->notes.push_back(fmt::format("{}: {} of {} tensors are not aligned to their elements",
                                         path, summary.misaligned, summary.tensors));
    }
    state->files.push_back(std::move(file));
    if (progress) progress(number + 1, static_cast<uint32_t>(paths.size()));
  }
  return state->table.seal(paths);
}

/// Every tensor of the index must lie in the shard that the index names.
Status check_index(const SafetensorsIndex& index, const std::string& path, CheckpointState* state) {
  for (const auto& [name, shard] : index.tensors) {
    const TensorInfo* tensor = state->table.find(name);
    if (tensor != nullptr && tensor->file == shard) continue;
    const std::string where =
        tensor == nullptr
            ? "in no shard"
            : fmt::format("in '{}'",
                          fs::path(state->files[tensor->file].path()).filename().string());
    return invalid_argument("{}: tensor '{}' should be in '{}', but it is {}", path,
                            printable(name), printable(index.shards[shard]), where);
  }
  if (state->table.tensors().size() != index.tensors.size()) {
    state->notes.push_back(fmt::format("{}: {} tensors of the shards are not listed", path,
                                       state->table.tensors().size() - index.tensors.size()));
  }
  return {};
}

/// Files that EXL3 checkpoints keep beside their shards, in no index, so that one can be replaced
/// by itself: the n-gram table, and parts of the draft head.
void add_side_files(const std::string& folder, std::vector<std::string>* paths) {
  for (const char* name :
       {"ngram_embedding.safetensors", "mtp_hyper_connection_mixer_patch.safetensors"}) {
    const std::string path = join(folder, name);
    const bool known = std::find(paths->begin(), paths->end(), path) != paths->end();
    if (!known && exists(path)) paths->push_back(path);
  }
}

Status read_sharded(const std::string& folder, const OpenProgress& progress,
                    CheckpointState* state) {
  const std::string path = join(folder, kIndex);
  ATLAS_ASSIGN_OR_RETURN(const TextFile file, read_text(path));
  ATLAS_ASSIGN_OR_RETURN(const SafetensorsIndex index, read_safetensors_index(file.text, path));
  std::vector<std::string> paths;
  for (const std::string& shard : index.shards) {
    paths.push_back(join(folder, shard));
    if (!exists(paths.back())) {
      return not_found("{}: shard '{}' is not in the folder", path, printable(shard));
    }
  }
  add_side_files(folder, &paths);
  ATLAS_RETURN_IF_ERROR(read_weights(paths, progress, state));
  return check_index(index, path, state);
}

/// A special token is a string or an object with its text as "content".
std::optional<std::string> token_text(const json& object, const char* key) {
  const auto place = object.find(key);
  if (place == object.end()) return std::nullopt;
  if (place->is_string()) return place->get<std::string>();
  if (!place->is_object()) return std::nullopt;
  const auto content = place->find("content");
  if (content == place->end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

void take_special_tokens(const json& object, SpecialTokens* tokens) {
  const auto take = [&](const char* key, std::optional<std::string>* into) {
    if (!*into) *into = token_text(object, key);
  };
  take("bos_token", &tokens->bos);
  take("eos_token", &tokens->eos);
  take("unk_token", &tokens->unknown);
  take("pad_token", &tokens->padding);
}

/// "chat_template" is a text, or a list of {name, template} of which "default" is taken.
Status take_chat_template(const json& object, const std::string& path,
                          std::optional<std::string>* into) {
  const auto place = object.find("chat_template");
  if (place == object.end() || place->is_null()) return {};
  if (place->is_string()) {
    *into = place->get<std::string>();
    return {};
  }
  if (!place->is_array()) {
    return invalid_argument("{}: chat_template is neither a string nor a list", path);
  }
  for (const json& entry : *place) {
    if (!entry.is_object() || !token_text(entry, "name") || !token_text(entry, "template")) {
      return invalid_argument("{}: chat_template lists something without name and template", path);
    }
    if (*token_text(entry, "name") == "default") *into = token_text(entry, "template");
  }
  return {};
}

/// The JSON object in an optional file; an empty object if there is none.
Result<json> optional_object(const TextFile& file) {
  if (file.text.empty()) return json(json::object());
  auto tree = parse_json_tree(file.text);
  if (!tree) return tree.error().with_context(file.path);
  if (!tree->is_object()) return invalid_argument("{}: expected a JSON object", file.path);
  return tree;
}

Status read_text_files(const std::string& folder, CheckpointState* state) {
  ATLAS_ASSIGN_OR_RETURN(state->tokenizer_json, read_if_present(join(folder, "tokenizer.json")));
  ATLAS_ASSIGN_OR_RETURN(state->tokenizer_config_json,
                         read_if_present(join(folder, "tokenizer_config.json")));
  ATLAS_ASSIGN_OR_RETURN(const TextFile specials,
                         read_if_present(join(folder, "special_tokens_map.json")));
  ATLAS_ASSIGN_OR_RETURN(const TextFile jinja,
                         read_if_present(join(folder, "chat_template.jinja")));
  ATLAS_ASSIGN_OR_RETURN(const json config, optional_object(state->tokenizer_config_json));
  ATLAS_ASSIGN_OR_RETURN(const json map, optional_object(specials));
  take_special_tokens(config, &state->special_tokens);
  take_special_tokens(map, &state->special_tokens);
  ATLAS_RETURN_IF_ERROR(
      take_chat_template(config, state->tokenizer_config_json.path, &state->chat_template));
  // The file wins over the key, as in transformers.
  if (!jinja.text.empty()) state->chat_template = jinja.text;
  if (state->tokenizer_json.text.empty()) {
    state->notes.push_back(
        fmt::format("{}: there is no tokenizer.json, so the model is served by token ids", folder));
  }
  return {};
}

/// What Model Optimizer writes beside config.json, and a word on methods that are not compared.
Status read_formats(const std::string& folder, CheckpointState* state) {
  std::optional<plan::DeclaredFormats>& declared = state->config.declared_formats;
  ATLAS_ASSIGN_OR_RETURN(const TextFile file,
                         read_if_present(join(folder, "hf_quant_config.json")));
  if (!file.text.empty()) {
    plan::DeclaredFormats both = declared.value_or(plan::DeclaredFormats());
    ATLAS_RETURN_IF_ERROR(add_modelopt_config(file.text, file.path, &both));
    if (!both.source.empty()) declared = std::move(both);
  }
  if (!declared) return {};
  constexpr size_t kNoted = 8;  // a config may have a word for each of many layers
  for (size_t i = 0; i < std::min(kNoted, declared->unknown.size()); ++i) {
    state->notes.push_back(unknown_format_note(declared->unknown[i]));
  }
  if (declared->empty() && declared->unknown.empty() && !declared->word.empty()) {
    state->notes.push_back(
        fmt::format("{} says '{}', which is not compared: the tensors alone say what weights are",
                    declared->source, printable(declared->word)));
  }
  return {};
}

/// From `single`, or from what lies in the folder.
Status read_tensors(const std::string& folder, const std::string& single,
                    const OpenProgress& progress, CheckpointState* state) {
  if (!single.empty()) return read_weights({single}, progress, state);
  const std::string weights = join(folder, kWeights);
  if (exists(weights)) {
    if (exists(join(folder, kIndex))) {
      state->notes.push_back(fmt::format("{}: {} is read, {} is not", folder, kWeights, kIndex));
    }
    std::vector<std::string> paths = {weights};
    add_side_files(folder, &paths);
    return read_weights(paths, progress, state);
  }
  if (exists(join(folder, kIndex))) return read_sharded(folder, progress, state);
  return no_weights(folder);
}

}  // namespace

Status read_huggingface_folder(const std::string& folder, const std::string& single,
                               const OpenProgress& progress, CheckpointState* state) {
  const std::string config_path = join(folder, "config.json");
  if (!exists(config_path)) {
    // Where atlas-quantize keeps its work until the checkpoint is whole; config.json comes last.
    const std::string job = join(join(folder, "unfinished"), "job.json");
    if (exists(job)) {
      return not_found(
          "'{}' is not whole: atlas-quantize has not finished there. Repeat the command that began "
          "it, and it goes on; {} says what it was",
          folder, job);
    }
    return not_found("there is no config.json in '{}', which safetensors files need", folder);
  }
  ATLAS_ASSIGN_OR_RETURN(const TextFile config, read_text(config_path));
  ATLAS_ASSIGN_OR_RETURN(state->generation_config_json,
                         read_if_present(join(folder, "generation_config.json")));
  ATLAS_ASSIGN_OR_RETURN(
      state->config,
      read_huggingface_config(config.text, config_path, state->generation_config_json.text,
                              state->generation_config_json.path));
  ATLAS_RETURN_IF_ERROR(read_formats(folder, state));
  state->format_name = "safetensors";
  ATLAS_RETURN_IF_ERROR(read_text_files(folder, state));
  ATLAS_RETURN_IF_ERROR(read_tensors(folder, single, progress, state));
  return settle_tensors(state);
}

}  // namespace atlas::model

#include "tools/atlas-quantize/export_files.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <variant>

#include "daemon/model/tokenizer/parts.h"
#include "tools/atlas-quantize/safetensors_writer.h"
#include "tools/common/files.h"

namespace atlas::quantize {

namespace fs = std::filesystem;
using model::GgufVocabulary;
using model::SplitStep;
using tools::Json;

namespace {

constexpr int32_t kUnknownToken = 2, kControlToken = 3, kUserToken = 4;

bool is_added(const GgufVocabulary& vocabulary, size_t id) {
  if (vocabulary.token_types.empty()) return false;
  const int32_t type = vocabulary.token_types[id];
  return type == kUnknownToken || type == kControlToken || type == kUserToken;
}

/// A float32 as the shortest decimal that gives it back.
Json shortest(float value) { return Json::parse(fmt::format("{}", value)); }

Json split_json(const SplitStep& step) {
  if (step.kind == SplitStep::Kind::kDigits) {
    return {{"type", "Digits"}, {"individual_digits", true}};
  }
  return {{"type", "Split"},
          {"pattern", {{"Regex", step.pattern}}},
          {"behavior", "Isolated"},
          {"invert", step.invert}};
}

Json byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

/// Puts the tokens in front that the vocabulary asks for.
Json post_processor(const model::TokenizerParts& parts, const GgufVocabulary& vocabulary) {
  Json single = Json::array(), pair = Json::array(), specials = Json::object();
  for (const model::TokenId id : parts.prefix) {
    const std::string& text = vocabulary.tokens[id];
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    specials[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  }
  pair = single;
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  pair.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", specials}};
}

Json tokenizer_config(const Source& source, const GgufVocabulary& vocabulary) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"add_prefix_space", false},
                 {"clean_up_tokenization_spaces", false},
                 {"model_max_length", source.checkpoint().config().max_positions}};
  const auto name = [&](const char* key, std::optional<model::TokenId> id) {
    if (id) config[key] = vocabulary.tokens.at(*id);
  };
  name("bos_token", vocabulary.bos);
  name("eos_token", vocabulary.eos);
  name("unk_token", vocabulary.unknown);
  name("pad_token", vocabulary.padding);
  if (vocabulary.add_bos) config["add_bos_token"] = *vocabulary.add_bos;
  if (source.checkpoint().chat_template()) {
    config["chat_template"] = *source.checkpoint().chat_template();
  }
  return config;
}

Status write_json(const std::string& folder, const char* name, const Json& json) {
  return write_text_file((fs::path(folder) / name).string(), tools::json_text(json));
}

Status export_gguf(const Source& source, const std::string& folder, const Json& quantization,
                   bool tied) {
  const model::ModelConfig& config = source.checkpoint().config();
  ATLAS_ASSIGN_OR_RETURN(Json json, gguf_config_json(config));
  json["tie_word_embeddings"] = tied;
  if (!quantization.is_null()) json["quantization_config"] = quantization;
  Json generation = Json::object();
  if (config.bos_id) generation["bos_token_id"] = *config.bos_id;
  if (!config.eos_ids.empty()) generation["eos_token_id"] = config.eos_ids;
  ATLAS_RETURN_IF_ERROR(write_json(folder, "generation_config.json", generation));
  ATLAS_ASSIGN_OR_RETURN(const model::TokenizerSource tokens,
                         source.checkpoint().tokenizer_source());
  if (const auto* vocabulary = std::get_if<GgufVocabulary>(&tokens)) {
    ATLAS_ASSIGN_OR_RETURN(const std::string tokenizer, gguf_tokenizer_json(*vocabulary));
    ATLAS_RETURN_IF_ERROR(
        write_text_file((fs::path(folder) / "tokenizer.json").string(), tokenizer));
    ATLAS_RETURN_IF_ERROR(
        write_json(folder, "tokenizer_config.json", tokenizer_config(source, *vocabulary)));
  }
  return write_json(folder, "config.json", json);
}

Status carry_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::exists(from, error)) return {};
  ATLAS_ASSIGN_OR_RETURN(const std::string text, tools::read_text(from.string()));
  return write_text_file(to.string(), text);
}

Status export_folder(const fs::path& from, const std::string& folder, const Json& quantization,
                     bool tied) {
  ATLAS_ASSIGN_OR_RETURN(const std::string text, tools::read_text((from / "config.json").string()));
  Json config = Json::parse(text, nullptr, false);
  if (!config.is_object()) {
    return invalid_argument("'{}' is no JSON object", (from / "config.json").string());
  }
  config.erase("quantization_config");
  if (!quantization.is_null()) config["quantization_config"] = quantization;
  Json& text_part = config.contains("text_config") ? config["text_config"] : config;
  if (text_part.value("tie_word_embeddings", tied) != tied) {
    text_part["tie_word_embeddings"] = tied;
    if (config.contains("tie_word_embeddings")) config["tie_word_embeddings"] = tied;
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "special_tokens_map.json", "chat_template.jinja"}) {
    ATLAS_RETURN_IF_ERROR(carry_file(from / name, fs::path(folder) / name));
  }
  return write_json(folder, "config.json", config);
}

}  // namespace

Result<Json> gguf_config_json(const model::ModelConfig& c) {
  if (c.rope.scaling != model::RopeScaling::kNone || c.rope.attention_scale != 1) {
    return unimplemented(
        "a GGUF with scaled rope cannot be written as config.json: plain rope can");
  }
  for (size_t i = 0; i < c.rope.inverse_frequencies.size(); ++i) {
    const double plain = std::pow(c.rope.theta, -2.0 * static_cast<double>(i) / c.rope.rotary_dim);
    if (std::fabs(c.rope.inverse_frequencies[i] - plain) > 1e-5 * plain) {
      return unimplemented(
          "a GGUF with rope factors (rope_freqs.weight) cannot be written as config.json: plain "
          "rope can");
    }
  }
  if (c.rope.rotary_dim != c.head_dim || c.attention_bias != c.attention_output_bias) {
    return unimplemented(
        "a GGUF whose heads turn in part, or with biases in some of q, k, v and o, cannot be "
        "written as a llama's config.json");
  }
  Json json = {{"architectures", {"LlamaForCausalLM"}},
               {"model_type", "llama"},
               {"dtype", "bfloat16"},
               {"hidden_act", c.activation},
               {"hidden_size", c.hidden},
               {"intermediate_size", c.intermediate},
               {"num_hidden_layers", c.layers},
               {"num_attention_heads", c.heads},
               {"num_key_value_heads", c.kv_heads},
               {"head_dim", c.head_dim},
               {"vocab_size", c.vocab},
               {"max_position_embeddings", c.max_positions},
               {"rms_norm_eps", shortest(c.rms_eps)},
               {"rope_theta", c.rope.theta},
               {"attention_bias", c.attention_bias},
               {"mlp_bias", c.mlp_bias},
               {"tie_word_embeddings", c.tie_embeddings}};
  if (c.bos_id) json["bos_token_id"] = *c.bos_id;
  if (!c.eos_ids.empty()) json["eos_token_id"] = c.eos_ids;
  return json;
}

Result<std::string> gguf_tokenizer_json(const GgufVocabulary& vocabulary) {
  ATLAS_ASSIGN_OR_RETURN(const model::TokenizerParts parts, model::gguf_parts(vocabulary));
  Json added = Json::array(), merges = Json::array();
  // An ordered object would search from the front for every token.
  nlohmann::json vocab = nlohmann::json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    if (is_added(vocabulary, id)) {
      added.push_back({{"id", id},
                       {"content", text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", vocabulary.token_types[id] != kUserToken}});
    }
    if (!vocab.contains(text)) vocab[text] = id;  // fillers may be spelled alike
  }
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ', 1);  // checked by gguf_parts
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  Json steps = Json::array();
  for (const SplitStep& step : parts.steps) steps.push_back(split_json(step));
  steps.push_back(byte_level());
  Json decoder = byte_level();
  decoder["use_regex"] = true;
  Json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", parts.nfc ? Json{{"type", "NFC"}} : Json()},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
      {"post_processor", parts.prefix.empty() ? byte_level() : post_processor(parts, vocabulary)},
      {"decoder", decoder},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", parts.ignore_merges},
        {"merges", merges}}}};
  // The one large object is put in as text.
  std::string text = tokenizer.dump();
  const std::string place = "\"merges\":";
  text.insert(text.rfind(place), "\"vocab\":" + vocab.dump() + ",");
  return text + "\n";
}

Status export_files(const Source& source, const std::string& model_path, const std::string& folder,
                    const Json& quantization, bool tied) {
  if (source.is_gguf()) return export_gguf(source, folder, quantization, tied);
  std::error_code error;
  fs::path from(model_path);
  if (!fs::is_directory(from, error)) from = from.parent_path();
  return export_folder(from, folder, quantization, tied);
}

}  // namespace atlas::quantize

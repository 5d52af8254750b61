// A tokenizer from Hugging Face's tokenizer.json with its two companions: each component is either
// understood completely or refused by name.
#include <charconv>
#include <iterator>
#include <unordered_set>

#include "daemon/model/tokenizer/json_file.h"
#include "daemon/model/tokenizer/parts.h"

namespace atlas::model {

namespace {

using nlohmann::json;

Status unsupported(std::string_view part, std::string_view type, std::string_view known) {
  return unimplemented("the {} '{}' is not known to Atlas; known are {}", part, type.substr(0, 60),
                       known);
}

// The entries of a component: those of a Sequence in order, the component itself otherwise.
Result<std::vector<json>> entries_of(const json& component, const char* list_key, int depth = 0) {
  std::vector<json> out;
  if (component.is_null()) return out;
  ATLAS_ASSIGN_OR_RETURN(const std::string type, text_of(component, "type"));
  if (type != "Sequence") {
    out.push_back(component);
    return out;
  }
  const json& list = field(component, list_key);
  if (!list.is_array() || depth > 4) {
    return invalid_argument("a Sequence needs a list '{}', nested at most 4 deep", list_key);
  }
  for (const json& entry : list) {
    ATLAS_ASSIGN_OR_RETURN(std::vector<json> inner, entries_of(entry, list_key, depth + 1));
    std::move(inner.begin(), inner.end(), std::back_inserter(out));
  }
  return out;
}

Result<SplitStep> split_step(const json& entry) {
  static constexpr std::pair<const char*, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  const json& pattern = field(entry, "pattern");
  const bool literal = !field(pattern, "String").is_null();
  SplitStep step{literal ? SplitStep::Kind::kLiteral : SplitStep::Kind::kRegex, {}};
  ATLAS_ASSIGN_OR_RETURN(step.pattern, text_of(pattern, literal ? "String" : "Regex"));
  ATLAS_ASSIGN_OR_RETURN(step.invert, flag(entry, "invert", false));
  ATLAS_ASSIGN_OR_RETURN(const std::string behavior, text_of(entry, "behavior"));
  for (const auto& [name, value] : kBehaviors) {
    if (behavior != name) continue;
    step.behavior = value;
    return step;
  }
  return unsupported("Split behavior", behavior,
                     "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

Status add_byte_level(const json& entry, std::vector<SplitStep>& steps) {
  ATLAS_ASSIGN_OR_RETURN(const bool prefix, flag(entry, "add_prefix_space", true));
  ATLAS_ASSIGN_OR_RETURN(const bool pattern, flag(entry, "use_regex", true));
  if (prefix) steps.push_back({SplitStep::Kind::kPrefixSpace, {}});
  if (pattern) steps.push_back({SplitStep::Kind::kRegex, kGpt2Pattern});
  return {};
}

Status read_pre_tokenizer(const json& component, TokenizerParts& parts) {
  ATLAS_ASSIGN_OR_RETURN(const std::vector<json> entries, entries_of(component, "pretokenizers"));
  bool bytes = false;
  for (const json& entry : entries) {
    if (bytes) return unimplemented("a pre-tokenizer follows ByteLevel, which must be the last");
    ATLAS_ASSIGN_OR_RETURN(const std::string type, text_of(entry, "type"));
    if (type == "ByteLevel") {
      bytes = true;
      ATLAS_RETURN_IF_ERROR(add_byte_level(entry, parts.steps));
    } else if (type == "Split") {
      ATLAS_ASSIGN_OR_RETURN(SplitStep step, split_step(entry));
      parts.steps.push_back(std::move(step));
    } else if (type == "Digits") {
      ATLAS_ASSIGN_OR_RETURN(const bool each, flag(entry, "individual_digits", false));
      parts.steps.push_back({SplitStep::Kind::kDigits,
                             {},
                             each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
    } else {
      return unsupported("pre-tokenizer", type, "ByteLevel, Split, Digits, Sequence");
    }
  }
  if (!bytes) {
    return unimplemented("there is no ByteLevel pre-tokenizer; Atlas knows byte-level BPE only");
  }
  return {};
}

Status read_normalizer(const json& component, TokenizerParts& parts) {
  ATLAS_ASSIGN_OR_RETURN(const std::vector<json> entries, entries_of(component, "normalizers"));
  for (const json& entry : entries) {
    ATLAS_ASSIGN_OR_RETURN(const std::string type, text_of(entry, "type"));
    if (type != "NFC") return unsupported("normalizer", type, "NFC, Sequence");
    parts.nfc = true;
  }
  return {};
}

Status check_decoder(const json& component) {
  ATLAS_ASSIGN_OR_RETURN(const std::vector<json> entries, entries_of(component, "decoders"));
  for (const json& entry : entries) {
    ATLAS_ASSIGN_OR_RETURN(const std::string type, text_of(entry, "type"));
    if (type != "ByteLevel") return unsupported("decoder", type, "ByteLevel, Sequence");
  }
  return {};
}

// The special tokens that a template puts before the text.
Status read_template(const json& entry, TokenizerParts& parts) {
  for (const json& item : field(entry, "single")) {
    const json& token = field(item, "SpecialToken");
    if (token.is_null()) break;
    ATLAS_ASSIGN_OR_RETURN(const std::string name, text_of(token, "id"));
    const json& ids = field(field(field(entry, "special_tokens"), name.c_str()), "ids");
    if (!ids.is_array()) {
      return invalid_argument("the post-processor names '{}' without ids", name.substr(0, 60));
    }
    for (const json& id : ids) {
      ATLAS_ASSIGN_OR_RETURN(const TokenId value, id_of(id, "ids"));
      if (!parts.vocabulary.has(value)) {
        return invalid_argument("the post-processor names id {}, which has no token", value);
      }
      parts.prefix.push_back(value);
    }
  }
  return {};
}

Status read_post_processor(const json& component, TokenizerParts& parts) {
  ATLAS_ASSIGN_OR_RETURN(const std::vector<json> entries, entries_of(component, "processors"));
  for (const json& entry : entries) {
    ATLAS_ASSIGN_OR_RETURN(const std::string type, text_of(entry, "type"));
    if (type == "TemplateProcessing") {
      ATLAS_RETURN_IF_ERROR(read_template(entry, parts));
    } else if (type != "ByteLevel") {  // which corrects offsets only
      return unsupported("post-processor", type, "ByteLevel, TemplateProcessing, Sequence");
    }
  }
  return {};
}

Status read_model(const json& model, bool has_merges, TokenizerParts& parts) {
  if (!model.is_object()) return invalid_argument("there is no 'model'");
  if (!(field(model, "type").is_null() && has_merges)) {  // old files do not say what is plain
    ATLAS_ASSIGN_OR_RETURN(const std::string type, text_of(model, "type"));
    if (type != "BPE") return unsupported("model", type, "BPE");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = field(model, key);
    if (!value.is_null() && value != "") return unsupported("model setting", key, "none but \"\"");
  }
  const json& dropout = field(model, "dropout");
  if (!dropout.is_null() && dropout != 0) {
    return unsupported("model setting", "dropout", "none but null and 0");
  }
  ATLAS_ASSIGN_OR_RETURN(const bool fallback, flag(model, "byte_fallback", false));
  if (fallback) return unsupported("model setting", "byte_fallback", "false only");
  ATLAS_ASSIGN_OR_RETURN(parts.ignore_merges, flag(model, "ignore_merges", false));
  ATLAS_ASSIGN_OR_RETURN(parts.fuse_unknown, flag(model, "fuse_unk", false));
  if (field(model, "unk_token").is_null()) return {};
  ATLAS_ASSIGN_OR_RETURN(const std::string unknown, text_of(model, "unk_token"));
  parts.unknown = parts.vocabulary.find(unknown);
  if (!parts.unknown) {
    return invalid_argument("unk_token '{}' is not in the vocabulary", unknown.substr(0, 60));
  }
  return {};
}

Result<AddedToken> added_token(const json& entry, TokenId id) {
  AddedToken token;
  token.id = id;
  ATLAS_ASSIGN_OR_RETURN(token.content, text_of(entry, "content"));
  ATLAS_ASSIGN_OR_RETURN(token.single_word, flag(entry, "single_word", false));
  ATLAS_ASSIGN_OR_RETURN(token.strip_left, flag(entry, "lstrip", false));
  ATLAS_ASSIGN_OR_RETURN(token.strip_right, flag(entry, "rstrip", false));
  ATLAS_ASSIGN_OR_RETURN(token.special, flag(entry, "special", false));
  ATLAS_ASSIGN_OR_RETURN(token.normalized, flag(entry, "normalized", !token.special));
  return token;
}

Status read_added_tokens(const json& list, TokenizerParts& parts) {
  if (list.is_null()) return {};
  if (!list.is_array()) return invalid_argument("'added_tokens' must be a list");
  for (const json& entry : list) {
    ATLAS_ASSIGN_OR_RETURN(const TokenId id, id_of(field(entry, "id"), "added_tokens.id"));
    ATLAS_ASSIGN_OR_RETURN(AddedToken token, added_token(entry, id));
    ATLAS_RETURN_IF_ERROR(parts.vocabulary.add_added(std::move(token)));
  }
  return {};
}

// tokenizer_config.json repeats the added tokens; files exist that name some only there.
Status read_added_tokens_decoder(const json& map, TokenizerParts& parts) {
  if (!map.is_object()) return {};
  std::unordered_set<std::string> known;
  for (const AddedToken& token : parts.vocabulary.added()) known.insert(token.content);
  for (const auto& [key, entry] : map.items()) {
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id >= kMaxVocabulary) {
      return invalid_argument("added_tokens_decoder has the key '{}', which is no token id",
                              key.substr(0, 60));
    }
    ATLAS_ASSIGN_OR_RETURN(AddedToken token, added_token(entry, static_cast<TokenId>(id)));
    if (known.insert(token.content).second) {
      ATLAS_RETURN_IF_ERROR(parts.vocabulary.add_added(std::move(token)));
    }
  }
  return {};
}

// "bos_token": a string, or an object with "content"; null or absent: none.
Result<std::optional<TokenId>> named_token(const json& config, const char* key,
                                           const Vocabulary& vocabulary) {
  const json* value = &field(config, key);
  if (value->is_object()) value = &field(*value, "content");
  if (value->is_null()) return std::optional<TokenId>();
  if (!value->is_string()) return invalid_argument("'{}' must be a string", key);
  const std::optional<TokenId> id = vocabulary.find(value->get_ref<const std::string&>());
  if (!id) {
    return invalid_argument("'{}' is '{}', which is not in the vocabulary", key,
                            value->get_ref<const std::string&>().substr(0, 60));
  }
  return id;
}

Status read_config(const json& config, TokenizerParts& parts) {
  ATLAS_RETURN_IF_ERROR(read_added_tokens_decoder(field(config, "added_tokens_decoder"), parts));
  ATLAS_ASSIGN_OR_RETURN(parts.bos, named_token(config, "bos_token", parts.vocabulary));
  ATLAS_ASSIGN_OR_RETURN(parts.eos, named_token(config, "eos_token", parts.vocabulary));
  if (field(config, "add_bos_token").is_null()) return {};
  // What is said outright wins over the template.
  ATLAS_ASSIGN_OR_RETURN(const bool add_bos, flag(config, "add_bos_token", false));
  if (!add_bos) {
    parts.prefix.clear();
  } else if (parts.prefix.empty() && parts.bos) {
    parts.prefix = {*parts.bos};
  }
  return {};
}

Status read_generation_config(const json& config, bool has_config, TokenizerParts& parts) {
  const json& ends = field(config, "eos_token_id");
  if (!ends.is_null()) {
    const json list = ends.is_array() ? ends : json::array({ends});
    for (const json& entry : list) {
      ATLAS_ASSIGN_OR_RETURN(const TokenId id, id_of(entry, "eos_token_id"));
      parts.end_of_generation.push_back(id);
    }
    if (!parts.eos && !list.empty()) parts.eos = parts.end_of_generation.front();
  }
  const json& begin = field(config, "bos_token_id");
  if (!has_config && !begin.is_null()) {
    ATLAS_ASSIGN_OR_RETURN(parts.bos, id_of(begin, "bos_token_id"));
  }
  return {};
}

Result<TokenizerParts> parts_of(std::string_view text) {
  TokenizerParts parts;
  MergeList merges;
  ATLAS_ASSIGN_OR_RETURN(const json root, parse_tokenizer_file(text, parts.vocabulary, merges));
  ATLAS_RETURN_IF_ERROR(read_model(field(root, "model"), !merges.empty(), parts));
  if (parts.vocabulary.size() == 0) return invalid_argument("model.vocab is empty or missing");
  // Not earlier: a merge may name tokens that come later in the file.
  for (const auto& [left, right] : merges) {
    ATLAS_RETURN_IF_ERROR(parts.vocabulary.add_merge(left, right));
  }
  ATLAS_RETURN_IF_ERROR(read_added_tokens(field(root, "added_tokens"), parts));
  ATLAS_RETURN_IF_ERROR(read_normalizer(field(root, "normalizer"), parts));
  ATLAS_RETURN_IF_ERROR(read_pre_tokenizer(field(root, "pre_tokenizer"), parts));
  ATLAS_RETURN_IF_ERROR(read_post_processor(field(root, "post_processor"), parts));
  ATLAS_RETURN_IF_ERROR(check_decoder(field(root, "decoder")));
  return parts;
}

Result<TokenizerParts> parts_of(std::string_view text, std::string_view config_text,
                                std::string_view generation_text) {
  auto parts = parts_of(text);
  if (!parts) return parts.error().with_context("tokenizer.json");
  auto config = parse_settings_file(config_text);
  const Status read = config ? read_config(*config, *parts) : config.error();
  if (!read.ok()) return read.with_context("tokenizer_config.json");
  auto generation = parse_settings_file(generation_text);
  const Status last = generation ? read_generation_config(*generation, !config_text.empty(), *parts)
                                 : generation.error();
  if (!last.ok()) return last.with_context("generation_config.json");
  return std::move(*parts);
}

}  // namespace

Result<Tokenizer> Tokenizer::from_tokenizer_json(std::string_view json_text,
                                                 std::string_view tokenizer_config_json,
                                                 std::string_view generation_config_json) {
  try {
    ATLAS_ASSIGN_OR_RETURN(TokenizerParts parts,
                           parts_of(json_text, tokenizer_config_json, generation_config_json));
    auto impl = assemble(std::move(parts));
    if (!impl) return impl.error().with_context("tokenizer.json");
    return Tokenizer(std::move(*impl));
  } catch (const json::exception& error) {
    return invalid_argument("tokenizer.json: {}", error.what());
  } catch (const std::bad_alloc&) {
    return resource_exhausted("tokenizer.json: not enough memory for {} bytes of JSON",
                              json_text.size());
  }
}

}  // namespace atlas::model

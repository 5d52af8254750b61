// A tokenizer from Hugging Face's tokenizer.json with its two companions. The vocabulary and the
// merges are taken while parsing, so that no second copy of them is ever built; of the rest only
// little is kept, and a file that holds more than any tokenizer does is refused early.
#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "daemon/model/tokenizer/parts.h"

namespace atlas::model {

namespace {

using nlohmann::json;

// The largest published tokenizer.json files have some 35 MB.
constexpr size_t kMaxJsonBytes = size_t{256} << 20;
constexpr size_t kMaxDepth = 64;
// Values outside vocabulary and merges; 1,000 added tokens are 7,000.
constexpr size_t kMaxOtherValues = 1'000'000;

// Thrown out of the parser's callback, caught in parse_json.
struct Refused {
  Status status;
};

// Listens to the parser: takes model.vocab and model.merges away from the tree that it builds.
class Listener {
 public:
  explicit Listener(Vocabulary* vocabulary) : vocabulary_(vocabulary) {}

  // False: the value is not kept in the tree.
  bool operator()(int depth, json::parse_event_t event, json& value) {
    const auto level = static_cast<size_t>(depth);
    if (level > kMaxDepth) {
      throw Refused{invalid_argument("JSON is nested more than {} deep", kMaxDepth)};
    }
    using Event = json::parse_event_t;
    if (event == Event::key) {
      if (level > 3) return true;
      path_.resize(level);
      path_.back() = value.get_ref<const std::string&>();
      return !in_vocabulary() || level != 3;
    }
    if (in_vocabulary() && level >= 3) return token(event, value);
    if (in_merges() && level >= 3) return merge(level, event, value);
    if (event == Event::value || event == Event::array_start || event == Event::object_start) {
      if (++others_ > kMaxOtherValues) {
        throw Refused{resource_exhausted("JSON holds more than {} values", kMaxOtherValues)};
      }
    }
    return true;
  }

  // Merges name tokens that may come later in the file, so they are resolved at the end.
  Status finish() {
    for (const auto& [left, right] : merges_) {
      ATLAS_RETURN_IF_ERROR(vocabulary_->add_merge(left, right));
    }
    return {};
  }
  bool has_merges() const { return !merges_.empty(); }

 private:
  bool in_model(std::string_view key) const {
    return vocabulary_ != nullptr && path_.size() >= 2 && path_[0] == "model" && path_[1] == key;
  }
  bool in_vocabulary() const { return in_model("vocab"); }
  bool in_merges() const { return in_model("merges"); }

  bool token(json::parse_event_t event, const json& value) {
    if (event != json::parse_event_t::value || !value.is_number_unsigned() || path_.size() != 3) {
      throw Refused{invalid_argument(
          "model.vocab must map each token to its id, a number of 0 or more; it does not near '{}'",
          path_.back().substr(0, 60))};
    }
    if (Status status = vocabulary_->add(path_[2], value.get<uint64_t>()); !status.ok()) {
      throw Refused{std::move(status)};
    }
    return false;
  }

  bool merge(size_t level, json::parse_event_t event, const json& value) {
    using Event = json::parse_event_t;
    if (level == 3 && event == Event::array_start) {
      pair_.clear();
      return true;
    }
    if (level == 3 && event == Event::array_end) {
      if (pair_.size() != 2) bad_merge();
      add_merge(std::move(pair_[0]), std::move(pair_[1]));
      pair_.clear();
      return false;
    }
    if (event != Event::value || !value.is_string()) bad_merge();
    const auto& text = value.get_ref<const std::string&>();
    if (level == 4) {
      if (pair_.size() == 2) bad_merge();
      pair_.push_back(text);
    } else if (!text.starts_with("#version")) {
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) bad_merge();
      add_merge(text.substr(0, space), text.substr(space + 1));
    }
    return false;
  }

  void add_merge(std::string left, std::string right) {
    if (merges_.size() >= kMaxVocabulary) {
      throw Refused{resource_exhausted("model.merges has more than {} entries", kMaxVocabulary)};
    }
    merges_.emplace_back(std::move(left), std::move(right));
  }

  [[noreturn]] void bad_merge() const {
    throw Refused{invalid_argument(
        "model.merges must hold \"left right\" or [left, right]; entry {} is neither",
        merges_.size())};
  }

  Vocabulary* vocabulary_;
  std::vector<std::string> path_;  // keys from the root, as deep as matters here
  std::vector<std::string> pair_;
  std::vector<std::pair<std::string, std::string>> merges_;
  size_t others_ = 0;
};

Result<json> parse_json(std::string_view text, Listener& listener) {
  if (text.size() > kMaxJsonBytes) {
    return resource_exhausted("the file has {} bytes, more than {}", text.size(), kMaxJsonBytes);
  }
  try {
    json root = json::parse(text.begin(), text.end(), std::ref(listener));
    if (!root.is_object()) return invalid_argument("the file is not a JSON object");
    return root;
  } catch (const Refused& refused) {
    return refused.status;
  } catch (const json::exception& error) {
    return invalid_argument("the file is not valid JSON: {}", error.what());
  }
}

const json& field(const json& object, const char* key) {
  static const json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

// An absent or null flag is `otherwise`.
Result<bool> flag(const json& object, const char* key, bool otherwise) {
  const json& value = field(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) {
    return invalid_argument("'{}' must be true or false, but is a {}", key, value.type_name());
  }
  return value.get<bool>();
}

Result<std::string> text_of(const json& object, const char* key) {
  const json& value = field(object, key);
  if (!value.is_string()) {
    return invalid_argument("'{}' must be a string, but is {}", key,
                            value.is_null() ? "missing" : value.type_name());
  }
  return value.get<std::string>();
}

Result<TokenId> id_of(const json& value, std::string_view key) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxVocabulary) {
    return invalid_argument("'{}' must be a token id less than {}", key, kMaxVocabulary);
  }
  return static_cast<TokenId>(value.get<uint64_t>());
}

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
  for (const auto& [key, entry] : map.items()) {
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id >= kMaxVocabulary) {
      return invalid_argument("added_tokens_decoder has the key '{}', which is no token id",
                              key.substr(0, 60));
    }
    ATLAS_ASSIGN_OR_RETURN(AddedToken token, added_token(entry, static_cast<TokenId>(id)));
    const auto& known = parts.vocabulary.added();
    const bool is_known = std::any_of(known.begin(), known.end(), [&](const AddedToken& other) {
      return other.content == token.content;
    });
    if (!is_known) ATLAS_RETURN_IF_ERROR(parts.vocabulary.add_added(std::move(token)));
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
  Listener listener(&parts.vocabulary);
  ATLAS_ASSIGN_OR_RETURN(const json root, parse_json(text, listener));
  ATLAS_RETURN_IF_ERROR(read_model(field(root, "model"), listener.has_merges(), parts));
  if (parts.vocabulary.size() == 0) return invalid_argument("model.vocab is empty or missing");
  ATLAS_RETURN_IF_ERROR(listener.finish());
  ATLAS_RETURN_IF_ERROR(read_added_tokens(field(root, "added_tokens"), parts));
  ATLAS_RETURN_IF_ERROR(read_normalizer(field(root, "normalizer"), parts));
  ATLAS_RETURN_IF_ERROR(read_pre_tokenizer(field(root, "pre_tokenizer"), parts));
  ATLAS_RETURN_IF_ERROR(read_post_processor(field(root, "post_processor"), parts));
  ATLAS_RETURN_IF_ERROR(check_decoder(field(root, "decoder")));
  return parts;
}

Result<json> parse_companion(std::string_view text) {
  if (text.empty()) return json(json::object());
  Listener listener(nullptr);
  return parse_json(text, listener);
}

Result<TokenizerParts> parts_of(std::string_view text, std::string_view config_text,
                                std::string_view generation_text) {
  auto parts = parts_of(text);
  if (!parts) return parts.error().with_context("tokenizer.json");
  auto config = parse_companion(config_text);
  const Status read = config ? read_config(*config, *parts) : config.error();
  if (!read.ok()) return read.with_context("tokenizer_config.json");
  auto generation = parse_companion(generation_text);
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

// The parser's limits and the listener that takes vocabulary and merges out of it. What a file
// holds beyond what any tokenizer does is refused while it is read.
#include "daemon/model/tokenizer/json_file.h"

#include <functional>

namespace atlas::model {

using nlohmann::json;

namespace {

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
  // Without vocabulary and merges nothing is taken away.
  Listener(Vocabulary* vocabulary, MergeList* merges) : vocabulary_(vocabulary), merges_(merges) {}

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
    if (merges_->size() >= kMaxVocabulary) {
      throw Refused{resource_exhausted("model.merges has more than {} entries", kMaxVocabulary)};
    }
    merges_->emplace_back(std::move(left), std::move(right));
  }

  [[noreturn]] void bad_merge() const {
    throw Refused{invalid_argument(
        "model.merges must hold \"left right\" or [left, right]; entry {} is neither",
        merges_->size())};
  }

  Vocabulary* vocabulary_;
  std::vector<std::string> path_;  // keys from the root, as deep as matters here
  std::vector<std::string> pair_;
  MergeList* merges_;
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

}  // namespace

Result<json> parse_tokenizer_file(std::string_view text, Vocabulary& vocabulary,
                                  MergeList& merges) {
  Listener listener(&vocabulary, &merges);
  return parse_json(text, listener);
}

Result<json> parse_settings_file(std::string_view text) {
  if (text.empty()) return json(json::object());
  Listener listener(nullptr, nullptr);
  return parse_json(text, listener);
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

}  // namespace atlas::model

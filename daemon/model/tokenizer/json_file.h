// Reading the JSON files of a tokenizer: bounded in size, depth and number of values, and small
// accessors that give a Status where a field is missing or of another type.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/model/tokenizer/vocabulary.h"

namespace atlas::model {

/// Pairs of token texts by rank.
using MergeList = std::vector<std::pair<std::string, std::string>>;

/// Parses tokenizer.json. `model.vocab` goes into `vocabulary` and `model.merges` into `merges`
/// while parsing, so that no second copy of them is ever built; the tree that is returned has
/// neither. Errors: kInvalidArgument for malformed JSON or entries, kResourceExhausted beyond
/// limits.
Result<nlohmann::json> parse_tokenizer_file(std::string_view text, Vocabulary& vocabulary,
                                            MergeList& merges);
/// Parses any other JSON object with the same limits; an empty text is an empty object.
Result<nlohmann::json> parse_settings_file(std::string_view text);

/// The field, or null if it is absent or `object` is none.
const nlohmann::json& field(const nlohmann::json& object, const char* key);
/// A flag; absent or null it is `otherwise`.
Result<bool> flag(const nlohmann::json& object, const char* key, bool otherwise);
Result<std::string> text_of(const nlohmann::json& object, const char* key);
/// A number less than kMaxVocabulary; `key` is for the message.
Result<TokenId> id_of(const nlohmann::json& value, std::string_view key);

}  // namespace atlas::model

// Checks and conversions of vocabulary.h.
#include "daemon/model/tokenizer/vocabulary.h"

#include <algorithm>
#include <array>

#include "daemon/model/tokenizer/utf8.h"

namespace atlas::model {

namespace {

constexpr bool is_its_own_letter(uint32_t byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Alphabet {
  std::array<uint16_t, 256> letter_of{};
  std::array<int16_t, 0x144> byte_of{};  // the last letter is U+0143; -1: no letter
};

constexpr Alphabet make_alphabet() {
  Alphabet a;
  a.byte_of.fill(-1);
  uint16_t next = 256;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const uint16_t letter = is_its_own_letter(byte) ? byte : next++;
    a.letter_of[byte] = letter;
    a.byte_of[letter] = static_cast<int16_t>(byte);
  }
  return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

// Enough of a token to recognise it in a message.
std::string shown(std::string_view text) {
  std::string out;
  append_as_utf8(out, text.substr(0, 60));
  return text.size() > 60 ? out + "..." : out;
}

}  // namespace

std::string byte_to_letter(uint8_t byte) {
  std::string out;
  append_utf8(out, kAlphabet.letter_of[byte]);
  return out;
}

std::optional<std::string> letters_to_bytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    const bool letter = c.kind == CodePoint::kValid && c.value < kAlphabet.byte_of.size() &&
                        kAlphabet.byte_of[c.value] >= 0;
    if (!letter) return std::nullopt;
    out += static_cast<char>(kAlphabet.byte_of[c.value]);
    at += c.size;
  }
  return out;
}

Status Vocabulary::add(std::string_view text, uint64_t id) {
  if (id >= kMaxVocabulary) {
    return invalid_argument("token '{}' has id {}; ids must be less than {}", shown(text), id,
                            kMaxVocabulary);
  }
  if (text.size() > kMaxTokenBytes) {
    return invalid_argument("token {} ('{}') has {} bytes, more than {}", id, shown(text),
                            text.size(), kMaxTokenBytes);
  }
  if (has(id)) {
    return invalid_argument("tokens '{}' and '{}' have the same id {}", shown(texts_[id]),
                            shown(text), id);
  }
  const auto [entry, fresh] = ids_.emplace(text, static_cast<TokenId>(id));
  if (!fresh) {
    return invalid_argument("token '{}' has two ids, {} and {}", shown(text), entry->second, id);
  }
  pad_to(id + 1);
  texts_[id] = text;
  used_[id] = true;
  return {};
}

Status Vocabulary::add_added(AddedToken token) {
  if (token.content.size() > kMaxAddedTokenBytes) {
    return invalid_argument("added token {} ('{}') has {} bytes, more than {}", token.id,
                            shown(token.content), token.content.size(), kMaxAddedTokenBytes);
  }
  if (!has(token.id) || texts_[token.id] != token.content) {
    ATLAS_RETURN_IF_ERROR(add(token.content, token.id).with_context("added tokens"));
  }
  added_.push_back(std::move(token));
  return {};
}

Status Vocabulary::add_merge(std::string_view left, std::string_view right) {
  const auto id_of = [&](const std::string& text) { return ids_.find(text); };
  const std::string whole = std::string(left).append(right);
  const auto l = id_of(std::string(left)), r = id_of(std::string(right)), w = id_of(whole);
  if (l == ids_.end() || r == ids_.end() || w == ids_.end()) {
    return invalid_argument("merge {} ('{}' + '{}') names '{}', which is not in the vocabulary",
                            merges_.size(), shown(left), shown(right),
                            shown(l == ids_.end()   ? left
                                  : r == ids_.end() ? right
                                                    : std::string_view(whole)));
  }
  merges_.push_back({l->second, r->second, w->second});
  return {};
}

void Vocabulary::pad_to(size_t size) {
  if (size <= texts_.size()) return;
  texts_.resize(size);
  used_.resize(size);
}

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(std::string(text));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> Vocabulary::token_bytes() const {
  std::vector<std::string> out;
  out.reserve(texts_.size());
  for (const std::string& text : texts_) out.push_back(letters_to_bytes(text).value_or(text));
  // An added token with a letter such as 'é' means that letter, not the byte it could stand for.
  for (const AddedToken& token : added_) out[token.id] = token.content;
  return out;
}

BytePairRules Vocabulary::rules() const {
  BytePairRules rules;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    rules.bytes[byte] = find(byte_to_letter(static_cast<uint8_t>(byte)));
  }
  rules.merges = merges_;
  return rules;
}

std::vector<TokenId> Vocabulary::words() const {
  std::vector<bool> is_added(texts_.size());
  for (const AddedToken& token : added_) is_added[token.id] = true;
  std::vector<TokenId> out;
  for (TokenId id = 0; id < texts_.size(); ++id) {
    if (!texts_[id].empty() && !is_added[id] && letters_to_bytes(texts_[id])) out.push_back(id);
  }
  return out;
}

}  // namespace atlas::model

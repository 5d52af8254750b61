// Text to token ids and back: byte-level BPE, from Hugging Face's tokenizer.json or from GGUF
// metadata, with the ids of the `tokenizers` Python package.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/model/tokenizer/utf8.h"

namespace atlas::model {

using TokenId = uint32_t;

/// The tokenizer part of a GGUF file's metadata, keys `tokenizer.ggml.*`, as the reader finds it.
struct GgufVocabulary {
  std::string model;  // .model: "gpt2" is byte-level BPE
  std::string pre;    // .pre: name of the pre-tokenizer; empty if the key is absent
  std::vector<std::string> tokens;
  std::vector<int32_t> token_types;  // one a token, or none at all: then all are normal
  std::vector<std::string> merges;   // "left right", by rank
  std::optional<TokenId> bos, eos, eot, unknown, padding;
  std::optional<bool> add_bos;
};

struct EncodeOptions {
  /// Added and special tokens are recognised outside plain ranges; false: all text is plain.
  bool parse_special = true;
  /// Puts in front what the model's files ask for (usually BOS), unless the text begins with it.
  bool add_bos_as_model_says = false;
};

/// A model's tokenizer. Immutable, cheap to copy; all members may be called from many threads.
class Tokenizer {
 public:
  using EncodeOptions = model::EncodeOptions;

  /// From the texts of tokenizer.json, tokenizer_config.json and generation_config.json; the latter
  /// two may be empty. Padding and truncation settings are not used.
  /// Errors: kInvalidArgument for malformed JSON or a vocabulary that contradicts itself;
  /// kUnimplemented names a component that Atlas does not know; kResourceExhausted beyond limits.
  static Result<Tokenizer> from_tokenizer_json(std::string_view json,
                                               std::string_view tokenizer_config_json = {},
                                               std::string_view generation_config_json = {});
  /// From GGUF metadata. Errors: as above; an unknown `pre` is kUnimplemented and lists the known.
  static Result<Tokenizer> from_gguf(const GgufVocabulary& vocabulary);

  /// The ids of any bytes. Bytes that are no UTF-8 count as U+FFFD, one for each maximal part of a
  /// character. In the byte ranges `plain` (what users wrote) added tokens are never recognised: a
  /// token that only touches such a range is text. Apart from that the text is one string.
  /// A byte without a token in the vocabulary gives the model's unknown token, or none if it has
  /// none.
  std::vector<TokenId> encode(std::string_view utf8, EncodeOptions options = {},
                              std::span<const TextRange> plain = {}) const;

  /// The text of ids as valid UTF-8; bad parts become U+FFFD. Ids without a token give no text;
  /// `skip_special` leaves out special tokens.
  std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  /// The raw bytes of one token, perhaps part of a character; empty for an id without token.
  std::string_view token_bytes(TokenId id) const;
  /// The same as valid UTF-8, for people: bad parts are U+FFFD.
  std::string token_text(TokenId id) const;
  /// The added token with exactly this text, for instance "</think>".
  std::optional<TokenId> find_added(std::string_view text) const;

  /// One more than the largest id; smaller than the model's row count if that is padded.
  size_t vocab_size() const;
  bool is_special(TokenId id) const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  /// All ids that end an answer, ascending: eos and eot of the files, generation_config's list,
  /// and special tokens with a well-known name such as <|im_end|>.
  const std::vector<TokenId>& end_of_generation() const;

  struct Impl;

 private:
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// Decodes a growing sequence: what push() and finish() return, put together, is what
/// Tokenizer::decode gives, and each piece is valid UTF-8.
class StreamDecoder {
 public:
  StreamDecoder(Tokenizer tokenizer, bool skip_special)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  /// The text that is certain after this token; the beginning of a character is held back.
  std::string push(TokenId id);
  /// What was held back, as U+FFFD. The decoder is as new afterwards.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::string held_;  // at most three bytes
};

}  // namespace atlas::model

// Encoding and decoding over the compiled parts; the loaders are in tokenizer_json.cpp and
// gguf_vocabulary.cpp.
#include "daemon/model/tokenizer/tokenizer.h"

#include <algorithm>
#include <deque>

#include "daemon/model/tokenizer/normalizer.h"
#include "daemon/model/tokenizer/parts.h"

namespace atlas::model {

struct Tokenizer::Impl {
  std::string bytes;            // of all tokens, one after another
  std::vector<size_t> offsets;  // token i is bytes[offsets[i], offsets[i+1])
  std::vector<bool> special;
  std::vector<AddedToken> added;
  AddedTokenFinder raw_tokens, normalized_tokens;
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  BytePairEncoder merger;
  std::vector<TokenId> prefix;
  std::optional<TokenId> bos, eos;
  std::vector<TokenId> end_of_generation;

  size_t size() const { return special.size(); }
  std::string_view token(TokenId id) const {
    if (id >= size()) return {};
    return std::string_view(bytes).substr(offsets[id], offsets[id + 1] - offsets[id]);
  }
};

namespace {

// Tokens that end an answer in published chat models, whatever their configuration files name.
constexpr std::string_view kEndTokens[] = {"<|im_end|>", "<|endoftext|>",   "<|eot_id|>",
                                           "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>"};

// One call of encode: the texts that words point into, and the work memory.
class Encoding {
 public:
  Encoding(const Tokenizer::Impl& impl, size_t text_bytes) : impl_(impl), merging_(text_bytes) {
    ids_.reserve(text_bytes / 4 + 8);
  }

  void text_with_tokens(std::string_view text, std::span<const TextRange> plain) {
    for (const TextSegment& segment : impl_.raw_tokens.split(text, plain)) {
      if (segment.token) {
        ids_.push_back(*segment.token);
      } else {
        normalize(text, segment.range, plain);
      }
    }
  }

  std::vector<TokenId> take() && { return std::move(ids_); }

 private:
  void normalize(std::string_view text, TextRange range, std::span<const TextRange> plain) {
    std::string_view piece = text.substr(range.begin, range.end - range.begin);
    std::vector<TextRange> local;  // plain ranges of this piece
    if (!impl_.normalized_tokens.empty()) {
      for (const TextRange& p : plain) {
        const size_t begin = std::max(p.begin, range.begin), end = std::min(p.end, range.end);
        if (begin < end) local.push_back({begin - range.begin, end - range.begin});
      }
    }
    if (impl_.nfc && may_need_nfc(piece)) {
      std::vector<TextEdit> edits;
      piece = texts_.emplace_back(to_nfc(piece, local.empty() ? nullptr : &edits));
      local = tidy_ranges(map_ranges(local, edits), piece.size());
    }
    for (const TextSegment& segment : impl_.normalized_tokens.split(piece, local)) {
      if (segment.token) {
        ids_.push_back(*segment.token);
      } else {
        words(piece.substr(segment.range.begin, segment.range.end - segment.range.begin));
      }
    }
  }

  void words(std::string_view text) {
    impl_.pre_tokenizer.split(text, splitting_, words_);
    for (const std::string_view word : words_) impl_.merger.encode(word, merging_, ids_);
  }

  const Tokenizer::Impl& impl_;
  std::deque<std::string> texts_;
  std::vector<std::string_view> words_;
  PreTokenizer::Scratch splitting_;
  BytePairEncoder::Scratch merging_;
  std::vector<TokenId> ids_;
};

std::vector<TokenId> ends_of(const TokenizerParts& parts) {
  std::vector<TokenId> ends = parts.end_of_generation;
  if (parts.eos) ends.push_back(*parts.eos);
  for (const AddedToken& token : parts.vocabulary.added()) {
    if (!token.special) continue;
    if (std::find(std::begin(kEndTokens), std::end(kEndTokens), token.content) !=
        std::end(kEndTokens)) {
      ends.push_back(token.id);
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

std::vector<AddedToken> pick(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> out;
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized) out.push_back(token);
  }
  return out;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer::Impl>> assemble(TokenizerParts parts) {
  ATLAS_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::compile(parts.steps));
  std::vector<std::string> tokens = parts.vocabulary.token_bytes();
  std::vector<AddedToken> added = parts.vocabulary.added();
  for (AddedToken& token : added) {
    if (!(token.normalized && parts.nfc)) continue;
    token.content = tokens[token.id] = to_nfc(token.content);
  }
  std::vector<TokenId> ends = ends_of(parts);
  BytePairRules rules = parts.vocabulary.rules();
  rules.unknown = parts.unknown;
  rules.fuse_unknown = parts.fuse_unknown;

  auto impl = std::make_shared<Tokenizer::Impl>(
      Tokenizer::Impl{.added = added,
                      .raw_tokens = AddedTokenFinder(pick(added, false)),
                      .normalized_tokens = AddedTokenFinder(pick(added, true)),
                      .nfc = parts.nfc,
                      .pre_tokenizer = std::move(pre_tokenizer),
                      .merger = BytePairEncoder(rules),
                      .prefix = std::move(parts.prefix),
                      .bos = parts.bos,
                      .eos = parts.eos,
                      .end_of_generation = std::move(ends)});
  impl->special.resize(tokens.size());
  impl->offsets.reserve(tokens.size() + 1);
  impl->offsets.push_back(0);
  for (const std::string& token : tokens) {
    impl->bytes += token;
    impl->offsets.push_back(impl->bytes.size());
  }
  for (const AddedToken& token : added) impl->special[token.id] = token.special;
  if (parts.ignore_merges) {
    std::unordered_map<std::string_view, TokenId> words;
    words.reserve(tokens.size());
    for (const TokenId id : parts.vocabulary.words()) words.emplace(impl->token(id), id);
    impl->merger.set_whole_words(std::move(words));
  }
  return std::shared_ptr<const Tokenizer::Impl>(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::string_view utf8, EncodeOptions options,
                                       std::span<const TextRange> plain) const {
  const TextRange everything{0, utf8.size()};
  std::vector<TextRange> ranges =
      tidy_ranges(options.parse_special ? plain : std::span(&everything, 1), utf8.size());
  std::string repaired;
  if (valid_utf8_prefix(utf8) < utf8.size()) {
    std::vector<TextEdit> edits;
    repaired = repair_utf8(utf8, edits);
    ranges = tidy_ranges(map_ranges(ranges, edits), repaired.size());
    utf8 = repaired;
  }
  Encoding encoding(*impl_, utf8.size());
  encoding.text_with_tokens(utf8, ranges);
  std::vector<TokenId> ids = std::move(encoding).take();
  const std::vector<TokenId>& prefix = impl_->prefix;
  if (options.add_bos_as_model_says &&
      !std::equal(prefix.begin(), prefix.end(), ids.begin(),
                  ids.begin() + static_cast<ptrdiff_t>(std::min(prefix.size(), ids.size())))) {
    ids.insert(ids.begin(), prefix.begin(), prefix.end());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  }
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string out;
  append_as_utf8(out, bytes);
  return out;
}

std::string_view Tokenizer::token_bytes(TokenId id) const { return impl_->token(id); }

std::string Tokenizer::token_text(TokenId id) const {
  std::string out;
  append_as_utf8(out, token_bytes(id));
  return out;
}

std::optional<TokenId> Tokenizer::find_added(std::string_view text) const {
  for (const AddedToken& token : impl_->added) {
    if (token.content == text) return token.id;
  }
  return std::nullopt;
}

size_t Tokenizer::vocab_size() const { return impl_->size(); }

bool Tokenizer::is_special(TokenId id) const { return id < impl_->size() && impl_->special[id]; }

std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }

std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }

const std::vector<TokenId>& Tokenizer::end_of_generation() const {
  return impl_->end_of_generation;
}

std::string StreamDecoder::push(TokenId id) {
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  std::string out;
  held_ += tokenizer_.token_bytes(id);
  held_.erase(0, append_as_utf8(out, held_, true));
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  append_as_utf8(out, held_);
  held_.clear();
  return out;
}

}  // namespace atlas::model

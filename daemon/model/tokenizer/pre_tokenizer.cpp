// The steps of pre_tokenizer.h, each over all pieces of the one before.
#include "daemon/model/tokenizer/pre_tokenizer.h"

#include "daemon/model/tokenizer/utf8.h"

namespace atlas::model {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

std::optional<TextRange> find_digit(std::string_view text, size_t from) {
  for (size_t at = from; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    if (is_numeric(c.value)) return TextRange{at, at + c.size};
    at += c.size;
  }
  return std::nullopt;
}

// Collects the pieces of one text under a behavior that may glue a piece to its neighbour: the last
// piece is held back until the next one is known.
class PieceJoiner {
 public:
  PieceJoiner(std::string_view text, SplitBehavior behavior, std::vector<std::string_view>& out)
      : text_(text), behavior_(behavior), out_(out) {}

  void add(TextRange piece, bool is_match) {
    if (behavior_ == SplitBehavior::kRemoved && is_match) return;
    const bool joins = held_.end > held_.begin && joins_held(is_match);
    if (joins) {
      held_.end = piece.end;
    } else {
      flush();
      held_ = piece;
    }
    // After gluing forward the whole is a piece like any other, no match to be glued again.
    held_is_match_ = is_match;
  }

  void flush() {
    if (held_.end > held_.begin) out_.push_back(text_.substr(held_.begin, held_.end - held_.begin));
    held_ = {0, 0};
  }

 private:
  bool joins_held(bool is_match) const {
    switch (behavior_) {
      case SplitBehavior::kContiguous:
        return is_match == held_is_match_;
      case SplitBehavior::kMergedWithPrevious:
        return is_match && !held_is_match_;
      case SplitBehavior::kMergedWithNext:
        return !is_match && held_is_match_;
      case SplitBehavior::kRemoved:
      case SplitBehavior::kIsolated:
        break;
    }
    return false;
  }

  std::string_view text_;
  SplitBehavior behavior_;
  std::vector<std::string_view>& out_;
  TextRange held_{0, 0};
  bool held_is_match_ = false;
};

}  // namespace

Result<PreTokenizer> PreTokenizer::compile(const std::vector<SplitStep>& steps) {
  constexpr size_t kMaxSteps = 32;
  if (steps.size() > kMaxSteps) {
    return invalid_argument("the pre-tokenizer has {} steps, more than {}", steps.size(),
                            kMaxSteps);
  }
  std::vector<Step> compiled;
  for (const SplitStep& step : steps) {
    Step out{step.kind, std::nullopt, step.behavior, step.invert};
    if (step.kind == SplitStep::Kind::kRegex) {
      ATLAS_ASSIGN_OR_RETURN(out.regex, Regex::compile(step.pattern));
    } else if (step.kind == SplitStep::Kind::kLiteral) {
      ATLAS_ASSIGN_OR_RETURN(out.regex, Regex::compile_literal(step.pattern));
    }
    compiled.push_back(std::move(out));
  }
  return PreTokenizer(std::move(compiled));
}

void PreTokenizer::apply(const Step& step, std::string_view piece, Scratch& scratch,
                         std::vector<std::string_view>& out) {
  if (step.kind == SplitStep::Kind::kPrefixSpace) {
    if (!piece.starts_with(' ')) piece = scratch.owned.emplace_back(" " + std::string(piece));
    out.push_back(piece);
    return;
  }
  PieceJoiner pieces(piece, step.behavior, out);
  size_t done = 0, from = 0;
  while (from < piece.size()) {
    const std::optional<TextRange> match =
        step.regex ? step.regex->find(piece, from, scratch.regex) : find_digit(piece, from);
    if (!match) break;
    if (match->begin > done) pieces.add({done, match->begin}, step.invert);
    if (match->end > match->begin) {
      pieces.add(*match, !step.invert);
      from = match->end;
    } else if (match->end < piece.size()) {
      // An empty match only cuts; the search goes on behind the next character.
      from = match->end + decode_utf8(piece, match->end).size;
    } else {
      from = piece.size();
    }
    done = match->end;
  }
  if (done < piece.size()) pieces.add({done, piece.size()}, step.invert);
  pieces.flush();
}

void PreTokenizer::split(std::string_view text, Scratch& scratch,
                         std::vector<std::string_view>& words) const {
  words.clear();
  if (!text.empty()) words.push_back(text);
  for (const Step& step : steps_) {
    scratch.before.swap(words);
    words.clear();
    for (const std::string_view piece : scratch.before) apply(step, piece, scratch, words);
  }
}

}  // namespace atlas::model

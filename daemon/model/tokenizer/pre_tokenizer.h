// Cutting text into words before merging: the Split, Digits and ByteLevel steps of tokenizer.json.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/model/tokenizer/regex.h"

namespace atlas::model {

/// What a Split does with its matches; names as in tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// One step, as the loaders describe it.
struct SplitStep {
  enum class Kind {
    kRegex,        // pattern: Oniguruma syntax
    kLiteral,      // pattern: text that stands for itself
    kDigits,       // every numeric code point is a match
    kPrefixSpace,  // each piece gets a space in front unless it has one
  };
  Kind kind;
  std::string pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // what lies between the matches is the match
};

/// The pattern of GPT-2, which ByteLevel uses unless told not to (Radford et al., 2019).
extern const char* const kGpt2Pattern;

/// The steps in order, compiled. Immutable; split() may run on many threads.
class PreTokenizer {
 public:
  /// Errors: those of Regex; kInvalidArgument for more than 32 steps.
  static Result<PreTokenizer> compile(const std::vector<SplitStep>& steps);

  struct Scratch {
    Regex::Scratch regex;
    std::deque<std::string> owned;  // pieces with a space put in front; live until the next clear()
    std::vector<std::string_view> before;
  };
  /// Cuts `text` (valid UTF-8) into non-empty words in order; they point into it or into `scratch`.
  void split(std::string_view text, Scratch& scratch, std::vector<std::string_view>& words) const;

 private:
  struct Step {
    SplitStep::Kind kind;
    std::optional<Regex> regex;  // for kRegex and kLiteral
    SplitBehavior behavior;
    bool invert;
  };
  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}
  static void apply(const Step& step, std::string_view piece, Scratch& scratch,
                    std::vector<std::string_view>& out);

  std::vector<Step> steps_;
};

}  // namespace atlas::model

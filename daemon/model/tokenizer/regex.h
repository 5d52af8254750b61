// The regular expressions of tokenizer files: Oniguruma's syntax in, PCRE2 (UTF, UCP, compiled to
// machine code where the system allows it) underneath, the same matches as the `tokenizers`
// package.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/base/status.h"
#include "daemon/model/tokenizer/utf8.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace atlas::model {

/// Rewrites an Oniguruma (Ruby syntax) pattern for PCRE2: classes by Unicode 16 categories,
/// White_Space for `\s`, line anchors, escapes that mean something else there.
/// Errors: kInvalidArgument for a malformed pattern; kUnimplemented names the construct that is not
/// known (backreferences, class intersections, scripts, word boundaries and the like).
Result<std::string> translate_pattern(std::string_view oniguruma);

/// A compiled pattern. Immutable; find() may run on many threads, each with its own Scratch.
class Regex {
 public:
  /// The work memory of matching.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    void free();
    pcre2_real_match_data_8* data_;
    pcre2_real_match_context_8* context_;  // the limits
  };

  /// Compiles a pattern in Oniguruma's syntax.
  static Result<Regex> compile(std::string_view oniguruma);
  /// Compiles text that stands for itself.
  static Result<Regex> compile_literal(std::string_view text);

  /// The first match that begins at `from` or later; `text` is valid UTF-8.
  /// Nothing as well when matching gives up for want of memory or steps (a pathological pattern):
  /// the rest of the text then counts as one piece, and a warning is logged.
  std::optional<TextRange> find(std::string_view text, size_t from, Scratch& scratch) const;

 private:
  explicit Regex(std::shared_ptr<const pcre2_real_code_8> code) : code_(std::move(code)) {}
  static Result<Regex> compile_pcre(std::string_view pattern, uint32_t options);

  std::shared_ptr<const pcre2_real_code_8> code_;
};

}  // namespace atlas::model

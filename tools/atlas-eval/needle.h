// Retrieval: numbers that stand somewhere in a long prompt, asked for at its end, answered
// greedily.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/local_model.h"

namespace atlas::eval {

/// A line of a file of needles.
struct Needle {
  std::string id;      // its `id`, or the number of its line
  std::string prompt;  // special tokens are written out in it
  std::string answer;
  std::optional<uint32_t> tokens;         // of the prompt, as the file says
  std::optional<double> depth;            // where the number stands in it, 0..1
  std::optional<bool> reference_correct;  // whether the reference answers it
};

/// Reads lines of JSON objects with `prompt` and `answer`; `depth`, `tokens`, `id` and
/// `reference_correct` may be absent, and other keys mean nothing. Empty lines are skipped.
/// Errors: kInvalidArgument names the line (`name` stands for the file) and what is wrong in it.
Result<std::vector<Needle>> parse_needles(const std::string& text, const std::string& name);

/// Whether the answer stands in the reply, and not inside of a longer number.
bool holds_answer(const std::string& reply, const std::string& answer);

struct NeedleAnswer {
  Needle needle;
  uint32_t prompt_tokens = 0;
  std::string reply;
  bool right = false;
  /// Whether the reference did better or worse; false where the file does not say.
  bool differs() const { return needle.reference_correct && *needle.reference_correct != right; }
};

struct NeedleScore {
  std::vector<NeedleAnswer> answers;  // in the file's order
  double seconds = 0;

  size_t right() const;
  /// A table by tokens of the prompt and depth, the score, and what differs from the reference.
  std::string text() const;
  std::string json(const tools::LocalModel& model) const;
};

struct EncodedNeedle {
  Needle needle;
  std::vector<engine::TokenId> ids;
};

/// Encodes the prompts, special tokens included.
std::vector<EncodedNeedle> encode_needles(const std::vector<Needle>& needles,
                                          const model::Tokenizer& tokenizer);

/// Answers all needles greedily, `at_once` of them at a time, each with `max_tokens` at most.
/// Errors: what the engine refuses, with the needle's name.
Result<NeedleScore> answer_needles(const tools::LocalModel& model,
                                   const std::vector<EncodedNeedle>& needles, uint32_t max_tokens,
                                   uint32_t at_once);

}  // namespace atlas::eval

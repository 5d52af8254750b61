// AnswerText: from sampled ids to what a client may see: whole characters, nothing of a stop
// string, and no token of which that is all there is.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/engine/request.h"
#include "daemon/engine/stop_matcher.h"

namespace atlas::model {
class StreamDecoder;
class Tokenizer;
}  // namespace atlas::model

namespace atlas::engine {

class AnswerText {
 public:
  AnswerText() : AnswerText(nullptr, RequestSpec()) {}
  /// Without a tokenizer there is no text: ids pass through.
  AnswerText(const model::Tokenizer* tokenizer, const RequestSpec& spec);
  AnswerText(AnswerText&&) noexcept;
  AnswerText& operator=(AnswerText&&) noexcept;
  ~AnswerText();

  /// Takes one token and adds what can be shown by now to `update`.
  void push(TokenId token, std::optional<TokenLogprob> logprob, Update& update);
  /// Adds what was held back; call once, when no more tokens come.
  void finish(Update& update);
  const std::optional<std::string>& stop_string() const { return stops_.matched(); }

 private:
  struct Held {
    TokenId token;
    std::optional<TokenLogprob> logprob;
    uint64_t text_begin;  // bytes of decoded text before it
  };
  void show(std::string text, bool all, Update& update);

  std::unique_ptr<model::StreamDecoder> decoder_;
  StopMatcher stops_;
  std::deque<Held> held_;
  uint64_t decoded_bytes_ = 0, shown_bytes_ = 0;
};

}  // namespace atlas::engine

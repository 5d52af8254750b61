// LogprobsWriter: log-probabilities in OpenAI's two forms, appended token by token.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "daemon/engine/engine.h"
#include "daemon/serve/generate_request.h"

namespace atlas::serve {

/// For one answer. take() gives what was added since the last take(), so that the pieces of a
/// stream together hold each token once.
class LogprobsWriter {
 public:
  LogprobsWriter(Endpoint endpoint, std::shared_ptr<const engine::ModelInfo> model,
                 bool skip_special);
  /// `scored`: false for a prompt's first token, which has no probability.
  void add(const engine::TokenLogprob& token, bool scored = true);
  bool empty() const { return tokens_.empty(); }
  /// Appends the JSON object of the tokens added, and forgets them.
  void take(std::string& out);

 private:
  void add_completion(const engine::TokenLogprob& token, bool scored);
  void add_chat(const engine::TokenLogprob& token);
  std::string text_of(engine::TokenId id) const;

  Endpoint endpoint_;
  std::shared_ptr<const engine::ModelInfo> model_;
  bool skip_special_;
  // The inside of the lists. Chat uses `tokens_` alone.
  std::string tokens_, logprobs_, tops_, offsets_;
  size_t characters_ = 0;  // of the text up to here
};

}  // namespace atlas::serve

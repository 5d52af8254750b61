#include "daemon/engine/answer_text.h"

#include "daemon/model/tokenizer/tokenizer.h"

namespace atlas::engine {

AnswerText::AnswerText(const model::Tokenizer* tokenizer, const RequestSpec& spec)
    : stops_(spec.stop) {
  if (tokenizer != nullptr) {
    decoder_ = std::make_unique<model::StreamDecoder>(*tokenizer, spec.skip_special);
  }
}

AnswerText::AnswerText(AnswerText&&) noexcept = default;
AnswerText& AnswerText::operator=(AnswerText&&) noexcept = default;
AnswerText::~AnswerText() = default;

void AnswerText::push(TokenId token, std::optional<TokenLogprob> logprob, Update& update) {
  held_.push_back({token, std::move(logprob), decoded_bytes_});
  if (decoder_ == nullptr) {
    show({}, true, update);
    return;
  }
  const std::string decoded = decoder_->push(token);
  decoded_bytes_ += decoded.size();
  show(stops_.push(decoded), false, update);
}

void AnswerText::finish(Update& update) {
  if (decoder_ == nullptr || stops_.matched()) {
    held_.clear();
    return;
  }
  const std::string rest = decoder_->finish();
  decoded_bytes_ += rest.size();
  std::string text = stops_.push(rest);
  if (!stops_.matched()) text += stops_.finish();
  show(std::move(text), !stops_.matched(), update);
  held_.clear();
}

void AnswerText::show(std::string text, bool all, Update& update) {
  shown_bytes_ += text.size();
  update.text += text;
  // A token goes out with the first byte of its text; one without text of its own goes out as soon
  // as nothing before it is held back.
  const bool nothing_held = shown_bytes_ == decoded_bytes_ && !stops_.matched();
  while (!held_.empty()) {
    Held& first = held_.front();
    if (!all && !nothing_held && first.text_begin >= shown_bytes_) break;
    update.tokens.push_back(first.token);
    if (first.logprob) update.logprobs.push_back(std::move(*first.logprob));
    held_.pop_front();
  }
}

}  // namespace atlas::engine

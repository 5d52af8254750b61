#include "tools/atlas-eval/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "daemon/model/tokenizer/tokenizer.h"
#include "tools/common/json.h"

namespace atlas::eval {

using engine::TokenId;
using Clock = std::chrono::steady_clock;

double Perplexity::nats_per_token() const { return nats / static_cast<double>(predicted); }
double Perplexity::perplexity() const { return std::exp(nats_per_token()); }
double Perplexity::bits_per_byte() const {
  return nats / std::numbers::ln2 / static_cast<double>(bytes);
}
double Perplexity::tokens_per_second() const {
  return static_cast<double>(windows * window) / seconds;
}

std::string Perplexity::text() const {
  return fmt::format(
      "perplexity   {:.4f}\n"
      "nats/token   {:.5f}\n"
      "bits/byte    {:.5f}\n"
      "windows      {} of {} tokens, {} of the text's {} tokens left out\n"
      "predicted    {} tokens\n"
      "speed        {:.1f} tokens/s\n",
      perplexity(), nats_per_token(), bits_per_byte(), windows, window,
      text_tokens - windows * window, text_tokens, predicted, tokens_per_second());
}

std::string Perplexity::json(const tools::LocalModel& model) const {
  const tools::Json json = {{"model", model.info().id},
                            {"format", model.info().format},
                            {"perplexity", perplexity()},
                            {"nats_per_token", nats_per_token()},
                            {"bits_per_byte", bits_per_byte()},
                            {"tokens", predicted},
                            {"windows", windows},
                            {"window_tokens", window},
                            {"text_tokens", text_tokens},
                            {"text_tokens_left_out", text_tokens - windows * window},
                            {"bytes", bytes},
                            {"seconds", seconds},
                            {"tokens_per_second", tokens_per_second()}};
  return tools::json_text(json);
}

Result<double> surprise(std::span<const float> logits, TokenId target) {
  float largest = logits[0];
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return data_loss("the logit of token {} is {}", i, logits[i]);
    }
    largest = std::max(largest, logits[i]);
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return std::log(sum) + largest - logits[target];
}

namespace {

/// Bytes of the windows' tokens, so that bits a byte relate to the text that was predicted.
uint64_t text_bytes(const model::Tokenizer& tokenizer, std::span<const TokenId> ids) {
  uint64_t bytes = 0;
  for (const TokenId id : ids) bytes += tokenizer.token_bytes(id).size();
  return bytes;
}

Status add_window(engine::Stepper& stepper, std::span<const TokenId> ids, Perplexity& result) {
  const uint32_t vocab = stepper.vocab();
  return stepper.run_sequence(
      ids, stepper.max_scored_rows(), [&](uint32_t first, std::span<const float> logits) -> Status {
        for (size_t row = 0; row < logits.size() / vocab; ++row) {
          const size_t target = first + row + 1;
          if (target == ids.size()) break;  // the window's last token predicts nothing
          const auto nats = surprise(logits.subspan(row * vocab, vocab), ids[target]);
          if (!nats) {
            return nats.error().with_context(
                fmt::format("window {}, position {}", result.windows, first + row));
          }
          result.nats += *nats;
          ++result.predicted;
        }
        return {};
      });
}

}  // namespace

Result<Perplexity> perplexity(const tools::LocalModel& model, const std::string& text,
                              uint32_t window) {
  if (window < 2) return invalid_argument("a window of {} tokens predicts nothing", window);
  ATLAS_RETURN_IF_ERROR(model.check_length("a window", window));
  ATLAS_ASSIGN_OR_RETURN(const auto tokenizer, model.tokenizer());
  const std::vector<TokenId> ids =
      tokenizer->encode(text, {.parse_special = true, .add_bos_as_model_says = true});
  if (ids.size() < 2) return invalid_argument("the text has {} tokens: too few", ids.size());
  ATLAS_ASSIGN_OR_RETURN(const auto stepper, model.stepper());

  Perplexity result;
  result.text_tokens = ids.size();
  result.window = std::min<uint64_t>(window, ids.size());
  const auto start = Clock::now();
  const uint64_t count = ids.size() / result.window;
  for (; result.windows < count; ++result.windows) {
    const auto part = std::span(ids).subspan(result.windows * result.window, result.window);
    ATLAS_RETURN_IF_ERROR(add_window(*stepper, part, result));
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  result.bytes = text_bytes(*tokenizer, std::span(ids).first(count * result.window));
  return result;
}

}  // namespace atlas::eval

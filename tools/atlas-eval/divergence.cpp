#include "tools/atlas-eval/divergence.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "daemon/model/tokenizer/tokenizer.h"
#include "tools/atlas-eval/perplexity.h"
#include "tools/common/json.h"

namespace atlas::eval {

using engine::Stepper;
using engine::StepRows;
using engine::TokenId;
using Clock = std::chrono::steady_clock;

namespace {

struct Softmax {
  size_t top = 0;
  double log_sum = 0;  // of exp(logit)
};

Result<Softmax> softmax(std::span<const float> logits) {
  Softmax result;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) return data_loss("the logit of token {} is {}", i, logits[i]);
    if (logits[i] > logits[result.top]) result.top = i;
  }
  const double largest = logits[result.top];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  result.log_sum = std::log(sum) + largest;
  return result;
}

}  // namespace

Result<RowDivergence> row_divergence(std::span<const float> p, std::span<const float> q) {
  ATLAS_ASSIGN_OR_RETURN(const Softmax of_p, softmax(p));
  auto of_q = softmax(q);
  if (!of_q) return of_q.error().with_context("the second");
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - of_p.log_sum, log_q = q[i] - of_q->log_sum;
    kl += std::exp(log_p) * (log_p - log_q);
  }
  // Rounding alone can bring it below zero.
  return RowDivergence{std::max(0.0, kl), of_p.top == of_q->top};
}

double Divergence::mean() const {
  return std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
}

double Divergence::percentile_99() const {
  std::vector<float> sorted = kl;
  const auto at = sorted.begin() + static_cast<ptrdiff_t>((sorted.size() - 1) * 99 / 100);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

size_t Divergence::largest() const {
  return static_cast<size_t>(std::max_element(kl.begin(), kl.end()) - kl.begin());
}

std::string Divergence::text() const {
  const size_t at = largest();
  const auto perplexity = [&](double sum) {
    return std::exp(sum / static_cast<double>(predicted));
  };
  return fmt::format(
      "KL mean      {:.3e} nats\n"
      "KL 99 %      {:.3e}\n"
      "KL largest   {:.3e}, window {}, position {}\n"
      "same top-1   {:.4f} % ({} of {})\n"
      "perplexity   {:.4f}, against {:.4f}\n"
      "windows      {} of {} tokens, of the text's {}\n"
      "seconds      {:.1f}\n",
      mean(), percentile_99(), kl[at], at / window, at % window,
      100.0 * static_cast<double>(same_top) / static_cast<double>(kl.size()), same_top, kl.size(),
      perplexity(nats), perplexity(against_nats), windows, window, text_tokens, seconds);
}

std::string Divergence::json(const tools::LocalModel& first,
                             const tools::LocalModel& second) const {
  const size_t at = largest();
  const auto perplexity = [&](double sum) {
    return std::exp(sum / static_cast<double>(predicted));
  };
  return tools::json_text(
      {{"model", first.info().id},
       {"against", second.info().id},
       {"fingerprint", first.info().fingerprint},
       {"against_fingerprint", second.info().fingerprint},
       {"kl_mean", mean()},
       {"kl_99", percentile_99()},
       {"kl_largest", kl[at]},
       {"kl_largest_window", at / window},
       {"kl_largest_position", at % window},
       {"top1_agreement", static_cast<double>(same_top) / static_cast<double>(kl.size())},
       {"positions", kl.size()},
       {"perplexity", perplexity(nats)},
       {"against_perplexity", perplexity(against_nats)},
       {"tokens", predicted},
       {"windows", windows},
       {"window_tokens", window},
       {"text_tokens", text_tokens},
       {"seconds", seconds}});
}

namespace {

Status same_vocabulary(const tools::LocalModel& first, const tools::LocalModel& second,
                       const std::string& text, const std::vector<TokenId>& ids) {
  if (first.info().vocab != second.info().vocab) {
    return invalid_argument("'{}' has {} tokens and '{}' {}: their predictions cannot be compared",
                            first.info().id, first.info().vocab, second.info().id,
                            second.info().vocab);
  }
  if (second.info().tokenizer == nullptr) return {};
  const auto others =
      second.info().tokenizer->encode(text, {.parse_special = true, .add_bos_as_model_says = true});
  if (others == ids) return {};
  const auto [a, b] = std::mismatch(ids.begin(), ids.end(), others.begin(), others.end());
  return invalid_argument(
      "the tokenizers of '{}' and '{}' read the text in other ways from token "
      "{} on: their predictions cannot be compared",
      first.info().id, second.info().id, a - ids.begin());
}

/// Rows of one step of both.
Status add_rows(Stepper& first, Stepper& second, std::span<const TokenId> ids, uint32_t begin,
                uint32_t count, Divergence& result) {
  const StepRows rows{0, ids.subspan(begin, count), count, begin == 0};
  ATLAS_ASSIGN_OR_RETURN(const auto p, first.run(plan::StepKind::kPrefill, {&rows, 1}));
  ATLAS_ASSIGN_OR_RETURN(const auto q, second.run(plan::StepKind::kPrefill, {&rows, 1}));
  const uint32_t vocab = first.vocab();
  for (uint32_t row = 0; row < count; ++row) {
    const auto p_row = std::span(p).subspan(uint64_t{row} * vocab, vocab);
    const auto q_row = std::span(q).subspan(uint64_t{row} * vocab, vocab);
    const auto apart = row_divergence(p_row, q_row);
    if (!apart) {
      return apart.error().with_context(
          fmt::format("window {}, position {}", result.windows, begin + row));
    }
    result.kl.push_back(static_cast<float>(apart->kl));
    result.same_top += apart->same_top ? 1 : 0;
    const size_t target = size_t{begin} + row + 1;
    if (target == ids.size()) break;  // the window's last token predicts nothing
    ATLAS_ASSIGN_OR_RETURN(const double nats, surprise(p_row, ids[target]));
    ATLAS_ASSIGN_OR_RETURN(const double against_nats, surprise(q_row, ids[target]));
    result.nats += nats;
    result.against_nats += against_nats;
    ++result.predicted;
  }
  return {};
}

}  // namespace

Result<Divergence> divergence(const tools::LocalModel& first, const tools::LocalModel& second,
                              const std::string& text, uint32_t window, uint64_t tokens) {
  if (window < 2) return invalid_argument("a window of {} tokens predicts nothing", window);
  ATLAS_RETURN_IF_ERROR(first.check_length("a window", window));
  ATLAS_RETURN_IF_ERROR(second.check_length("a window", window));
  ATLAS_ASSIGN_OR_RETURN(const auto tokenizer, first.tokenizer());
  std::vector<TokenId> ids =
      tokenizer->encode(text, {.parse_special = true, .add_bos_as_model_says = true});
  ATLAS_RETURN_IF_ERROR(same_vocabulary(first, second, text, ids));
  Divergence result;
  result.text_tokens = ids.size();
  if (tokens != 0 && tokens < ids.size()) ids.resize(tokens);
  if (ids.size() < 2) return invalid_argument("{} tokens of text are too few", ids.size());
  ATLAS_ASSIGN_OR_RETURN(const auto steps, first.stepper());
  ATLAS_ASSIGN_OR_RETURN(const auto against_steps, second.stepper());
  const uint32_t chunk = std::min(steps->max_scored_rows(), against_steps->max_scored_rows());

  result.window = std::min<uint64_t>(window, ids.size());
  const auto start = Clock::now();
  for (const uint64_t count = ids.size() / result.window; result.windows < count;
       ++result.windows) {
    const auto part = std::span(ids).subspan(result.windows * result.window, result.window);
    const auto size = static_cast<uint32_t>(part.size());
    for (uint32_t begin = 0; begin < size; begin += chunk) {
      ATLAS_RETURN_IF_ERROR(
          add_rows(*steps, *against_steps, part, begin, std::min(chunk, size - begin), result));
    }
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

}  // namespace atlas::eval

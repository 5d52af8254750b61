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
  float share = 0;     // of the top
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
  result.share = static_cast<float>(1 / sum);
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
  return RowDivergence{std::max(0.0, kl), static_cast<uint32_t>(of_p.top),
                       static_cast<uint32_t>(of_q->top), of_p.share, of_q->share};
}

double Divergence::mean() const {
  double sum = 0;
  for (const RowDivergence& row : rows) sum += row.kl;
  return sum / static_cast<double>(rows.size());
}

double Divergence::percentile(uint32_t percent) const {
  std::vector<double> sorted;
  for (const RowDivergence& row : rows) sorted.push_back(row.kl);
  const auto at = sorted.begin() + static_cast<ptrdiff_t>((sorted.size() - 1) * percent / 100);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

uint64_t Divergence::same_top() const {
  return static_cast<uint64_t>(std::ranges::count_if(rows, &RowDivergence::same_top));
}

std::vector<size_t> Divergence::worst(size_t count) const {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    [&](size_t a, size_t b) { return rows[a].kl > rows[b].kl; });
  order.resize(count);
  return order;
}

std::string Divergence::text(uint32_t listed) const {
  const auto perplexity = [&](double sum) {
    return std::exp(sum / static_cast<double>(predicted));
  };
  const double share = static_cast<double>(same_top()) / static_cast<double>(rows.size());
  std::string text = fmt::format(
      "KL mean      {:.3e} nats\n"
      "KL median    {:.3e}\n"
      "KL 99 %      {:.3e}\n"
      "KL largest   {:.3e}\n"
      "same top-1   {:.4f} % ({} of {})\n"
      "perplexity   {:.4f}, against {:.4f}\n"
      "windows      {} of {} tokens, of the text's {}\n"
      "seconds      {:.1f}\n",
      mean(), percentile(50), percentile(99), percentile(100), 100 * share, same_top(), rows.size(),
      perplexity(nats), perplexity(against_nats), windows, window, text_tokens, seconds);
  for (const size_t at : worst(listed)) {
    const RowDivergence& row = rows[at];
    text += fmt::format(
        "window {:>4}, position {:>6}: KL {:.3e}, likeliest {} ({:.3f}) and {} ({:.3f})\n",
        at / window, at % window, row.kl, row.top, row.share, row.against_top, row.against_share);
  }
  return text;
}

std::string Divergence::json(const tools::LocalModel& first, const tools::LocalModel& second,
                             uint32_t listed) const {
  const auto perplexity = [&](double sum) {
    return std::exp(sum / static_cast<double>(predicted));
  };
  auto positions = tools::Json::array();
  for (const size_t at : worst(listed)) {
    const RowDivergence& row = rows[at];
    positions.push_back({{"window", at / window},
                         {"position", at % window},
                         {"kl", row.kl},
                         {"top", row.top},
                         {"top_probability", row.share},
                         {"against_top", row.against_top},
                         {"against_top_probability", row.against_share}});
  }
  return tools::json_text(
      {{"model", first.info().id},
       {"against", second.info().id},
       {"fingerprint", first.info().fingerprint},
       {"against_fingerprint", second.info().fingerprint},
       {"kl_mean", mean()},
       {"kl_median", percentile(50)},
       {"kl_99", percentile(99)},
       {"kl_largest", percentile(100)},
       {"worst", positions},
       {"top1_agreement", static_cast<double>(same_top()) / static_cast<double>(rows.size())},
       {"positions", rows.size()},
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
    result.rows.push_back(*apart);
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

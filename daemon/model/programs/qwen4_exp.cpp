#include "daemon/model/programs/qwen4_exp.h"

#include "daemon/model/programs/blocks.h"

namespace atlas::model {

using plan::Groups;
using plan::RowDomain;
using plan::StepBuilder;
using plan::Value;

namespace {

/// One step's program while it is written. Streams are [m, streams * hidden], stream after stream.
class Qwen4Exp {
 public:
  Qwen4Exp(const ModelConfig& config, uint32_t drafts)
      : c_(config),
        drafts_(drafts),
        streams_(config.streams->count),
        wide_(uint64_t{config.streams->count} * config.hidden) {}

  plan::StepProgram write() && {
    const Rows rows(step_, RowDomain::kRows);
    const Value x = trunk(rows);
    head(rows, x);
    if (drafts_ != 0) draft(rows, x);
    return std::move(step_).take();
  }

 private:
  // ---- The trunk
  // ---------------------------------------------------------------------------------

  /// All streams after the last layer, before the final mixer.
  Value trunk(const Rows& rows) {
    const Value x = rows.value("streams", wide_);
    const Value embedding = rows.value("embedding", c_.hidden);
    if (c_.ngram) ask_for_ngrams(*c_.ngram);
    step_.embed({c_.prefix + ".embed_tokens", c_.vocab, c_.hidden}, embedding);
    repeat(embedding, x);
    for (uint32_t layer = 0; layer < c_.layers; ++layer) {
      const std::string module = fmt::format("{}.layers.{}", c_.prefix, layer);
      if (c_.ngram && c_.ngram->layer == layer) {
        step_.scope(fmt::format("layers.{}.ple", layer));
        ngrams(rows, module + ".ple", x);
      }
      decoder_layer(rows, module, fmt::format("layers.{}", layer), layer, c_.mixers[layer], x);
    }
    return x;
  }

  /// Mixer of positions, then experts; each takes the gated mean of the streams and is injected
  /// into all of them.
  void decoder_layer(const Rows& rows, const std::string& module, const std::string& name,
                     uint32_t layer, Mixer mixer, Value x) {
    const Value u = rows.value("u", c_.hidden), y = rows.value("y", c_.hidden);
    step_.scope(name + ".mixer");
    Value c = collect(rows, module + ".attn_hyper_connection", x, true, u);
    if (mixer == Mixer::kDelta) {
      delta_block(step_, c_, rows, module + ".linear_attn", layer, u, {y});
    } else {
      attention_block(step_, c_, rows, module + ".self_attn", layer, u, {y});
    }
    step_.add("inject", plan::StreamInjectOp{c, y, x, streams_});
    step_.scope(name + ".mlp");
    c = collect(rows, module + ".mlp_hyper_connection", x, true, u);
    mlp_block(step_, c_, rows, module + ".mlp", true, u, {y});
    step_.add("inject", plan::StreamInjectOp{c, y, x, streams_});
  }

  /// u = mean over the streams of m * N, N the normed streams, m = sigmoid(U silu(D N / streams)).
  /// Returns B N, from which the injection's factors follow (nothing without `inject`).
  Value collect(const Rows& rows, const std::string& module, Value x, bool inject, Value u) {
    const uint32_t rank = c_.streams->low_rank;
    const Value normed = rows.value("streams_normed", wide_);
    const Value low = rows.value("low_rank", uint64_t{rank} + streams_);
    const Value gate = rows.value("streams_gate", wide_);
    const Value down = low.columns(0, rank), factors = low.columns(rank, streams_);
    const Groups by_stream{streams_, c_.hidden, c_.hidden};
    step_.add("norm", plan::RmsNormOp{x, norm_gain(c_, module + ".hc_norm.weight", wide_),
                                      c_.rms_eps, normed, by_stream, by_stream});
    if (inject) {
      step_.linear(normed,
                   {{module + ".input_mix_weight_down", rank, wide_},
                    {module + ".block_inject_weight", streams_, wide_}},
                   low);
    } else {
      step_.linear(normed, {{module + ".input_mix_weight_down", rank, wide_}}, down);
    }
    step_.add("silu", plan::SiluOp{down, down, 1.0f / static_cast<float>(streams_)});
    step_.linear(down, {{module + ".input_mix_weight_up", wide_, rank}}, gate);
    step_.add("mix", plan::StreamMixOp{gate, normed, u, streams_});
    return factors;
  }

  void repeat(Value one, Value x) {
    step_.add("repeat", plan::CopyGroupsOp{
                            one, x, {streams_, c_.hidden, 0}, {streams_, c_.hidden, c_.hidden}});
  }

  /// Before anything else, as the host takes its time.
  void ask_for_ngrams(const NgramConfig& n) {
    step_.scope("ngrams");
    step_.add("keys", plan::NgramKeysOp{n.embed_dim, n.ngram_size, n.heads(), n.eos_id,
                                        n.multipliers, n.head_sizes, n.head_offsets});
    step_.scope("");
  }

  /// Hashed n-grams: rows e of the table make a key for each stream and one value; how well the key
  /// meets the stream gates the value, and a dilated convolution over positions joins it.
  void ngrams(const Rows& rows, const std::string& module, Value x) {
    const NgramConfig& n = *c_.ngram;
    const Value e = rows.value("ngram", n.embed_dim);
    const Value key = rows.value("ngram_key", wide_), query = rows.value("streams_normed", wide_);
    const Value value = rows.value("y", c_.hidden);
    const Value gated = rows.value("streams_gate", wide_);
    const Groups by_stream{streams_, c_.hidden, c_.hidden};
    const auto norm = [&](const char* name, Value from, Value to) {
      step_.add(name, plan::RmsNormOp{
                          from, norm_gain(c_, fmt::format("{}.{}.weight", module, name), wide_),
                          c_.rms_eps, to, by_stream, by_stream});
    };
    step_.add("rows", plan::NgramRowsOp{e});
    step_.linear(e, {{module + ".key_proj", wide_, n.embed_dim}}, key);
    step_.linear(e, {{module + ".value_proj", c_.hidden, n.embed_dim}}, value);
    norm("norm_key", key, key);
    norm("norm_query", x, query);
    step_.add("gate", plan::NgramGateOp{key, query, value, gated, streams_});
    norm("norm_conv", gated, key);
    step_.add("conv",
              plan::NgramConvOp{.in = key,
                                .gated = gated,
                                .x = x,
                                .weight = {module + ".conv1d.weight", wide_ * n.conv_kernel},
                                .taps = n.conv_kernel,
                                .dilation = n.ngram_size});
  }

  /// Logits of the rows that need them; there is no norm between the final mixer and the head.
  void head(const Rows&, Value x) {
    const Rows last(step_, RowDomain::kLogitRows);
    step_.scope("head");
    const Value streams = last.value("streams", wide_);
    step_.select_rows(x, streams);
    step_.sample(logits(last, c_.prefix + ".hyper_connection_mixer", streams));
  }

  Value logits(const Rows& rows, const std::string& mixer, Value x) {
    const Value h = rows.value("u", c_.hidden), result = rows.value("logits", c_.vocab);
    collect(rows, mixer, x, false, h);
    step_.linear(
        h, {{c_.tie_embeddings ? c_.prefix + ".embed_tokens" : "lm_head", c_.vocab, c_.hidden}},
        result);
    return result;
  }

  // ---- The draft head
  // ----------------------------------------------------------------------------

  /// Entry p takes the trunk's streams at position p and the token at p + 1, and proposes the token
  /// at p + 2. First for all rows of the step, so that the head's own cache follows the true
  /// tokens; then on from the last one that counts, each time from the head's own streams and its
  /// proposal.
  void draft(const Rows& rows, Value x) {
    step_.scope("draft.0");
    step_.add("begin", plan::DraftBeginOp{});
    const Value y = rows.value("draft_streams", wide_);
    enter_draft(rows, x, true, y);
    decoder_layer(rows, "mtp.layers.0", "draft.0", c_.layers, Mixer::kSparseAttention, y);
    const Rows one(step_, RowDomain::kDraftRows);
    const Value streams = one.value("streams", wide_);
    step_.scope("draft.0");
    step_.select_rows(y, streams);
    step_.draft_sample(logits(one, "mtp.hyper_connection_mixer", streams));
    for (uint32_t i = 1; i < drafts_; ++i) {
      const std::string name = fmt::format("draft.{}", i);
      step_.scope(name);
      const Value next = one.value("draft_streams", wide_);
      enter_draft(one, streams, false, next);
      decoder_layer(one, "mtp.layers.0", name, c_.layers, Mixer::kSparseAttention, next);
      step_.scope(name);
      const Groups whole{1, static_cast<uint32_t>(wide_), static_cast<uint32_t>(wide_)};
      step_.add("go_on", plan::CopyGroupsOp{next, streams, whole, whole});
      step_.draft_sample(logits(one, "mtp.hyper_connection_mixer", streams));
    }
  }

  /// y[s] = fc_hidden norm(x)[s] + fc_embedding norm(embedding); the norm of x is over all streams.
  void enter_draft(const Rows& rows, Value x, bool next, Value y) {
    const Value embedding = rows.value("embedding", c_.hidden), normed = rows.value("u", c_.hidden);
    const Value projected = rows.value("y", c_.hidden);
    const Value streams = rows.value("streams_normed", wide_);
    step_.add("embed",
              plan::EmbedOp{{c_.prefix + ".embed_tokens", c_.vocab, c_.hidden}, embedding, next});
    step_.rms_norm(embedding, norm_gain(c_, "mtp.pre_fc_norm_embedding.weight", c_.hidden),
                   c_.rms_eps, normed);
    step_.linear(normed, {{"mtp.fc_embedding", c_.hidden, c_.hidden}}, projected);
    step_.rms_norm(x, norm_gain(c_, "mtp.pre_fc_norm_hidden.weight", wide_), c_.rms_eps, streams);
    repeat(projected, y);
    for (uint32_t s = 0; s < streams_; ++s) {
      step_.linear_add(streams.columns(s * uint64_t{c_.hidden}, c_.hidden),
                       {"mtp.fc_hidden", c_.hidden, c_.hidden},
                       y.columns(s * uint64_t{c_.hidden}, c_.hidden));
    }
  }

  const ModelConfig& c_;
  const uint32_t drafts_, streams_;
  const uint64_t wide_;
  StepBuilder step_;
};

}  // namespace

plan::StepProgram qwen4_exp_program(const ModelConfig& config, uint32_t drafts) {
  return Qwen4Exp(config, drafts).write();
}

}  // namespace atlas::model

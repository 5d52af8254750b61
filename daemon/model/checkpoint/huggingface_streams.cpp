// The keys that only qwen4_exp has: residual streams, the indexer of sparse attention, hashed
// n-gram embeddings and the draft head.
#include <algorithm>

#include "daemon/model/checkpoint/huggingface_parts.h"
#include "daemon/model/checkpoint/ngram_hash.h"

namespace atlas::model {
namespace {

constexpr uint32_t kMaxStreams = 64;
constexpr uint32_t kMaxWidth = 1u << 20;
constexpr uint32_t kMaxHeads = 4096;
constexpr uint64_t kMaxHeadRows = 1ull << 32;
constexpr uint32_t kMaxNgramHeads = 1024;

uint32_t number(ObjectReader& config, std::string_view key, std::optional<uint64_t> fallback,
                uint32_t min, uint32_t max) {
  return static_cast<uint32_t>(config.integer(key, fallback, min, max));
}

Status read_indexer(ObjectReader& config, const RopeSettings& rope, ModelConfig* out) {
  IndexerConfig indexer;
  indexer.heads = number(config, "indexer_n_heads", std::nullopt, 1, kMaxHeads);
  number(config, "indexer_kv_heads", std::nullopt, 1, 1);
  indexer.head_dim = number(config, "indexer_head_dim", std::nullopt, 1, kMaxWidth);
  indexer.budget = number(config, "indexer_budget", std::nullopt, 1, 1u << 28);
  indexer.ratio = number(config, "indexer_compress_ratio", std::nullopt, 1, 1u << 16);
  ATLAS_RETURN_IF_ERROR(config.status());
  if (indexer.budget % indexer.ratio != 0) {
    return invalid_argument(
        "{}: key 'indexer_budget' is {}; expected a multiple of indexer_compress_ratio, {}",
        config.path(), indexer.budget, indexer.ratio);
  }
  if (rope.rotary_dim > indexer.head_dim) {
    return invalid_argument(
        "{}: key 'indexer_head_dim' is {}; expected at least the {} elements that rotate",
        config.path(), indexer.head_dim, rope.rotary_dim);
  }
  out->indexer = indexer;
  return {};
}

/// ple_layer_ids counts from one. Nothing: no layer has n-gram embeddings.
Result<std::optional<uint32_t>> ngram_layer(ObjectReader& config, const ModelConfig& out) {
  std::vector<uint32_t> ids = config.ids("ple_layer_ids");
  ATLAS_RETURN_IF_ERROR(config.status());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.empty()) return std::optional<uint32_t>();
  if (ids.size() > 1) {
    return unimplemented("{}: ple_layer_ids names {} layers; Atlas runs n-gram embeddings in one",
                         config.path(), ids.size());
  }
  if (ids[0] < 1 || ids[0] > out.layers) {
    return invalid_argument("{}: ple_layer_ids names layer {}; expected 1 to {}, counted from one",
                            config.path(), ids[0], out.layers);
  }
  if (out.mixers[ids[0] - 1] != Mixer::kDelta) {
    return invalid_argument(
        "{}: ple_layer_ids names layer {} (counted from one), which attends; expected a "
        "linear_attention layer",
        config.path(), ids[0]);
  }
  return std::optional<uint32_t>(ids[0] - 1);
}

Status read_ngram(ObjectReader& config, uint32_t layer, ModelConfig* out) {
  NgramConfig ngram;
  ngram.layer = layer;
  ngram.embed_dim = number(config, "ple_embed_dim", out->hidden, 1, kMaxWidth);
  ngram.conv_kernel = number(config, "ple_conv_kernel_size", 4, 1, 64);
  ngram.ngram_size = number(config, "ngram_size", 3, 2, 4);
  ngram.heads_per_ngram = number(config, "heads_per_ngram", 8, 1, kMaxNgramHeads);
  NgramSeed seed;
  // The released config.json has no seed; with another one every row would be a wrong one.
  seed.seed = config.integer("seed", 1234, 0, UINT64_MAX);
  seed.vocab = out->vocab;
  seed.size_base = config.integer("ngram_vocab_size_base", 20'000'000, 2, kMaxHeadRows);
  seed.divisible_by =
      config.integer("make_ngram_vocab_size_divisible_by", 128, 1, uint64_t{1} << 24);
  // The released number; transformers' 512 is that of no checkpoint. The tensors have the last say.
  ngram.shards = number(config, "split_ngram_parts", 128, 1, 1u << 20);
  const std::vector<uint32_t> eos = config.ids("eos_token_id");
  ATLAS_RETURN_IF_ERROR(config.status());
  if (ngram.embed_dim % ngram.heads() != 0) {
    return invalid_argument(
        "{}: key 'ple_embed_dim' is {}; expected a multiple of the {} n-gram heads "
        "((ngram_size - 1) * heads_per_ngram)",
        config.path(), ngram.embed_dim, ngram.heads());
  }
  if (eos.empty()) {
    config.wrong("eos_token_id", "a token id, which the n-gram embeddings of ple_layer_ids need");
    return config.status();
  }
  // A list: the first is the one that cuts windows, as in transformers.
  ngram.eos_id = eos.front();
  if (ngram.eos_id >= out->vocab) {
    return invalid_argument("{}: the end token {} is outside the vocabulary of {}", config.path(),
                            ngram.eos_id, out->vocab);
  }
  const Status derived = derive_ngram_constants(seed, &ngram);
  if (!derived.ok()) return derived.with_context(config.path());
  out->ngram = std::move(ngram);
  return {};
}

}  // namespace

Status read_stream_parts(ObjectReader& config, const RopeSettings& rope, ModelConfig* out) {
  StreamsConfig streams;
  streams.count = number(config, "hc_count", 4, 2, kMaxStreams);
  streams.low_rank = number(config, "hc_lowrank", 320, 1, kMaxWidth);
  const uint32_t draft_layers = number(config, "mtp_num_hidden_layers", 0, 0, 1024);
  ATLAS_RETURN_IF_ERROR(config.status());
  out->streams = streams;
  out->draft_head = draft_layers > 0;
  const bool sparse = std::find(out->mixers.begin(), out->mixers.end(), Mixer::kSparseAttention) !=
                      out->mixers.end();
  if (sparse || out->draft_head) ATLAS_RETURN_IF_ERROR(read_indexer(config, rope, out));
  ATLAS_ASSIGN_OR_RETURN(const std::optional<uint32_t> layer, ngram_layer(config, *out));
  return layer ? read_ngram(config, *layer, out) : Status();
}

}  // namespace atlas::model

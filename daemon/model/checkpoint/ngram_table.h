// Where the rows of an n-gram table lie in its files, for a reader that fetches rows one by one and
// never maps the table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/model/checkpoint/checkpoint.h"

namespace atlas::model {

/// A run of rows, `row_bytes` each, from byte `offset` of the file `path`.
struct NgramShard {
  std::string path;
  uint64_t offset = 0;
  uint64_t rows = 0;
};

/// The table of ModelConfig::ngram. All sizes have been checked: the rows of each shard lie inside
/// its file, and together they are `rows`.
struct NgramTable {
  struct Place {
    uint32_t shard = 0;   ///< index into `shards`
    uint64_t offset = 0;  ///< of the row, in the shard's file
  };

  AtlasDType dtype = ATLAS_BF16;  ///< bf16, f16, f32 or f8_e4m3; i16 for a trellis
  float scale = 1;                ///< every element is multiplied by it; not 1 only for f8_e4m3
  uint32_t row_width = 0;         ///< elements
  uint64_t row_bytes = 0;
  uint64_t rows = 0;
  uint64_t shard_rows = 0;  ///< of every shard but the last, which may have fewer
  std::vector<NgramShard> shards;
  uint32_t trellis_bits = 0;           ///< a weight, if rows are EXL3 trellises; else 0
  std::vector<uint64_t> head_offsets;  ///< of a trellis: the first row of each head
  std::vector<float> head_bias;        ///< of a trellis: [heads, row_width], added to its rows

  /// Where row `row`, which must be less than `rows`, lies.
  Place locate(uint64_t row) const {
    const uint64_t shard = row / shard_rows;
    return {static_cast<uint32_t>(shard), shards[shard].offset + row % shard_rows * row_bytes};
  }
};

/// The module of the table's tensors: "<prefix>.layers.<L>.ple.ple_embedding.ngram_embedding".
/// `config` has an ngram.
std::string ngram_module(const ModelConfig& config);

/// Compares the multipliers, head sizes and head offsets that the checkpoint stores, as far as it
/// stores them, with those of `config`: an engine with others would read wrong rows and answer
/// worse without any other sign. Errors: kInvalidArgument with tensor, found and expected value.
Status check_ngram_constants(const Checkpoint& checkpoint, const ModelConfig& config);

/// Finds the table of `config`, which has an ngram: shard_0.weight, shard_1.weight, ... or one
/// `weight`, each [rows, row_width]; in f8_e4m3 with one `weight_scale`. Or, as EXL3,
/// shard_0.trellis
/// ... or one `trellis`, each i16 [rows, 1 + 10 bits], with one `head_bias` [heads, row_width].
/// Calls check_ngram_constants. Reads none of the table's data.
/// Errors: kInvalidArgument with tensor, found and expected; kUnimplemented for another type.
Result<NgramTable> ngram_table(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace atlas::model

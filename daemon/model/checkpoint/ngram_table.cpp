// Only headers, the three constant tensors and the scale are looked at: the table of the released
// model has 47.7 to 95.4 GiB.
#include "daemon/model/checkpoint/ngram_table.h"

#include <fmt/ranges.h>

#include <cmath>
#include <span>

#include "daemon/model/checkpoint/dtype.h"
#include "daemon/model/checkpoint/float_values.h"
#include "kernels/common/exl3.h"

namespace atlas::model {
namespace {

Status check_constant(const Checkpoint& checkpoint, const std::string& name,
                      const std::vector<uint64_t>& expected) {
  const TensorInfo* tensor = checkpoint.find(name);
  if (tensor == nullptr) return {};
  if (tensor->dtype != ATLAS_I64 || tensor->rank != 1 || tensor->dims[0] != expected.size()) {
    return invalid_argument("tensor '{}' is {} [{}]; expected i64 [{}]", name,
                            dtype_name(tensor->dtype), fmt::join(tensor->shape(), ", "),
                            expected.size());
  }
  std::vector<int64_t> values(expected.size());
  ATLAS_RETURN_IF_ERROR(checkpoint.read(*tensor, 0, std::as_writable_bytes(std::span(values))));
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t found = values[i];
    if (found < 0 || static_cast<uint64_t>(found) != expected[i]) {
      return invalid_argument(
          "tensor '{}' has {} at {}; expected {}, which follows from seed, vocab_size and "
          "ngram_vocab_size_base of config.json: one of the two is not of this model",
          name, found, i, expected[i]);
    }
  }
  return {};
}

/// The one factor of an f8_e4m3 table; without it every element would be thousands of times too
/// large, so that its absence is an error.
Result<float> read_scale(const Checkpoint& checkpoint, const std::string& module) {
  const std::string name = module + ".weight_scale";
  const TensorInfo* tensor = checkpoint.find(name);
  if (tensor == nullptr) {
    return invalid_argument("the n-gram table '{}' is f8_e4m3, but there is no '{}'", module, name);
  }
  const bool one = tensor->rank == 0 || (tensor->rank == 1 && tensor->dims[0] == 1);
  std::vector<std::byte> bytes(one ? tensor->bytes : 0);
  ATLAS_RETURN_IF_ERROR(checkpoint.read(*tensor, 0, bytes));
  const std::vector<float> values = float_values(tensor->dtype, bytes);
  if (values.size() != 1) {
    return invalid_argument("tensor '{}' is {} [{}]; expected one bf16, f16 or f32", name,
                            dtype_name(tensor->dtype), fmt::join(tensor->shape(), ", "));
  }
  if (!std::isfinite(values[0]) || values[0] <= 0) {
    return invalid_argument("tensor '{}' is {}; expected a finite number above 0", name, values[0]);
  }
  return values[0];
}

/// What a trellis adds to each row of a head.
Result<std::vector<float>> read_head_bias(const Checkpoint& checkpoint, const std::string& module,
                                          const NgramConfig& ngram) {
  const std::string name = module + ".head_bias";
  const TensorInfo* tensor = checkpoint.find(name);
  if (tensor == nullptr) {
    return invalid_argument("the n-gram table '{}' is a trellis, but there is no '{}'", module,
                            name);
  }
  const bool fits =
      tensor->rank == 2 && tensor->dims[0] == ngram.heads() && tensor->dims[1] == ngram.row_width();
  std::vector<std::byte> bytes(fits ? tensor->bytes : 0);
  ATLAS_RETURN_IF_ERROR(checkpoint.read(*tensor, 0, bytes));
  std::vector<float> values = float_values(tensor->dtype, bytes);
  if (values.size() != uint64_t{ngram.heads()} * ngram.row_width()) {
    return invalid_argument("tensor '{}' is {} [{}]; expected f16, bf16 or f32 [{}, {}]", name,
                            dtype_name(tensor->dtype), fmt::join(tensor->shape(), ", "),
                            ngram.heads(), ngram.row_width());
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return invalid_argument("tensor '{}' is {} at {}; expected finite numbers", name, values[i],
                              i);
    }
  }
  return values;
}

/// A trellis has a word of scale and 10 words for each bit a weight; `bits` is 0 until a first one
/// was seen.
Status check_trellis(const TensorInfo& tensor, const std::string& name, uint32_t width,
                     uint32_t* bits) {
  const uint64_t words = tensor.rank == 2 ? tensor.dims[1] : 0;
  const uint64_t found = words % 10 == 1 ? words / 10 : 0;
  if (tensor.dtype != ATLAS_I16 || width != kernels::kExl3RowElements || found < 1 || found > 8 ||
      (*bits != 0 && found != *bits)) {
    return invalid_argument(
        "tensor '{}' is {} [{}]; a trellis of rows of {} elements is i16 [rows, 1 + 10 * bits]{} "
        "(and exists for rows of {} elements only)",
        name, dtype_name(tensor.dtype), fmt::join(tensor.shape(), ", "), width,
        *bits != 0 ? fmt::format(" with {} bits, as the first one", *bits) : "",
        kernels::kExl3RowElements);
  }
  *bits = static_cast<uint32_t>(found);
  return {};
}

/// Adds one tensor of the table. All but the last have the rows of the first.
Status add_shard(const Checkpoint& checkpoint, const std::vector<std::string>& files,
                 const std::string& name, bool last, NgramTable* table) {
  const TensorInfo* tensor = checkpoint.find(name);
  if (tensor == nullptr) return invalid_argument("there is no tensor '{}'", name);
  const bool first = table->shards.empty();
  if (first) table->dtype = tensor->dtype;
  if (name.ends_with(".trellis")) {
    ATLAS_RETURN_IF_ERROR(check_trellis(*tensor, name, table->row_width, &table->trellis_bits));
  } else if (tensor->dtype != ATLAS_BF16 && tensor->dtype != ATLAS_F16 &&
             tensor->dtype != ATLAS_F32 && tensor->dtype != ATLAS_F8_E4M3) {
    return unimplemented("tensor '{}' is {}; Atlas reads n-gram tables of bf16, f16, f32, f8_e4m3",
                         name, dtype_name(tensor->dtype));
  }
  if (tensor->dtype != table->dtype) {
    return invalid_argument("tensor '{}' is {}; expected {}, as the first one", name,
                            dtype_name(tensor->dtype), dtype_name(table->dtype));
  }
  if (tensor->rank != 2 || tensor->dims[0] == 0 ||
      (table->trellis_bits == 0 && tensor->dims[1] != table->row_width)) {
    return invalid_argument("tensor '{}' is [{}]; expected rows of {} elements", name,
                            fmt::join(tensor->shape(), ", "), table->row_width);
  }
  const uint64_t rows = tensor->dims[0];
  if (first) {
    table->shard_rows = rows;
    table->row_bytes = tensor->bytes / rows;
  } else if (rows > table->shard_rows || (rows < table->shard_rows && !last)) {
    return invalid_argument("tensor '{}' has {} rows; expected {}{}, as the first one", name, rows,
                            last ? "at most " : "", table->shard_rows);
  }
  table->rows += rows;
  table->shards.push_back({files[tensor->file], tensor->offset, rows});
  return {};
}

}  // namespace

std::string ngram_module(const ModelConfig& config) {
  return fmt::format("{}.layers.{}.ple.ple_embedding.ngram_embedding", config.prefix,
                     config.ngram->layer);
}

Status check_ngram_constants(const Checkpoint& checkpoint, const ModelConfig& config) {
  const NgramConfig& ngram = *config.ngram;
  const std::string module =
      fmt::format("{}.layers.{}.ple.ple_embedding", config.prefix, ngram.layer);
  ATLAS_RETURN_IF_ERROR(
      check_constant(checkpoint, module + ".layer_multipliers", ngram.multipliers));
  ATLAS_RETURN_IF_ERROR(
      check_constant(checkpoint, module + ".ngram_heads_vocab_sizes", ngram.head_sizes));
  ATLAS_RETURN_IF_ERROR(
      check_constant(checkpoint, module + ".ngram_heads_offsets", ngram.head_offsets));
  // EXL3 keeps them beside the table.
  const std::string table = ngram_module(config);
  ATLAS_RETURN_IF_ERROR(
      check_constant(checkpoint, table + ".layer_multipliers", ngram.multipliers));
  ATLAS_RETURN_IF_ERROR(check_constant(checkpoint, table + ".head_vocab_sizes", ngram.head_sizes));
  return check_constant(checkpoint, table + ".head_offsets", ngram.head_offsets);
}

Result<NgramTable> ngram_table(const Checkpoint& checkpoint, const ModelConfig& config) {
  ATLAS_RETURN_IF_ERROR(check_ngram_constants(checkpoint, config));
  const NgramConfig& ngram = *config.ngram;
  const std::string module = ngram_module(config);
  const std::vector<std::string> files = checkpoint.files();
  NgramTable table;
  table.row_width = ngram.row_width();
  const bool trellis = checkpoint.find(module + ".trellis") != nullptr ||
                       checkpoint.find(module + ".shard_0.trellis") != nullptr;
  const char* part = trellis ? "trellis" : "weight";
  if (ngram.shards == 0) {
    ATLAS_RETURN_IF_ERROR(
        add_shard(checkpoint, files, fmt::format("{}.{}", module, part), true, &table));
  }
  for (uint32_t i = 0; i < ngram.shards; ++i) {
    ATLAS_RETURN_IF_ERROR(add_shard(checkpoint, files,
                                    fmt::format("{}.shard_{}.{}", module, i, part),
                                    i + 1 == ngram.shards, &table));
  }
  if (table.rows != ngram.rows) {
    return invalid_argument(
        "the n-gram table '{}' has {} rows in {} tensors; expected {} by the configuration", module,
        table.rows, table.shards.size(), ngram.rows);
  }
  if (trellis) {
    table.head_offsets = ngram.head_offsets;
    ATLAS_ASSIGN_OR_RETURN(table.head_bias, read_head_bias(checkpoint, module, ngram));
  }
  if (table.dtype == ATLAS_F8_E4M3) {
    ATLAS_ASSIGN_OR_RETURN(table.scale, read_scale(checkpoint, module));
  }
  return table;
}

}  // namespace atlas::model

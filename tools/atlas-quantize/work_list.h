// What becomes of each tensor of a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "tools/atlas-quantize/source.h"

namespace atlas::quantize {

enum class Format { kBf16, kFp8, kNvfp4, kExl3 };
Result<Format> parse_format(const std::string& name);
std::string format_name(Format format);

struct Item {
  std::string module;  // "model.layers.0.mlp.up_proj", or a tensor's whole name if it is carried
  const model::TensorInfo* tensor = nullptr;
  bool quantized = false;
  std::string kept_because;  // why a matrix is carried, for the report; empty for vectors
  uint32_t layer = ~0u;      // ~0: of no layer
  uint64_t n = 0, k = 0;
  double bits = 0;  // K of the trellis; 0 for other formats
  uint64_t weights() const { return n * k; }
};

struct BitTargets {
  double bits = 4;         // mean K of the layers' linears, 1..8; fractions are mixed
  uint32_t head_bits = 6;  // of lm_head; 16 leaves it in bf16
};

/// Errors: kInvalidArgument for bits outside of 1..8, and of the head other than 16.
Status check_targets(const BitTargets& targets);

/// All tensors, layer after layer. A linear is quantized unless it is of a kind whose errors cost
/// more than its bytes: embedding, router, shared expert's gate, gated residual weights,
/// n-gram tables and their projections, indexer, and anything but a matrix; or the format cannot
/// hold it (`kept_because`). exl3 alone quantizes the output head, from the embedding if both are
/// one tensor. Errors: those of check_targets.
Result<std::vector<Item>> make_work_list(const Source& source, Format format,
                                         const BitTargets& targets);

/// Spends `bits` a weight on the layers' linears: everyone gets its whole part, and what is left
/// goes one bit at a time to attention first, then to the rest, layers at the ends of the model
/// before those in its middle. Linears that one product or one kernel joins (gate and up, k and v)
/// get the same. Source of the order: exllamav3's conversion/allocation.py.
void allocate_bits(std::vector<Item>& items, double bits);

}  // namespace atlas::quantize

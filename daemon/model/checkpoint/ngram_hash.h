// The constants of hashed n-gram embeddings: multipliers from a seed, head sizes that are
// consecutive primes, and where each head's rows begin.
#pragma once

#include <cstdint>

#include "daemon/base/status.h"
#include "daemon/model/checkpoint/model_config.h"

namespace atlas::model {

/// What the constants are derived from.
struct NgramSeed {
  uint64_t seed = 1234;
  uint32_t vocab = 0;         ///< rows of the token embedding
  uint64_t size_base = 0;     ///< no head has fewer rows
  uint64_t divisible_by = 0;  ///< the table's rows are padded to a multiple
};

/// The next of the splitmix64 sequence after state `value`.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
uint64_t splitmix64(uint64_t value);

/// Fills multipliers, head_sizes, head_offsets and rows of `config` for the first n-gram layer of a
/// model. Takes well under a millisecond for the released size_base of 20,000,000.
/// Products multiplier * token id stay below 2^63. Errors: kInvalidArgument if numbers that the
/// caller bounded still give a table of more than 2^48 rows.
/// Source: transformers' Qwen4-Exp n-gram embedding; the released checkpoint stores equal values.
Status derive_ngram_constants(const NgramSeed& from, NgramConfig* config);

}  // namespace atlas::model

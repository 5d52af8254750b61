// LDLQ: rows of a weight are rounded one block after the other, and what a block's rounding gets
// wrong is made up for by those that follow.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tools/atlas-quantize/tensors.h"
#include "tools/atlas-quantize/viterbi.h"

namespace atlas::quantize {

/// Rounds one block of 16 rows, [16, width] each: what is aimed at, and what the codes decode to.
using RoundBlock = std::function<void(uint64_t block, const float* aims, float* decoded)>;

/// Columns [begin, begin + width) of `weight` [k, n] (16 divides k), from the last block of 16 rows
/// to the first: block i aims at W_i + sum over j > i of L_ji^T (W_j - decoded_j). `factor` is L of
/// `block_ldl`, null for plain rounding. Columns do not depend on each other.
/// Source: QuIP# and QTIP's BlockLDLQ.
void feed_back(const Matrix& weight, const Matrix* factor, uint64_t begin, uint64_t width,
               const RoundBlock& round);

/// A weight [k, n] as states of tiles.
struct TrellisWeight {
  Matrix decoded;                // [k, n]
  std::vector<uint32_t> packed;  // [k/16][n/16][8 * bits]
};

/// Rounds `weight` [k, n] (16 divides both) with `feed_back`; `threads` share the columns.
/// `on_part`, if it is not empty, hears which share of them is done, one call at a time.
TrellisWeight ldlq(const Matrix& weight, const Matrix* factor, const SearchTable& table,
                   uint32_t threads, const std::function<void(double)>& on_part = {});

/// Mean squared error of tiles, of a sample of at most `most` tiles of `weight` * `scale`, in the
/// weight's own units.
double sample_error(const Matrix& weight, double scale, const SearchTable& table, uint64_t most,
                    uint32_t threads);

}  // namespace atlas::quantize

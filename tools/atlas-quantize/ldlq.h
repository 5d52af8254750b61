// LDLQ: rows of a weight are rounded one block after the other, and what a block's rounding gets
// wrong is made up for by those that follow.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tools/atlas-quantize/tensors.h"
#include "tools/atlas-quantize/viterbi.h"

namespace atlas::quantize {

/// A weight [k, n] as states of tiles.
struct TrellisWeight {
  Matrix decoded;                // [k, n]
  std::vector<uint32_t> packed;  // [k/16][n/16][8 * bits]
};

/// Rounds `weight` [k, n] (16 divides both), from its last block of 16 rows to the first: block i
/// aims at W_i + sum over j > i of L_ji^T (W_j - decoded_j). `factor` is L of `block_ldl`, null for
/// plain rounding. Columns do not depend on each other: `threads` share them.
/// `on_part`, if it is not empty, hears which share of the columns is done, one call at a time.
/// Source: QuIP# and QTIP's BlockLDLQ.
TrellisWeight ldlq(const Matrix& weight, const Matrix* factor, const SearchTable& table,
                   uint32_t threads, const std::function<void(double)>& on_part = {});

/// Mean squared error of tiles, of a sample of at most `most` tiles of `weight` * `scale`, in the
/// weight's own units.
double sample_error(const Matrix& weight, double scale, const SearchTable& table, uint64_t most,
                    uint32_t threads);

}  // namespace atlas::quantize

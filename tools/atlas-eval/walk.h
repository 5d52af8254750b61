// One way to compute the logits of several sequences: cut into steps and beside neighbours as
// asked.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "daemon/engine/stepper.h"

namespace atlas::eval {

/// How a sequence's rows are cut into steps.
enum class Cut {
  kAll,        // as many rows a step as fit
  k64,         // prefill steps of 64 rows
  k7,          // of 7 rows: no multiple of anything
  k1,          // of one row
  kDecode,     // the first row by prefill, then decode steps
  kHalfDecode  // the first half by prefill, then decode steps
};
inline constexpr uint32_t kCuts = 6;
std::string_view cut_name(Cut cut);

/// Which sequences share a step.
enum class Batch {
  kAlone,     // each by itself
  kTogether,  // all, of unequal lengths
  kCrowd      // all in reverse order, with others between them
};
inline constexpr uint32_t kBatches = 3;
std::string_view batch_name(Batch batch);

using Sequences = std::vector<std::vector<engine::TokenId>>;

/// Sequences that a crowd puts between `sequences`: one before each, of other lengths.
constexpr uint32_t crowd_size(size_t sequences) { return static_cast<uint32_t>(2 * sequences); }

/// Gets the logits of consecutive rows: of which sequence, from which position, [rows, vocab].
using RowVisitor =
    std::function<Status(size_t sequence, uint32_t first, std::span<const float> logits)>;

/// Runs all rows of all sequences and shows their logits. The stepper needs `crowd_size` slots.
Status walk(engine::Stepper& stepper, const Sequences& sequences, Cut cut, Batch batch,
            const RowVisitor& visit);

}  // namespace atlas::eval

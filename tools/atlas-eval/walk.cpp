#include "tools/atlas-eval/walk.h"

#include <algorithm>

namespace atlas::eval {

using engine::StepRows;
using engine::TokenId;
using plan::StepKind;

std::string_view cut_name(Cut cut) {
  switch (cut) {
    case Cut::kAll:
      return "prefill of all rows";
    case Cut::k64:
      return "prefill of 64 rows";
    case Cut::k7:
      return "prefill of 7 rows";
    case Cut::k1:
      return "prefill of 1 row";
    case Cut::kDecode:
      return "decode";
    case Cut::kHalfDecode:
      return "half prefill, half decode";
  }
  return "unknown";
}

std::string_view batch_name(Batch batch) {
  switch (batch) {
    case Batch::kAlone:
      return "alone";
    case Batch::kTogether:
      return "unequal neighbours";
    case Batch::kCrowd:
      return "reversed in a crowd";
  }
  return "unknown";
}

namespace {

/// A sequence on its way through the steps.
struct Walker {
  const std::vector<TokenId>* tokens = nullptr;
  size_t sequence = 0;    // its number; of no meaning for a stranger
  bool stranger = false;  // its logits are nobody's business
  uint32_t done = 0;
  uint32_t left() const { return static_cast<uint32_t>(tokens->size()) - done; }
};

uint32_t prefill_chunk(Cut cut, const Walker& walker) {
  const auto length = static_cast<uint32_t>(walker.tokens->size());
  switch (cut) {
    case Cut::kAll:
      return length;
    case Cut::k64:
      return 64;
    case Cut::k7:
      return 7;
    case Cut::k1:
    case Cut::kDecode:
      return 1;
    case Cut::kHalfDecode:
      return std::max(1u, (length + 1) / 2);
  }
  return 1;
}

bool decodes(Cut cut, const Walker& walker) {
  if (cut != Cut::kDecode && cut != Cut::kHalfDecode) return false;
  return walker.done >= prefill_chunk(cut, walker);
}

/// One step of the walkers that decode, or of those that do not; those that took part move on.
Status step(engine::Stepper& stepper, std::vector<Walker>& walkers, Cut cut, bool decoding,
            const RowVisitor& visit) {
  std::vector<StepRows> rows;
  std::vector<Walker*> taking;
  uint32_t room = stepper.max_scored_rows();
  for (size_t slot = 0; slot < walkers.size(); ++slot) {
    Walker& walker = walkers[slot];
    const bool decode = decodes(cut, walker);
    if (walker.left() == 0 || room == 0 || decode != decoding) continue;
    uint32_t count = 1;
    if (!decode) {
      // Strangers are cut in another way, so that rows of the others stand at odd places.
      const uint32_t chunk = walker.stranger ? 3 : prefill_chunk(cut, walker);
      count = std::min({chunk, walker.left(), room});
    }
    room -= count;
    rows.push_back({static_cast<uint32_t>(slot),
                    std::span(*walker.tokens).subspan(walker.done, count), count,
                    walker.done == 0});
    taking.push_back(&walker);
  }
  if (rows.empty()) return {};
  const StepKind kind = decoding ? stepper.decode_kind() : StepKind::kPrefill;
  ATLAS_ASSIGN_OR_RETURN(const std::vector<float> logits, stepper.run(kind, rows));
  size_t offset = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t size = rows[i].tokens.size() * stepper.vocab();
    Walker& walker = *taking[i];
    if (!walker.stranger) {
      ATLAS_RETURN_IF_ERROR(
          visit(walker.sequence, walker.done, std::span(logits).subspan(offset, size)));
    }
    walker.done += static_cast<uint32_t>(rows[i].tokens.size());
    offset += size;
  }
  return {};
}

Status walk_together(engine::Stepper& stepper, std::vector<Walker> walkers, Cut cut,
                     const RowVisitor& visit) {
  const auto unfinished = [](const Walker& walker) {
    return !walker.stranger && walker.left() > 0;
  };
  while (std::any_of(walkers.begin(), walkers.end(), unfinished)) {
    ATLAS_RETURN_IF_ERROR(step(stepper, walkers, cut, false, visit));
    ATLAS_RETURN_IF_ERROR(step(stepper, walkers, cut, true, visit));
  }
  return {};
}

}  // namespace

Status walk(engine::Stepper& stepper, const Sequences& sequences, Cut cut, Batch batch,
            const RowVisitor& visit) {
  const uint32_t slots = stepper.generation().plan().limits.max_sequences;
  const size_t wanted = batch == Batch::kCrowd ? crowd_size(sequences.size()) : sequences.size();
  if (batch != Batch::kAlone && wanted > slots) {
    return invalid_argument("{} sequences at once, and engine.max_sequences is {}", wanted, slots);
  }
  if (batch == Batch::kAlone) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      ATLAS_RETURN_IF_ERROR(walk_together(stepper, {Walker{&sequences[i], i}}, cut, visit));
    }
    return {};
  }
  std::vector<Walker> walkers;
  for (size_t i = 0; i < sequences.size(); ++i) walkers.push_back({&sequences[i], i});
  Sequences strangers;
  if (batch == Batch::kCrowd) {
    std::reverse(walkers.begin(), walkers.end());
    for (size_t i = 0; i < sequences.size(); ++i) {
      // The same text backwards, and a little of it more each time.
      std::vector<TokenId> tokens(sequences[i].rbegin(), sequences[i].rend());
      tokens.resize(std::min(tokens.size(), 2 + 5 * i));
      strangers.push_back(std::move(tokens));
    }
    for (size_t i = 0; i < strangers.size(); ++i) {
      walkers.insert(walkers.begin() + static_cast<ptrdiff_t>(2 * i), {&strangers[i], 0, true});
    }
  }
  return walk_together(stepper, std::move(walkers), cut, visit);
}

}  // namespace atlas::eval

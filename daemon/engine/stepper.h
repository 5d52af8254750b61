// Stepper: runs single steps by hand and shows their logits. For evaluation tools and tests; a
// daemon's requests go through EngineCore.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/engine/generation.h"

namespace atlas::engine {

/// Rows that one sequence gives to a step. Its slot is its number.
struct StepRows {
  uint32_t slot = 0;
  std::span<const TokenId> tokens;
  uint32_t logit_rows = 0;  // the last rows, as many as this
  bool restart = false;     // the sequence begins anew with these rows
  /// The token after the rows where it is known: it is made the sampled one (which takes a logit
  /// row), so that a draft head goes on from it.
  std::optional<TokenId> next;
};

/// Runs a step whose entry is written, in its own way, to its end.
using StepLauncher = std::function<Status(const plan::Bucket&, Stream&)>;

/// Owns the generation's state while it lives: no engine may run on it. Not thread safe.
class Stepper {
 public:
  static Result<std::unique_ptr<Stepper>> create(std::shared_ptr<Generation> generation,
                                                 const std::shared_ptr<Device>& device);
  ~Stepper();  // its pages are free again
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  /// The kind of a step with one row a sequence.
  plan::StepKind decode_kind() const;
  /// Runs one step of `kind` and returns the logits of all logit rows, in order: [l, vocab].
  /// `launch` runs the step's records; without one the generation's steps do. Where rows of the
  /// n-gram table came too late the sequences begin again, with the same bits. Errors:
  /// kInvalidArgument if no bucket holds the rows or the pages are used up; kUnavailable if they
  /// come late every time.
  Result<std::vector<float>> run(plan::StepKind kind, std::span<const StepRows> rows,
                                 const StepLauncher& launch = {});

  /// The first `elements` floats of an activation ("draft logits") as the last step left them, rows
  /// without gaps. Errors: kInvalidArgument if the plan has none of this name or it is smaller.
  Result<std::vector<float>> activation(const std::string& name, uint64_t elements);

  /// All logits of one sequence, given in chunks of at most `chunk` rows: [tokens, vocab]. `visit`
  /// gets them chunk by chunk. A chunk of 1 runs as decode steps after the first row.
  Status run_sequence(std::span<const TokenId> tokens, uint32_t chunk,
                      const std::function<Status(uint32_t first, std::span<const float>)>& visit);

  uint32_t vocab() const { return generation_->plan().limits.vocab; }
  /// Rows of the largest step that gives logits for every row.
  uint32_t max_scored_rows() const;
  Generation& generation() { return *generation_; }

 private:
  Stepper(std::shared_ptr<Generation> generation, Stream stream)
      : generation_(std::move(generation)), stream_(std::move(stream)) {}

  struct Slot {
    uint32_t length = 0;
    std::vector<TokenId> tokens;  // of the positions so far
    std::vector<uint32_t> pages;
    uint32_t announced = 0;
    std::optional<uint32_t> anchor;
    uint32_t anchor_index = 0;
  };
  void give_back(Slot& slot);
  /// `run`, once; nothing if rows came too late.
  Result<std::optional<std::vector<float>>> run_once(plan::StepKind kind,
                                                     std::span<const StepRows> rows,
                                                     const StepLauncher& launch);
  /// Computes a slot's positions anew; false if rows came too late.
  Result<bool> begin_again(uint32_t slot, std::span<const TokenId> tokens);
  /// Writes a slot's share of a step; the anchor that it may fill, if it reaches one.
  Result<std::optional<uint32_t>> write_rows(const StepRows& rows, exec::EntryView& entry);
  std::shared_ptr<Generation> generation_;
  Stream stream_;
  std::vector<Slot> slots_;
};

}  // namespace atlas::engine

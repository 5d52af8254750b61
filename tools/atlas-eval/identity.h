// Are the logits of every position the same bits, however they are computed?
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/settings/settings.h"
#include "tools/atlas-eval/pairs.h"
#include "tools/atlas-eval/reference_rows.h"
#include "tools/atlas-eval/walk.h"

namespace atlas::eval {

struct IdentityOptions {
  std::vector<engine::TokenId> ids;  // to use; empty: `text`
  std::string text;                  // to use; empty: ids that spread over the vocabulary
  std::vector<uint32_t> threads;     // of the platform; fewer than two: not varied
  double seconds = 300;              // the whole comparison, loading included
};

/// One way to compute: values of the four factors.
struct Setting {
  uint32_t threads = 0;  // 0: as the settings have it
  bool graph = false;
  Cut cut = Cut::kAll;
  Batch batch = Batch::kAlone;
  std::string text() const;
};

struct Difference {
  Setting reference, setting;
  RowDifference row;
  std::string text() const;
};

struct Identity {
  std::vector<Setting> settings;  // that ran; the first is what the others were compared with
  std::vector<size_t> lengths;    // of the sequences
  uint64_t pairs = 0, pairs_of = 0;
  uint64_t rows = 0, logits = 0;  // compared
  uint64_t rows_different = 0;
  std::optional<Difference> first;
  bool graphs_differ = false;  // a graph gave other bits than its eager walk when it was checked
  std::string graphs;          // "on", or what became of which graphs
  double seconds = 0;

  bool identical() const { return rows_different == 0 && !graphs_differ; }
  bool complete() const { return pairs == pairs_of; }
  std::string text() const;
  std::string json() const;
};

/// Computes the logits of several unequal sequences in settings that cover all pairs of threads,
/// graph or eager, cut and batch, and compares each with the first. Lengths are chosen so that it
/// ends in time. Errors: what cannot be loaded or run; logits that are not finite.
Result<Identity> compare_identity(const settings::Settings& settings,
                                  const IdentityOptions& options);

/// Tokens of all sequences together, at most.
inline constexpr uint32_t kIdentityTokens = 320;
/// Sequences that are live at once.
inline constexpr uint32_t kIdentitySlots = 8;
/// Rows of a step that holds all sequences and their strangers.
inline constexpr uint32_t kIdentityStepRows = kIdentityTokens + 64;

}  // namespace atlas::eval

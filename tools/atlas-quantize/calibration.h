// Calibration: what the inputs of a model's linears look like over a text.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/atlas-quantize/hessian.h"
#include "tools/atlas-quantize/source.h"
#include "tools/common/local_model.h"

namespace atlas::quantize {

struct CalibrationOptions {
  std::string model, text_file;
  uint32_t tokens = 16384;             // of the text that are used, from its beginning
  uint32_t window = 1024;              // each begins from an empty state
  uint64_t memory_bytes = 4ull << 30;  // of moments at a time; more take another walk over the text
  uint32_t threads = 1;
};

/// Runs the source model over the text, operation by operation, and sums up the moments of the
/// inputs of the linears that are asked for. Linears with one input share them (q, k and v). The
/// engine keeps the inside of experts to itself, so that the router's choice and the experts'
/// hidden values are computed again here from the source's weights. An expert that few rows reach
/// gets `mix_moments`. The draft head's linears see its first pass, over true tokens.
class Calibration {
 public:
  static Result<std::unique_ptr<Calibration>> open(const CalibrationOptions& options,
                                                   const Source& source);
  ~Calibration();

  /// Linears that will be asked for, in order; whoever asks in this order causes the fewest walks.
  void expect(std::vector<std::string> modules);
  /// Moments of a linear's inputs; unknown for one that no operation uses. May walk over the text.
  Result<Moments> moments(const std::string& module);
  /// Before each walk; for progress.
  std::function<void(uint64_t linears)> on_walk;
  /// During one: the share of the text that is read.
  std::function<void(double share)> on_part;

 private:
  struct State;
  explicit Calibration(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace atlas::quantize

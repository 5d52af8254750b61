// What atlas-quantize says about its work: an entry a linear, and sums over the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "tools/atlas-quantize/work_list.h"
#include "tools/common/json.h"

namespace atlas::quantize {

/// One linear, or one matrix that was carried.
struct Entry {
  std::string module;
  uint64_t n = 0, k = 0;
  bool quantized = false;
  double trellis_bits = 0;     // K, of exl3
  double bits_per_weight = 0;  // everything the linear stores, over its weights without padding
  double relative_error = 0;   // root of sum (W - decoded)^2 / sum W^2
  double proxy_error = -1;     // tr(E H E^T) / tr(W H W^T); below 0: not known
  std::string hessian;         // exl3: "full", "mixed", "diagonal", "identity"
  uint64_t tokens = 0;         // calibration tokens that its Hessian is made of
  double seconds = 0;
  std::string note;
};
tools::Json entry_json(const Entry& entry);
/// Errors: kDataLoss for JSON that entry_json did not write.
Result<Entry> parse_entry(const std::string& json);

/// Root of the sum of squared differences over that of the squares; 0 for a weight of zeros.
double relative_error(const Matrix& weight, const Matrix& decoded);

/// How the new model predicts, beside its source.
struct Evaluation {
  std::string text_file;
  uint64_t tokens = 0;
  double perplexity = 0, source_perplexity = 0;
  double kl_mean = 0, kl_99 = 0, top1_agreement = 0;
};

struct Report {
  std::string model, format;
  tools::Json settings;  // of the job
  std::vector<Entry> entries;
  uint64_t file_bytes = 0;
  uint64_t resumed = 0;  // linears that an earlier run had finished
  double seconds = 0;
  std::vector<std::string> notes;
  bool evaluated = false;
  Evaluation evaluation;

  /// Bits of a quantized weight, over the weights without padding.
  double bits_per_quantized_weight() const;
  /// All bytes of the files over all weights.
  double bits_per_weight() const;
  std::string json() const;
  std::string text() const;
};

}  // namespace atlas::quantize

// One run of atlas-quantize: a model in, a checkpoint in another format and a report out.
#pragma once

#include <string>

#include "tools/atlas-quantize/calibration.h"
#include "tools/atlas-quantize/nvfp4.h"
#include "tools/atlas-quantize/report.h"
#include "tools/atlas-quantize/trellis.h"

namespace atlas::quantize {

struct JobOptions {
  std::string model, out;
  Format format = Format::kBf16;
  BitTargets bits;
  Nvfp4Scales nvfp4_scales = Nvfp4Scales::kMse;
  std::string nvfp4_scales_name = "mse";
  Codebook codebook = Codebook::kMul1;
  std::string codebook_name = "mul1";
  uint64_t seed = 0;               // of exl3's random signs
  bool error_feedback = true;      // exl3 with LDLQ
  CalibrationOptions calibration;  // of exl3 and nvfp4; no text: nothing is known of inputs
  std::string evaluation_text;     // for perplexity and KL in the report; empty: none
  uint32_t evaluation_tokens = 8192, evaluation_window = 512;
  uint32_t threads = 1;
  uint64_t shard_bytes = 4ull << 30;  // about, of a file of the new checkpoint
  bool quiet = false;                 // no progress on standard error
  uint64_t stop_after = 0;            // stops with kCancelled after so many linears; 0: at the end
};

/// Does the work into the folder `out`, which is made if it is absent. A folder that holds the
/// unfinished work of the same job is continued: linears that are finished are not made again.
/// Leaves config.json, the tokenizer's files, the weights and report.json.
/// Errors: kInvalidArgument for a folder with anything else in it, or the unfinished work of
/// another job, and for what the options ask in vain; kDataLoss for unusable weights.
Result<Report> run_job(const JobOptions& options);

}  // namespace atlas::quantize

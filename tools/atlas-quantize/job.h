// One run of atlas-quantize: a model in, a checkpoint in another format and a report out.
#pragma once

#include <string>

#include "tools/atlas-quantize/nvfp4.h"
#include "tools/atlas-quantize/report.h"

namespace atlas::quantize {

struct JobOptions {
  std::string model, out;
  Format format = Format::kBf16;
  BitTargets bits;
  Nvfp4Scales nvfp4_scales = Nvfp4Scales::kMse;
  std::string nvfp4_scales_name = "mse";
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

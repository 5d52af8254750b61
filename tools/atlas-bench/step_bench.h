// Where a step's time goes: each record of an operation over all layers, with the bytes that it
// reads. Operations are timed by themselves, record by record.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/atlas-bench/figures.h"
#include "tools/common/local_model.h"

namespace atlas::bench {

struct StepBenchOptions {
  std::vector<uint32_t> decode{1};  // sequences, one row each
  std::vector<uint32_t> prefill;    // rows of one sequence
  uint32_t context = 256;           // positions before the step
  double min_ms = 20;               // that each figure is measured for
};

/// Records of one operation ("layers.*.mlp.experts"), kernel and size.
struct RecordGroup {
  std::string operation, kernel;
  uint32_t launches = 0;
  double us = 0;            // that a launch adds to those before it of its operation
  uint64_t bytes_read = 0;  // of all of them, as the plan says; 0: not known
};

struct StepProfile {
  plan::Bucket bucket;
  uint32_t rows = 0;
  std::vector<RecordGroup> groups;  // the slowest first
  uint32_t launches = 0;            // of the whole step
  double us = 0;                    // of the whole step, without its begin and commit
};

/// Runs each step up to its commit once, then the records of each operation again and again, as a
/// graph where the device has graphs, then the commit. Few bytes are found in the device's cache.
Result<std::vector<StepProfile>> bench_steps(const tools::LocalModel& model,
                                             const StepBenchOptions& options);

std::string steps_text(const std::vector<StepProfile>& profiles);
std::string steps_json(const std::vector<StepProfile>& profiles, const tools::LocalModel& model,
                       const Machine& machine);

}  // namespace atlas::bench

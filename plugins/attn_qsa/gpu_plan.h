// Plans of plugin `qsa` for GPUs: kernels/common/gpu_qsa.h.
#pragma once

#include <cstdint>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::qsa {

/// Refuses an indexer that no GPU kernel serves.
void check_gpu_indexer(const AtlasIndexer& indexer, const char* platform);

/// Partial sums, lists and scores.
uint64_t gpu_workspace_bytes(const AtlasAttentionProblem& problem);

/// Emits the records of a problem that has been checked.
AtlasCode plan_gpu(const AtlasAttentionProblem& problem, const AtlasRecordSink* sink,
                   AtlasError* error);

}  // namespace atlas::qsa

// A product as both kinds of platform plan it, and what planning on GPUs needs of it.
#pragma once

#include <span>
#include <string>

#include "kernels/common/exl3_gpu.h"
#include "plugins/abi/atlas_plugin.h"
#include "plugins/quant_exl3/checkpoint.h"
#include "plugins/sdk/record.h"

namespace atlas::quant_exl3 {

/// What a product and a product of experts have in common; absent buffers are ATLAS_NO_BUFFER.
struct Product {
  Format format;
  uint32_t max_rows = 0, n = 0, k = 0;
  uint32_t experts = 0, busy = 1;  // busy: experts that have rows, at most
  uint32_t epilogue = ATLAS_EPILOGUE_NONE;
  uint64_t expert_bytes = 0, x_stride = 0, y_stride = 0;
  AtlasBufferRef x{}, y{}, weight{}, row_count{}, offsets{}, source{}, workspace{};
};

using sdk::behind;

/// Whether `platform` has the kernels of kernels/common/gpu, and in which form. Null is no
/// platform.
bool is_gpu_platform(const char* platform);
kernels::Exl3Lanes lanes_of(const char* platform);

/// Workspace of `parts` products beside one another on a GPU, of `n` outputs together with their
/// padding: encoded rows, their powers of two, sums of segments. Throws sdk::Failure if it has over
/// 2^63 bytes.
uint64_t gpu_workspace_bytes(const char* platform, uint64_t rows, uint64_t n, uint64_t parts,
                             uint64_t k, uint64_t experts);
/// Emits the records of products on a GPU: 1 to kernels::kExl3Parts, alike but for their weights,
/// outputs and y; x, row count, offsets, source and workspace are those of the first.
AtlasCode plan_gpu_products(const char* platform, std::span<const Product> parts,
                            const AtlasRecordSink* sink, AtlasError* error);
/// The record of a gather on a GPU. Sizes have been checked.
AtlasCode plan_gpu_gather(const AtlasGatherProblem& problem, Format format,
                          const AtlasRecordSink* sink, AtlasError* error);

}  // namespace atlas::quant_exl3

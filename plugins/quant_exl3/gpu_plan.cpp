// Records of EXL3's products on GPUs: which kernel for how many rows, grids, workspace.
#include <algorithm>

#include "kernels/common/platforms.h"
#include "kernels/common/tuning.h"
#include "plugins/quant_exl3/product.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/record.h"

namespace atlas::quant_exl3 {
namespace {

using kernels::Exl3Lanes;

/// Which kernels do a product. All give the same bits.
enum class Way {
  kAlone,  // exl3_few, which encodes rows itself: one launch
  kFew,    // exl3_encode, then exl3_few: a weight is decoded once for 8 or 16 rows
  kMany,   // exl3_encode, then exl3_many: once for 64 or 32 rows
};

/// Encoding a row in every block that needs it costs about a fifth of decoding the block's weights,
/// a launch of its own about 2 us; kernels/<platform>/tuning.yaml says where they meet. exl3_many
/// has a block for 128 outputs of all of k only.
Way way_of(const char* platform, uint64_t rows, uint64_t experts, uint64_t n, uint64_t k) {
  using kernels::Choice;
  const auto above = [&](Choice choice) { return kernels::tuned(platform, choice, n, k); };
  if (experts == 0) {
    if (rows <= above(Choice::kExl3Few)) return Way::kAlone;
    return rows <= above(Choice::kExl3Many) ? Way::kFew : Way::kMany;
  }
  if (rows <= above(Choice::kExl3ExpertsFew)) return Way::kAlone;
  // Rows an expert, rounded up.
  return (rows - 1) / experts < above(Choice::kExl3ExpertsMany) ? Way::kFew : Way::kMany;
}

/// The most common formats have an exl3_few of their own.
std::string product_kernel(Way way, Format format) {
  std::string name = way == Way::kMany ? "exl3_many_" : "exl3_few_";
  name += codebook_name(format.codebook);
  if (way == Way::kMany || format.codebook != kernels::Exl3Codebook::kMul1) return name;
  const bool own = format.units % 2 == 0 && format.units >= 6 && format.units <= 12;
  return own ? name + "_k" + std::to_string(format.units / 2) : name;
}

uint32_t padded(uint64_t size) { return static_cast<uint32_t>(kernels::exl3_padded(size)); }

struct Workspace {
  uint64_t powers = 0, sums = 0, bytes = 0;
};
Workspace workspace_of(const char* platform, uint64_t rows, uint64_t outputs, uint64_t inputs,
                       uint64_t experts) {
  const uint64_t n = padded(outputs), k = padded(inputs);
  // Rows, n and k are below 2^32, and a product of all three overflows only with sizes that no
  // memory has: in 128 bits nothing does.
  using Wide = unsigned __int128;
  const Wide segments = kernels::exl3_segments(static_cast<uint32_t>(k));
  const auto aligned = [](Wide bytes) { return (bytes + 255) / 256 * 256; };
  const Way way = way_of(platform, rows, experts, outputs, inputs);
  const Wide encoded = way == Way::kAlone ? 0 : aligned(Wide{(rows + 15) / 16 * 16} * k * 2);
  const Wide powers = way == Way::kAlone ? 0 : aligned(segments * rows * 4);
  const Wide sums = way == Way::kMany ? 0 : segments * rows * n * 4;
  if ((encoded + powers + sums) >> 63 != 0) {
    throw sdk::Failure(ATLAS_INVALID_ARGUMENT,
                       "a product of " + std::to_string(rows) + " rows needs over 2^63 bytes");
  }
  return {static_cast<uint64_t>(encoded), static_cast<uint64_t>(encoded + powers),
          static_cast<uint64_t>(encoded + powers + sums)};
}

AtlasCode emit_encode(const Product& product, const Workspace& workspace,
                      const AtlasRecordSink* sink, AtlasError* error) {
  sdk::Launch<kernels::Exl3EncodeParams> launch("exl3_encode", kernels::kExl3EncodeParamsDigest);
  auto& params = launch.params;
  launch.point(&params.x, product.x);
  launch.point(&params.weight, product.weight);
  launch.point(&params.encoded, product.workspace);
  launch.point(&params.powers, behind(product.workspace, workspace.powers));
  launch.point(&params.row_count, product.row_count);
  launch.point(&params.offsets, product.offsets);
  launch.point(&params.source, product.source);
  params.x_stride = product.x_stride;
  params.expert_bytes = product.expert_bytes;
  params.k = padded(product.k);
  params.inputs = product.k;
  params.experts = product.experts;
  params.rows = product.max_rows;
  launch.grid(kernels::exl3_encode_blocks(product.max_rows), kernels::exl3_segments(params.k));
  launch.block(kernels::kExl3FewThreads);
  launch.shared_bytes(64);
  launch.bytes_read(uint64_t{product.busy} * 2 * params.k);
  return launch.emit(sink, error);
}

}  // namespace

bool is_gpu_platform(const char* platform) {
  return platform != nullptr && kernels::is_gpu(platform);
}

Exl3Lanes lanes_of(const char* platform) {
  const kernels::Platform* found = kernels::find_platform(platform);
  return found->runtime == kernels::Runtime::kHip ? Exl3Lanes::kWmma : Exl3Lanes::kMmaSync;
}

uint64_t gpu_workspace_bytes(const char* platform, uint64_t rows, uint64_t n, uint64_t k,
                             uint64_t experts) {
  return workspace_of(platform, rows, n, k, experts).bytes;
}

AtlasCode plan_gpu_product(const char* platform, const Product& product,
                           const AtlasRecordSink* sink, AtlasError* error) {
  const Exl3Lanes lanes = lanes_of(platform);
  const Workspace workspace =
      workspace_of(platform, product.max_rows, product.n, product.k, product.experts);
  const Way way = way_of(platform, product.max_rows, product.experts, product.n, product.k);
  if (way != Way::kAlone) {
    const AtlasCode code = emit_encode(product, workspace, sink, error);
    if (code != ATLAS_OK) return code;
  }
  const std::string name = product_kernel(way, product.format);
  sdk::Launch<kernels::Exl3ProductGpuParams> launch(name.c_str(),
                                                    kernels::kExl3ProductGpuParamsDigest);
  auto& params = launch.params;
  if (way == Way::kAlone) {
    launch.point(&params.x, product.x);
    launch.point(&params.source, product.source);
  } else {
    launch.point(&params.encoded, product.workspace);
    launch.point(&params.powers, behind(product.workspace, workspace.powers));
  }
  launch.point(&params.weight, product.weight);
  if (way != Way::kMany) launch.point(&params.sums, behind(product.workspace, workspace.sums));
  launch.point(&params.y, product.y);
  launch.point(&params.row_count, product.row_count);
  launch.point(&params.offsets, product.offsets);
  params.x_stride = product.x_stride;
  params.y_stride = product.y_stride;
  params.expert_bytes = product.expert_bytes;
  params.n = padded(product.n);
  params.k = padded(product.k);
  params.inputs = product.k;
  params.outputs = product.n;
  params.units = product.format.units;
  params.experts = product.experts;
  params.rows = product.max_rows;
  params.epilogue = product.epilogue;
  if (way == Way::kMany) {
    launch.grid(params.n / kernels::kExl3Block,
                kernels::exl3_many_tiles(lanes, product.max_rows, product.experts));
    launch.block(kernels::exl3_many_threads(lanes));
    launch.shared_bytes(kernels::exl3_many_shared(lanes, product.format.units));
  } else {
    // A run is found by its expert, or by its first row where rows are fewer than experts.
    params.by_row = product.experts != 0 && product.max_rows < product.experts ? 1 : 0;
    const uint32_t runs = product.experts == 0 ? 1 : std::min(product.max_rows, product.experts);
    launch.grid(kernels::exl3_few_blocks(lanes, params.n), runs, kernels::exl3_segments(params.k));
    launch.block(kernels::kExl3FewThreads);
    launch.shared_bytes(kernels::exl3_few_shared(lanes, product.format.units, way == Way::kAlone));
  }
  const uint64_t read = kernels::exl3_gpu_bytes(product.format.units, product.n, product.k) -
                        (way == Way::kAlone ? 0 : 2 * uint64_t{params.k});
  launch.bytes_read(product.busy * read);
  return launch.emit(sink, error);
}

AtlasCode plan_gpu_gather(const AtlasGatherProblem& problem, Format format,
                          const AtlasRecordSink* sink, AtlasError* error) {
  const std::string name = std::string("exl3_gather_") + codebook_name(format.codebook);
  sdk::Launch<kernels::Exl3GatherParams> launch(name.c_str(), kernels::kExl3GatherParamsDigest);
  launch.point(&launch.params.weight, problem.weight);
  launch.point(&launch.params.ids, problem.ids);
  launch.point(&launch.params.y, problem.y);
  launch.point(&launch.params.row_count, problem.row_count);
  launch.params.y_stride = problem.y_stride;
  launch.params.id_stride = problem.id_stride;
  launch.params.n = static_cast<uint32_t>(problem.n);
  launch.params.k = static_cast<uint32_t>(problem.k);
  launch.params.units = format.units;
  launch.grid(problem.max_rows, padded(problem.k) / kernels::kExl3Block);
  launch.block(kernels::kExl3GatherThreads);
  launch.shared_bytes(kernels::kExl3GatherShared);
  launch.bytes_read(problem.max_rows * kernels::exl3_gpu_group_bytes(format.units, problem.k));
  return launch.emit(sink, error);
}

}  // namespace atlas::quant_exl3

// Records of EXL3's products on GPUs: which kernel for how many rows, grids, workspace.
#include <algorithm>
#include <limits>

#include "kernels/common/exl3_wgmma.h"
#include "kernels/common/gpu_products.h"
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
  kMany,   // exl3_encode, then exl3_many: once for 96 or 32 rows
  kWgmma,  // exl3_encode_wgmma, then exl3_wgmma: once for 128 rows; h200 alone has an entry for it
};
/// Parts are one product after the other.
bool is_many(Way way) { return way == Way::kMany || way == Way::kWgmma; }

/// Encoding a row in every block that needs it costs about a fifth of decoding the block's weights,
/// a launch of its own about 2 us; kernels/<platform>/tuning.yaml says where they meet. exl3_many
/// has a block for 128 outputs of all of k only.
Way way_of(const char* platform, uint64_t rows, uint64_t experts, uint64_t n, uint64_t k) {
  using kernels::Choice;
  const auto above = [&](Choice choice) { return kernels::tuned(platform, choice, n, k); };
  if (experts == 0) {
    if (rows <= above(Choice::kExl3Few)) return Way::kAlone;
    if (rows > above(Choice::kExl3Wgmma)) return Way::kWgmma;
    return rows <= above(Choice::kExl3Many) ? Way::kFew : Way::kMany;
  }
  if (rows <= above(Choice::kExl3ExpertsFew)) return Way::kAlone;
  const uint64_t each = (rows - 1) / experts + 1;
  if (each > above(Choice::kExl3ExpertsWgmma)) return Way::kWgmma;
  return each <= above(Choice::kExl3ExpertsMany) ? Way::kFew : Way::kMany;
}

/// The most common formats have an exl3_few of their own.
std::string product_kernel(Way way, Format format) {
  std::string name = way == Way::kWgmma  ? "exl3_wgmma_"
                     : way == Way::kMany ? "exl3_many_"
                                         : "exl3_few_";
  name += codebook_name(format.codebook);
  if (is_many(way) || format.codebook != kernels::Exl3Codebook::kMul1) return name;
  const bool own = format.units % 2 == 0 && format.units >= 6 && format.units <= 12;
  return own ? name + "_k" + std::to_string(format.units / 2) : name;
}

uint32_t padded(uint64_t size) { return static_cast<uint32_t>(kernels::exl3_padded(size)); }

/// Encoded rows and their powers of each part, `part` bytes; then sums. Parts are encoded together:
/// rows of many experts' choices are read once.
struct Workspace {
  uint64_t powers = 0, part = 0, sums = 0, bytes = 0;
};
Workspace workspace_of(const char* platform, uint64_t rows, uint64_t n, uint64_t parts,
                       uint64_t inputs, uint64_t experts) {
  const uint64_t k = padded(inputs);
  // Rows, n and k are below 2^32 (n 2^34), and a product of all three overflows only with sizes
  // that no memory has: in 128 bits nothing does.
  using Wide = unsigned __int128;
  const Wide segments = kernels::exl3_segments(static_cast<uint32_t>(k));
  const auto aligned = [](Wide bytes) { return (bytes + 255) / 256 * 256; };
  const Way way = way_of(platform, rows, experts, n, inputs);
  const Wide places = way == Way::kWgmma ? Wide{kernels::exl3_wgmma_places(rows, experts)}
                                         : Wide{(rows + 15) / 16 * 16};
  const Wide encoded = way == Way::kAlone ? 0 : aligned(places * k * 2);
  const Wide part = encoded + (way == Way::kAlone ? 0 : aligned(segments * places * 4));
  const Wide all = part * parts + (is_many(way) ? 0 : segments * rows * n * 4);
  if (all >> 63 != 0 || places >> 32 != 0) {
    throw sdk::Failure(ATLAS_INVALID_ARGUMENT,
                       "a product of " + std::to_string(rows) + " rows needs over 2^63 bytes");
  }
  return {static_cast<uint64_t>(encoded), static_cast<uint64_t>(part),
          static_cast<uint64_t>(part * parts), static_cast<uint64_t>(all)};
}

/// Padded outputs of all parts.
uint64_t outputs_of(std::span<const Product> parts) {
  uint64_t n = 0;
  for (const Product& part : parts) n += padded(part.n);
  return n;
}

/// Places of encoded rows: so many powers lie between those of one segment and the next.
uint32_t places_of(const Product& first, Way way) {
  if (way != Way::kWgmma) return first.max_rows;
  return static_cast<uint32_t>(kernels::exl3_wgmma_places(first.max_rows, first.experts));
}

/// Encodes the rows of the first part for all.
AtlasCode emit_encode(std::span<const Product> parts, Way way, const Workspace& workspace,
                      const AtlasRecordSink* sink, AtlasError* error) {
  const Product& first = parts.front();
  const bool wgmma = way == Way::kWgmma;
  sdk::Launch<kernels::Exl3EncodeParams> launch(wgmma ? "exl3_encode_wgmma" : "exl3_encode",
                                                kernels::kExl3EncodeParamsDigest);
  auto& params = launch.params;
  launch.point(&params.x, first.x);
  for (size_t i = 0; i < parts.size(); ++i) {
    const AtlasBufferRef encoded = behind(first.workspace, i * workspace.part);
    launch.point(&params.weight[i], parts[i].weight);
    launch.point(&params.encoded[i], encoded);
    launch.point(&params.powers[i], behind(encoded, workspace.powers));
    params.expert_bytes[i] = parts[i].expert_bytes;
  }
  launch.point(&params.row_count, first.row_count);
  launch.point(&params.offsets, first.offsets);
  launch.point(&params.source, first.source);
  params.x_stride = first.x_stride;
  params.k = padded(first.k);
  params.inputs = first.k;
  params.experts = first.experts;
  params.rows = places_of(first, way);
  params.parts = static_cast<uint32_t>(parts.size());
  const bool together = wgmma && params.rows > kernels::kExl3EncodeFew;
  launch.grid(kernels::exl3_encode_blocks(params.rows), kernels::exl3_segments(params.k),
              together ? 1 : params.parts);
  launch.block(kernels::kExl3EncodeThreads);
  launch.shared_bytes(together ? kernels::kExl3EncodeWgmmaShared : 64);
  launch.bytes_read(uint64_t{first.busy} * 2 * params.k * parts.size());
  return launch.emit(sink, error);
}

/// A product of many rows, part `index`, whose rows are encoded.
AtlasCode emit_many(Exl3Lanes lanes, std::span<const Product> parts, size_t index, Way way,
                    const Workspace& workspace, const AtlasRecordSink* sink, AtlasError* error) {
  const Product &first = parts.front(), &part = parts[index];
  const std::string name = product_kernel(way, part.format);
  sdk::Launch<kernels::Exl3ProductGpuParams> launch(name.c_str(),
                                                    kernels::kExl3ProductGpuParamsDigest);
  auto& params = launch.params;
  const AtlasBufferRef encoded = behind(first.workspace, index * workspace.part);
  launch.point(&params.encoded, encoded);
  launch.point(&params.powers, behind(encoded, workspace.powers));
  launch.point(&params.weight, part.weight);
  launch.point(&params.y, part.y);
  launch.point(&params.row_count, first.row_count);
  launch.point(&params.offsets, first.offsets);
  params.y_stride = part.y_stride;
  params.expert_bytes = part.expert_bytes;
  params.n = padded(part.n);
  params.k = padded(part.k);
  params.outputs = part.n;
  params.units = part.format.units;
  params.experts = part.experts;
  params.rows = places_of(first, way);
  params.epilogue = part.epilogue;
  if (way == Way::kWgmma) {
    launch.grid(kernels::exl3_wgmma_blocks(params.n, first.max_rows, part.experts));
    launch.block(kernels::kExl3WgmmaThreads);
    launch.shared_bytes(kernels::exl3_wgmma_shared(part.format.units));
  } else {
    launch.grid(params.n / kernels::kExl3Block,
                kernels::exl3_many_tiles(lanes, first.max_rows, part.experts));
    launch.block(kernels::exl3_many_threads(lanes));
    launch.shared_bytes(kernels::exl3_many_shared(lanes, part.format.units));
  }
  const uint64_t read =
      kernels::exl3_gpu_bytes(part.format.units, part.n, part.k) - 2 * uint64_t{params.k};
  launch.bytes_read(part.busy * read);
  return launch.emit(sink, error);
}

/// All parts at once; rows are encoded, or by the kernel.
AtlasCode emit_few(const kernels::GpuTraits& gpu, Exl3Lanes lanes, std::span<const Product> parts,
                   Way way, const Workspace& workspace, const AtlasRecordSink* sink,
                   AtlasError* error) {
  const Product& first = parts.front();
  const std::string name = product_kernel(way, first.format);
  sdk::Launch<kernels::Exl3FewParams> launch(name.c_str(), kernels::kExl3FewParamsDigest);
  auto& params = launch.params;
  params.columns = static_cast<uint32_t>(outputs_of(parts));
  const uint32_t runs = first.experts == 0 ? 1 : std::min(first.max_rows, first.experts);
  const uint64_t segments = kernels::exl3_segments(padded(first.k));
  params.turns = kernels::exl3_few_turns(
      lanes, kernels::exl3_few_blocks(lanes, params.columns, 1) * runs * segments, gpu.units);
  uint64_t blocks = 0, read = 0;
  for (size_t i = 0; i < kernels::kExl3Parts; ++i) {
    if (i >= parts.size()) {
      params.first_block[i] = std::numeric_limits<uint32_t>::max();
      continue;
    }
    const Product& part = parts[i];
    launch.point(&params.weight[i], part.weight);
    launch.point(&params.y[i], part.y);
    if (way == Way::kFew) {
      const AtlasBufferRef encoded = behind(first.workspace, i * workspace.part);
      launch.point(&params.encoded[i], encoded);
      launch.point(&params.powers[i], behind(encoded, workspace.powers));
    }
    params.y_stride[i] = part.y_stride;
    params.expert_bytes[i] = part.expert_bytes;
    params.n[i] = padded(part.n);
    params.outputs[i] = part.n;
    params.first_block[i] = static_cast<uint32_t>(blocks);
    blocks += kernels::exl3_few_blocks(lanes, params.n[i], params.turns);
    read += kernels::exl3_gpu_bytes(part.format.units, part.n, part.k) -
            (way == Way::kAlone ? 0 : 2 * uint64_t{padded(part.k)});
  }
  if (way == Way::kAlone) {
    launch.point(&params.x, first.x);
    launch.point(&params.source, first.source);
  }
  launch.point(&params.sums, behind(first.workspace, workspace.sums));
  launch.point(&params.row_count, first.row_count);
  launch.point(&params.offsets, first.offsets);
  params.x_stride = first.x_stride;
  params.k = padded(first.k);
  params.inputs = first.k;
  params.units = first.format.units;
  params.experts = first.experts;
  params.rows = first.max_rows;
  params.epilogue = first.epilogue;
  // A run is found by its expert, or by its first row where rows are fewer than experts.
  params.by_row = first.experts != 0 && first.max_rows < first.experts ? 1 : 0;
  launch.grid(static_cast<uint32_t>(blocks), runs, static_cast<uint32_t>(segments));
  launch.block(kernels::kExl3FewThreads);
  launch.shared_bytes(
      std::max(kernels::exl3_few_shared(lanes, first.format.units, way == Way::kAlone),
               kernels::spread_shared(gpu, blocks * runs * segments)));
  launch.bytes_read(first.busy * read);
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

uint64_t gpu_workspace_bytes(const char* platform, uint64_t rows, uint64_t n, uint64_t parts,
                             uint64_t k, uint64_t experts) {
  return workspace_of(platform, rows, n, parts, k, experts).bytes;
}

AtlasCode plan_gpu_products(const char* platform, std::span<const Product> parts,
                            const AtlasRecordSink* sink, AtlasError* error) {
  const Exl3Lanes lanes = lanes_of(platform);
  const Product& first = parts.front();
  const uint64_t n = outputs_of(parts);
  const Workspace workspace =
      workspace_of(platform, first.max_rows, n, parts.size(), first.k, first.experts);
  const Way way = way_of(platform, first.max_rows, first.experts, n, first.k);
  if (way != Way::kAlone) {
    const AtlasCode code = emit_encode(parts, way, workspace, sink, error);
    if (code != ATLAS_OK) return code;
  }
  if (!is_many(way)) {
    return emit_few(*kernels::gpu_traits(platform), lanes, parts, way, workspace, sink, error);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const AtlasCode code = emit_many(lanes, parts, i, way, workspace, sink, error);
    if (code != ATLAS_OK) return code;
  }
  return ATLAS_OK;
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

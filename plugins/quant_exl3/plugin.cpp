// Quantization plugin "exl3": trellis weights of ExLlamaV3 checkpoints. On CPUs multiplied as
// contract "exl3_f32" of kernels/common/exl3.h says, by three records: scales and transform of x,
// sums, transform and scales of y. On GPUs as contract "exl3_f16" of kernels/common/exl3_gpu.h
// says.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/exl3.h"
#include "plugins/quant_exl3/checkpoint.h"
#include "plugins/quant_exl3/product.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/record.h"

namespace atlas::quant_exl3 {
namespace {

using kernels::exl3_head_bytes;
using kernels::exl3_padded;
using kernels::kExl3Block;
using kernels::kExl3Strip;
using sdk::Failure;
using sdk::guarded;

[[noreturn]] void refuse(std::string message) {
  throw Failure(ATLAS_INVALID_ARGUMENT, std::move(message));
}

template <class Struct>
void check_size(const Struct* given, const char* name) {
  if (given == nullptr) refuse(std::string(name) + " is null");
  if (given->struct_size < sizeof(Struct)) {
    refuse(std::string(name) + " has " + std::to_string(given->struct_size) +
           " bytes, this plugin needs " + std::to_string(sizeof(Struct)));
  }
}

/// Whether it is a GPU's.
bool check_platform(const char* platform) {
  if (is_gpu_platform(platform)) return true;
  if (platform == nullptr || std::string_view(platform) != "cpu") {
    throw Failure(ATLAS_UNIMPLEMENTED,
                  std::string("platform '") + (platform == nullptr ? "" : platform) +
                      "' is not served; this plugin serves 'cpu', 'h200', 'gb10' and 'strix-hip'");
  }
  return false;
}

void check_present(const AtlasBufferRef& buffer, const char* name) {
  if (buffer.buffer == ATLAS_NO_BUFFER) refuse(std::string(name) + " is no buffer");
}

void check_stride(const char* name, uint64_t stride, uint64_t least) {
  if (stride < least || stride > std::numeric_limits<uint64_t>::max() / 8) {
    refuse(std::string(name) + " is " + std::to_string(stride) + ", a row has " +
           std::to_string(least) + " elements");
  }
}

/// Sizes, before they are put into 32 bits; the format.
template <class Problem>
Format check_problem(const Problem* problem, const char* type) {
  check_size(problem, type);
  check_platform(problem->platform);
  const Format format = format_of(problem->format);
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
  const auto good = [&](uint64_t size) { return size != 0 && size <= kMost - kExl3Block; };
  if (!good(problem->n) || !good(problem->k) || problem->max_rows == 0) {
    refuse(format.name() + ": " + std::to_string(problem->n) + " x " + std::to_string(problem->k) +
           " with " + std::to_string(problem->max_rows) +
           " rows; both must be below 2^31 - 128, and there must be rows of something");
  }
  return format;
}

/// A product and those beside it, which must be alike.
template <class Problem>
Format check_problems(const Problem* problem, const char* type) {
  const Format format = check_problem(problem, type);
  for (const Problem* part = problem->beside; part != nullptr; part = part->beside) {
    if (check_problem(part, type).name() != format.name() || part->k != problem->k ||
        part->max_rows != problem->max_rows ||
        std::string_view(part->platform) != problem->platform) {
      refuse("products beside one another differ in format, k, rows or platform");
    }
  }
  return format;
}

/// On CPUs: the transformed rows of x, then the sums; one product after the other.
template <class Problem>
uint64_t workspace_bytes(const Problem& problem, uint64_t experts) {
  uint64_t n = 0, most = 0, parts = 0;
  for (const Problem* part = &problem; part != nullptr; part = part->beside) {
    n += exl3_padded(part->n);
    most = std::max(most, exl3_padded(part->n));
    if (++parts > kernels::kExl3Parts) refuse("there are over four products beside one another");
  }
  if (is_gpu_platform(problem.platform)) {
    return gpu_workspace_bytes(problem.platform, problem.max_rows, n, parts, problem.k, experts);
  }
  // Below 2^32 * 2^32 * 4.
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(sizeof(float) * problem.max_rows, most + exl3_padded(problem.k),
                             &bytes)) {
    refuse("a product of " + std::to_string(problem.max_rows) + " rows needs over 2^64 bytes");
  }
  return bytes;
}

uint32_t checked_tasks(uint64_t tasks) {
  if (tasks > std::numeric_limits<uint32_t>::max()) refuse("a record has over 2^32 tasks");
  return static_cast<uint32_t>(tasks);
}

// Where a product's workspace has the transformed rows and their sums.
AtlasBufferRef inputs_of(const Product& product) { return product.workspace; }
AtlasBufferRef sums_of(const Product& product) {
  return behind(product.workspace,
                sizeof(float) * uint64_t{product.max_rows} * exl3_padded(product.k));
}

sdk::Launch<kernels::Exl3TransformParams> transform(const char* kernel, const Product& product,
                                                    uint32_t width) {
  sdk::Launch<kernels::Exl3TransformParams> launch(kernel, kernels::kExl3TransformParamsDigest);
  launch.point(&launch.params.weight, product.weight);
  launch.point(&launch.params.row_count, product.row_count);
  launch.point(&launch.params.offsets, product.offsets);
  launch.params.expert_bytes = product.expert_bytes;
  launch.params.width = width;
  launch.params.experts = product.experts;
  launch.grid(checked_tasks(uint64_t{product.max_rows} * kernels::exl3_transform_tasks(width)));
  launch.bytes_read(uint64_t{product.busy} * 2 * exl3_padded(width));
  return launch;
}

AtlasCode plan_cpu_product(const Product& product, const AtlasRecordSink* sink, AtlasError* error) {
  auto input = transform("exl3_input", product, product.k);
  input.point(&input.params.x, product.x);
  input.point(&input.params.y, inputs_of(product));
  input.point(&input.params.source, product.source);
  input.params.x_stride = product.x_stride;
  input.params.x_block = kExl3Block;
  input.params.y_stride = kExl3Block;
  input.params.y_block = uint64_t{product.max_rows} * kExl3Block;
  if (const AtlasCode code = input.emit(sink, error); code != ATLAS_OK) return code;

  const std::string kernel = std::string("exl3_product_") + codebook_name(product.format.codebook);
  sdk::Launch<kernels::Exl3ProductParams> sums(kernel.c_str(), kernels::kExl3ProductParamsDigest);
  const uint64_t head = exl3_head_bytes(product.n, product.k);
  sums.point(&sums.params.x, inputs_of(product));
  sums.point(&sums.params.strips, behind(product.weight, head));
  sums.point(&sums.params.sums, sums_of(product));
  sums.point(&sums.params.row_count, product.row_count);
  sums.point(&sums.params.offsets, product.offsets);
  sums.params.expert_bytes = product.expert_bytes;
  sums.params.n = static_cast<uint32_t>(exl3_padded(product.n));
  sums.params.k = static_cast<uint32_t>(exl3_padded(product.k));
  sums.params.units = product.format.units;
  sums.params.experts = product.experts;
  sums.params.rows = product.max_rows;
  const uint32_t strips = sums.params.n / kExl3Strip;
  sums.params.tasks =
      product.experts == 0
          ? strips
          : static_cast<uint32_t>(std::min<uint64_t>(128, uint64_t{strips} * product.busy));
  sums.grid(sums.params.tasks);
  sums.bytes_read(product.busy *
                  (kernels::exl3_bytes(product.format.units, product.n, product.k) - head));
  if (const AtlasCode code = sums.emit(sink, error); code != ATLAS_OK) return code;

  auto output = transform("exl3_output", product, product.n);
  output.point(&output.params.x, sums_of(product));
  output.point(&output.params.y, product.y);
  output.params.x_stride = kExl3Block;
  output.params.x_block = uint64_t{product.max_rows} * kExl3Block;
  output.params.y_stride = product.y_stride;
  output.params.y_block = kExl3Block;
  output.params.scale_offset = 2 * exl3_padded(product.k);
  output.params.epilogue = product.epilogue;
  return output.emit(sink, error);
}

AtlasCode plan_products(const char* platform, std::span<Product> parts, const AtlasRecordSink* sink,
                        AtlasError* error) {
  check_size(sink, "AtlasRecordSink");
  const Product& first = parts.front();
  check_present(first.x, "x");
  check_present(first.workspace, "the workspace");
  check_stride("x_stride", first.x_stride, first.k);
  for (const Product& part : parts) {
    check_present(part.y, "y");
    check_present(part.weight, "the weight");
    check_stride("y_stride", part.y_stride, part.n);
  }
  if (is_gpu_platform(platform)) return plan_gpu_products(platform, parts, sink, error);
  for (Product& part : parts) {
    part.x = first.x;
    part.workspace = first.workspace;
    const AtlasCode code = plan_cpu_product(part, sink, error);
    if (code != ATLAS_OK) return code;
  }
  return ATLAS_OK;
}

const char* layout_name(const char* platform) {
  if (!is_gpu_platform(platform)) return "exl3 strips32 v1";
  return lanes_of(platform) == kernels::Exl3Lanes::kWmma ? "exl3 wmma32 v1" : "exl3 mma16 v1";
}

AtlasCode claim(const AtlasWeightQuery* query, AtlasWeightClaim* out, AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    check_size(query, "AtlasWeightQuery");
    if (out == nullptr) refuse("the claim is null");
    *out = AtlasWeightClaim{};
    out->struct_size = sizeof(*out);
    if (!Tensors::present(*query)) return ATLAS_OK;
    const bool gpu = check_platform(query->platform);
    const Tensors tensors(*query);
    const Format format = tensors.format();
    out->claimed = 1;
    sdk::copy_text(out->format, format.name());
    sdk::copy_text(out->contract, gpu ? kernels::kExl3GpuContract : kernels::kExl3Contract);
    sdk::copy_text(out->layout, layout_name(query->platform));
    out->n = tensors.n();
    out->k = tensors.k();
    out->row_group = kExl3Block;
    out->alignment = gpu ? 128 : 64;
    out->head_bytes =
        gpu ? kernels::exl3_gpu_head_bytes(out->n, out->k) : exl3_head_bytes(out->n, out->k);
    // 128 outputs have the same bytes in every layout.
    out->group_bytes = kernels::exl3_gpu_group_bytes(format.units, out->k);
    out->bits_per_weight =
        8.0 *
        static_cast<double>(out->head_bytes + exl3_padded(out->n) / kExl3Block * out->group_bytes) /
        (static_cast<double>(out->n) * static_cast<double>(out->k));
    return ATLAS_OK;
  });
}

AtlasCode pack(const AtlasWeightQuery* query, const AtlasWeightClaim* claimed, uint64_t begin,
               uint64_t end, void* out, AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    check_size(query, "AtlasWeightQuery");
    check_size(claimed, "AtlasWeightClaim");
    if (!Tensors::present(*query)) refuse("there is no trellis to pack");
    const Tensors tensors(*query);
    if (tensors.format().name() != claimed->format || claimed->n != tensors.n() ||
        claimed->k != tensors.k() || begin > end || end > exl3_padded(tensors.n()) / kExl3Block) {
      refuse("groups " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
             query->module + " do not fit its claim");
    }
    if (begin == end) return ATLAS_OK;
    if (out == nullptr) refuse("there is no memory to pack into");
    auto* to = static_cast<uint8_t*>(out);
    if (begin == 0) {
      std::memset(to, 0, claimed->head_bytes);
      tensors.write_head(to);
      to += claimed->head_bytes;
    }
    const bool gpu = check_platform(query->platform);
    for (uint64_t group = begin; group < end; ++group, to += claimed->group_bytes) {
      if (gpu) {
        tensors.write_gpu_group(lanes_of(query->platform), group, to);
      } else {
        tensors.write_group(group, to);
      }
    }
    return ATLAS_OK;
  });
}

void fill_needs(const char* platform, uint64_t workspace, uint32_t epilogues,
                AtlasLinearNeeds* needs) {
  *needs = AtlasLinearNeeds{};
  needs->most_beside = is_gpu_platform(platform) ? kernels::kExl3Parts : 1;
  needs->struct_size = sizeof(*needs);
  needs->fused_epilogues = epilogues;
  needs->workspace_bytes = workspace;
}

AtlasCode linear_needs(const AtlasLinearProblem* problem, AtlasLinearNeeds* needs,
                       AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    check_problems(problem, "AtlasLinearProblem");
    if (needs == nullptr) refuse("the needs are null");
    fill_needs(problem->platform, workspace_bytes(*problem, 0),
               1u << ATLAS_EPILOGUE_NONE | 1u << ATLAS_EPILOGUE_ADD, needs);
    return ATLAS_OK;
  });
}

AtlasCode grouped_needs(const AtlasGroupedProblem* problem, AtlasLinearNeeds* needs,
                        AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    check_problems(problem, "AtlasGroupedProblem");
    if (needs == nullptr) refuse("the needs are null");
    fill_needs(problem->platform, workspace_bytes(*problem, problem->experts),
               1u << ATLAS_EPILOGUE_NONE, needs);
    return ATLAS_OK;
  });
}

template <class Problem>
Product product_of(const Problem& problem, Format format) {
  Product product;
  product.format = format;
  product.max_rows = problem.max_rows;
  product.n = static_cast<uint32_t>(problem.n);
  product.k = static_cast<uint32_t>(problem.k);
  product.x_stride = problem.x_stride;
  product.y_stride = problem.y_stride;
  product.x = problem.x;
  product.y = problem.y;
  product.weight = problem.weight;
  product.workspace = problem.workspace;
  product.row_count.buffer = product.offsets.buffer = product.source.buffer = ATLAS_NO_BUFFER;
  return product;
}

AtlasCode plan_linear(const AtlasLinearProblem* problem, const AtlasRecordSink* sink,
                      AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    const Format format = check_problems(problem, "AtlasLinearProblem");
    if (problem->epilogue > ATLAS_EPILOGUE_ADD) {
      throw Failure(ATLAS_UNIMPLEMENTED,
                    "epilogue " + std::to_string(problem->epilogue) + " is not fused by exl3");
    }
    std::vector<Product> parts;
    for (const AtlasLinearProblem* part = problem; part != nullptr; part = part->beside) {
      if (part->epilogue != problem->epilogue) {
        refuse("products beside one another differ in their epilogue");
      }
      Product& product = parts.emplace_back(product_of(*part, format));
      product.epilogue = problem->epilogue;
      product.row_count = problem->row_count;
    }
    check_present(problem->row_count, "the row count");
    return plan_products(problem->platform, parts, sink, error);
  });
}

AtlasCode plan_grouped(const AtlasGroupedProblem* problem, const AtlasRecordSink* sink,
                       AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    const Format format = check_problems(problem, "AtlasGroupedProblem");
    std::vector<Product> parts;
    for (const AtlasGroupedProblem* part = problem; part != nullptr; part = part->beside) {
      Product& product = parts.emplace_back(product_of(*part, format));
      const uint64_t least = is_gpu_platform(problem->platform)
                                 ? kernels::exl3_gpu_bytes(format.units, product.n, product.k)
                                 : kernels::exl3_bytes(format.units, product.n, product.k);
      uint64_t all = 0;
      if (part->experts == 0 || part->experts > std::numeric_limits<int32_t>::max() ||
          part->experts != problem->experts || part->expert_bytes < least ||
          __builtin_mul_overflow(part->expert_bytes, uint64_t{part->experts}, &all)) {
        refuse(std::to_string(part->experts) + " experts of expert_bytes " +
               std::to_string(part->expert_bytes) +
               "; there must be 1 to 2^31 - 1, as many of all products, each of " +
               std::to_string(least) + " bytes at least");
      }
      product.experts = part->experts;
      product.busy = std::min(part->max_rows, part->experts);
      product.expert_bytes = part->expert_bytes;
      product.offsets = problem->offsets;
      product.source = problem->source;
    }
    check_present(problem->offsets, "offsets");
    return plan_products(problem->platform, parts, sink, error);
  });
}

AtlasCode plan_encode(const AtlasEncodeProblem*, const AtlasRecordSink*, AtlasError* error) {
  return sdk::fail(error, ATLAS_UNIMPLEMENTED, "exl3 takes float32 rows as they are");
}

AtlasCode plan_gather(const AtlasGatherProblem* problem, const AtlasRecordSink* sink,
                      AtlasError* error) {
  return guarded(error, [&]() -> AtlasCode {
    const Format format = check_problem(problem, "AtlasGatherProblem");
    check_size(sink, "AtlasRecordSink");
    check_stride("y_stride", problem->y_stride, problem->k);
    if (problem->id_stride < sizeof(uint32_t)) {
      refuse("id_stride is " + std::to_string(problem->id_stride) + " bytes, an id has 4");
    }
    check_present(problem->ids, "ids");
    check_present(problem->y, "y");
    check_present(problem->weight, "the weight");
    check_present(problem->row_count, "the row count");
    if (is_gpu_platform(problem->platform)) {
      return plan_gpu_gather(*problem, format, sink, error);
    }
    const std::string kernel = std::string("exl3_gather_") + codebook_name(format.codebook);
    sdk::Launch<kernels::Exl3GatherParams> launch(kernel.c_str(), kernels::kExl3GatherParamsDigest);
    launch.point(&launch.params.weight, problem->weight);
    launch.point(&launch.params.ids, problem->ids);
    launch.point(&launch.params.y, problem->y);
    launch.point(&launch.params.row_count, problem->row_count);
    launch.params.y_stride = problem->y_stride;
    launch.params.id_stride = problem->id_stride;
    launch.params.n = static_cast<uint32_t>(problem->n);
    launch.params.k = static_cast<uint32_t>(problem->k);
    launch.params.units = format.units;
    launch.grid(problem->max_rows);
    // A row needs all outputs of its Hadamard block.
    launch.bytes_read(problem->max_rows * (kExl3Block / kExl3Strip) *
                      kernels::exl3_strip_bytes(format.units, problem->k));
    return launch.emit(sink, error);
  });
}

constexpr AtlasQuantApi kApi = {
    sizeof(AtlasQuantApi), 0,           claim,       pack,         linear_needs,
    plan_linear,           plan_encode, plan_gather, plan_grouped, grouped_needs};
constexpr AtlasPlugin kPlugin = {sizeof(AtlasPlugin),
                                 ATLAS_ABI_MAJOR,
                                 ATLAS_ABI_MINOR,
                                 ATLAS_KIND_QUANT,
                                 &kApi,
                                 nullptr,
                                 nullptr,
                                 nullptr};

}  // namespace
}  // namespace atlas::quant_exl3

namespace {
using namespace atlas::kernels;

constexpr std::array<std::string_view, 4> kPlatformNames = {"cpu", "h200", "gb10", "strix-hip"};

struct Needed {
  std::string_view name;
  uint64_t digest;
};
constexpr std::array kCpuKernels = {
    Needed{"exl3_input", kExl3TransformParamsDigest},
    Needed{"exl3_output", kExl3TransformParamsDigest},
    Needed{"exl3_product_3inst", kExl3ProductParamsDigest},
    Needed{"exl3_product_mcg", kExl3ProductParamsDigest},
    Needed{"exl3_product_mul1", kExl3ProductParamsDigest},
    Needed{"exl3_gather_3inst", kExl3GatherParamsDigest},
    Needed{"exl3_gather_mcg", kExl3GatherParamsDigest},
    Needed{"exl3_gather_mul1", kExl3GatherParamsDigest},
};
constexpr std::array kGpuKernels = {
    Needed{"exl3_encode", kExl3EncodeParamsDigest},
    Needed{"exl3_few_3inst", kExl3FewParamsDigest},
    Needed{"exl3_few_mcg", kExl3FewParamsDigest},
    Needed{"exl3_few_mul1", kExl3FewParamsDigest},
    Needed{"exl3_few_mul1_k3", kExl3FewParamsDigest},
    Needed{"exl3_few_mul1_k4", kExl3FewParamsDigest},
    Needed{"exl3_few_mul1_k5", kExl3FewParamsDigest},
    Needed{"exl3_few_mul1_k6", kExl3FewParamsDigest},
    Needed{"exl3_many_3inst", kExl3ProductGpuParamsDigest},
    Needed{"exl3_many_mcg", kExl3ProductGpuParamsDigest},
    Needed{"exl3_many_mul1", kExl3ProductGpuParamsDigest},
    Needed{"exl3_gather_3inst", kExl3GatherParamsDigest},
    Needed{"exl3_gather_mcg", kExl3GatherParamsDigest},
    Needed{"exl3_gather_mul1", kExl3GatherParamsDigest},
};
// For matrix instructions that h200 alone has, each a variant of a kernel of all.
struct Variant {
  Needed kernel;
  std::string_view reason, of;
};
constexpr std::array kH200Kernels = {
    Variant{{"exl3_encode_wgmma", kExl3EncodeParamsDigest},
            "h200 only: a variant of exl3_encode",
            "exl3_encode"},
    Variant{{"exl3_wgmma_3inst", kExl3ProductGpuParamsDigest},
            "h200 only: a variant of exl3_many",
            "exl3_many_3inst"},
    Variant{{"exl3_wgmma_mcg", kExl3ProductGpuParamsDigest},
            "h200 only: a variant of exl3_many",
            "exl3_many_mcg"},
    Variant{{"exl3_wgmma_mul1", kExl3ProductGpuParamsDigest},
            "h200 only: a variant of exl3_many",
            "exl3_many_mul1"},
};

consteval auto all_kernels() {
  std::array<AtlasDescriptorKernel,
             kCpuKernels.size() +
                 (kPlatformNames.size() - 1) * (kGpuKernels.size() + kH200Kernels.size())>
      all{};
  auto* to = all.data();
  for (const Needed& each : kCpuKernels) {
    *to++ = atlas::sdk::required_kernel(kPlatformNames[0], each.name, each.digest);
  }
  for (size_t i = 1; i < kPlatformNames.size(); ++i) {
    for (const Needed& each : kGpuKernels) {
      *to++ = atlas::sdk::required_kernel(kPlatformNames[i], each.name, each.digest);
    }
    for (const auto& [kernel, reason, of] : kH200Kernels) {
      *to++ = kPlatformNames[i] == "h200"
                  ? atlas::sdk::required_kernel(kPlatformNames[i], kernel.name, kernel.digest)
                  : atlas::sdk::optional_kernel(kPlatformNames[i], kernel.name, kernel.digest,
                                                reason, of);
    }
  }
  return all;
}
}  // namespace

ATLAS_DESCRIPTOR(atlas::sdk::describe(atlas::sdk::Identity{ATLAS_KIND_QUANT, "exl3", "0.1.0",
                                                           "Apache-2.0"},
                                      kPlatformNames, all_kernels()));

extern "C" __attribute__((visibility("default"))) const AtlasPlugin* atlas_plugin_entry(
    const AtlasHost* host, AtlasError* error) {
  return atlas::sdk::enter(atlas::quant_exl3::kPlugin, host, error);
}

// The whole quantization API for plugins whose formats are one matrix a module, `<module>.weight`,
// packed in groups of rows, with one kernel for its products, one for products of experts and one
// for its rows.
//
// A plugin brings a table of formats for each platform and the parameter structs (this folder knows
// no kernels):
//   struct Traits {
//     using Linear = LinearParams; using Grouped = GroupedParams;
//     using Encode = EncodeParams; using Gather = GatherParams; using Runs = RunsParams;
//     using LinearSilu = LinearSiluParams; using LinearMean = LinearMeanParams;
//     static constexpr uint64_t kLinearDigest, kGroupedDigest, kEncodeDigest, kGatherDigest,
//         kRunsDigest, kLinearSiluDigest, kLinearMeanDigest;
//     static constexpr uint32_t kRowGroup;                 // at most 64
//     static constexpr const char* kPlatforms;             // for messages
//     static std::span<const PackedFormat> formats(std::string_view platform);  // empty: not
//     served
//     // How a platform runs a record: a struct with blocks x, y and z, threads, shared_bytes,
//     // workspace_bytes, tiles, by_row, and whether it takes the kernel for many rows or that of
//     // wgmma.
//     static Work linear_work(platform, format, n, k, max_rows);
//     // With the problem's epilogue; no blocks: its products of this size do not end in it.
//     static Work ending_work(platform, format, problem);
//     static Work grouped_work(platform, format, n, k, experts, max_rows);
//     static Work encode_work(platform, k, max_rows);
//     static Work wgmma_encode_work(k, max_rows);
//     static Work wgmma_runs_work(experts);
//     static Work gather_work(platform, max_rows);
//     static uint64_t encoded_row_bytes(platform, k);      // of every format's input encoding
//     static uint64_t wgmma_row_bytes(k);                  // and of that of wgmma
//   };
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/sdk/descriptor.h"
#include "plugins/sdk/guard.h"
#include "plugins/sdk/module_tensors.h"
#include "plugins/sdk/record.h"

namespace atlas::sdk {

struct PackedFormat {
  const char* name;      // "q4_1"
  const char* contract;  // of its products
  const char* layout;    // equal texts, equal bytes
  const char* encoding;  // of the products' input; "": float32 rows
  const char* linear;    // kernels
  const char* grouped;
  const char* gather;
  const char* encode;  // null without an encoding
  AtlasDType dtype;
  uint32_t block;        // elements of a row that the checkpoint stores together
  uint32_t block_bytes;  // of a block in the checkpoint
  /// Resident bytes of one group of rows.
  uint64_t (*group_bytes)(uint64_t k);
  /// Rows of the checkpoint (null: a row of zeros) into one resident group.
  void (*pack)(const uint8_t* const* rows, uint64_t k, uint8_t* out);
  const char* linear_many = nullptr;  // kernels for many rows, where a platform has them
  const char* grouped_many = nullptr;
  const char* linear_wgmma = nullptr;  // variants of those, which h200 alone has
  const char* grouped_wgmma = nullptr;
  const char* wgmma_encoding = nullptr;  // of their input
  const char* wgmma_encode = nullptr;
  const char* wgmma_runs = nullptr;  // brings encoded rows into the order of experts' runs
  uint32_t wgmma_bytes = 0;  // with them, for the platform's work: 64 elements of a group of rows
  const char* linear_silu = nullptr;  // kernels that end in these epilogues
  const char* linear_mean = nullptr;
  bool divides = false;  // for the platform's work: k may be divided over blocks
  bool normed = false;   // only where a norm has made the products' rows; then instead of the other
};

template <class Traits>
class PackedLinear {
 public:
  static constexpr AtlasQuantApi api() {
    return {sizeof(AtlasQuantApi), 0,           claim,       pack,         linear_needs,
            plan_linear,           plan_encode, plan_gather, plan_grouped, grouped_needs};
  }

 protected:
  /// Rows and columns are 32-bit numbers for kernels; more than this is a damaged file.
  static constexpr uint64_t kMaxDimension = std::numeric_limits<int32_t>::max();

  [[noreturn]] static void refuse(std::string message) {
    throw Failure(ATLAS_INVALID_ARGUMENT, std::move(message));
  }

  template <class Struct>
  static void check_size(const Struct* given, const char* name) {
    if (given == nullptr) refuse(std::string(name) + " is null");
    if (given->struct_size < sizeof(Struct)) {
      refuse(std::string(name) + " has " + std::to_string(given->struct_size) +
             " bytes, this plugin needs " + std::to_string(sizeof(Struct)));
    }
  }

  static void check_platform(const char* platform) {
    if (platform == nullptr || Traits::formats(platform).empty()) {
      throw Failure(ATLAS_UNIMPLEMENTED,
                    std::string("platform '") + (platform == nullptr ? "" : platform) +
                        "' is not served; this plugin serves " + Traits::kPlatforms);
    }
  }

  /// On a platform that is not served: the format that it would be elsewhere.
  static const PackedFormat* find_dtype(const AtlasWeightQuery& query, AtlasDType dtype) {
    auto formats = Traits::formats(query.platform == nullptr ? "" : query.platform);
    if (formats.empty()) formats = Traits::formats("cpu");
    const PackedFormat* found = nullptr;
    for (const PackedFormat& format : formats) {
      if (format.dtype != dtype || (format.normed && query.normed_rows == 0)) continue;
      if (found == nullptr || format.normed) found = &format;
    }
    return found;
  }

  static const PackedFormat& find_format(const char* platform, const char* name) {
    check_platform(platform);
    const std::string_view wanted = name == nullptr ? "" : name;
    std::string known;
    for (const PackedFormat& format : Traits::formats(platform)) {
      if (wanted == format.name) return format;
      known += std::string(known.empty() ? "" : ", ") + format.name;
    }
    throw Failure(ATLAS_UNIMPLEMENTED, "format '" + std::string(wanted) +
                                           "' is not one of this plugin's (" + known + ")");
  }

  static const AtlasTensor* find_weight(const AtlasWeightQuery& query) {
    if (query.module == nullptr) refuse("a weight query needs a module");
    if (query.tensor_count != 0 && query.tensors == nullptr) refuse("the query's tensors are null");
    const std::string wanted = std::string(query.module) + ".weight";
    const auto* at = reinterpret_cast<const char*>(query.tensors);
    for (uint32_t i = 0; i < query.tensor_count; ++i) {
      const auto* tensor = reinterpret_cast<const AtlasTensor*>(at);
      check_size(tensor, "AtlasTensor");
      if (tensor->name != nullptr && wanted == tensor->name) return tensor;
      at += query.tensors->struct_size;  // the caller's size, which may be a later version's
    }
    return nullptr;
  }

  static void check_shape(const AtlasWeightQuery& query, const AtlasTensor& weight,
                          const PackedFormat& format) {
    const std::string what = std::string(weight.name) + " (" + format.name + ")";
    if (weight.rank != 2) {
      refuse(what + " has " + std::to_string(weight.rank) + " dimensions, a matrix needs 2");
    }
    const uint64_t n = weight.dims[0];
    const uint64_t k = weight.dims[1];
    check_sizes(query, what, n, k, format);
    // Both factors are below 2^32 and a block has at most 2^8 bytes a column: no overflow.
    const uint64_t bytes = n * (k / format.block * format.block_bytes);
    if (weight.bytes != bytes) {
      refuse(what + " of " + std::to_string(n) + " x " + std::to_string(k) + " has " +
             std::to_string(weight.bytes) + " bytes, not " + std::to_string(bytes));
    }
  }

  /// Rows and columns of the matrix `what`.
  static void check_sizes(const AtlasWeightQuery& query, const std::string& what, uint64_t n,
                          uint64_t k, const PackedFormat& format) {
    const std::string shape = std::to_string(n) + " x " + std::to_string(k);
    if ((query.n != 0 && query.n != n) || (query.k != 0 && query.k != k)) {
      refuse(what + " is " + shape + ", the model's configuration makes it " +
             std::to_string(query.n) + " x " + std::to_string(query.k));
    }
    if (n == 0 || k == 0 || n > kMaxDimension || k > kMaxDimension) {
      refuse(what + " is " + shape + "; rows and columns must be 1 to 2^31 - 1");
    }
    check_columns(what, k, format);
  }

  static void check_columns(const std::string& what, uint64_t k, const PackedFormat& format) {
    if (k % format.block != 0) {
      refuse(what + " has " + std::to_string(k) +
             " columns, which is no multiple of the format's " + "block of " +
             std::to_string(format.block));
    }
  }

  /// Sizes of a problem, before they are put into 32 bits.
  static void check_problem(const char* what, const PackedFormat& format, uint64_t n, uint64_t k,
                            uint32_t max_rows) {
    const std::string name = std::string(what) + " of format " + format.name;
    if (n == 0 || k == 0 || n > kMaxDimension || k > kMaxDimension || max_rows == 0) {
      refuse(name + " is " + std::to_string(n) + " x " + std::to_string(k) + " with " +
             std::to_string(max_rows) + " rows; each must be 1 to 2^31 - 1");
    }
    check_columns(name, k, format);
  }

  static void check_present(const AtlasBufferRef& buffer, const char* name) {
    if (buffer.buffer == ATLAS_NO_BUFFER) refuse(std::string(name) + " is no buffer");
  }

  static uint64_t groups(uint64_t n) {
    return n / Traits::kRowGroup + (n % Traits::kRowGroup != 0 ? 1 : 0);
  }

  static void fill(AtlasWeightClaim& out, const PackedFormat& format, uint64_t n, uint64_t k) {
    out.claimed = 1;
    copy_text(out.format, format.name);
    copy_text(out.contract, format.contract);
    copy_text(out.layout, format.layout);
    out.n = n;
    out.k = k;
    out.row_group = Traits::kRowGroup;
    out.alignment = 64;
    out.group_bytes = format.group_bytes(k);
    out.bits_per_weight =
        8.0 * static_cast<double>(out.group_bytes) / (static_cast<double>(k) * Traits::kRowGroup);
  }

  static AtlasCode claim(const AtlasWeightQuery* query, AtlasWeightClaim* out, AtlasError* error) {
    return guarded(error, [&] {
      check_size(query, "AtlasWeightQuery");
      if (out == nullptr) refuse("the claim is null");
      *out = AtlasWeightClaim{};
      out->struct_size = sizeof(*out);
      const AtlasTensor* weight = find_weight(*query);
      const PackedFormat* format = weight == nullptr ? nullptr : find_dtype(*query, weight->dtype);
      if (format == nullptr) return ATLAS_OK;
      check_platform(query->platform);
      // A scale beside it would not be multiplied.
      ModuleTensors(*query).refuse_beside(
          *weight, {"weight_scale", "weight_scale_inv", "weight_scale_2", "weight_packed",
                    "weight_global_scale", "trellis"});
      check_shape(*query, *weight, *format);
      fill(*out, *format, weight->dims[0], weight->dims[1]);
      return ATLAS_OK;
    });
  }

  static AtlasCode pack(const AtlasWeightQuery* query, const AtlasWeightClaim* claimed,
                        uint64_t begin, uint64_t end, void* out, AtlasError* error) {
    return guarded(error, [&] {
      check_size(query, "AtlasWeightQuery");
      check_size(claimed, "AtlasWeightClaim");
      const PackedFormat& format = find_format(query->platform, claimed->format);
      const AtlasTensor* weight = find_weight(*query);
      if (weight == nullptr || weight->dtype != format.dtype || weight->data == nullptr) {
        refuse(std::string(query->module) +
               ".weight is not there with its data, or not in format " + format.name);
      }
      check_shape(*query, *weight, format);
      const uint64_t n = weight->dims[0];
      const uint64_t k = weight->dims[1];
      if (claimed->n != n || claimed->k != k || begin > end || end > groups(n)) {
        refuse("row groups " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
               weight->name + " do not fit its claim");
      }
      if (begin != end && out == nullptr) refuse("there is no memory to pack into");
      const uint64_t row_bytes = k / format.block * format.block_bytes;
      const uint64_t group_bytes = format.group_bytes(k);
      for (uint64_t g = begin; g < end; ++g) {
        const uint8_t* rows[Traits::kRowGroup] = {};
        for (uint32_t r = 0; r < Traits::kRowGroup && g * Traits::kRowGroup + r < n; ++r) {
          rows[r] =
              static_cast<const uint8_t*>(weight->data) + (g * Traits::kRowGroup + r) * row_bytes;
        }
        format.pack(rows, k, static_cast<uint8_t*>(out) + (g - begin) * group_bytes);
      }
      return ATLAS_OK;
    });
  }

  static AtlasCode linear_needs(const AtlasLinearProblem* problem, AtlasLinearNeeds* needs,
                                AtlasError* error) {
    return guarded(error, [&] {
      check_size(problem, "AtlasLinearProblem");
      if (needs == nullptr) refuse("the needs are null");
      const PackedFormat& format = find_format(problem->platform, problem->format);
      check_problem("a product", format, problem->n, problem->k, problem->max_rows);
      const auto work = linear_work(*problem, format);
      uint32_t epilogues = 1u << ATLAS_EPILOGUE_NONE | 1u << ATLAS_EPILOGUE_ADD;
      if (ends(*problem, format)) epilogues |= 1u << problem->epilogue;
      fill_needs(*problem, format, work, epilogues, needs);
      needs->workspace_bytes = work.workspace_bytes;
      if (ends(*problem, format)) {
        if (problem->epilogue == ATLAS_EPILOGUE_SILU) {
          needs->encoded_offset = offsetof(typename Traits::LinearSilu, end.encoded);
        } else {
          needs->encoded_offset = offsetof(typename Traits::LinearMean, end.encoded);
          needs->encoded_f16_offset = offsetof(typename Traits::LinearMean, end.encoded_f16);
        }
      }
      return ATLAS_OK;
    });
  }

  /// Whether the product's own record does its epilogue, SILU or STREAM_MEAN.
  static bool ends(const AtlasLinearProblem& problem, const PackedFormat& format) {
    const char* kernel = problem.epilogue == ATLAS_EPILOGUE_SILU          ? format.linear_silu
                         : problem.epilogue == ATLAS_EPILOGUE_STREAM_MEAN ? format.linear_mean
                                                                          : nullptr;
    return kernel != nullptr && Traits::ending_work(problem.platform, format, problem).x != 0;
  }

  static auto linear_work(const AtlasLinearProblem& problem, const PackedFormat& format) {
    if (ends(problem, format)) return Traits::ending_work(problem.platform, format, problem);
    return Traits::linear_work(problem.platform, format, problem.n, problem.k, problem.max_rows);
  }

  static auto grouped_work(const AtlasGroupedProblem& problem, const PackedFormat& format) {
    return Traits::grouped_work(problem.platform, format, problem.n, problem.k, problem.experts,
                                problem.max_rows);
  }

  template <class Problem, class Work>
  static void fill_needs(const Problem& problem, const PackedFormat& format, const Work& work,
                         uint32_t epilogues, AtlasLinearNeeds* needs) {
    *needs = AtlasLinearNeeds{};
    needs->struct_size = sizeof(*needs);
    needs->fused_epilogues = epilogues;
    copy_text(needs->input_encoding, work.wgmma ? format.wgmma_encoding : format.encoding);
    if (format.encode != nullptr) needs->encoded_row_bytes = encoded_bytes(problem, work);
  }

  static AtlasCode plan_linear(const AtlasLinearProblem* problem, const AtlasRecordSink* sink,
                               AtlasError* error) {
    return guarded(error, [&] {
      check_size(problem, "AtlasLinearProblem");
      check_size(sink, "AtlasRecordSink");
      const PackedFormat& format = find_format(problem->platform, problem->format);
      check_problem("a product", format, problem->n, problem->k, problem->max_rows);
      const bool ending = ends(*problem, format);
      if (problem->epilogue > ATLAS_EPILOGUE_ADD && !ending) {
        throw Failure(ATLAS_UNIMPLEMENTED, "epilogue " + std::to_string(problem->epilogue) +
                                               " is not fused by format " + format.name);
      }
      const bool means = problem->epilogue == ATLAS_EPILOGUE_STREAM_MEAN;
      check_stride("y_stride", problem->y_stride, means ? problem->columns : problem->n);
      if (format.encode == nullptr) check_stride("x_stride", problem->x_stride, problem->k);
      check_present(problem->x, "x");
      check_present(problem->y, "y");
      check_present(problem->weight, "the weight");
      check_present(problem->row_count, "the row count");
      const auto work = linear_work(*problem, format);
      if (work.workspace_bytes != 0) check_present(problem->workspace, "the workspace");
      if (means) {
        check_stride("streams_stride", problem->streams_stride, problem->n);
        check_present(problem->streams, "the streams");
        Launch<typename Traits::LinearMean> launch(format.linear_mean, Traits::kLinearMeanDigest);
        launch.point(&launch.params.end.x, problem->streams);
        launch.params.end.x_stride = problem->streams_stride;
        launch.params.end.columns = problem->columns;
        return emit_linear(launch, launch.params.linear, *problem, format, work, sink, error);
      }
      if (ending) {
        Launch<typename Traits::LinearSilu> launch(format.linear_silu, Traits::kLinearSiluDigest);
        launch.params.end.columns = problem->columns;
        launch.params.end.scale = problem->scale;
        return emit_linear(launch, launch.params.linear, *problem, format, work, sink, error);
      }
      Launch<typename Traits::Linear> launch(
          kernel_of(work, format.linear, format.linear_many, format.linear_wgmma),
          Traits::kLinearDigest);
      return emit_linear(launch, launch.params, *problem, format, work, sink, error);
    });
  }

  /// `params` are those of the launch, or a part of them.
  template <class Record, class Work>
  static AtlasCode emit_linear(Record& launch, typename Traits::Linear& params,
                               const AtlasLinearProblem& problem, const PackedFormat& format,
                               const Work& work, const AtlasRecordSink* sink, AtlasError* error) {
    launch.point(&params.x, problem.x);
    launch.point(&params.weight, problem.weight);
    launch.point(&params.y, problem.y);
    launch.point(&params.row_count, problem.row_count);
    if (work.workspace_bytes != 0) launch.point(&params.values, problem.workspace);
    params.x_row_bytes =
        format.encode != nullptr ? encoded_bytes(problem, work) : problem.x_stride * sizeof(float);
    params.y_stride = problem.y_stride;
    params.n = static_cast<uint32_t>(problem.n);
    params.k = static_cast<uint32_t>(problem.k);
    params.epilogue = problem.epilogue;
    params.tiles = work.tiles;
    shape(launch, work);
    launch.bytes_read(groups(problem.n) * format.group_bytes(problem.k));
    return launch.emit(sink, error);
  }

  /// Of a row of the work's input.
  template <class Problem, class Work>
  static uint64_t encoded_bytes(const Problem& problem, const Work& work) {
    return work.wgmma ? Traits::wgmma_row_bytes(problem.k)
                      : Traits::encoded_row_bytes(problem.platform, problem.k);
  }

  template <class Work>
  static const char* kernel_of(const Work& work, const char* few, const char* many,
                               const char* wgmma) {
    return work.wgmma ? wgmma : work.many ? many : few;
  }

  /// Grid, block and shared memory of a record.
  template <class Record, class Work>
  static void shape(Record& launch, const Work& work) {
    constexpr uint64_t kMostX = std::numeric_limits<int32_t>::max(), kMostY = 65535;
    if (work.x > kMostX || work.y > kMostY) {
      refuse("a record of " + std::to_string(work.x) + " x " + std::to_string(work.y) +
             " blocks; at most " + std::to_string(kMostX) + " x " + std::to_string(kMostY) +
             " can be launched: use smaller chunks of rows");
    }
    launch.grid(static_cast<uint32_t>(work.x), static_cast<uint32_t>(work.y), work.z);
    launch.block(work.threads);
    launch.shared_bytes(work.shared_bytes);
  }

  static void check_stride(const char* name, uint64_t stride, uint64_t least) {
    if (stride < least || stride > std::numeric_limits<uint64_t>::max() / 8) {
      refuse(std::string(name) + " is " + std::to_string(stride) + ", a row has " +
             std::to_string(least) + " elements");
    }
  }

  // Resident bytes of one weight.
  static uint64_t packed_bytes(const PackedFormat& format, uint64_t n, uint64_t k) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(groups(n), format.group_bytes(k), &bytes)) {
      refuse("a weight of " + std::to_string(n) + " x " + std::to_string(k) + " in format " +
             format.name + " has more than 2^64 bytes");
    }
    return bytes;
  }

  static void check_experts_count(const AtlasGroupedProblem& problem) {
    if (problem.experts == 0 || problem.experts > kMaxDimension) {
      refuse("a product of experts has " + std::to_string(problem.experts) +
             " experts; there must be 1 to 2^31 - 1");
    }
  }
  static void check_experts(const AtlasGroupedProblem& problem, const PackedFormat& format) {
    check_experts_count(problem);
    const uint64_t least = packed_bytes(format, problem.n, problem.k);
    uint64_t all = 0;
    if (problem.expert_bytes < least ||
        __builtin_mul_overflow(problem.expert_bytes, uint64_t{problem.experts}, &all)) {
      refuse("expert_bytes is " + std::to_string(problem.expert_bytes) + ", one of the " +
             std::to_string(problem.experts) + " experts has " + std::to_string(least) + " bytes");
    }
  }

  static AtlasCode plan_grouped(const AtlasGroupedProblem* problem, const AtlasRecordSink* sink,
                                AtlasError* error) {
    return guarded(error, [&] {
      check_size(problem, "AtlasGroupedProblem");
      check_size(sink, "AtlasRecordSink");
      const PackedFormat& format = find_format(problem->platform, problem->format);
      check_problem("a product of experts", format, problem->n, problem->k, problem->max_rows);
      check_experts(*problem, format);
      check_stride("y_stride", problem->y_stride, problem->n);
      if (format.encode == nullptr) check_stride("x_stride", problem->x_stride, problem->k);
      check_present(problem->x, "x");
      check_present(problem->y, "y");
      check_present(problem->weight, "the weight");
      check_present(problem->offsets, "offsets");
      // Every row has one expert, so there are never more at work than rows.
      const uint32_t busy = std::min(problem->max_rows, problem->experts);
      const auto work = grouped_work(*problem, format);
      if (work.workspace_bytes != 0) check_present(problem->workspace, "the workspace");
      if (work.wgmma) {
        const AtlasCode code = order_runs(*problem, format, sink, error);
        if (code != ATLAS_OK) return code;
      }
      Launch<typename Traits::Grouped> launch(
          kernel_of(work, format.grouped, format.grouped_many, format.grouped_wgmma),
          Traits::kGroupedDigest);
      launch.point(&launch.params.x, work.wgmma ? problem->workspace : problem->x);
      launch.point(&launch.params.weight, problem->weight);
      launch.point(&launch.params.y, problem->y);
      launch.point(&launch.params.offsets, problem->offsets);
      launch.point(&launch.params.source, problem->source);
      launch.params.x_row_bytes = format.encode != nullptr ? encoded_bytes(*problem, work)
                                                           : problem->x_stride * sizeof(float);
      launch.params.y_stride = problem->y_stride;
      launch.params.expert_bytes = problem->expert_bytes;
      launch.params.n = static_cast<uint32_t>(problem->n);
      launch.params.k = static_cast<uint32_t>(problem->k);
      launch.params.experts = problem->experts;
      launch.params.tasks = static_cast<uint32_t>(work.x);
      launch.params.tiles = work.tiles;
      launch.params.by_row = work.by_row ? 1 : 0;
      shape(launch, work);
      launch.bytes_read(busy * packed_bytes(format, problem->n, problem->k));
      return launch.emit(sink, error);
    });
  }

  /// Brings the rows of a product by wgmma into the order of its runs, in the workspace.
  static AtlasCode order_runs(const AtlasGroupedProblem& problem, const PackedFormat& format,
                              const AtlasRecordSink* sink, AtlasError* error) {
    Launch<typename Traits::Runs> launch(format.wgmma_runs, Traits::kRunsDigest);
    launch.point(&launch.params.x, problem.x);
    launch.point(&launch.params.out, problem.workspace);
    launch.point(&launch.params.offsets, problem.offsets);
    launch.point(&launch.params.source, problem.source);
    launch.params.k = static_cast<uint32_t>(problem.k);
    shape(launch, Traits::wgmma_runs_work(problem.experts));
    return launch.emit(sink, error);
  }

  static AtlasCode grouped_needs(const AtlasGroupedProblem* problem, AtlasLinearNeeds* needs,
                                 AtlasError* error) {
    return guarded(error, [&] {
      check_size(problem, "AtlasGroupedProblem");
      if (needs == nullptr) refuse("the needs are null");
      const PackedFormat& format = find_format(problem->platform, problem->format);
      check_problem("a product of experts", format, problem->n, problem->k, problem->max_rows);
      check_experts_count(*problem);
      const auto work = grouped_work(*problem, format);
      fill_needs(*problem, format, work, 1u << ATLAS_EPILOGUE_NONE, needs);
      needs->workspace_bytes = work.workspace_bytes;
      return ATLAS_OK;
    });
  }

  static AtlasCode plan_encode(const AtlasEncodeProblem* problem, const AtlasRecordSink* sink,
                               AtlasError* error) {
    return guarded(error, [&] {
      check_size(problem, "AtlasEncodeProblem");
      check_size(sink, "AtlasRecordSink");
      check_platform(problem->platform);
      const std::string_view wanted = problem->encoding == nullptr ? "" : problem->encoding;
      // Any format with the encoding will do; the smallest block decides about k.
      const PackedFormat* format = nullptr;
      bool wgmma = false;
      for (const PackedFormat& each : Traits::formats(problem->platform)) {
        const bool is_wgmma = each.wgmma_encode != nullptr && wanted == each.wgmma_encoding;
        if (!is_wgmma && (each.encode == nullptr || wanted != each.encoding)) continue;
        if (format != nullptr && format->block <= each.block) continue;
        format = &each;
        wgmma = is_wgmma;
      }
      if (format == nullptr) {
        throw Failure(ATLAS_UNIMPLEMENTED,
                      "input encoding '" + std::string(wanted) + "' is not one of this plugin's");
      }
      check_problem("an encoding", *format, 1, problem->k, problem->max_rows);
      check_stride("x_stride", problem->x_stride, problem->k);
      check_present(problem->x, "x");
      check_present(problem->out, "out");
      check_present(problem->row_count, "the row count");
      Launch<typename Traits::Encode> launch(wgmma ? format->wgmma_encode : format->encode,
                                             Traits::kEncodeDigest);
      launch.point(&launch.params.x, problem->x);
      launch.point(&launch.params.out, problem->out);
      launch.point(&launch.params.row_count, problem->row_count);
      launch.params.x_stride = problem->x_stride;
      launch.params.k = static_cast<uint32_t>(problem->k);
      const auto work = wgmma
                            ? Traits::wgmma_encode_work(problem->k, problem->max_rows)
                            : Traits::encode_work(problem->platform, problem->k, problem->max_rows);
      launch.params.out_row_bytes = encoded_bytes(*problem, work);
      shape(launch, work);
      return launch.emit(sink, error);
    });
  }

  static AtlasCode plan_gather(const AtlasGatherProblem* problem, const AtlasRecordSink* sink,
                               AtlasError* error) {
    return guarded(error, [&] {
      check_size(problem, "AtlasGatherProblem");
      check_size(sink, "AtlasRecordSink");
      const PackedFormat& format = find_format(problem->platform, problem->format);
      check_problem("a gather", format, problem->n, problem->k, problem->max_rows);
      check_stride("y_stride", problem->y_stride, problem->k);
      if (problem->id_stride < sizeof(uint32_t)) {
        refuse("id_stride is " + std::to_string(problem->id_stride) + " bytes, an id has 4");
      }
      check_present(problem->ids, "ids");
      check_present(problem->y, "y");
      check_present(problem->weight, "the weight");
      check_present(problem->row_count, "the row count");
      Launch<typename Traits::Gather> launch(format.gather, Traits::kGatherDigest);
      launch.point(&launch.params.weight, problem->weight);
      launch.point(&launch.params.ids, problem->ids);
      launch.point(&launch.params.y, problem->y);
      launch.point(&launch.params.row_count, problem->row_count);
      launch.params.y_stride = problem->y_stride;
      launch.params.id_stride = problem->id_stride;
      launch.params.n = static_cast<uint32_t>(problem->n);
      launch.params.k = static_cast<uint32_t>(problem->k);
      shape(launch, Traits::gather_work(problem->platform, problem->max_rows));
      launch.bytes_read(problem->max_rows * (format.group_bytes(problem->k) / Traits::kRowGroup));
      return launch.emit(sink, error);
    });
  }
};

/// The table that an entry function hands out.
constexpr AtlasPlugin quant_plugin(const AtlasQuantApi* api) {
  return {sizeof(AtlasPlugin),
          ATLAS_ABI_MAJOR,
          ATLAS_ABI_MINOR,
          ATLAS_KIND_QUANT,
          api,
          nullptr,
          nullptr,
          nullptr};
}

/// Whether an earlier line of the table has the same kernels.
template <size_t kCount>
constexpr bool shares_kernels(const std::array<PackedFormat, kCount>& formats, size_t line) {
  for (size_t i = 0; i < line; ++i) {
    if (std::string_view(formats[i].linear) == formats[line].linear) return true;
  }
  return false;
}
/// Whether an earlier line has the same encoding for wgmma, or this one has none.
template <size_t kCount>
constexpr bool shares_encoding(const std::array<PackedFormat, kCount>& formats, size_t line) {
  // With ubsan gcc compares no array's address, as encodings have, with null while compiling.
  if (formats[line].linear_wgmma == nullptr) return true;
  for (size_t i = 0; i < line; ++i) {
    if (formats[i].linear_wgmma == nullptr) continue;
    if (std::string_view(formats[i].wgmma_encode) == formats[line].wgmma_encode) return true;
  }
  return false;
}

/// What a descriptor lists for the three GPU platforms of a table's formats, beside the kernels
/// that encode: five kernels of each; those that end in an epilogue; those of wgmma and those that
/// encode their rows, which other platforms replace; one that orders rows, on h200 alone.
template <size_t kCount>
constexpr size_t gpu_kernels(const std::array<PackedFormat, kCount>& formats) {
  size_t kernels = 0, orders = 0;
  for (size_t line = 0; line < kCount; ++line) {
    const PackedFormat& format = formats[line];
    if (shares_kernels(formats, line)) continue;
    kernels +=
        5 + (format.linear_silu != nullptr ? 1 : 0) + (format.linear_mean != nullptr ? 1 : 0);
    if (format.linear_wgmma == nullptr) continue;
    kernels += 2 + (shares_encoding(formats, line) ? 0 : 1);
    orders = 1;
  }
  return 3 * kernels + orders;
}

/// The descriptor of a plugin for the CPU and the three GPU platforms: every kernel of its tables
/// on each (the GPU platforms' have the same names), and the kernels that encode inputs. kOnGpus:
/// of the GPU formats, gpu_kernels.
template <class Traits, size_t kOnGpus = 0, size_t kCpu, size_t kCpuEncodes, size_t kGpu,
          size_t kGpuEncodes>
consteval auto describe_products(const Identity& identity,
                                 const std::array<PackedFormat, kCpu>& cpu,
                                 const std::array<const char*, kCpuEncodes>& cpu_encodes,
                                 const std::array<PackedFormat, kGpu>& gpu,
                                 const std::array<const char*, kGpuEncodes>& gpu_encodes) {
  constexpr std::array<std::string_view, 3> kGpus = {"h200", "gb10", "strix-hip"};
  std::array<AtlasDescriptorKernel, 3 * kCpu + kCpuEncodes + kGpus.size() * kGpuEncodes + kOnGpus>
      all{};
  size_t at = 0;
  const auto add_h200 = [&](std::string_view platform, const char* kernel, uint64_t digest,
                            std::string_view reason, const char* fallback) consteval {
    all[at++] = platform == "h200" ? required_kernel(platform, kernel, digest)
                                   : optional_kernel(platform, kernel, digest, reason, fallback);
  };
  constexpr std::string_view kVariant = "h200 only: a variant of the kernel for many rows";
  const auto add = [&](std::string_view platform, const auto& formats,
                       const auto& encodes) consteval {
    const PackedFormat* orders = nullptr;  // has rows ordered for wgmma
    for (size_t line = 0; line < formats.size(); ++line) {
      const PackedFormat& format = formats[line];
      if (shares_kernels(formats, line)) continue;
      all[at++] = required_kernel(platform, format.linear, Traits::kLinearDigest);
      all[at++] = required_kernel(platform, format.grouped, Traits::kGroupedDigest);
      all[at++] = required_kernel(platform, format.gather, Traits::kGatherDigest);
      if (format.linear_silu != nullptr) {
        all[at++] = required_kernel(platform, format.linear_silu, Traits::kLinearSiluDigest);
      }
      if (format.linear_mean != nullptr) {
        all[at++] = required_kernel(platform, format.linear_mean, Traits::kLinearMeanDigest);
      }
      if (format.linear_many == nullptr) continue;
      all[at++] = required_kernel(platform, format.linear_many, Traits::kLinearDigest);
      all[at++] = required_kernel(platform, format.grouped_many, Traits::kGroupedDigest);
      if (format.linear_wgmma == nullptr) continue;
      add_h200(platform, format.linear_wgmma, Traits::kLinearDigest, kVariant, format.linear_many);
      add_h200(platform, format.grouped_wgmma, Traits::kGroupedDigest, kVariant,
               format.grouped_many);
      if (!shares_encoding(formats, line)) {
        add_h200(platform, format.wgmma_encode, Traits::kEncodeDigest,
                 "h200 only: a variant of the kernel that encodes", format.encode);
      }
      orders = &format;
    }
    // Orders rows for those products: nothing would call it elsewhere.
    if (orders != nullptr && platform == "h200") {
      all[at++] = required_kernel(platform, orders->wgmma_runs, Traits::kRunsDigest);
    }
    for (const char* encode : encodes) {
      all[at++] = required_kernel(platform, encode, Traits::kEncodeDigest);
    }
  };
  add("cpu", cpu, cpu_encodes);
  if constexpr (kGpu == 0) {
    return describe(identity, std::array<std::string_view, 1>{"cpu"}, all);
  } else {
    for (const std::string_view platform : kGpus) add(platform, gpu, gpu_encodes);
    if (at != all.size()) throw "kOnGpus is not what gpu_kernels says";
    return describe(identity, std::array<std::string_view, 4>{"cpu", "h200", "gb10", "strix-hip"},
                    all);
  }
}

}  // namespace atlas::sdk

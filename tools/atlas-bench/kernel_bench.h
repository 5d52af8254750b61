// How long single products and layers of experts take on a device, beside the least that its memory
// and its units allow.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/atlas-bench/ceilings.h"
#include "tools/atlas-bench/figures.h"
#include "tools/atlas-bench/kernel_plan.h"

namespace atlas::bench {

struct KernelBenchOptions {
  /// Without formats, in this order; those of Qwen3.8-Flash-Next.
  std::vector<KernelShape> shapes;
  std::vector<std::string> formats{"exl3:3", "exl3:4", "exl3:6", "nvfp4", "fp8", "bf16"};
  std::vector<uint32_t> rows;             // of all shapes; empty: the usual ones of each
  uint64_t resident_bytes = 320'000'000;  // of all copies of a product's weights
  double ms = 30;                         // that each figure is measured for, about
};

/// Products and the layer of experts of Qwen3.8-Flash-Next.
std::vector<KernelShape> flash_next_products();
KernelShape flash_next_experts();
/// From what KernelShape::name gives. Error kInvalidArgument for other texts.
Result<KernelShape> parse_kernel_shape(const std::string& text);

struct KernelFigure {
  KernelShape shape;
  uint32_t rows = 0;
  std::vector<std::string> kernels;  // of a call, a launch each
  double us = 0, best_us = 0;        // of a call: median and best of the replays
  double bytes = 0, operations = 0;  // of a call: packed weights that it reads
  std::optional<Floor> floor;        // if somebody measured the platform
};
/// What there is no figure of.
struct KernelSkip {
  KernelShape shape;
  std::string reason;
};
struct KernelTable {
  std::vector<KernelFigure> figures;
  std::vector<KernelSkip> skipped;
  Status failure;  // that ended the measurement before its end
};

/// `each` gets a figure as soon as it is there. What a format or the device's memory does not have
/// is skipped with the reason. The table's failure: what went wrong otherwise, or
/// kFailedPrecondition if nothing could be measured.
KernelTable bench_kernels(const KernelDevice& device, const KernelBenchOptions& options,
                          const std::function<void(const KernelFigure&)>& each);

/// One line each.
std::string kernels_heading(const KernelDevice& device);
std::string kernel_line(const KernelFigure& figure);
std::string kernels_json(const KernelTable& table, const KernelDevice& device,
                         const Machine& machine);

}  // namespace atlas::bench

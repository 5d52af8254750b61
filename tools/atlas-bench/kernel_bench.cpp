#include "tools/atlas-bench/kernel_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "tools/atlas-bench/report.h"

namespace atlas::bench {

using tools::Json;
using Clock = std::chrono::steady_clock;

namespace {

const std::vector<uint32_t> kProductRows{1, 2, 4, 8, 16, 64, 512, 4096, 16384};
const std::vector<uint32_t> kExpertRows{1, 2, 4, 8, 64, 512, 4096};

/// From here on weights are a small part of what a call takes: a replay need not go through all
/// copies of them.
constexpr uint32_t kManyRows = 512;
constexpr uint32_t kCallsOfManyRows = 2;
/// A replay is long enough for its launch to be a small part of it.
constexpr double kReplayUs = 2000;
constexpr size_t kMostRecords = 4096;

Result<double> time_replays(const StepExecutable& step, Stream& stream, uint32_t replays) {
  const auto from = Clock::now();
  for (uint32_t i = 0; i < replays; ++i) ATLAS_RETURN_IF_ERROR(step.launch(stream));
  ATLAS_RETURN_IF_ERROR(stream.synchronize());
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count() / replays;
}

/// Microseconds of one call, once for each sample.
Result<std::vector<double>> time_calls(KernelPlan& plan, const KernelCalls& calls, double ms) {
  uint32_t count = calls.calls;
  if (calls.bucket.rows >= kManyRows) count = std::min(count, kCallsOfManyRows);
  ATLAS_ASSIGN_OR_RETURN(StepExecutable step, plan.chain(calls, count));
  ATLAS_RETURN_IF_ERROR(time_replays(step, plan.stream(), 1).error());
  ATLAS_ASSIGN_OR_RETURN(double us, time_replays(step, plan.stream(), 1));
  const size_t records = calls.timed.size();
  const auto rounds = static_cast<uint32_t>(
      std::min(std::ceil(kReplayUs / us), std::floor(double{kMostRecords} / (count * records))));
  if (rounds > 1) {
    count *= rounds;
    ATLAS_ASSIGN_OR_RETURN(step, plan.chain(calls, count));
    ATLAS_RETURN_IF_ERROR(time_replays(step, plan.stream(), 1).error());
    ATLAS_ASSIGN_OR_RETURN(us, time_replays(step, plan.stream(), 1));
  }
  const auto replays = static_cast<uint32_t>(std::clamp(kReplayUs / us, 1.0, 1000.0));
  const auto samples = static_cast<uint32_t>(std::clamp(1000 * ms / (us * replays), 3.0, 25.0));
  std::vector<double> times;
  for (uint32_t i = 0; i < samples; ++i) {
    ATLAS_ASSIGN_OR_RETURN(const double replay, time_replays(step, plan.stream(), replays));
    times.push_back(replay / count);
  }
  return times;
}

/// Whether the figure is not to be had here, and others may be.
bool is_skip(const Status& status) {
  return status.code() == Code::kInvalidArgument || status.code() == Code::kUnimplemented ||
         status.code() == Code::kResourceExhausted;
}

Status bench_shape(const KernelDevice& device, const KernelBenchOptions& options,
                   const KernelShape& shape, const std::function<void(const KernelFigure&)>& each,
                   KernelTable& table) {
  std::vector<uint32_t> rows = options.rows;
  if (rows.empty()) rows = shape.experts == 0 ? kProductRows : kExpertRows;
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  ATLAS_ASSIGN_OR_RETURN(const auto plan,
                         KernelPlan::build(device, shape, rows, options.resident_bytes));
  const Ceilings* ceilings = ceilings_of(device.settings.platform.name);
  for (const uint32_t count : rows) {
    ATLAS_ASSIGN_OR_RETURN(const KernelCalls calls, plan->prepare(count));
    ATLAS_ASSIGN_OR_RETURN(const std::vector<double> times, time_calls(*plan, calls, options.ms));
    KernelFigure figure{shape,
                        count,
                        calls.kernels,
                        median(times),
                        *std::min_element(times.begin(), times.end()),
                        calls.bytes,
                        calls.operations,
                        std::nullopt};
    if (ceilings != nullptr) {
      figure.floor =
          floor_of(*ceilings, shape.format, calls.bytes, calls.operations, calls.weights);
    }
    each(figure);
    table.figures.push_back(std::move(figure));
  }
  return {};
}

/// "encode_bf16 + 2 grouped_bf16": in the order of their first launches.
std::string launches_text(const std::vector<std::string>& kernels) {
  std::vector<std::pair<std::string, uint32_t>> counts;
  for (const std::string& kernel : kernels) {
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& one) { return one.first == kernel; });
    if (known == counts.end()) {
      counts.emplace_back(kernel, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [kernel, count] : counts) {
    text += text.empty() ? "" : " + ";
    text += count == 1 ? kernel : fmt::format("{} {}", count, kernel);
  }
  return text;
}

}  // namespace

std::vector<KernelShape> flash_next_products() {
  return {{"", 2560, 10240, 0, 0}, {"", 2560, 12288, 0, 0}, {"", 2560, 6144, 0, 0},
          {"", 6144, 2560, 0, 0},  {"", 2560, 640, 0, 0},   {"", 640, 2560, 0, 0},
          {"", 10240, 324, 0, 0},  {"", 320, 10240, 0, 0},  {"", 2560, 513, 0, 0},
          {"", 2560, 248320, 0, 0}};
}

KernelShape flash_next_experts() { return {"", 2560, 640, 512, 10}; }

Result<KernelShape> parse_kernel_shape(const std::string& text) {
  constexpr uint64_t kMost = 1u << 24;
  constexpr uint32_t kMostExperts = 4096;
  KernelShape shape;
  unsigned long long k = 0, n = 0;
  int end = 0;
  // At most nine digits: no number overflows.
  const bool layer = std::sscanf(text.c_str(), "%9uof%9u:%9llux%9llu%n", &shape.top, &shape.experts,
                                 &k, &n, &end) == 4;
  if (!layer) {
    shape = {};
    end = 0;
    if (std::sscanf(text.c_str(), "%9llux%9llu%n", &k, &n, &end) != 2) end = 0;
  }
  shape.k = k;
  shape.n = n;
  const bool sizes = k > 0 && k <= kMost && n > 0 && n <= kMost && shape.experts <= kMostExperts;
  // Signs and blanks, which sscanf would take, do not come back.
  if (sizes && static_cast<size_t>(end) == text.size() && shape.name() == text) return shape;
  return invalid_argument(
      "'{}' is no shape: inputs x outputs, as 2560x10240, up to {}; or a layer of experts, as "
      "10of512:2560x640",
      text, kMost);
}

KernelTable bench_kernels(const KernelDevice& device, const KernelBenchOptions& options,
                          const std::function<void(const KernelFigure&)>& each) {
  KernelTable table;
  for (const std::string& format : options.formats) {
    for (KernelShape shape : options.shapes) {
      shape.format = format;
      const Status status = bench_shape(device, options, shape, each, table);
      if (status.ok()) continue;
      if (!is_skip(status)) {
        table.failure = status.with_context(format + " " + shape.name());
        return table;
      }
      table.skipped.push_back({shape, status.message()});
    }
  }
  if (table.figures.empty() && !table.skipped.empty()) {
    const KernelSkip& skip = table.skipped.front();
    table.failure = failed_precondition("nothing could be measured; {} {}: {}", skip.shape.format,
                                        skip.shape.name(), skip.reason);
  }
  return table;
}

std::string kernels_heading(const KernelDevice& device) {
  const Ceilings* ceilings = ceilings_of(device.settings.platform.name);
  std::string text =
      fmt::format("{}, {}; floors: {}\n", device.settings.platform.name, device.info.name,
                  ceilings == nullptr ? "not measured on this platform" : ceilings->source);
  text += fmt::format("{:<7} {:>18} {:>6} {:>8} {:>10} {:>9} {:>8} {:>8}", "format", "shape",
                      "rows", "launches", "us", "MB", "GB/s", "TFLOP/s");
  if (ceilings != nullptr) {
    text += fmt::format(" {:>9} {:>9} {:>9} {:>6}", "bytes us", "ops us", "decode us", "share");
  }
  return text + "  kernels\n";
}

std::string kernel_line(const KernelFigure& figure) {
  std::string text = fmt::format(
      "{:<7} {:>18} {:>6} {:>8} {:>10.2f} {:>9.2f} {:>8.0f} {:>8.2f}", figure.shape.format,
      figure.shape.name(), figure.rows, figure.kernels.size(), figure.us, figure.bytes / 1e6,
      figure.bytes / figure.us / 1e3, figure.operations / figure.us / 1e6);
  if (figure.floor) {
    const Floor& floor = *figure.floor;
    text += fmt::format(" {:>9.2f} {:>9.2f} {:>9.2f} {:>5.0f}%", floor.bytes_us,
                        floor.operations_us, floor.decode_us, 100 * floor.us() / figure.us);
  }
  return text + "  " + launches_text(figure.kernels) + "\n";
}

std::string kernels_json(const KernelTable& table, const KernelDevice& device,
                         const Machine& machine) {
  const Ceilings* ceilings = ceilings_of(device.settings.platform.name);
  Json json = {{"benchmark", "kernels"},
               {"machine", machine_json(machine)},
               {"platform", device.settings.platform.name},
               {"device", device.info.name}};
  if (ceilings != nullptr) json["floors"] = ceilings->source;
  const auto shape_json = [](const KernelShape& shape) {
    return Json{{"format", shape.format}, {"shape", shape.name()},    {"k", shape.k},
                {"n", shape.n},           {"experts", shape.experts}, {"top", shape.top}};
  };
  json["results"] = Json::array();
  for (const KernelFigure& figure : table.figures) {
    Json one = shape_json(figure.shape);
    one["rows"] = figure.rows;
    one["launches"] = figure.kernels.size();
    one["kernels"] = figure.kernels;
    one["us"] = figure.us;
    one["best_us"] = figure.best_us;
    one["bytes"] = figure.bytes;
    one["operations"] = figure.operations;
    if (figure.floor) {
      one["floor_us"] = figure.floor->us();
      one["limit"] = figure.floor->limit();
      one["share"] = figure.floor->us() / figure.us;
      one["bytes_floor_us"] = figure.floor->bytes_us;
      one["operations_floor_us"] = figure.floor->operations_us;
      one["decode_floor_us"] = figure.floor->decode_us;
    }
    json["results"].push_back(std::move(one));
  }
  json["skipped"] = Json::array();
  for (const KernelSkip& skip : table.skipped) {
    Json one = shape_json(skip.shape);
    one["reason"] = skip.reason;
    json["skipped"].push_back(std::move(one));
  }
  if (!table.failure.ok()) json["failure"] = table.failure.message();
  return tools::json_text(json);
}

}  // namespace atlas::bench

#include "tools/atlas-bench/ceilings.h"

#include <algorithm>
#include <array>
#include <utility>

namespace atlas::bench {
namespace {

/// NVIDIA H200, 132 units at 1.98 GHz, driver 580.159.04, 2026-11-29: the best of 24 launch shapes
/// of a plain reduction with 16-byte loads, in a chain of a graph, over at least 238 MB of buffers;
/// the last point is a read of 2 GiB. Operations: 8192^3 in bf16 by cuBLAS before the power limit.
/// Instructions: 4 of 32 lanes a cycle and unit.
constexpr std::array kH200Reads = {
    ReadPoint{0.61, 1.53}, ReadPoint{0.82, 1.56}, ReadPoint{2, 1.89},   ReadPoint{4.1, 2.40},
    ReadPoint{5.9, 2.81},  ReadPoint{9.8, 3.68},  ReadPoint{13, 4.51},  ReadPoint{18, 5.53},
    ReadPoint{31, 8.61},   ReadPoint{63, 15.5},   ReadPoint{126, 29.5}, ReadPoint{238.39, 52.9},
    ReadPoint{2147, 474},
};
constexpr Ceilings kH200{"docs/performance.md, H200, Roofline", kH200Reads, 796e6, 33.4e6};

}  // namespace

const Ceilings* ceilings_of(std::string_view platform) {
  return platform == "h200" ? &kH200 : nullptr;
}

double read_floor_us(const Ceilings& ceilings, double bytes) {
  const double megabytes = bytes / 1e6;
  ReadPoint before = ceilings.reads.front();
  if (megabytes <= before.megabytes) return before.us;
  for (const ReadPoint& point : ceilings.reads) {
    if (megabytes <= point.megabytes) {
      const double share = (megabytes - before.megabytes) / (point.megabytes - before.megabytes);
      return before.us + share * (point.us - before.us);
    }
    before = point;
  }
  return megabytes * before.us / before.megabytes;
}

double decode_instructions(std::string_view format) {
  // Codebook MUL1 by its bits; docs/performance.md, "EXL3 on GPUs: instructions a weight".
  constexpr std::array<std::pair<std::string_view, double>, 4> kExl3 = {
      {{"exl3:3", 5.0}, {"exl3:4", 4.4}, {"exl3:5", 5.0}, {"exl3:6", 5.0}}};
  for (const auto& [name, instructions] : kExl3) {
    if (format == name) return instructions;
  }
  return 0;
}

double Floor::us() const { return std::max({bytes_us, operations_us, decode_us}); }

const char* Floor::limit() const {
  if (bytes_us == us()) return "bytes";
  return operations_us == us() ? "operations" : "decode";
}

Floor floor_of(const Ceilings& ceilings, std::string_view format, double bytes, double operations,
               double weights) {
  return {read_floor_us(ceilings, bytes), operations / ceilings.operations_per_us,
          weights * decode_instructions(format) / ceilings.lane_instructions_per_us};
}

}  // namespace atlas::bench

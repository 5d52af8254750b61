// What the products of every weight format promise on every GPU platform, in the emulator: values
// against float64, one row and many with the same bits, dense and of experts, fused addition, rows
// by number, the matrix instructions and the bytes of weights that they read.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/common/codecs.h"
#include "kernels/common/gpu_half.h"
#include "plugins/abi/atlas_plugin.h"
#include "tests/support/gpu_machine.h"
#include "tests/support/gpu_target.h"
#include "tests/support/numbers.h"

namespace atlas::test {

inline uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float bf16_of(float x) { return kernels::bf16_to_f32(bf16_bits(x)); }
/// The nearest f16, and the largest where x is larger.
inline float f16_of(float x) {
  if (x == 0.0f) return x;
  const int exponent = std::max(std::ilogb(x), -14);
  const float unit = std::ldexp(1.0f, exponent - 10);
  return std::clamp(std::nearbyint(x / unit) * unit, -65504.0f, 65504.0f);
}
inline uint16_t f16_bits(float x) {
  const float near = f16_of(x), magnitude = std::fabs(near);
  uint32_t bits;
  std::memcpy(&bits, &magnitude, 4);
  const uint32_t sign = std::signbit(near) ? 0x8000u : 0u;
  return static_cast<uint16_t>(sign | (magnitude < std::ldexp(1.0f, -14)
                                           ? static_cast<uint32_t>(magnitude * 0x1p24f)
                                           : (bits >> 13) - (112u << 10)));
}

/// A weight matrix as a test makes it: its numbers, and its resident bytes for both families.
struct GpuWeights {
  std::string format;  // kernels are linear_<format> and so on
  uint32_t n, k;
  std::vector<float> values;  // [n, k], as `gather` gives them
  std::array<std::vector<uint8_t>, 2> packed;
  uint32_t parts = 1;        // matrix instructions a step
  double tolerance = 1e-5;   // of the error against sum |w x|
  bool divides = false;      // k may be divided over blocks
  uint32_t wgmma_bytes = 0;  // 64 elements of a group; 0: h200 has no kernels of wgmma for it
  bool f16_rows = false;     // inputs are encoded as f16, else as bf16
  const std::vector<uint8_t>& of(const kernels::GpuTraits& gpu) const {
    return packed[static_cast<uint32_t>(gpu.family)];
  }
};

struct ProductRun {
  std::vector<float> y;
  simt::Report report;
};

class ProductSuite {
 public:
  ProductSuite(std::string_view platform, const GpuWeights& weights)
      : gpu_(*kernels::gpu_traits(platform)), weights_(weights) {}

  /// Rows [first, first + rows) of x by the kernel for few or for many rows, k in `parts`.
  ProductRun linear(const std::vector<float>& x, uint32_t first, uint32_t rows, bool many,
                    uint64_t seed = 0, const std::vector<float>* added = nullptr,
                    uint32_t parts = 1, bool wgmma = false) {
    GpuMachine machine{std::string(gpu_.platform)};
    const std::vector<float> taken(x.begin() + size_t{first} * weights_.k,
                                   x.begin() + size_t{first + rows} * weights_.k);
    kernels::LinearParams params{};
    params.x = encode(machine, taken, rows, wgmma);
    params.weight = parts > 1 ? machine.in_out("weight", weights_.of(gpu_))
                              : machine.input("weight", weights_.of(gpu_));
    params.y = added != nullptr ? machine.in_out("y", *added)
                                : machine.output<float>("y", size_t{rows} * weights_.n);
    params.row_count = machine.input("rows", std::vector<uint32_t>{rows});
    params.x_row_bytes = row_bytes(wgmma);
    params.y_stride = weights_.n;
    params.n = weights_.n;
    params.k = weights_.k;
    params.epilogue = added != nullptr ? ATLAS_EPILOGUE_ADD : ATLAS_EPILOGUE_NONE;
    // A bucket of more rows than there are: some blocks have nothing to do.
    const uint32_t bucket = rows <= 8 ? 8 : (parts > 1 ? kernels::kFewRows : rows + 128);
    const kernels::ProductLaunch launch =
        wgmma ? kernels::linear_wgmma_launch(weights_.n, bucket, weights_.wgmma_bytes)
              : kernels::divided(kernels::linear_launch(gpu_, many, weights_.n, weights_.k, bucket),
                                 parts, weights_.n, weights_.k, bucket);
    params.tiles = launch.tiles;
    if (parts > 1) params.values = machine.output<float>("values", launch.workspace_bytes / 4);
    auto report =
        machine.run("linear_" + weights_.format + suffix(many, wgmma), params,
                    kernels::kLinearParamsDigest, {.shape = shape_of(launch), .seed = seed});
    INFO(report.text());
    REQUIRE(report.ok());
    if (parts > 1) {  // counters are left at zero
      const auto* weight = static_cast<const uint8_t*>(params.weight);
      CHECK(machine.contents(weight, uint8_t{0xc3}) == weights_.of(gpu_));
    }
    return {machine.contents(params.y, kUnwritten), std::move(report)};
  }

  /// Row i of y is row source[i] (or i) of x by the weight of its expert. Expert e has the groups
  /// of the weight rotated by e.
  ProductRun grouped(const std::vector<float>& x, const std::vector<uint32_t>& offsets,
                     const std::vector<uint32_t>& source, bool many, uint64_t seed = 0,
                     bool wgmma = false) {
    GpuMachine machine{std::string(gpu_.platform)};
    const auto experts = static_cast<uint32_t>(offsets.size() - 1);
    const uint64_t bytes = weights_.of(gpu_).size() + 64;
    std::vector<uint8_t> all(experts * bytes, 0xc3);
    for (uint32_t e = 0; e < experts; ++e) {
      const std::vector<uint8_t> one = rotated(e);
      std::copy(one.begin(), one.end(), all.begin() + static_cast<int64_t>(e * bytes));
    }
    kernels::GroupedParams params{};
    params.x = encode(machine, x, static_cast<uint32_t>(x.size() / weights_.k), wgmma);
    params.weight = machine.input("weight", all);
    params.y = machine.output<float>("y", size_t{offsets.back()} * weights_.n);
    params.offsets = machine.input("offsets", offsets);
    if (!source.empty()) params.source = machine.input("source", source);
    params.x_row_bytes = row_bytes(wgmma);
    params.y_stride = weights_.n;
    params.expert_bytes = bytes;
    params.n = weights_.n;
    params.k = weights_.k;
    params.experts = experts;
    if (wgmma) params.x = ordered(machine, params);
    const kernels::ProductLaunch launch =
        wgmma ? kernels::grouped_wgmma_launch(weights_.n, experts, offsets.back() + 1,
                                              weights_.wgmma_bytes)
              : kernels::grouped_launch(gpu_, many, weights_.n, weights_.k, experts,
                                        offsets.back() + 1);
    params.tasks = static_cast<uint32_t>(launch.x);
    params.tiles = launch.tiles;
    params.by_row = launch.by_row ? 1 : 0;
    auto report =
        machine.run("grouped_" + weights_.format + suffix(many, wgmma), params,
                    kernels::kGroupedParamsDigest, {.shape = shape_of(launch), .seed = seed});
    INFO(report.text());
    REQUIRE(report.ok());
    return {machine.contents(params.y, kUnwritten), std::move(report)};
  }

  std::vector<float> gather(const std::vector<uint32_t>& ids) {
    GpuMachine machine{std::string(gpu_.platform)};
    const auto rows = static_cast<uint32_t>(ids.size());
    kernels::GatherParams params{};
    params.weight = machine.input("weight", weights_.of(gpu_));
    params.ids = machine.input("ids", ids);
    params.y = machine.output<float>("y", size_t{rows} * weights_.k);
    params.row_count = machine.input("rows", std::vector<uint32_t>{rows});
    params.y_stride = weights_.k;
    params.id_stride = 4;
    params.n = weights_.n;
    params.k = weights_.k;
    const auto report =
        machine.run("gather_" + weights_.format, params, kernels::kGatherParamsDigest,
                    {.shape = shape_of(kernels::gather_launch(rows + 1))});
    INFO(report.text());
    REQUIRE(report.ok());
    return machine.contents(params.y, kUnwritten);
  }

  /// Error of y against float64 sums over x rounded as it is encoded, in units of sum |w x|.
  void check_values(const std::vector<float>& x, const std::vector<float>& y) {
    const uint32_t n = weights_.n, k = weights_.k;
    for (size_t row = 0; row < y.size() / n; ++row) {
      for (uint32_t o = 0; o < n; ++o) {
        double sum = 0, size = 1e-30;
        for (uint32_t i = 0; i < k; ++i) {
          const float input = x[row * k + i];
          const double term = double{weights_.values[size_t{o} * k + i]} *
                              double{weights_.f16_rows ? f16_of(input) : bf16_of(input)};
          sum += term;
          size += std::fabs(term);
        }
        const double error = std::fabs(y[row * n + o] - sum) / size;
        CAPTURE(row);
        CAPTURE(o);
        REQUIRE(error < weights_.tolerance);
      }
    }
  }

  /// All that is promised, at this weight's size; `rows` of the widest product.
  void check(uint32_t rows) {
    CAPTURE(gpu_.platform);
    CAPTURE(weights_.format);
    CAPTURE(weights_.n);
    CAPTURE(weights_.k);
    const std::vector<float> x = normal_values(size_t{rows} * weights_.k, weights_.n + rows);
    const std::vector<float> y = linear(x, 0, rows, false).y;
    check_values(x, y);
    CHECK(same_bits(linear(x, 0, rows, true).y, y));
    CHECK(same_bits(linear(x, 0, rows, true, 5).y, y));
    const uint32_t last = rows - 1;
    CHECK(same_bits(linear(x, last, 1, false, 7).y, part(y, last, 1)));
    CHECK(same_bits(linear(x, last, 1, true).y, part(y, last, 1)));
    const std::vector<float> start = normal_values(y.size(), 9);
    std::vector<float> expected = start;
    for (size_t i = 0; i < y.size(); ++i) expected[i] += y[i];
    CHECK(same_bits(linear(x, 0, rows, false, 1, &start).y, expected));
    CHECK(same_bits(linear(x, 0, rows, true, 0, &start).y, expected));
    if (weights_.divides) check_divided(x, y, expected, start);
    if (by_wgmma()) {
      CHECK(same_bits(linear(x, 0, rows, false, 0, nullptr, 1, true).y, y));
      CHECK(same_bits(linear(x, last, 1, false, 3, nullptr, 1, true).y, part(y, last, 1)));
      CHECK(same_bits(linear(x, 0, rows, false, 6, &start, 1, true).y, expected));
    }
    check_gather();
    check_grouped();
  }

  /// k in any number of parts, blocks in any order: the bits of `y`, and of `added` onto `start`.
  void check_divided(const std::vector<float>& x, const std::vector<float>& y,
                     const std::vector<float>& added, const std::vector<float>& start) {
    const auto all = static_cast<uint32_t>(x.size() / weights_.k);
    const uint32_t rows = std::min(all, kernels::kFewRows);
    for (const uint32_t parts : {2u, 3u, 5u}) {
      CAPTURE(parts);
      CHECK(same_bits(linear(x, 0, rows, false, parts, nullptr, parts).y, part(y, 0, rows)));
      CHECK(same_bits(linear(x, all - 1, 1, false, 2 * parts, nullptr, parts).y,
                      part(y, all - 1, 1)));
      const std::vector<float> begun = part(start, 0, rows);
      CHECK(same_bits(linear(x, 0, rows, false, 0, &begun, parts).y, part(added, 0, rows)));
    }
  }

  void check_gather() {
    std::vector<uint32_t> ids = {weights_.n - 1, 0, weights_.n / 2};
    const std::vector<float> y = gather(ids);
    std::vector<float> expected;
    for (const uint32_t id : ids) {
      expected.insert(expected.end(), weights_.values.begin() + size_t{id} * weights_.k,
                      weights_.values.begin() + size_t{id + 1} * weights_.k);
    }
    CHECK(same_bits(y, expected));
  }

  /// Experts without rows, with one, with as many as fill an instruction, and with more than a
  /// block of the kernel for few takes; rows of x in any order.
  void check_grouped() {
    const std::vector<uint32_t> offsets = {0, 0, 1, 18, 18, 26, 26};
    const auto experts = static_cast<uint32_t>(offsets.size() - 1);
    constexpr uint32_t kTokens = 5;
    const std::vector<float> x = normal_values(size_t{kTokens} * weights_.k, 11);
    std::vector<uint32_t> source;
    for (uint32_t i = 0; i < offsets.back(); ++i) source.push_back(i * 3 % kTokens);
    std::vector<float> expected;
    for (uint32_t e = 0; e < experts; ++e) {
      GpuWeights one = weights_;
      one.packed[static_cast<uint32_t>(gpu_.family)] = rotated(e);
      std::vector<float> rows;
      for (uint32_t i = offsets[e]; i < offsets[e + 1]; ++i) {
        const auto* from = x.data() + size_t{source[i]} * weights_.k;
        rows.insert(rows.end(), from, from + weights_.k);
      }
      if (rows.empty()) continue;
      const std::vector<float> y =
          ProductSuite(gpu_.platform, one).linear(rows, 0, offsets[e + 1] - offsets[e], false).y;
      expected.insert(expected.end(), y.begin(), y.end());
    }
    CHECK(same_bits(grouped(x, offsets, source, false).y, expected));
    CHECK(same_bits(grouped(x, offsets, source, false, 3).y, expected));
    CHECK(same_bits(grouped(x, offsets, source, true, 4).y, expected));
    if (by_wgmma()) CHECK(same_bits(grouped(x, offsets, source, false, 2, true).y, expected));
    const std::vector<float> few(x.begin(), x.begin() + 2 * weights_.k);
    CHECK(same_bits(grouped(few, {0, 2}, {}, false).y, linear(few, 0, 2, false).y));
    check_rows_of_experts(x);
  }

  /// More experts than rows, so that blocks are counted by rows: experts with one row and with
  /// several, and with more than a block takes.
  void check_rows_of_experts(const std::vector<float>& x) {
    for (const bool many_rows : {false, true}) {
      std::vector<uint32_t> offsets(301, 0);
      const uint32_t first = many_rows ? 19 : 1, last = first + 2;
      for (uint32_t e = 8; e <= 300; ++e) offsets[e] = e < 270 ? first : last;
      std::vector<uint32_t> source;
      for (uint32_t i = 0; i < last; ++i) source.push_back(i % 5);
      const std::vector<float> y = grouped(x, offsets, source, false, last).y;
      CHECK(same_bits(y, grouped(x, offsets, source, true).y));
    }
  }

  /// By wgmma: tiles of every size and several of them, rows of y in any stride, experts with more
  /// rows than a tile, and more experts than a warp looks at together.
  void check_wgmma() {
    if (!by_wgmma()) return;
    CAPTURE(weights_.format);
    const std::vector<float> x = normal_values(size_t{330} * weights_.k, 17);
    const std::vector<float> y = linear(x, 0, 330, true).y;
    for (const uint32_t rows : {64u, 65u, 97u, 129u, 330u}) {
      CAPTURE(rows);
      CHECK(same_bits(linear(x, 0, rows, false, rows, nullptr, 1, true).y, part(y, 0, rows)));
    }
    std::vector<uint32_t> offsets(41, 0), source;
    for (uint32_t e = 1; e <= 40; ++e) {
      offsets[e] = offsets[e - 1] + (e == 3       ? 170
                                     : e == 7     ? 100
                                     : e == 38    ? 70
                                     : e % 4 == 0 ? 3
                                                  : 0);
    }
    for (uint32_t i = 0; i < offsets.back(); ++i) source.push_back(i * 7 % 330);
    CHECK(same_bits(grouped(x, offsets, source, false, 5, true).y,
                    grouped(x, offsets, source, true).y));
    const std::vector<uint32_t> all = {0, 0, 150, 200};
    CHECK(same_bits(grouped(x, all, {}, false, 0, true).y, grouped(x, all, {}, true).y));
  }

  /// One to sixteen rows read each byte of the weight once, by as many matrix instructions as its
  /// tiles need.
  void check_traffic() {
    if (!gpu_counts()) return;
    CAPTURE(gpu_.platform);
    CAPTURE(weights_.format);
    for (const uint32_t rows : {1u, 2u, 8u, 16u}) {
      const std::vector<float> x = normal_values(size_t{rows} * weights_.k, rows);
      const ProductRun run = linear(x, 0, rows, false);
      // Scales that serve several tasks count for every warp.
      CHECK(run.report.of("weight").fetched_bytes <= 1.12 * weights_.of(gpu_).size());
      const uint64_t steps = uint64_t{kernels::tiles_of(weights_.n)} *
                             kernels::whole_units(weights_.k, 32) * 2 * weights_.parts;
      const bool mma = gpu_.family == kernels::MatrixFamily::kMma;
      using simt::Matrix;
      const auto kind = weights_.f16_rows ? (mma ? Matrix::kMmaF16 : Matrix::kWmmaF16)
                                          : (mma ? Matrix::kMmaBf16 : Matrix::kWmmaBf16);
      CHECK(run.report.matrix_count(kind) == steps * (mma && rows > 8 ? 2 : 1));
    }
  }

 private:
  static constexpr float kUnwritten = -7.25f;

  bool by_wgmma() const { return weights_.wgmma_bytes != 0 && gpu_.platform == "h200"; }
  static std::string suffix(bool many, bool wgmma) {
    return wgmma ? "_wgmma" : many ? "_many" : "";
  }

  static kernels::LaunchShape shape_of(const kernels::ProductLaunch& launch) {
    return {static_cast<uint32_t>(launch.x), static_cast<uint32_t>(launch.y), 1, launch.threads,
            launch.shared_bytes};
  }
  std::vector<float> part(const std::vector<float>& y, uint32_t first, uint32_t rows) const {
    return {y.begin() + size_t{first} * weights_.n, y.begin() + size_t{first + rows} * weights_.n};
  }
  /// The weight with its groups of 16 outputs moved on by `places`.
  std::vector<uint8_t> rotated(uint32_t places) const {
    const std::vector<uint8_t>& from = weights_.of(gpu_);
    const size_t groups = kernels::tiles_of(weights_.n), bytes = from.size() / groups;
    std::vector<uint8_t> to;
    for (size_t g = 0; g < groups; ++g) {
      const size_t at = (g + places) % groups * bytes;
      to.insert(to.end(), from.begin() + static_cast<int64_t>(at),
                from.begin() + static_cast<int64_t>(at + bytes));
    }
    return to;
  }
  uint64_t row_bytes(bool wgmma) const {
    return wgmma ? kernels::wgmma_row_bytes(weights_.k) : kernels::bf16_row_bytes(weights_.k);
  }
  const void* encode(GpuMachine& machine, const std::vector<float>& x, uint32_t rows, bool wgmma) {
    // Rows in the encoding of wgmma stand in groups.
    const uint32_t places = wgmma ? kernels::wgmma_places(rows) : rows;
    kernels::EncodeParams params{};
    params.x = machine.input("x", x);
    params.out = machine.output<uint8_t>("encoded", places * row_bytes(wgmma));
    params.row_count = machine.input("x_rows", std::vector<uint32_t>{rows});
    params.x_stride = weights_.k;
    params.out_row_bytes = row_bytes(wgmma);
    params.k = weights_.k;
    const char* kernel = weights_.f16_rows
                             ? (wgmma ? kernels::kEncodeHalfWgmma : kernels::kEncodeHalf)
                             : (wgmma ? kernels::kEncodeWgmma : kernels::kEncodeBf16);
    const auto report =
        machine.run(kernel, params, kernels::kEncodeParamsDigest,
                    {.shape = shape_of(wgmma ? kernels::wgmma_encode_launch(weights_.k, rows + 1)
                                             : kernels::encode_launch(weights_.k, rows + 1))});
    INFO(report.text());
    REQUIRE(report.ok());
    return params.out;
  }

  /// The rows of experts as their runs have them, for the product by wgmma.
  const void* ordered(GpuMachine& machine, const kernels::GroupedParams& product) {
    const auto rows = static_cast<uint32_t>(machine.contents(product.y).size() / weights_.n);
    kernels::RunsParams params{};
    params.x = product.x;
    params.out = machine.output<uint8_t>(
        "runs", kernels::wgmma_runs_bytes(weights_.k, rows, product.experts));
    params.offsets = product.offsets;
    params.source = product.source;
    params.k = weights_.k;
    const auto report =
        machine.run(kernels::kRunsWgmma, params, kernels::kRunsParamsDigest,
                    {.shape = shape_of(kernels::wgmma_runs_launch(product.experts))});
    INFO(report.text());
    REQUIRE(report.ok());
    return params.out;
  }

  const kernels::GpuTraits& gpu_;
  const GpuWeights& weights_;
};

}  // namespace atlas::test

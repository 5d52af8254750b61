// Kernels over rows, as every GPU pack has them, in the emulator: the same bits as the CPU pack, at
// odd sizes and strides, in any order of blocks, warps and lanes.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/common/linear.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/gpu_machine.h"
#include "tests/support/gpu_target.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;
constexpr uint32_t kRows = 3;
// Bits of SCALAR, without fused multiply-add, differ where sums are made.
bool has_fma() { return cpu_targets().front().name != "SCALAR"; }

/// Runs a kernel on every platform, in several orders, and compares with the CPU pack's y. `fill`
/// makes the parameters for places of x, weight, y and the row count.
template <typename Params>
void same_as_cpu(
    const std::string& name, uint64_t digest, const std::vector<float>& x,
    const std::vector<float>& weight, const std::vector<float>& y,
    const std::function<Params(const float*, const float*, float*, const uint32_t*)>& fill) {
  std::vector<float> expected = y;
  const uint32_t rows = kRows;
  CpuPack().run(name, fill(x.data(), weight.data(), expected.data(), &rows), kRows + 1);
  for (const char* platform : kGpuPlatforms) {
    for (const uint64_t seed : {0, 1}) {
      CAPTURE(platform);
      CAPTURE(seed);
      GpuMachine machine(platform);
      float* to = machine.in_out("y", y);
      const Params params = fill(machine.input("x", x), machine.input("weight", weight), to,
                                 machine.input("row_count", std::vector<uint32_t>{kRows}));
      // One row more than there are: its blocks do nothing.
      const auto report =
          machine.run(name, params, digest, {.shape = gpu_shape(params, kRows + 1), .seed = seed});
      INFO(report.text());
      REQUIRE(report.ok());
      CHECK(same_bits(machine.contents(to), expected));
    }
  }
}

struct Shape {
  uint32_t groups, n;
};
const std::vector<Shape> kShapes = {{1, 1},   {2, 7},   {3, 16},   {2, 31},  {48, 128},
                                    {4, 129}, {5, 256}, {1, 2560}, {2, 9001}};

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: packs hold the digests of the parameters") {
    if (!gpu_device().empty()) return;  // asked for at every launch there
    for (const char* platform : kGpuPlatforms) {
      const EmulatedPack pack(platform);
      CHECK(pack.params_digest("rms_norm") == kRmsNormParamsDigest);
      CHECK(pack.params_digest("add") == kAddParamsDigest);
      CHECK(pack.params_digest("linear_bf16") == kLinearParamsDigest);
    }
  }

  TEST_CASE("gpu: rms_norm has the CPU's bits") {
    if (!has_fma()) return;
    for (const Shape& shape : kShapes) {
      // Groups side by side, where they can be moved 16 bytes at a time, and apart.
      for (const bool shared : {false, true}) {
        CAPTURE(shape.n);
        const uint32_t apart = shared ? 0 : 1;
        const uint32_t x_group = shape.n + 2 * apart, y_group = shape.n + apart,
                       weight_group = shared ? 0 : shape.n + 3;
        const uint64_t x_stride = shape.groups * x_group + 4 - apart,
                       y_stride = shape.groups * y_group + 4 + apart;
        same_as_cpu<RmsNormParams>(
            "rms_norm", kRmsNormParamsDigest, normal_values(kRows * x_stride, shape.n, 3.0f),
            normal_values(size_t{shape.groups} * (shape.n + 3), shape.n + 1),
            std::vector<float>(kRows * y_stride, 9.0f),
            [&](const float* x, const float* weight, float* y, const uint32_t* rows) {
              return RmsNormParams{
                  x,       weight,  y,       rows,         x_stride, y_stride, shape.groups,
                  shape.n, x_group, y_group, weight_group, 1e-6f};
            });
      }
    }
  }

  TEST_CASE("gpu: add has the CPU's bits") {
    for (const Shape& shape : kShapes) {
      const uint64_t x_stride = shape.n + 3, y_stride = shape.n + 2;
      same_as_cpu<AddParams>("add", kAddParamsDigest, normal_values(kRows * x_stride, 1), {1.0f},
                             normal_values(kRows * y_stride, 2),
                             [&](const float* x, const float*, float* y, const uint32_t* rows) {
                               return AddParams{x, y, rows, x_stride, y_stride, shape.n, 0};
                             });
    }
  }

  TEST_CASE("gpu: silu_mul has the CPU's bits") {
    if (!has_fma()) return;
    for (const Shape& shape : kShapes) {
      const uint64_t x_stride = 2 * shape.n + 1, y_stride = shape.n + 2;
      same_as_cpu<SiluMulParams>("silu_mul", kSiluMulParamsDigest,
                                 normal_values(kRows * x_stride, 3, 20.0f), {1.0f},
                                 std::vector<float>(kRows * y_stride, 9.0f),
                                 [&](const float* x, const float*, float* y, const uint32_t* rows) {
                                   return SiluMulParams{x, y, rows, x_stride, y_stride, shape.n, 0};
                                 });
    }
  }

  TEST_CASE("gpu: copy_groups has the CPU's bits, and repeats a group with a stride of 0") {
    for (const Shape& shape : kShapes) {
      for (const bool repeat : {false, true}) {
        const uint32_t x_group = repeat ? 0 : shape.n + 2, y_group = shape.n + 1;
        const uint64_t x_stride = shape.groups * (shape.n + 2) + 3,
                       y_stride = shape.groups * y_group + 5;
        same_as_cpu<CopyGroupsParams>(
            "copy_groups", kCopyGroupsParamsDigest, normal_values(kRows * x_stride, 4), {1.0f},
            std::vector<float>(kRows * y_stride, 9.0f),
            [&](const float* x, const float*, float* y, const uint32_t* rows) {
              return CopyGroupsParams{x,       y,       rows,   x_stride, y_stride, shape.groups,
                                      shape.n, x_group, y_group};
            });
      }
    }
  }
}

}  // namespace atlas::test

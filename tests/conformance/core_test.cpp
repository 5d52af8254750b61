// The core's row kernels against float64 at odd sizes, on every instruction set; and that a row's
// bits depend on nothing but the row.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/core_kernels.h"
#include "tests/conformance/core_suite.h"
#include "tests/support/control_block.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

/// A step of one sequence of kRows rows that begins at `position`.
ControlBlock rows_at(uint32_t position) {
  ControlLimits limits = small_limits();
  limits.max_positions = position + kRows;
  ControlBlock block(limits);
  Share share;
  share.flags = kSequenceReset;
  share.reset_length = position;
  share.ids.assign(kRows, 1);
  block.submit(1, {share});
  block.fetch(CpuPack());
  REQUIRE(block.control().error == 0);
  return block;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("core: the pack has every kernel of the list, with its digest") {
    const CpuPack pack;
    for (const CoreKernel& kernel : kCoreKernels) {
      CAPTURE(kernel.name);
      REQUIRE(pack.has(kernel.name));
      CHECK(pack.params_digest(kernel.name) == kernel.digest);
    }
  }

  TEST_CASE("core: rms_norm") {
    for (const uint32_t n : kWidths) {
      CAPTURE(n);
      const size_t x_stride = n + 3, y_stride = n + 1;
      const std::vector<float> x = normal_values(kRows * x_stride, 1, 3.0f);
      const std::vector<float> weight = normal_values(n, 2);
      const auto y = same_on_all(
          std::vector<float>(kRows * y_stride),
          [&](const CpuPack& pack, float* to, uint32_t first, uint32_t rows, Split split) {
            RmsNormParams params{};
            params.x = x.data() + first * x_stride;
            params.weight = weight.data();
            params.y = to + first * y_stride;
            params.row_count = &rows;
            params.x_stride = x_stride;
            params.y_stride = y_stride;
            params.groups = 1;
            params.n = n;
            params.epsilon = 1e-5f;
            pack.run("rms_norm", params, rows + 2, split);
          });
      std::vector<double> expected(y.size(), 0.0);
      for (uint32_t r = 0; r < kRows; ++r) {
        double squares = 0;
        for (uint32_t i = 0; i < n; ++i) squares += std::pow(double{x[r * x_stride + i]}, 2);
        for (uint32_t i = 0; i < n; ++i) {
          expected[r * y_stride + i] =
              x[r * x_stride + i] / std::sqrt(squares / n + 1e-5) * weight[i];
        }
      }
      CHECK(largest_difference(y, expected) < 2e-6);
    }
  }

  TEST_CASE("core: silu_mul") {
    for (const uint32_t n : kWidths) {
      CAPTURE(n);
      const size_t x_stride = 2 * n + 1, y_stride = n + 2;
      const std::vector<float> x = normal_values(kRows * x_stride, n, 4.0f);
      const auto y = same_on_all(std::vector<float>(kRows * y_stride), [&](const CpuPack& pack,
                                                                           float* to,
                                                                           uint32_t first,
                                                                           uint32_t rows,
                                                                           Split split) {
        const SiluMulParams params{
            x.data() + first * x_stride, to + first * y_stride, &rows, x_stride, y_stride, n, 0};
        pack.run("silu_mul", params, rows + 2, split);
      });
      double worst = 0;
      for (uint32_t r = 0; r < kRows; ++r) {
        for (uint32_t i = 0; i < n; ++i) {
          const double gate = x[r * x_stride + i], up = x[r * x_stride + n + i];
          worst = std::max(worst, ulps(y[r * y_stride + i], gate / (1 + std::exp(-gate)) * up));
        }
      }
      CHECK(worst < 6);
    }
  }

  TEST_CASE("core: silu_mul at the ends of the range") {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> x = {-90.0f, -200.0f, -3e38f, 90.0f, 3e38f, -infinity, infinity, 0.0f,
                                  1.0f,   1.0f,    1.0f,   1.0f,  0.5f,  1.0f,      1.0f,     1.0f};
    std::vector<float> y(8);
    const uint32_t rows = 1;
    CpuPack().run("silu_mul", SiluMulParams{x.data(), y.data(), &rows, 16, 8, 8, 0}, 1);
    CHECK(y[0] == doctest::Approx(-90.0 * std::exp(-90.0)));
    CHECK(y[1] == 0.0f);
    CHECK(y[2] == 0.0f);
    CHECK(y[3] == 90.0f);
    CHECK(y[4] == 1.5e38f);
    CHECK(std::isnan(y[5]));  // -infinity / infinity
    CHECK(y[6] == infinity);
    CHECK(y[7] == 0.0f);
  }

  TEST_CASE("core: add and add_bias") {
    for (const uint32_t n : kWidths) {
      CAPTURE(n);
      const size_t x_stride = n + 5, y_stride = n + 1;
      const std::vector<float> x = normal_values(kRows * x_stride, n);
      const std::vector<float> initial = normal_values(kRows * y_stride, n + 1);
      const auto sum = same_on_all(initial, [&](const CpuPack& pack, float* to, uint32_t first,
                                                uint32_t rows, Split split) {
        const AddParams params{
            x.data() + first * x_stride, to + first * y_stride, &rows, x_stride, y_stride, n, 0};
        pack.run("add", params, rows + 2, split);
      });
      const auto biased = same_on_all(
          initial, [&](const CpuPack& pack, float* to, uint32_t first, uint32_t rows, Split split) {
            const AddBiasParams params{x.data(), to + first * y_stride, &rows, y_stride, n, 0};
            pack.run("add_bias", params, rows + 2, split);
          });
      for (uint32_t r = 0; r < kRows; ++r) {
        for (uint32_t i = 0; i < y_stride; ++i) {
          const size_t at = r * y_stride + i;
          const bool inside = i < n;
          CHECK(sum[at] == (inside ? initial[at] + x[r * x_stride + i] : initial[at]));
          CHECK(biased[at] == (inside ? initial[at] + x[i] : initial[at]));
        }
      }
    }
  }

  TEST_CASE("core: rope turns pairs by float32 angles, at small and at large positions") {
    struct Shape {
      uint32_t heads, head_dim, rotary_dim;
    };
    const Shape shapes[] = {{1, 2, 2},   {3, 64, 64},   {2, 80, 80},
                            {2, 96, 32}, {1, 256, 256}, {2, 34, 6}};
    for (const uint32_t position : {0u, 5u, 4093u, 262'139u}) {
      for (const Shape& shape : shapes) {
        for (const uint32_t interleaved : {0u, 1u}) {
          CAPTURE(position);
          CAPTURE(shape.rotary_dim);
          CAPTURE(interleaved);
          const size_t half = shape.rotary_dim / 2;
          const size_t stride = shape.heads * shape.head_dim + 3;
          std::vector<float> frequency(half);
          for (size_t i = 0; i < half; ++i) {
            frequency[i] = std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(half));
          }
          const float magnitude = 1.25f;
          const std::vector<float> x = normal_values(kRows * stride, position + 1);
          ControlBlock block = rows_at(position);
          const auto y = same_on_all(
              x, [&](const CpuPack& pack, float* to, uint32_t first, uint32_t rows, Split split) {
                RopeParams params{};
                params.x = to;
                params.inverse_frequency = frequency.data();
                params.rows = &block.control().step;
                params.x_stride = stride;
                params.heads = shape.heads;
                params.head_dim = shape.head_dim;
                params.rotary_dim = shape.rotary_dim;
                params.interleaved = interleaved;
                params.magnitude = magnitude;
                if (rows == kRows) {
                  pack.run("rope", params, kRows + 2, split);
                } else {
                  pack.kernel("rope")(&params, first, first + rows, nullptr);
                }
              });
          std::vector<double> expected(x.begin(), x.end());
          for (uint32_t r = 0; r < kRows; ++r) {
            for (size_t i = 0; i < half; ++i) {
              const float angle = static_cast<float>(position + r) * frequency[i];
              const double c = std::cos(double{angle}) * magnitude;
              const double s = std::sin(double{angle}) * magnitude;
              for (uint32_t h = 0; h < shape.heads; ++h) {
                const size_t head = r * stride + size_t{h} * shape.head_dim;
                const size_t a = head + (interleaved != 0 ? 2 * i : i);
                const size_t b = interleaved != 0 ? a + 1 : a + half;
                expected[a] = x[a] * c - x[b] * s;
                expected[b] = x[b] * c + x[a] * s;
              }
            }
          }
          CHECK(largest_difference(y, expected) < 2e-6);
        }
      }
    }
  }

  TEST_CASE("core: rope's cosines and sines are within 1e-6 of float64's for any angle") {
    const CpuPack pack;
    constexpr uint32_t kPairs = 256;
    ControlBlock block = rows_at(0);
    std::vector<float> frequency(kPairs);
    std::vector<float> x(2 * kPairs);
    for (const CpuTarget& target : cpu_targets()) {
      CAPTURE(target.name);
      const ForcedTarget forced(target);
      double worst = 0;
      for (const uint32_t position : {1u, 1000u, 262'144u, 16'777'216u}) {
        block.control().step.rows[0].position[0] = static_cast<int32_t>(position);
        for (uint32_t i = 0; i < kPairs; ++i) {
          frequency[i] = 1.0f - static_cast<float>(i) * 0.00389f;
          x[i] = 1.0f;
          x[kPairs + i] = 0.0f;
        }
        RopeParams params{};
        params.x = x.data();
        params.inverse_frequency = frequency.data();
        params.rows = &block.control().step;
        params.x_stride = x.size();
        params.heads = 1;
        params.head_dim = params.rotary_dim = 2 * kPairs;
        params.magnitude = 1.0f;
        pack.run("rope", params, 1);
        for (uint32_t i = 0; i < kPairs; ++i) {
          const double angle = static_cast<float>(position) * frequency[i];
          worst = std::max(worst, std::fabs(x[i] - std::cos(angle)));
          worst = std::max(worst, std::fabs(x[kPairs + i] - std::sin(angle)));
        }
      }
      CHECK(worst < 1e-6);
    }
  }
}

}  // namespace atlas::test

// The core's kernels over groups of a row and over residual streams, against float64 at odd sizes.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/core.h"
#include "tests/conformance/core_suite.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Shape {
  uint32_t groups, n;
};
const std::vector<Shape> kShapes = {{1, 1},  {2, 7},  {3, 16},  {4, 17},
                                    {5, 31}, {4, 64}, {7, 100}, {4, 2560}};

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("core: rms_norm of groups, with one weight and with one for each group") {
    for (const Shape& shape : kShapes) {
      for (const bool shared : {false, true}) {
        const uint32_t groups = shape.groups, n = shape.n;
        CAPTURE(groups);
        CAPTURE(n);
        const uint32_t x_group = n + 2, y_group = n + 1, weight_group = shared ? 0 : n + 3;
        const size_t x_stride = groups * x_group + 3, y_stride = groups * y_group + 5;
        const std::vector<float> x = normal_values(kRows * x_stride, n, 3.0f);
        const std::vector<float> weight = normal_values(size_t{groups} * (n + 3), n + 1);
        const std::vector<float> initial(kRows * y_stride, 9.0f);
        const auto y = same_on_all(initial, [&](const CpuPack& pack, float* to, uint32_t first,
                                                uint32_t rows, Split split) {
          RmsNormParams params{};
          params.x = x.data() + first * x_stride;
          params.weight = weight.data();
          params.y = to + first * y_stride;
          params.row_count = &rows;
          params.x_stride = x_stride;
          params.y_stride = y_stride;
          params.groups = groups;
          params.n = n;
          params.x_group_stride = x_group;
          params.y_group_stride = y_group;
          params.weight_group_stride = weight_group;
          params.epsilon = 1e-6f;
          pack.run("rms_norm", params, rows + 2, split);
        });
        std::vector<double> expected(initial.begin(), initial.end());
        for (uint32_t r = 0; r < kRows; ++r) {
          for (uint32_t g = 0; g < groups; ++g) {
            const float* from = x.data() + r * x_stride + g * x_group;
            double squares = 0;
            for (uint32_t i = 0; i < n; ++i) squares += double{from[i]} * from[i];
            const double scale = 1 / std::sqrt(squares / n + 1e-6);
            for (uint32_t i = 0; i < n; ++i) {
              expected[r * y_stride + g * y_group + i] =
                  from[i] * scale * weight[g * weight_group + i];
            }
          }
        }
        CHECK(largest_difference(y, expected) < 4e-6);
      }
    }
  }

  TEST_CASE("core: copy_groups copies groups, and repeats one with a stride of 0") {
    for (const Shape& shape : kShapes) {
      for (const bool repeat : {false, true}) {
        const uint32_t groups = shape.groups, n = shape.n;
        const uint32_t x_group = repeat ? 0 : n + 2, y_group = n + 1;
        const size_t x_stride = groups * (n + 2) + 3, y_stride = groups * y_group + 5;
        const std::vector<float> x = normal_values(kRows * x_stride, n);
        const std::vector<float> initial(kRows * y_stride, 9.0f);
        const auto y = same_on_all(initial, [&](const CpuPack& pack, float* to, uint32_t first,
                                                uint32_t rows, Split split) {
          const CopyGroupsParams params{x.data() + first * x_stride,
                                        to + first * y_stride,
                                        &rows,
                                        x_stride,
                                        y_stride,
                                        groups,
                                        n,
                                        x_group,
                                        y_group};
          pack.run("copy_groups", params, rows + 2, split);
        });
        std::vector<float> expected = initial;
        for (uint32_t r = 0; r < kRows; ++r) {
          for (uint32_t g = 0; g < groups; ++g) {
            for (uint32_t i = 0; i < n; ++i) {
              expected[r * y_stride + g * y_group + i] = x[r * x_stride + g * x_group + i];
            }
          }
        }
        CHECK(same_bits(y, expected));
      }
    }
  }

  TEST_CASE("core: gate_mul gates by sigmoid or silu, also in place") {
    for (const Shape& shape : kShapes) {
      for (const uint32_t silu : {0u, 1u}) {
        const uint32_t groups = shape.groups, n = shape.n;
        CAPTURE(groups);
        CAPTURE(n);
        const uint32_t x_group = n + 2, gate_group = n + 4, y_group = n + 1;
        const size_t x_stride = groups * x_group + 3, gate_stride = groups * gate_group,
                     y_stride = groups * y_group + 5;
        const std::vector<float> x = normal_values(kRows * x_stride, n);
        const std::vector<float> gate = normal_values(kRows * gate_stride, n + 1, 4.0f);
        const auto filled = [&](const float* from, float* to, uint32_t first, const uint32_t* rows,
                                size_t to_stride, uint32_t to_group) {
          GateMulParams params{};
          params.x = from + first * x_stride;
          params.gate = gate.data() + first * gate_stride;
          params.y = to + first * to_stride;
          params.row_count = rows;
          params.x_stride = x_stride;
          params.gate_stride = gate_stride;
          params.y_stride = to_stride;
          params.groups = groups;
          params.n = n;
          params.x_group_stride = x_group;
          params.gate_group_stride = gate_group;
          params.y_group_stride = to_group;
          params.silu = silu;
          return params;
        };
        const std::vector<float> initial(kRows * y_stride, 9.0f);
        const auto y = same_on_all(initial, [&](const CpuPack& pack, float* to, uint32_t first,
                                                uint32_t rows, Split split) {
          pack.run("gate_mul", filled(x.data(), to, first, &rows, y_stride, y_group), rows + 2,
                   split);
        });
        const auto in_place = same_on_all(x, [&](const CpuPack& pack, float* to, uint32_t first,
                                                 uint32_t rows, Split split) {
          pack.run("gate_mul", filled(to, to, first, &rows, x_stride, x_group), rows + 2, split);
        });
        std::vector<double> expected(initial.begin(), initial.end());
        std::vector<float> placed = x;
        for (uint32_t r = 0; r < kRows; ++r) {
          for (uint32_t g = 0; g < groups; ++g) {
            for (uint32_t i = 0; i < n; ++i) {
              const size_t to = r * y_stride + g * y_group + i;
              const size_t from = r * x_stride + g * x_group + i;
              const double a = gate[r * gate_stride + g * gate_group + i];
              expected[to] = x[from] * sigmoid(a) * (silu != 0 ? a : 1.0);
              placed[from] = y[to];
            }
          }
        }
        CHECK(largest_difference(y, expected) < 1e-5);
        CHECK(same_bits(in_place, placed));
      }
    }
  }

  TEST_CASE("core: gate_mul at the ends of the range") {
    const std::vector<float> gate = {-200.0f, -3e38f, -kInfinity, 200.0f, 3e38f, kInfinity, 0.0f};
    const std::vector<float> x(gate.size(), 3.0f);
    const uint32_t rows = 1, n = static_cast<uint32_t>(x.size());
    std::vector<float> y(n);
    const GateMulParams params{x.data(), gate.data(), y.data(), &rows, n, n, n, 1, n, n, n, n, 0};
    CpuPack().run("gate_mul", params, 1);
    CHECK(y == std::vector<float>{0.0f, 0.0f, 0.0f, 3.0f, 3.0f, 3.0f, 1.5f});
  }

  TEST_CASE("core: silu of scaled values") {
    for (const uint32_t n : kWidths) {
      CAPTURE(n);
      const size_t x_stride = n + 3, y_stride = n + 2;
      const std::vector<float> x = normal_values(kRows * x_stride, n, 12.0f);
      const std::vector<float> initial(kRows * y_stride, 9.0f);
      const auto y = same_on_all(
          initial, [&](const CpuPack& pack, float* to, uint32_t first, uint32_t rows, Split split) {
            const SiluParams params{x.data() + first * x_stride,
                                    to + first * y_stride,
                                    &rows,
                                    x_stride,
                                    y_stride,
                                    n,
                                    0.25f};
            pack.run("silu", params, rows + 2, split);
          });
      double worst = 0;
      for (uint32_t r = 0; r < kRows; ++r) {
        for (uint32_t i = 0; i < y_stride; ++i) {
          const double a = i < n ? x[r * x_stride + i] * 0.25 : 0.0;
          worst = std::max(worst, ulps(y[r * y_stride + i], i < n ? a * sigmoid(a) : 9.0));
        }
      }
      CHECK(worst < 6);
    }
  }

  TEST_CASE("core: select_rows takes rows by index") {
    constexpr uint32_t kWidth = 37;
    const uint32_t index[] = {5, 0, 3, 3, 6, 1, 2};
    const std::vector<float> x = normal_values(kRows * 40, 5);
    const std::vector<float> initial(kRows * 38, 9.0f);
    const auto y = same_on_all(
        initial, [&](const CpuPack& pack, float* to, uint32_t first, uint32_t rows, Split split) {
          const SelectRowsParams params{
              x.data(), to + first * 38, index + first, &rows, 40, 38, kWidth, 0};
          pack.run("select_rows", params, rows + 2, split);
        });
    for (uint32_t j = 0; j < kRows; ++j) {
      for (uint32_t i = 0; i < 38; ++i) {
        CHECK(y[j * 38 + i] == (i < kWidth ? x[index[j] * 40 + i] : 9.0f));
      }
    }
  }

  TEST_CASE("core: stream_mix is the gated mean of the streams") {
    for (const Shape& shape : kShapes) {
      const uint32_t streams = shape.groups, n = shape.n;
      CAPTURE(streams);
      CAPTURE(n);
      const size_t gate_stride = streams * n + 1, x_stride = streams * n + 3, u_stride = n + 2;
      const std::vector<float> gate = normal_values(kRows * gate_stride, n, 3.0f);
      const std::vector<float> x = normal_values(kRows * x_stride, n + 1);
      const std::vector<float> initial(kRows * u_stride, 9.0f);
      const auto u = same_on_all(
          initial, [&](const CpuPack& pack, float* to, uint32_t first, uint32_t rows, Split split) {
            const StreamMixParams params{gate.data() + first * gate_stride,
                                         x.data() + first * x_stride,
                                         to + first * u_stride,
                                         &rows,
                                         gate_stride,
                                         x_stride,
                                         u_stride,
                                         streams,
                                         n};
            pack.run("stream_mix", params, rows + 2, split);
          });
      std::vector<double> expected(initial.begin(), initial.end());
      for (uint32_t r = 0; r < kRows; ++r) {
        for (uint32_t i = 0; i < n; ++i) {
          double sum = 0;
          for (size_t s = 0; s < streams; ++s) {
            sum += sigmoid(gate[r * gate_stride + s * n + i]) * x[r * x_stride + s * n + i];
          }
          expected[r * u_stride + i] = sum / streams;
        }
      }
      CHECK(largest_difference(u, expected) < 1e-6);
    }
  }

  TEST_CASE("core: stream_inject adds the output to each stream by its own gate") {
    for (const Shape& shape : kShapes) {
      const uint32_t streams = shape.groups, n = shape.n;
      CAPTURE(streams);
      CAPTURE(n);
      const size_t c_stride = streams + 2, y_stride = n + 1, x_stride = streams * n + 3;
      const std::vector<float> c = normal_values(kRows * c_stride, n, 5.0f);
      const std::vector<float> y = normal_values(kRows * y_stride, n + 1);
      const std::vector<float> initial = normal_values(kRows * x_stride, n + 2);
      const auto x = same_on_all(
          initial, [&](const CpuPack& pack, float* to, uint32_t first, uint32_t rows, Split split) {
            const StreamInjectParams params{c.data() + first * c_stride,
                                            y.data() + first * y_stride,
                                            to + first * x_stride,
                                            &rows,
                                            c_stride,
                                            y_stride,
                                            x_stride,
                                            streams,
                                            n};
            pack.run("stream_inject", params, rows + 2, split);
          });
      std::vector<double> expected(initial.begin(), initial.end());
      for (uint32_t r = 0; r < kRows; ++r) {
        for (size_t s = 0; s < streams; ++s) {
          const double scale = 2 * sigmoid(double{c[r * c_stride + s]} / streams);
          for (uint32_t i = 0; i < n; ++i) {
            expected[r * x_stride + s * n + i] += scale * y[r * y_stride + i];
          }
        }
      }
      CHECK(largest_difference(x, expected) < 4e-6);
    }
  }

  TEST_CASE("core: ngram_gate scales the value by how well key and query agree") {
    for (const Shape& shape : kShapes) {
      const uint32_t streams = shape.groups, n = shape.n;
      CAPTURE(streams);
      CAPTURE(n);
      const size_t key_stride = streams * n + 1, query_stride = streams * n + 3,
                   value_stride = n + 2, y_stride = streams * n + 4;
      const std::vector<float> key = normal_values(kRows * key_stride, n);
      const std::vector<float> query = normal_values(kRows * query_stride, n + 1);
      const std::vector<float> value = normal_values(kRows * value_stride, n + 2);
      const std::vector<float> initial(kRows * y_stride, 9.0f);
      const auto y = same_on_all(
          initial, [&](const CpuPack& pack, float* to, uint32_t first, uint32_t rows, Split split) {
            const NgramGateParams params{key.data() + first * key_stride,
                                         query.data() + first * query_stride,
                                         value.data() + first * value_stride,
                                         to + first * y_stride,
                                         &rows,
                                         key_stride,
                                         query_stride,
                                         value_stride,
                                         y_stride,
                                         streams,
                                         n};
            pack.run("ngram_gate", params, rows + 2, split);
          });
      std::vector<double> expected(initial.begin(), initial.end());
      for (uint32_t r = 0; r < kRows; ++r) {
        for (size_t s = 0; s < streams; ++s) {
          double dot = 0;
          for (uint32_t i = 0; i < n; ++i) {
            dot += double{key[r * key_stride + s * n + i]} * query[r * query_stride + s * n + i];
          }
          dot /= std::sqrt(static_cast<double>(n));
          const double gate =
              sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot));
          for (uint32_t i = 0; i < n; ++i) {
            expected[r * y_stride + s * n + i] = gate * value[r * value_stride + i];
          }
        }
      }
      CHECK(largest_difference(y, expected) < 1e-5);
    }
  }

  TEST_CASE("core: ngram_gate of nothing, of next to nothing, and of NaN") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> key = {0.0f, 1e-9f, -1e-9f, nan};
    const std::vector<float> query(4, 1.0f);
    const float value = 2.0f;
    std::vector<float> y(4);
    const uint32_t rows = 1;
    const NgramGateParams params{key.data(), query.data(), &value, y.data(), &rows, 4, 4, 1, 4, 4,
                                 1};
    CpuPack().run("ngram_gate", params, 1);
    CHECK(y[0] == 1.0f);
    CHECK(y[1] == doctest::Approx(2 * sigmoid(1e-3)).epsilon(1e-6));
    CHECK(y[2] == doctest::Approx(2 * sigmoid(-1e-3)).epsilon(1e-6));
    CHECK(std::isnan(y[3]));
  }
}

}  // namespace atlas::test

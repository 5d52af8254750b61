// Elementwise kernels and rope of every GPU pack: the bits of the CPU pack, with rows that are
// aligned to 16 bytes and rows that are not.
#include <limits>
#include <vector>

#include "tests/support/control_block.h"
#include "tests/support/gpu_twin.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr uint32_t kRows = 3;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Shape {
  uint32_t groups, n;
};
const std::vector<Shape> kShapes = {{1, 1},   {2, 7},    {3, 16},  {5, 17},
                                    {4, 130}, {4, 1028}, {2, 2560}};

/// Calls body(twin, row_count, shape, pad, seed) for every platform, shape, alignment and order.
/// Rows are `pad` elements longer than they need be.
template <typename Body>
void for_all(const Body& body) {
  if (!cpu_has_fma()) return;
  for (const char* platform : kGpuPlatforms) {
    CAPTURE(platform);
    for (const Shape& shape : kShapes) {
      for (const uint32_t pad : {0u, 4u, 3u}) {
        CAPTURE(shape.groups);
        CAPTURE(shape.n);
        CAPTURE(pad);
        GpuTwin twin(platform);
        const Both<uint32_t> row_count = twin.input("row_count", std::vector<uint32_t>{kRows});
        body(twin, row_count, shape, pad, uint64_t{pad});
      }
    }
  }
}

/// Normal numbers, and some of those at the ends of the range.
std::vector<float> wide_values(size_t count, uint32_t seed, float deviation) {
  std::vector<float> values = normal_values(count, seed, deviation);
  const float ends[] = {-200.0f, 3e38f, -3e38f, kInfinity, -kInfinity, -0.0f, 90.0f, 0.0f / 0.0f};
  for (size_t i = 0; i < std::size(ends); ++i) {
    if (count > 40 * (i + 1)) values[count - 1 - 37 * i] = ends[i];
  }
  return values;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: add_bias, silu and select_rows have the CPU's bits") {
    for_all([](GpuTwin& twin, const Both<uint32_t>& row_count, const Shape& shape, uint32_t pad,
               uint64_t seed) {
      const uint32_t n = shape.n;
      const uint64_t x_stride = n + pad, y_stride = n + 2 * pad;
      const auto x = twin.input("x", wide_values((kRows + 1) * x_stride, n, 12.0f));
      const auto y = twin.in_out("y", normal_values(kRows * y_stride, n + 1));
      twin.run<AddBiasParams>(
          "add_bias", kAddBiasParamsDigest, kRows + 1, kRows + 1,
          [&](bool gpu) {
            return AddBiasParams{x.at(gpu), y.at(gpu), row_count.at(gpu), y_stride, n, 0};
          },
          seed);
      CHECK(twin.same(y));
      twin.run<SiluParams>(
          "silu", kSiluParamsDigest, kRows + 1, kRows + 1,
          [&](bool gpu) {
            return SiluParams{x.at(gpu), y.at(gpu), row_count.at(gpu), x_stride, y_stride,
                              n,         0.25f};
          },
          seed);
      CHECK(twin.same(y));
      const auto index = twin.input("index", std::vector<uint32_t>{3, 0, 2});
      twin.run<SelectRowsParams>(
          "select_rows", kSelectRowsParamsDigest, kRows + 1, kRows + 1,
          [&](bool gpu) {
            return SelectRowsParams{
                x.at(gpu), y.at(gpu), index.at(gpu), row_count.at(gpu), x_stride, y_stride, n, 0};
          },
          seed);
      CHECK(twin.same(y));
    });
  }

  TEST_CASE("gpu: gate_mul has the CPU's bits, also in place") {
    for_all([](GpuTwin& twin, const Both<uint32_t>& row_count, const Shape& shape, uint32_t pad,
               uint64_t seed) {
      const uint32_t n = shape.n, group = n + pad;
      const uint64_t stride = shape.groups * group + pad;
      const auto x = twin.in_out("x", normal_values(kRows * stride, n));
      const auto gate = twin.input("gate", wide_values(kRows * stride, n + 1, 4.0f));
      const auto y = twin.in_out("y", std::vector<float>(kRows * stride, 9.0f));
      for (const uint32_t silu : {0u, 1u}) {
        for (const bool in_place : {false, true}) {
          const auto& to = in_place ? x : y;
          twin.run<GateMulParams>(
              "gate_mul", kGateMulParamsDigest, kRows + 1, kRows + 1,
              [&](bool gpu) {
                return GateMulParams{x.at(gpu), gate.at(gpu), to.at(gpu), row_count.at(gpu),
                                     stride,    stride,       stride,     shape.groups,
                                     n,         group,        group,      group,
                                     silu};
              },
              seed);
          CHECK(twin.same(to));
        }
      }
    });
  }

  TEST_CASE("gpu: stream_mix and stream_inject have the CPU's bits") {
    for_all([](GpuTwin& twin, const Both<uint32_t>& row_count, const Shape& shape, uint32_t pad,
               uint64_t seed) {
      const uint32_t n = shape.n, streams = shape.groups;
      const uint64_t stride = uint64_t{streams} * n + pad, u_stride = n + pad,
                     c_stride = streams + 1;
      const auto x = twin.in_out("x", normal_values(kRows * stride, n));
      const auto gate = twin.input("gate", wide_values(kRows * stride, n + 1, 4.0f));
      const auto c = twin.input("c", wide_values(kRows * c_stride, n + 2, 5.0f));
      const auto u = twin.in_out("u", std::vector<float>(kRows * u_stride, 9.0f));
      twin.run<StreamMixParams>(
          "stream_mix", kStreamMixParamsDigest, kRows + 1, kRows + 1,
          [&](bool gpu) {
            return StreamMixParams{gate.at(gpu),      x.at(gpu), u.at(gpu),
                                   row_count.at(gpu), stride,    stride,
                                   u_stride,          streams,   n};
          },
          seed);
      CHECK(twin.same(u));
      twin.run<StreamInjectParams>(
          "stream_inject", kStreamInjectParamsDigest, kRows + 1, kRows + 1,
          [&](bool gpu) {
            return StreamInjectParams{c.at(gpu), u.at(gpu), x.at(gpu), row_count.at(gpu),
                                      c_stride,  u_stride,  stride,    streams,
                                      n};
          },
          seed);
      CHECK(twin.same(x));
    });
  }

  TEST_CASE("gpu: inject_norm has the bits of stream_inject and rms_norm") {
    for_all([](GpuTwin& twin, const Both<uint32_t>& row_count, const Shape& shape, uint32_t pad,
               uint64_t seed) {
      const uint32_t n = shape.n, streams = shape.groups;
      const uint64_t stride = uint64_t{streams} * n + pad, c_stride = streams + 1,
                     normed_stride = streams * (n + pad);
      // The rows of a small grid, which are read whatever the count says; those of a large one end
      // with the count.
      const auto x = twin.in_out("x", normal_values((kRows + 1) * stride, n));
      const auto y = twin.input("y", wide_values((kRows + 1) * (n + pad), n + 1, 1.0f));
      const auto c = twin.input("c", wide_values((kRows + 1) * c_stride, n + 2, 5.0f));
      for (const uint32_t weight_stride : {0u, n}) {
        const auto weight = twin.input("weight", normal_values(uint64_t{streams} * n, n + 3));
        const auto normed = twin.in_out("normed", std::vector<float>(kRows * normed_stride, 9.0f));
        twin.pack().run(
            "stream_inject",
            StreamInjectParams{c.at(false), y.at(false), x.at(false), row_count.at(false), c_stride,
                               n + pad, stride, streams, n},
            kRows + 1);
        twin.pack().run(
            "rms_norm",
            RmsNormParams{x.at(false), weight.at(false), normed.at(false), row_count.at(false),
                          stride, normed_stride, streams, n, n, n + pad, weight_stride, 1e-6f},
            kRows + 1);
        twin.run_gpu(
            "inject_norm", kInjectNormParamsDigest,
            weight_stride == 0 ? kRows + 1 : kCombineInjectRows + 1,
            InjectNormParams{c.at(true), y.at(true), x.at(true), weight.at(true), normed.at(true),
                             row_count.at(true), c_stride, n + pad, stride, normed_stride, streams,
                             n, weight_stride, n + pad, 1e-6f, 0},
            seed);
        CHECK(twin.same(x));
        CHECK(twin.same(normed));
      }
    });
  }

  TEST_CASE("gpu: norm_gate has the bits of rms_norm and gate_mul") {
    for_all([](GpuTwin& twin, const Both<uint32_t>& row_count, const Shape& shape, uint32_t pad,
               uint64_t seed) {
      const uint32_t n = shape.n, groups = shape.groups, group = n + pad;
      if (n > kNormNarrow) return;
      const uint64_t stride = groups * group + pad;
      const auto x = twin.input("x", normal_values(kRows * stride, n));
      const auto gate = twin.input("gate", wide_values(kRows * stride, n + 1, 4.0f));
      const auto weight = twin.input("weight", normal_values(uint64_t{groups} * n, n + 2));
      const auto y = twin.in_out("y", std::vector<float>(kRows * stride, 9.0f));
      for (const uint32_t silu : {0u, 1u}) {
        const auto fill = [&](bool gpu) {
          NormGateParams params{};
          params.norm = {
              x.at(gpu), weight.at(gpu), y.at(gpu), row_count.at(gpu), stride, stride, groups,
              n,         group,          group,     silu * n,          1e-6f,  nullptr};
          params.gate = {y.at(gpu), gate.at(gpu), y.at(gpu), row_count.at(gpu),
                         stride,    stride,       stride,    groups,
                         n,         group,        group,     group,
                         silu,      nullptr};
          return params;
        };
        twin.pack().run("rms_norm", fill(false).norm, kRows + 1);
        twin.pack().run("gate_mul", fill(false).gate, kRows + 1);
        twin.run_gpu("norm_gate", kNormGateParamsDigest, kRows + 1, fill(true), seed);
        CHECK(twin.same(y));
      }
    });
  }

  TEST_CASE("gpu: rope has the CPU's bits at small and at large positions") {
    if (!cpu_has_fma()) return;
    struct Rope {
      uint32_t heads, head_dim, rotary_dim;
    };
    for (const char* platform : kGpuPlatforms) {
      for (const Rope& shape :
           {Rope{1, 2, 2}, Rope{33, 64, 64}, Rope{2, 96, 32}, Rope{3, 34, 6}, Rope{2, 600, 600}}) {
        for (const int32_t position : {0, 5, 4093, 262'139, 1 << 24}) {
          const uint32_t interleaved = position % 2;
          CAPTURE(platform);
          CAPTURE(shape.rotary_dim);
          CAPTURE(position);
          const uint32_t half = shape.rotary_dim / 2;
          const uint64_t stride = shape.heads * shape.head_dim + 3;
          std::vector<float> frequencies(half);
          for (uint32_t i = 0; i < half; ++i) {
            frequencies[i] = std::pow(1e7f, -static_cast<float>(i) / static_cast<float>(half));
          }
          std::vector<RowInput> inputs(kRows);
          for (uint32_t r = 0; r < kRows; ++r) {
            inputs[r].position[0] = position + static_cast<int32_t>(r);
          }
          GpuTwin twin(platform);
          const auto rows = twin.input("rows", inputs);
          const auto x = twin.in_out("x", normal_values(kRows * stride, half));
          const auto frequency = twin.input("frequencies", frequencies);
          RowSet host_set{rows.at(false), nullptr, kRows, 0};
          RowSet gpu_set{rows.at(true), nullptr, kRows, 0};
          const auto* set = twin.machine().input("set", std::vector<RowSet>{gpu_set});
          twin.run<RopeParams>(
              "rope", kRopeParamsDigest, kRows + 1, kRows + 1,
              [&](bool gpu) {
                return RopeParams{
                    x.at(gpu),      frequency.at(gpu), gpu ? set : &host_set, stride, shape.heads,
                    shape.head_dim, shape.rotary_dim,  interleaved,           1.25f,  0};
              },
              static_cast<uint64_t>(position));
          CHECK(twin.same(x));
        }
      }
    }
  }
}

}  // namespace atlas::test

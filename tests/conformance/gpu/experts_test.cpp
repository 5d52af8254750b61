// Kernels of a mixture of experts of every GPU pack: the bits of the CPU pack, ties and numbers
// that are not finite included.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/common/core.h"
#include "tests/support/gpu_twin.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Rows of logits: random, with ties, ascending, all the same, with few finite ones, with zeros of
/// both signs, and not finite in several ways.
std::vector<float> odd_logits(uint32_t rows, uint32_t experts, uint64_t stride) {
  std::vector<float> logits = normal_values(rows * stride, experts, 2.0f);
  for (uint32_t r = 0; r < rows; ++r) {
    float* row = logits.data() + r * stride;
    for (uint32_t e = 0; e < experts; ++e) {
      if (r == 1) row[e] = std::round(row[e]);
      if (r == 2) row[e] = static_cast<float>(e) * 0.125f;
      if (r == 3) row[e] = -3.5f;
      if (r == 4 && e % 5 != 2 && e != 0) row[e] = -kInfinity;
      if (r == 5) row[e] = e % 2 == 0 ? -0.0f : 0.0f;
      if (r == 7) row[e] = -kInfinity;
      if (r == 8) row[e] = kNaN;
    }
    if (r == 6) row[experts / 2] = kNaN;
    if (r == 9) row[experts - 1] = kInfinity;
  }
  return logits;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: route has the CPU's experts and weights") {
    if (!cpu_has_fma()) return;
    constexpr uint32_t kRows = 11;
    struct Shape {
      uint32_t experts, top;
    };
    for (const char* platform : kGpuPlatforms) {
      for (const Shape& shape : {Shape{1, 1}, Shape{7, 7}, Shape{17, 3}, Shape{128, 17},
                                 Shape{512, 10}, Shape{513, 10}, Shape{700, 32}}) {
        for (const uint32_t normalize : {0u, 1u}) {
          CAPTURE(platform);
          CAPTURE(shape.experts);
          CAPTURE(normalize);
          const uint64_t stride = shape.experts + 3;
          GpuTwin twin(platform);
          const auto logits = twin.input("logits", odd_logits(kRows, shape.experts, stride));
          const auto row_count = twin.input("row_count", std::vector<uint32_t>{kRows});
          const auto chosen = twin.in_out("chosen", std::vector<uint32_t>(kRows * shape.top + 5));
          const auto weights = twin.in_out("weights", std::vector<float>(kRows * shape.top + 5));
          twin.run<RouteParams>(
              "route", kRouteParamsDigest, kRows + 2, kRows + 2,
              [&](bool gpu) {
                return RouteParams{logits.at(gpu),    chosen.at(gpu), weights.at(gpu),
                                   row_count.at(gpu), stride,         shape.experts,
                                   shape.top,         normalize,      0};
              },
              normalize);
          CHECK(twin.same(chosen));
          CHECK(twin.same(weights));
        }
      }
    }
  }

  TEST_CASE("gpu: group_experts sorts choices as the CPU does") {
    struct Shape {
      uint32_t rows, experts, top;
    };
    for (const char* platform : kGpuPlatforms) {
      for (const Shape& shape : {Shape{0, 5, 2}, Shape{1, 1, 1}, Shape{9, 4, 4}, Shape{1, 512, 10},
                                 Shape{33, 64, 10}, Shape{2000, 40, 5}}) {
        const auto [rows, experts, top] = shape;
        CAPTURE(platform);
        CAPTURE(rows);
        CAPTURE(experts);
        std::mt19937 random(rows);
        std::vector<uint32_t> choices(rows * top + 1);
        std::vector<uint32_t> all(experts);
        std::iota(all.begin(), all.end(), 0u);
        for (uint32_t r = 0; r < rows; ++r) {
          std::shuffle(all.begin(), all.end(), random);
          std::copy_n(all.begin(), top, choices.begin() + r * top);
        }
        GpuTwin twin(platform);
        const auto chosen = twin.input("chosen", choices);
        const auto row_count = twin.input("row_count", std::vector<uint32_t>{rows});
        const auto offsets = twin.in_out("offsets", std::vector<uint32_t>(experts + 3, 77));
        const auto source = twin.in_out("source", std::vector<uint32_t>(rows * top + 2, 77));
        const auto place = twin.in_out("place", std::vector<uint32_t>(rows * top + 2, 77));
        twin.run<GroupExpertsParams>(
            "group_experts", kGroupExpertsParamsDigest, 1, 1,
            [&](bool gpu) {
              return GroupExpertsParams{chosen.at(gpu),
                                        offsets.at(gpu),
                                        source.at(gpu),
                                        place.at(gpu),
                                        row_count.at(gpu),
                                        experts,
                                        top};
            },
            rows);
        CHECK(twin.same(offsets));
        CHECK(twin.same(source));
        CHECK(twin.same(place));
      }
    }
  }

  TEST_CASE("gpu: choose_experts has the bits of route and group_experts") {
    if (!cpu_has_fma()) return;
    struct Shape {
      uint32_t rows, first, experts, top;  // rows of odd_logits
    };
    for (const char* platform : kGpuPlatforms) {
      for (const Shape& shape :
           {Shape{11, 0, 1, 1}, Shape{11, 0, 7, 7}, Shape{0, 0, 17, 3}, Shape{11, 0, 17, 3},
            Shape{11, 0, 128, 17}, Shape{1, 0, 512, 10}, Shape{8, 0, 512, 10}, Shape{7, 3, 513, 10},
            Shape{3, 4, 1000, 32}, Shape{4, 6, 1024, 32}, Shape{2, 5, 512, 10},
            Shape{5, 4, 512, 22}, Shape{1, 3, 512, 1}, Shape{6, 2, 640, 8}, Shape{16, 0, 256, 8},
            Shape{13, 0, 200, 16}, Shape{32, 0, 100, 8}, Shape{64, 0, 60, 4},
            Shape{128, 0, 32, 2}}) {
        for (const uint32_t normalize : {0u, 1u}) {
          const auto [rows, first, experts, top] = shape;
          CAPTURE(platform);
          CAPTURE(rows);
          CAPTURE(experts);
          CAPTURE(normalize);
          REQUIRE(chooses_together(experts, top, rows));
          const uint64_t stride = experts + 3;
          GpuTwin twin(platform);
          const auto all = odd_logits(std::max(11u, first + rows), experts, stride);
          const auto logits =
              twin.input("logits", std::vector<float>(all.begin() + first * stride, all.end()));
          const auto row_count = twin.input("row_count", std::vector<uint32_t>{rows});
          const auto chosen = twin.in_out("chosen", std::vector<uint32_t>(rows * top + 5, 77));
          const auto weights = twin.in_out("weights", std::vector<float>(rows * top + 5, 9.0f));
          const auto offsets = twin.in_out("offsets", std::vector<uint32_t>(experts + 3, 77));
          const auto source = twin.in_out("source", std::vector<uint32_t>(rows * top + 2, 77));
          const auto place = twin.in_out("place", std::vector<uint32_t>(rows * top + 2, 77));
          const auto fill = [&](bool gpu) {
            ChooseExpertsParams params{};
            params.route = {logits.at(gpu),
                            chosen.at(gpu),
                            weights.at(gpu),
                            row_count.at(gpu),
                            stride,
                            experts,
                            top,
                            normalize,
                            0};
            params.group = {chosen.at(gpu),
                            offsets.at(gpu),
                            source.at(gpu),
                            place.at(gpu),
                            row_count.at(gpu),
                            experts,
                            top};
            return params;
          };
          twin.pack().run("route", fill(false).route, rows + 1);
          twin.pack().run("group_experts", fill(false).group, 1);
          twin.run_gpu("choose_experts", kChooseExpertsParamsDigest, rows, fill(true), normalize);
          CHECK(twin.same(chosen));
          CHECK(twin.same(weights));
          CHECK(twin.same(offsets));
          CHECK(twin.same(source));
          CHECK(twin.same(place));
        }
      }
    }
  }

  TEST_CASE("gpu: combine_inject_norm has the bits of the three") {
    if (!cpu_has_fma()) return;
    constexpr uint32_t kRows = 3;
    struct Shape {
      uint32_t top, streams, n, pad;
    };
    for (const char* platform : kGpuPlatforms) {
      for (const Shape& shape :
           {Shape{1, 1, 1, 0}, Shape{3, 2, 17, 1}, Shape{8, 3, 48, 3}, Shape{10, 4, 1028, 4},
            Shape{11, 4, 2560, 0}, Shape{10, 4, 2560, 0}, Shape{8, 3, 2560, 4},
            Shape{10, 2, 2560, 1}}) {
        for (const bool shares : {false, true}) {
          const auto [top, streams, n, pad] = shape;
          CAPTURE(platform);
          CAPTURE(n);
          CAPTURE(shares);
          const uint64_t stride = n + pad, wide = streams * n + pad;
          constexpr uint32_t kGrid = kRows + 1;  // whose rows are read whatever the count says
          std::vector<uint32_t> order(kRows * top);
          std::iota(order.begin(), order.end(), 0u);
          std::shuffle(order.begin(), order.end(), std::mt19937(n));
          order.resize(kGrid * top, 0xffffffffu);
          GpuTwin twin(platform);
          const auto out = twin.input("out", normal_values(kRows * top * stride, n));
          const auto weights = twin.input("weights", normal_values(kGrid * top, n + 1));
          const auto place = twin.input("place", order);
          const auto shared = twin.input("shared", normal_values(kGrid * stride, n + 2));
          const auto gate = twin.input("gate", normal_values(kGrid * 3, n + 3, 3.0f));
          const auto row_count = twin.input("row_count", std::vector<uint32_t>{kRows});
          const auto y = twin.in_out("y", std::vector<float>(kRows * stride, 9.0f));
          const auto c = twin.input("c", normal_values(kGrid * streams, n + 4, 3.0f));
          const auto x = twin.in_out("x", normal_values(kGrid * wide, n + 5));
          const auto weight = twin.input("weight", normal_values(uint64_t{streams} * n, n + 6));
          const auto normed = twin.in_out("normed", std::vector<float>(kRows * wide, 9.0f));
          const auto fill = [&](bool gpu) {
            CombineInjectNormParams params{};
            CombineExpertsParams& combine = params.combine;
            combine.x = out.at(gpu);
            combine.weights = weights.at(gpu);
            combine.place = place.at(gpu);
            if (shares) combine.shared = shared.at(gpu);
            if (shares) combine.shared_gate = gate.at(gpu);
            combine.y = y.at(gpu);
            combine.row_count = row_count.at(gpu);
            combine.x_stride = combine.shared_stride = combine.y_stride = stride;
            combine.shared_gate_stride = 3;
            combine.top = top;
            combine.n = n;
            params.inject = {c.at(gpu),
                             y.at(gpu),
                             x.at(gpu),
                             weight.at(gpu),
                             normed.at(gpu),
                             row_count.at(gpu),
                             streams,
                             stride,
                             wide,
                             wide,
                             streams,
                             n,
                             n,
                             n,
                             1e-6f,
                             0,
                             nullptr};
            return params;
          };
          const CombineInjectNormParams host = fill(false);
          twin.pack().run("combine_experts", host.combine, kGrid);
          twin.pack().run(
              "stream_inject",
              StreamInjectParams{host.inject.c, host.inject.y, host.inject.x, host.inject.row_count,
                                 streams, stride, wide, streams, n},
              kGrid);
          twin.pack().run(
              "rms_norm",
              RmsNormParams{host.inject.x, host.inject.weight, host.inject.normed,
                            host.inject.row_count, wide, wide, streams, n, n, n, n, 1e-6f, nullptr},
              kGrid);
          twin.run_gpu("combine_inject_norm", kCombineInjectNormParamsDigest, kGrid, fill(true),
                       top);
          CHECK(twin.same(y));
          CHECK(twin.same(x));
          CHECK(twin.same(normed));
        }
      }
    }
  }

  TEST_CASE("gpu: combine_experts has the CPU's bits") {
    if (!cpu_has_fma()) return;
    constexpr uint32_t kRows = 3;
    struct Shape {
      uint32_t top, n, pad;
    };
    enum Shared { kNone, kPlain, kGated };
    for (const char* platform : kGpuPlatforms) {
      for (const Shape& shape : {Shape{1, 1, 0}, Shape{3, 17, 1}, Shape{8, 48, 3},
                                 Shape{10, 1028, 4}, Shape{10, 1028, 0}}) {
        for (const Shared kind : {kNone, kPlain, kGated}) {
          const auto [top, n, pad] = shape;
          CAPTURE(platform);
          CAPTURE(n);
          CAPTURE(kind);
          const uint64_t stride = n + pad;
          std::vector<uint32_t> order(kRows * top);
          std::iota(order.begin(), order.end(), 0u);
          std::shuffle(order.begin(), order.end(), std::mt19937(n));
          GpuTwin twin(platform);
          const auto x = twin.input("x", normal_values(kRows * top * stride, n));
          const auto weights = twin.input("weights", normal_values(kRows * top, n + 1));
          const auto place = twin.input("place", order);
          const auto shared = twin.input("shared", normal_values(kRows * stride, n + 2));
          const auto gate = twin.input("gate", normal_values(kRows * 3, n + 3, 3.0f));
          const auto row_count = twin.input("row_count", std::vector<uint32_t>{kRows});
          const auto y = twin.in_out("y", std::vector<float>(kRows * stride, 9.0f));
          twin.run<CombineExpertsParams>(
              "combine_experts", kCombineExpertsParamsDigest, kRows + 1, kRows + 1,
              [&](bool gpu) {
                CombineExpertsParams params{};
                params.x = x.at(gpu);
                params.weights = weights.at(gpu);
                params.place = place.at(gpu);
                if (kind != kNone) params.shared = shared.at(gpu);
                if (kind == kGated) params.shared_gate = gate.at(gpu);
                params.y = y.at(gpu);
                params.row_count = row_count.at(gpu);
                params.x_stride = params.shared_stride = params.y_stride = stride;
                params.shared_gate_stride = 3;
                params.top = top;
                params.n = n;
                return params;
              },
              top);
          CHECK(twin.same(y));
        }
      }
    }
  }
}

}  // namespace atlas::test

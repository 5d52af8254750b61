// The core's kernels of a mixture of experts: routes, their order by expert, and the weighted sum.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/common/core.h"
#include "tests/conformance/core_suite.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kUnused = 0xabcdef01u;

struct Routes {
  std::vector<uint32_t> chosen;
  std::vector<float> weights;
};

/// Runs `route`; there is room behind the results, which must stay as it was.
Routes run_route(const CpuPack& pack, const std::vector<float>& logits, uint32_t rows,
                 uint32_t experts, uint32_t top, bool normalize, Split split = {}) {
  const size_t used = size_t{rows} * top, stride = logits.size() / rows;
  Routes routes{std::vector<uint32_t>(used + 40, kUnused), std::vector<float>(used + 40, 9.0f)};
  const RouteParams params{logits.data(),
                           routes.chosen.data(),
                           routes.weights.data(),
                           &rows,
                           stride,
                           experts,
                           top,
                           normalize ? 1u : 0u,
                           0};
  pack.run("route", params, rows + 2, split);
  for (size_t i = used; i < used + 40; ++i) {
    CHECK(routes.chosen[i] == kUnused);
    CHECK(routes.weights[i] == 9.0f);
  }
  routes.chosen.resize(used);
  routes.weights.resize(used);
  return routes;
}

/// The experts of one row by a sort of all of them; NaN stands last, with -infinity.
std::vector<uint32_t> sorted_experts(const float* logits, uint32_t experts, uint32_t top) {
  const auto value = [logits](uint32_t e) {
    return std::isnan(logits[e]) ? -kInfinity : logits[e];
  };
  std::vector<uint32_t> order(experts);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&value](uint32_t a, uint32_t b) { return value(a) > value(b); });
  order.resize(top);
  return order;
}

struct RouteShape {
  uint32_t experts, top;
};
const std::vector<RouteShape> kRouteShapes = {{1, 1},  {4, 2},    {7, 7},    {16, 4},   {17, 3},
                                              {60, 8}, {128, 17}, {300, 32}, {512, 10}, {513, 10}};

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("core: route takes the largest logits, and weighs them by a softmax") {
    const CpuPack pack;
    for (const RouteShape& shape : kRouteShapes) {
      for (const bool normalize : {true, false}) {
        const uint32_t experts = shape.experts, top = shape.top;
        CAPTURE(experts);
        CAPTURE(top);
        const size_t stride = experts + 3;
        std::vector<float> logits = normal_values(kRows * stride, experts, 2.0f);
        // Row 1 has many ties, row 2 ascends, row 3 is all the same, row 4 has few finite ones.
        for (uint32_t e = 0; e < experts; ++e) {
          logits[stride + e] = std::round(logits[stride + e]);
          logits[2 * stride + e] = static_cast<float>(e) * 0.125f;
          logits[3 * stride + e] = -3.5f;
          if (e % 5 != 2 && e != 0) logits[4 * stride + e] = -kInfinity;
        }
        std::vector<float> best;
        for (const CpuTarget& target : cpu_targets()) {
          CAPTURE(target.name);
          const ForcedTarget forced(target);
          const Routes routes = run_route(pack, logits, kRows, experts, top, normalize);
          const Routes shared = run_route(pack, logits, kRows, experts, top, normalize, {3, 2});
          CHECK(routes.chosen == shared.chosen);
          CHECK(same_bits(routes.weights, shared.weights));
          if (best.empty()) best = routes.weights;
          if (target.name != "SCALAR") CHECK(same_bits(best, routes.weights));
          for (uint32_t r = 0; r < kRows; ++r) {
            CAPTURE(r);
            const float* row = logits.data() + r * stride;
            const auto expected = sorted_experts(row, experts, top);
            double all = 0, some = 0;
            for (uint32_t e = 0; e < experts; ++e) all += std::exp(double{row[e]});
            for (const uint32_t e : expected) some += std::exp(double{row[e]});
            for (uint32_t j = 0; j < top; ++j) {
              CHECK(routes.chosen[r * top + j] == expected[j]);
              const double weight = std::exp(double{row[expected[j]]}) / (normalize ? some : all);
              CHECK(std::fabs(routes.weights[r * top + j] - weight) < 1e-6);
            }
          }
        }
      }
    }
  }

  TEST_CASE("core: route takes the lower of equal experts first") {
    const CpuPack pack;
    constexpr uint32_t kExperts = 512, kTop = 10;
    std::vector<float> logits(kExperts, 0.0f);
    for (const uint32_t e : {500u, 33u, 257u, 256u, 16u, 15u}) logits[e] = 1.0f;
    logits[300] = 2.0f;
    const Routes routes = run_route(pack, logits, 1, kExperts, kTop, true);
    CHECK(routes.chosen == std::vector<uint32_t>{300, 15, 16, 33, 256, 257, 500, 0, 1, 2});
  }

  TEST_CASE("core: route gives experts that exist whatever the logits are") {
    const CpuPack pack;
    constexpr uint32_t kExperts = 50, kTop = 12;
    std::vector<std::vector<float>> rows;
    rows.push_back(std::vector<float>(kExperts, kNaN));
    rows.push_back(std::vector<float>(kExperts, kInfinity));
    rows.push_back(std::vector<float>(kExperts, -kInfinity));
    for (const float odd : {kNaN, kInfinity}) {
      for (const uint32_t place : {0u, 11u, 12u, 40u, 49u}) {
        rows.push_back(normal_values(kExperts, place));
        rows.back()[place] = odd;
      }
    }
    std::mt19937 random(1);
    for (int i = 0; i < 200; ++i) {
      std::vector<float>& row = rows.emplace_back(kExperts);
      for (float& x : row) {
        const uint32_t kind = random() % 8;
        x = kind == 0 ? kNaN : kind == 1 ? kInfinity : kind == 2 ? -kInfinity : 0.25f * kind;
      }
      row[random() % kExperts] = kNaN;
    }
    for (const CpuTarget& target : cpu_targets()) {
      CAPTURE(target.name);
      const ForcedTarget forced(target);
      for (const bool normalize : {true, false}) {
        for (const std::vector<float>& row : rows) {
          const Routes routes = run_route(pack, row, 1, kExperts, kTop, normalize);
          CHECK(routes.chosen == sorted_experts(row.data(), kExperts, kTop));
          for (const float weight : routes.weights) CHECK(std::isnan(weight));
        }
      }
    }
  }

  TEST_CASE("core: group_experts sorts choices by expert") {
    const CpuPack pack;
    struct Shape {
      uint32_t rows, experts, top;
    };
    for (const Shape& shape : {Shape{0, 5, 2}, Shape{1, 1, 1}, Shape{3, 16, 4}, Shape{9, 4, 4},
                               Shape{33, 512, 10}, Shape{100, 7, 3}}) {
      const auto [rows, experts, top] = shape;
      CAPTURE(rows);
      CAPTURE(experts);
      const size_t places = size_t{rows} * top;
      std::mt19937 random(rows);
      std::vector<uint32_t> chosen;
      for (uint32_t r = 0; r < rows; ++r) {
        // Every third expert goes without rows, where there are enough.
        std::vector<uint32_t> all;
        for (uint32_t e = 0; e < experts; ++e) {
          if (experts < 2 * top || e % 3 != 0) all.push_back(e);
        }
        std::shuffle(all.begin(), all.end(), random);
        chosen.insert(chosen.end(), all.begin(), all.begin() + top);
      }
      std::vector<uint32_t> offsets(experts + 1 + 3, kUnused), source(places + 3, kUnused),
          place(places + 3, kUnused);
      const GroupExpertsParams params{
          chosen.data(), offsets.data(), source.data(), place.data(), &rows, experts, top};
      pack.run("group_experts", params, 1);
      uint32_t next = 0;
      for (uint32_t e = 0; e < experts; ++e) {
        CHECK(offsets[e] == next);
        for (uint32_t r = 0; r < rows; ++r) {
          for (uint32_t j = 0; j < top; ++j) {
            if (chosen[r * top + j] != e) continue;
            CHECK(source[next] == r);
            CHECK(place[r * top + j] == next);
            ++next;
          }
        }
      }
      CHECK(next == places);
      CHECK(offsets[experts] == next);
      for (uint32_t i = 0; i < 3; ++i) {
        CHECK(offsets[experts + 1 + i] == kUnused);
        CHECK(source[places + i] == kUnused);
        CHECK(place[places + i] == kUnused);
      }
    }
  }

  TEST_CASE("core: combine_experts adds the experts of a row, and the shared one") {
    struct Shape {
      uint32_t top, n;
    };
    enum Shared { kNone, kPlain, kGated };
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 17}, Shape{8, 48}, Shape{10, 2560}}) {
      for (const Shared kind : {kNone, kPlain, kGated}) {
        const auto [top, n] = shape;
        CAPTURE(top);
        CAPTURE(n);
        const size_t x_stride = n + 1, shared_stride = n + 4, y_stride = n + 2, gate_stride = 3;
        const std::vector<float> x = normal_values(kRows * top * x_stride, n);
        const std::vector<float> weights = normal_values(kRows * top, n + 1);
        const std::vector<float> shared = normal_values(kRows * shared_stride, n + 2);
        const std::vector<float> gate = normal_values(kRows * gate_stride, n + 3, 3.0f);
        std::vector<uint32_t> place(kRows * top);
        std::iota(place.begin(), place.end(), 0u);
        std::shuffle(place.begin(), place.end(), std::mt19937(n));
        const std::vector<float> initial(kRows * y_stride, 9.0f);
        const auto y = same_on_all(initial, [&](const CpuPack& pack, float* to, uint32_t first,
                                                uint32_t rows, Split split) {
          CombineExpertsParams params{};
          params.x = x.data();
          params.weights = weights.data() + first * top;
          params.place = place.data() + first * top;
          if (kind != kNone) params.shared = shared.data() + first * shared_stride;
          if (kind == kGated) params.shared_gate = gate.data() + first * gate_stride;
          params.y = to + first * y_stride;
          params.row_count = &rows;
          params.x_stride = x_stride;
          params.shared_stride = shared_stride;
          params.shared_gate_stride = gate_stride;
          params.y_stride = y_stride;
          params.top = top;
          params.n = n;
          pack.run("combine_experts", params, rows + 2, split);
        });
        std::vector<double> expected(initial.begin(), initial.end());
        for (uint32_t r = 0; r < kRows; ++r) {
          const double scale = kind == kNone    ? 0.0
                               : kind == kPlain ? 1.0
                                                : sigmoid(gate[r * gate_stride]);
          for (uint32_t i = 0; i < n; ++i) {
            double sum = scale * shared[r * shared_stride + i];
            for (uint32_t j = 0; j < top; ++j) {
              sum += double{weights[r * top + j]} * x[place[r * top + j] * x_stride + i];
            }
            expected[r * y_stride + i] = sum;
          }
        }
        CHECK(largest_difference(y, expected) < 4e-6);
      }
    }
  }
}

}  // namespace atlas::test

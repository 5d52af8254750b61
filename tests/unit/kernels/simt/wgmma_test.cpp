// wgmma of Hopper in its emulated form: the bits of mma.sync from a swizzled matrix in shared
// memory, and a kernel broken on purpose for each rule of its order.
#include "kernels/common/device/wgmma.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "tests/support/numbers.h"
#include "tests/support/simt/machine.h"

namespace atlas::test {
namespace {

using namespace atlas::device;
using simt::FaultKind;
using simt::Machine;
using simt::Report;

enum Broken : uint32_t {
  kSound,
  kNoProxyFence,     // rows are written, and a barrier stands behind them
  kLateProxyFence,   // behind the barrier: sound
  kEarlyProxyFence,  // before the rows are written
  kNoBarrier,        // rows have a fence alone
  kNoBegin,          // registers have no fence
  kReadEarly,        // sums before the wait
  kWriteEarly,       // sums are set before it
  kChangedWeights,   // words of A change before it
  kChangedMatrix,    // rows are written before it
  kNoWait,           // the kernel returns
  kOneWarpLess,      // three warps of four
  kOpenGroup,        // a wait with no commit before it
};

// clang-format off
ATLAS_PARAMS(WgmmaParams,
  const uint32_t* a;  // [128 lanes, 4 steps, 4 words]
  const uint32_t* b;  // [columns, 32 words]
  float* y;           // [64 rows, columns]
  uint32_t broken;
  uint32_t bf16;
);
// clang-format on

template <uint32_t kColumns>
ATLAS_DEVICE void write_matrix(const WgmmaParams& params, uint32_t keep) {
  auto* matrix = shared_memory<uint8_t>();
  for (uint32_t i = thread_index(); i < kColumns * 8; i += 128) {
    const uint32_t row = i / 8, piece = i % 8;
    Words4 words;
    for (uint32_t w = 0; w < 4; ++w) words.w[w] = load(params.b + row * 32 + piece * 4 + w) & keep;
    store_as(matrix + wgmma_swizzled(row * kWgmmaRowBytes + piece * 16), words);
  }
}

template <uint32_t kColumns>
ATLAS_DEVICE void multiply(const WgmmaParams& params) {
  const uint32_t thread = thread_index(), broken = params.broken;
  if (broken == kEarlyProxyFence) async_proxy_fence();
  write_matrix<kColumns>(params, ~0u);
  if (broken != kNoProxyFence && broken != kLateProxyFence && broken != kEarlyProxyFence) {
    async_proxy_fence();
  }
  if (broken != kNoBarrier) block_barrier();
  if (broken == kLateProxyFence) async_proxy_fence();
  MmaA a[4];
  for (uint32_t s = 0; s < 4; ++s) {
    for (uint32_t r = 0; r < 4; ++r) a[s].r[r] = load(params.a + 16 * thread + 4 * s + r);
  }
  WgmmaSums<kColumns> sums{};
  if (broken != kOneWarpLess || warp_index() != 3) {
    if (broken != kNoBegin) wgmma_begin(a);
    for (uint32_t s = 0; s < 4; ++s) {
      const WgmmaMatrix b = wgmma_matrix(shared_memory<uint8_t>(), 8 * kWgmmaRowBytes).at_step(s);
      if (params.bf16 != 0) {
        wgmma_bf16(sums, a[s], b, s != 0);
      } else {
        wgmma_f16(sums, a[s], b, s != 0);
      }
    }
    if (broken != kOpenGroup) wgmma_commit();
    if (broken == kChangedWeights) a[1].r[2] ^= 1;
    if (broken == kWriteEarly) sums.r[3] = 0.0f;
    if (broken == kChangedMatrix) write_matrix<kColumns>(params, 0xffff0000u);
    if (broken == kReadEarly) store(params.y, sums.r[0] * 2.0f + 1.0f);
    if (broken == kNoWait) return;
    wgmma_wait_for(sums);
  }
  if (broken == kReadEarly) return;
  for (uint32_t r = 0; r < kColumns / 2; ++r) {
    const Cell cell = wgmma_cell(warp_index(), lane_index(), r);
    store(params.y + cell.row * kColumns + cell.column, sums.r[r]);
  }
}

ATLAS_DEVICE_KERNEL(wgmma_64, WgmmaParams, 128) { multiply<64>(params); }
ATLAS_DEVICE_KERNEL(wgmma_80, WgmmaParams, 128) { multiply<80>(params); }
ATLAS_DEVICE_KERNEL(wgmma_96, WgmmaParams, 128) { multiply<96>(params); }
ATLAS_DEVICE_KERNEL(wgmma_128, WgmmaParams, 128) { multiply<128>(params); }

// The same by mma.sync: a warp does 16 rows, eight columns at a time.
ATLAS_DEVICE_KERNEL(by_mma, WgmmaParams, 128) {
  const uint32_t lane = lane_index();
  for (uint32_t tile = 0; tile < 16; ++tile) {
    MmaSums sums{};
    for (uint32_t s = 0; s < 4; ++s) {
      MmaA a;
      MmaB b;
      for (uint32_t r = 0; r < 4; ++r) a.r[r] = load(params.a + 16 * thread_index() + 4 * s + r);
      for (uint32_t r = 0; r < 2; ++r) {
        const Element at = mma_b_element(lane, r, 0, 2);
        b.r[r] = load(params.b + (8 * tile + at.row) * 32 + (16 * s + at.k) / 2);
      }
      if (params.bf16 != 0) {
        mma_bf16(sums, a, b);
      } else {
        mma_f16(sums, a, b);
      }
    }
    for (uint32_t r = 0; r < 4; ++r) {
      const Cell cell = mma_cell(lane, r);
      store(params.y + (16 * warp_index() + cell.row) * 128 + 8 * tile + cell.column, sums.r[r]);
    }
  }
}

struct Result {
  std::vector<float> y;
  Report report;
};

Result run(const simt::Kernel& kernel, uint32_t columns, uint32_t broken, uint32_t bf16,
           uint64_t seed = 0) {
  // Halves of words whose exponents are those of numbers near 1 in both formats.
  const auto words = [](size_t count, uint32_t first) {
    std::vector<uint32_t> all(count);
    uint32_t state = first;
    for (uint32_t& word : all) {
      state = state * 1664525u + 1013904223u;
      word = (state & 0x83ff83ffu) | 0x3c003c00u;
    }
    return all;
  };
  Machine machine;
  float* y = machine.output<float>("y", size_t{64} * columns);
  const WgmmaParams params{machine.input("a", words(128 * 16, 1)),
                           machine.input("b", words(128 * 32, 2)), y, broken, bf16};
  Result result;
  result.report =
      machine.run(kernel, params, {.shared_bytes = columns * kWgmmaRowBytes, .seed = seed});
  result.y = machine.contents(y);
  return result;
}

}  // namespace

TEST_SUITE("simt") {
  TEST_CASE("wgmma: sums have the bits of mma.sync") {
    for (const uint32_t bf16 : {0u, 1u}) {
      const Result expected = run(ATLAS_SIMT_KERNEL(by_mma), 128, kSound, bf16);
      REQUIRE(expected.report.ok());
      for (const uint32_t columns : {64u, 80u, 96u, 128u}) {
        CAPTURE(columns);
        const simt::Kernel kernel = columns == 64   ? ATLAS_SIMT_KERNEL(wgmma_64)
                                    : columns == 80 ? ATLAS_SIMT_KERNEL(wgmma_80)
                                    : columns == 96 ? ATLAS_SIMT_KERNEL(wgmma_96)
                                                    : ATLAS_SIMT_KERNEL(wgmma_128);
        const Result found = run(kernel, columns, kSound, bf16, columns);
        INFO(found.report.text());
        REQUIRE(found.report.ok());
        const auto kind = bf16 != 0 ? simt::Matrix::kWgmmaBf16 : simt::Matrix::kWgmmaF16;
        CHECK(found.report.matrix_count(kind) == 16);
        for (uint32_t row = 0; row < 64; ++row) {
          for (uint32_t column = 0; column < columns; ++column) {
            REQUIRE(found.y[row * columns + column] == expected.y[row * 128 + column]);
          }
        }
      }
    }
  }

  TEST_CASE("wgmma: lanes that multiply may show what others wrote") {
    const Result sound = run(ATLAS_SIMT_KERNEL(wgmma_64), 64, kSound, 1);
    const Result late = run(ATLAS_SIMT_KERNEL(wgmma_64), 64, kLateProxyFence, 1, 3);
    INFO(late.report.text());
    CHECK(late.report.ok());
    CHECK(late.y == sound.y);
  }

  TEST_CASE("wgmma: every piece of a swizzled matrix stands in one place") {
    std::set<uint32_t> places;
    for (uint32_t offset = 0; offset < 2048; offset += 16) {
      const uint32_t place = wgmma_swizzled(offset);
      CHECK(place / kWgmmaRowBytes == offset / kWgmmaRowBytes);
      places.insert(place);
    }
    CHECK(places.size() == 128);
  }

  TEST_CASE("wgmma: what breaks its order is found") {
    struct Case {
      Broken broken;
      FaultKind kind;
    };
    for (const Case& each : {Case{kNoProxyFence, FaultKind::kProxy},
                             {kEarlyProxyFence, FaultKind::kProxy},
                             {kNoBarrier, FaultKind::kRace},
                             {kNoBegin, FaultKind::kMatrix},
                             {kReadEarly, FaultKind::kUnderWay},
                             {kWriteEarly, FaultKind::kUnderWay},
                             {kChangedWeights, FaultKind::kUnderWay},
                             {kChangedMatrix, FaultKind::kUnderWay},
                             {kNoWait, FaultKind::kUnderWay},
                             {kOneWarpLess, FaultKind::kMatrix},
                             {kOpenGroup, FaultKind::kMatrix}}) {
      CAPTURE(each.broken);
      const Report report = run(ATLAS_SIMT_KERNEL(wgmma_64), 64, each.broken, 0).report;
      INFO(report.text());
      CHECK(report.has(each.kind));
    }
  }
}

}  // namespace atlas::test

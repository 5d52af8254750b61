// The device form of kernel tests finds what it says it finds: over the fake driver, with kernels
// that do what they should not.
#include "tests/support/gpu_device.h"

#include <doctest/doctest.h>

#include "tests/support/test_pack_params.h"
#include "tests/support/test_platform.h"

namespace atlas::test {
namespace {

using kernels::TestIotaParams;
using kernels::TestMixParams;
using kernels::TestWaitParams;
using simt::FaultKind;

struct Bench {
  explicit Bench(uint64_t guard_bytes = 4096, std::map<std::string, uint64_t> digests = {})
      : backend(std::make_shared<GpuDevice>(open_device<FakeCudaPlatform>(),
                                            std::vector<std::string>{test_pack_path()},
                                            std::move(digests)),
                guard_bytes) {}
  DeviceBackend backend;

  uint32_t* input(const std::vector<uint32_t>& values) {
    return static_cast<uint32_t*>(backend.add("in", values.data(), values.size() * 4, false));
  }
  uint32_t* in_out(const std::vector<uint32_t>& values) {
    return static_cast<uint32_t*>(backend.add("y", values.data(), values.size() * 4, true));
  }
  uint32_t* output(size_t count) {
    return static_cast<uint32_t*>(backend.add("y", nullptr, count * 4, true));
  }
  template <typename Params>
  simt::Report run(const char* kernel, const Params& params, uint32_t blocks,
                   const std::function<bool()>& host = nullptr) {
    return backend.run(kernel, 7, &params, sizeof(params),
                       {.shape = {blocks, 1, 1, 32, 0}, .host = host});
  }
  // 0 where nothing was written.
  std::vector<uint32_t> contents(const void* buffer) {
    std::vector<uint8_t> bytes;
    std::vector<bool> written;
    backend.copy_out(buffer, bytes, written);
    std::vector<uint32_t> values(bytes.size() / 4);
    for (size_t i = 0; i < values.size(); ++i) {
      const bool whole =
          written[4 * i] && written[4 * i + 1] && written[4 * i + 2] && written[4 * i + 3];
      if (whole) std::memcpy(&values[i], &bytes[4 * i], 4);
    }
    return values;
  }
};

bool only(const simt::Report& report, FaultKind kind, const std::string& part) {
  for (const simt::Fault& fault : report.faults) {
    if (fault.kind != kind || fault.text.find(part) == std::string::npos) return false;
  }
  return !report.faults.empty();
}

}  // namespace

TEST_SUITE_BEGIN("device");

TEST_CASE("gpu machine: what a kernel writes is known to the byte, whatever it writes") {
  Bench bench;
  uint32_t* y = bench.output(10);
  // Numbers that equal either pattern are numbers that were written.
  for (const uint32_t base : {1u, 0x7f7f7f7fu, 0xc1c1c1c1u}) {
    CAPTURE(base);
    CHECK(bench.run("test_iota", TestIotaParams{y, base, 1}, 7).faults.empty());
    std::vector<uint32_t> expected(10, 0);
    for (uint32_t i = 0; i < 7; ++i) expected[i] = base + i;
    CHECK(bench.contents(y) == expected);
  }
}

TEST_CASE("gpu machine: a launch runs on what the one before left, and both its runs begin there") {
  Bench bench;
  uint32_t* y = bench.in_out({1, 2, 3});
  for (int i = 0; i < 2; ++i) {
    CHECK(bench.run("test_mix", TestMixParams{y, 1, 0}, 3).faults.empty());
  }
  CHECK(bench.contents(y) == std::vector<uint32_t>{13, 22, 31});
}

TEST_CASE("gpu machine: a write past a buffer is a fault, with guards") {
  Bench bench;
  uint32_t* y = bench.output(10);
  const auto report = bench.run("test_iota", TestIotaParams{y, 5, 1}, 11);
  CHECK(only(report, FaultKind::kOutOfBounds, "0 bytes past its end"));
}

TEST_CASE("gpu machine: without guards a buffer is an allocation of its own size") {
  Bench bench(0);
  uint32_t* y = bench.output(64);
  CHECK(bench.run("test_iota", TestIotaParams{y, 5, 1}, 64).faults.empty());
  CHECK(bench.contents(y)[63] == 68);
}

TEST_CASE("gpu machine: a write before a buffer is a fault") {
  Bench bench;
  uint32_t* y = bench.output(10);
  const auto report = bench.run("test_iota", TestIotaParams{y - 2, 5, 1}, 4);
  CHECK(only(report, FaultKind::kOutOfBounds, "before its begin"));
}

TEST_CASE("gpu machine: a write to an input is a fault") {
  Bench bench;
  const auto report = bench.run("test_mix", TestMixParams{bench.input({1, 2}), 1, 0}, 2);
  CHECK(only(report, FaultKind::kReadOnly, "input in"));
}

TEST_CASE("gpu machine: a result that depends on unwritten memory is a fault") {
  Bench bench;
  const auto report = bench.run("test_mix", TestMixParams{bench.output(4), 1, 0}, 4);
  CHECK(only(report, FaultKind::kUnwritten, "buffer y"));
}

TEST_CASE("gpu machine: the host may write while a launch waits for it") {
  Bench bench;
  uint32_t* flag = bench.in_out({0});
  uint32_t* seen = bench.output(1);
  uint32_t turns = 0;
  const auto host = [&] {
    if (++turns != 3) return false;
    const uint32_t one = 1;
    bench.backend.copy_in(flag, 0, &one, sizeof(one));
    return true;
  };
  const TestWaitParams params{flag, seen, 30'000'000'000};
  CHECK(bench.run("test_wait", params, 1, host).faults.empty());
  CHECK(turns >= 3);
  CHECK(bench.contents(seen) == std::vector<uint32_t>{1});
  CHECK(bench.contents(flag) == std::vector<uint32_t>{1});
}

TEST_CASE("gpu machine: a kernel that is absent or takes other parameters is an exception") {
  Bench bench(4096, {{"test_iota", 8}});
  uint32_t* y = bench.output(1);
  CHECK_THROWS_WITH_AS(bench.run("test_iota", TestIotaParams{y, 5, 1}, 1),
                       "kernel test_iota takes other parameters", std::runtime_error);
  CHECK_THROWS_AS(bench.run("absent", TestIotaParams{y, 5, 1}, 1), std::runtime_error);
}

TEST_SUITE_END();

}  // namespace atlas::test

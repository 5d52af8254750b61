// Orders of blocks, warps and lanes, patterns across blocks, and what a launch is said to have
// moved.
#include <doctest/doctest.h>

#include <numeric>
#include <set>
#include <vector>

#include "kernels/common/device/device.h"
#include "tests/support/simt/machine.h"

namespace atlas::test {
namespace {

using namespace atlas::device;
using simt::Launch;
using simt::Machine;

// clang-format off
ATLAS_PARAMS(OrderParams,
  const float* x;
  float* y;
  uint32_t* words;
  uint32_t n;
  uint32_t reserved;
);
// clang-format on

// Threads take tickets: a kernel whose result depends on the order of its threads.
ATLAS_DEVICE_KERNEL(tickets, OrderParams, 64) {
  const uint32_t ticket = atomic_add(params.words, 1u);
  store(params.y + ticket, static_cast<float>(block_index() * 64 + thread_index()));
}

// Sum of a row by shuffles, warps through shared memory, blocks by the last to arrive, all in one
// order.
ATLAS_DEVICE_KERNEL(ordered_sum, OrderParams, 128) {
  float* parts = shared_memory<float>();
  uint32_t* last = shared_memory<uint32_t>(32);
  float sum = load(params.x + block_index() * 128 + thread_index());
  for (uint32_t distance = 16; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
  if (lane_index() == 0) store(parts + warp_index(), sum);
  block_barrier();
  if (thread_index() == 0) {
    float total = 0.0f;
    for (uint32_t w = 0; w < 4; ++w) total += load(parts + w);
    store(params.y + 1 + block_index(), total);
    store(last, atomic_add<Order::kAcqRel>(params.words, 1u) + 1 == grid_blocks() ? 1u : 0u);
  }
  block_barrier();
  if (load(last) == 0 || thread_index() != 0) return;
  float all_of_them = 0.0f;
  for (uint32_t b = 0; b < grid_blocks(); ++b) all_of_them += load(params.y + 1 + b);
  store(params.y, all_of_them);
}

// Relaxed counters with fences around them order as well.
ATLAS_DEVICE_KERNEL(fenced, OrderParams, 32) {
  if (thread_index() != 0) return;
  store(params.y + block_index(), 1.0f);
  device_fence();
  atomic_add(params.words, 1u);
  while (atomic_load(params.words) != grid_blocks()) pause();
  device_fence();
  float sum = 0.0f;
  for (uint32_t b = 0; b < grid_blocks(); ++b) sum += load(params.y + b);
  store(params.y + 8 + block_index(), sum);
}

// Every block writes, all meet, every block reads its neighbour's; twice.
ATLAS_DEVICE_KERNEL(meeting, OrderParams, 64) {
  const uint32_t blocks = grid_blocks(), block = block_index(), t = thread_index();
  for (uint32_t round = 0; round < 2; ++round) {
    float* to = params.y + (round * blocks + block) * 64;
    const float* neighbour = params.y + ((round - 1) * blocks + (block + 1) % blocks) * 64;
    store(to + t, round == 0 ? load(params.x + block * 64 + t) : load(neighbour + 63 - t) + 1.0f);
    block_barrier();
    if (t == 0) {
      atomic_add<Order::kAcqRel>(params.words, 1u);
      while (atomic_load<Order::kAcquire>(params.words) < (round + 1) * blocks) pause();
    }
    block_barrier();
  }
}

// Asks the host for a number and waits for its answer.
ATLAS_DEVICE_KERNEL(asking, OrderParams, 32) {
  if (thread_index() != 0) return;
  atomic_store<Order::kRelease, Scope::kSystem>(params.words, 21u);
  while (atomic_load<Order::kAcquire, Scope::kSystem>(params.words + 1) == 0) pause();
  store(params.y, load(params.x));
}

// The largest value of a warp with the lowest lane that has it, as keys of 8 bytes.
ATLAS_DEVICE_KERNEL(long_keys, OrderParams, 32) {
  const uint32_t lane = lane_index();
  uint64_t key = uint64_t{bits_as<uint32_t>(load(params.x + lane))} << 32 | (31 - lane);
  for (uint32_t apart = 16; apart > 0; apart /= 2) {
    const uint64_t other = shuffle_xor(key, apart);
    key = other > key ? other : key;
  }
  if (lane == 0) store(params.words, 31 - static_cast<uint32_t>(key));
}

ATLAS_DEVICE_KERNEL(bytes_beside, OrderParams, 32) {
  auto* bytes = reinterpret_cast<uint8_t*>(params.words);
  store(bytes + thread_index(), static_cast<uint8_t>(thread_index()));
}

ATLAS_DEVICE_KERNEL(streams, OrderParams, 64) {
  const uint32_t i = block_index() * 64 + thread_index();
  if (i * 4 >= params.n) return;
  const Words4 four = load_once(params.x + 4 * i);
  // The row's first element again, by every thread: one sector a block.
  const float first = load(params.x);
  store(params.y + i, bits_as<float>(four.w[0]) + first);
}

std::vector<float> counted(size_t n) {
  std::vector<float> x(n);
  std::iota(x.begin(), x.end(), 1.0f);
  return x;
}

}  // namespace

TEST_SUITE("simt") {
  TEST_CASE("simt: seeds bring other orders, and one seed always the same") {
    std::set<std::vector<float>> orders;
    for (const uint64_t seed : {0, 0, 1, 1, 2, 2}) {
      Machine machine;
      float* y = machine.output<float>("y", 256);
      const OrderParams params{nullptr, y, machine.in_out<uint32_t>("words", {0}), 0, 0};
      const auto report =
          machine.run(ATLAS_SIMT_KERNEL(tickets), params, {{4, 1, 1}, 64, 0, false, seed});
      INFO(report.text());
      CHECK(report.ok());
      orders.insert(machine.contents(y));
    }
    CHECK(orders.size() == 3);
    CHECK(orders.count([] {
      std::vector<float> ascending(256);
      std::iota(ascending.begin(), ascending.end(), 0.0f);
      return ascending;
    }()) == 1);
  }

  TEST_CASE("simt: a sum in one order has the same bits in all orders of execution") {
    std::set<float> sums;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Machine machine;
      std::vector<float> x = counted(8 * 128);
      for (float& value : x) value = 1.0f / value;
      float* y = machine.output<float>("y", 9);
      const OrderParams params{machine.input("x", x), y, machine.in_out<uint32_t>("words", {0}), 0,
                               0};
      const auto report =
          machine.run(ATLAS_SIMT_KERNEL(ordered_sum), params, {{8, 1, 1}, 0, 36, false, seed});
      INFO(report.text());
      CHECK(report.ok());
      sums.insert(machine.contents(y)[0]);
    }
    CHECK(sums.size() == 1);
    CHECK(*sums.begin() == doctest::Approx(7.5086).epsilon(1e-4));
  }

  TEST_CASE("simt: fences beside relaxed counters order blocks") {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      Machine machine;
      float* y = machine.output<float>("y", 16);
      const OrderParams params{nullptr, y, machine.in_out<uint32_t>("words", {0}), 0, 0};
      const auto report =
          machine.run(ATLAS_SIMT_KERNEL(fenced), params, {{8, 1, 1}, 0, 0, true, seed});
      INFO(report.text());
      CHECK(report.ok());
      CHECK(machine.contents(y)[15] == 8.0f);
    }
  }

  TEST_CASE("simt: blocks of a cooperative launch meet") {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      Machine machine;
      float* y = machine.output<float>("y", 2 * 3 * 64);
      const OrderParams params{machine.input("x", counted(3 * 64)), y,
                               machine.in_out<uint32_t>("words", {0}), 0, 0};
      const auto report =
          machine.run(ATLAS_SIMT_KERNEL(meeting), params, {{3, 1, 1}, 0, 0, true, seed});
      INFO(report.text());
      CHECK(report.ok());
      CHECK(machine.contents(y)[3 * 64] == 129.0f);
    }
  }

  TEST_CASE("simt: a kernel waits for the host") {
    Machine machine;
    float* y = machine.output<float>("y", 1);
    float* x = machine.output<float>("x", 1);
    uint32_t* words = machine.in_out<uint32_t>("words", {0, 0});
    const OrderParams params{x, y, words, 0, 0};
    Launch launch;
    launch.host = [&] {
      const uint32_t asked = machine.contents(words)[0];
      if (asked == 0 || machine.contents(words)[1] != 0) return false;
      machine.write<float>(x, {2.0f * static_cast<float>(asked)});
      machine.write<uint32_t>(words, {1}, 1);
      return true;
    };
    const auto report = machine.run(ATLAS_SIMT_KERNEL(asking), params, launch);
    INFO(report.text());
    CHECK(report.ok());
    CHECK(machine.contents(y)[0] == 42.0f);
    // A host that never answers.
    machine.write<uint32_t>(words, {0, 0});
    launch.host = [] { return false; };
    CHECK(machine.run(ATLAS_SIMT_KERNEL(asking), params, launch).has(simt::FaultKind::kStuck));
  }

  TEST_CASE("simt: keys of 8 bytes are exchanged") {
    Machine machine;
    std::vector<float> x = counted(32);
    x[9] = x[20] = 77.0f;
    uint32_t* words = machine.output<uint32_t>("words", 1);
    const OrderParams params{machine.input("x", x), nullptr, words, 0, 0};
    const auto report = machine.run(ATLAS_SIMT_KERNEL(long_keys), params, {});
    INFO(report.text());
    CHECK(report.ok());
    CHECK(machine.contents(words)[0] == 9);
  }

  TEST_CASE("simt: neighbouring bytes of a word are no race") {
    Machine machine;
    uint32_t* words = machine.output<uint32_t>("words", 8);
    const auto report = machine.run(ATLAS_SIMT_KERNEL(bytes_beside),
                                    OrderParams{nullptr, nullptr, words, 0, 0}, {});
    INFO(report.text());
    CHECK(report.ok());
    CHECK(machine.contents(words)[7] == 0x1f1e1d1cu);
  }

  TEST_CASE("simt: bytes that a launch moves are counted by buffer") {
    Machine machine;
    const uint32_t n = 1000;
    float* y = machine.output<float>("y", 300);
    const OrderParams params{machine.input("x", counted(n)), y, nullptr, n, 0};
    const auto report =
        machine.run(ATLAS_SIMT_KERNEL(streams), params, {{4, 1, 1}, 0, 0, false, 0});
    INFO(report.text());
    CHECK(report.ok());
    CHECK(report.of("x").read_bytes == 250 * 16 + 250 * 4);
    // 125 sectors, and the first one again for each of the three other blocks.
    CHECK(report.of("x").fetched_bytes == (125 + 3) * 32);
    CHECK(report.of("y").written_bytes == 1000);
    CHECK(report.of("y").read_bytes == 0);
    CHECK(machine.is_written(y, 0, 1000));
    CHECK(!machine.is_written(y, 1000, 4));
    CHECK(machine.contents(y, -1.0f)[299] == -1.0f);
  }
}

}  // namespace atlas::test

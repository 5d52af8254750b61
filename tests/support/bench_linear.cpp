// Measures the products of the CPU pack: bytes of weights a second for one row, with the same
// memory read plainly beside it, and multiply-adds a second for more rows; and products of experts,
// ten a row. Not a test; prints a table.
//   bench_linear [--threads N] [--format NAME] [--rows M, 0: one row from DRAM]... [--ms TIME]
//   [--experts N of which a row has ten: instead of plain products] [--huge] [--target AVX2]
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/common/cpu_linear.h"
#include "kernels/common/fp8.h"
#include "kernels/common/i16b32.h"
#include "kernels/common/nvfp4.h"
#include "kernels/common/packed_float.h"
#include "plugins/quant_gguf/pack.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"

namespace atlas::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  uint32_t threads = 2;
  std::string format;
  std::vector<uint32_t> rows{0, 1, 2, 4, 8, 16, 64, 512};
  double ms = 300;
  uint32_t experts = 0;
  bool huge = false;
  std::string target;
};

/// Threads that wait for the next piece of work by spinning, so that starting costs nothing.
class Team {
 public:
  explicit Team(uint32_t threads) {
    for (uint32_t t = 1; t < threads; ++t) {
      threads_.emplace_back([this, t](std::stop_token stop) {
        uint64_t seen = 0;
        while (!stop.stop_requested()) {
          if (round_.load(std::memory_order_acquire) == seen) continue;
          ++seen;
          work_(t);
          done_.fetch_add(1, std::memory_order_release);
        }
      });
    }
  }
  void run(const std::function<void(uint32_t)>& work) {
    work_ = work;
    done_.store(0, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    work(0);
    while (done_.load(std::memory_order_acquire) != threads_.size()) {
    }
  }

 private:
  std::function<void(uint32_t)> work_;
  std::atomic<uint64_t> round_{0};
  std::atomic<size_t> done_{0};
  std::vector<std::jthread> threads_;
};

/// The best time of one call, in seconds, of as many as fit the time.
double best_seconds(const Options& options, const std::function<void()>& call) {
  double best = 1e9;
  const auto until = Clock::now() + std::chrono::duration<double, std::milli>(options.ms);
  do {
    const auto begin = Clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  } while (Clock::now() < until);
  return best;
}

uint8_t* map_bytes(size_t bytes, bool huge) {
  const size_t rounded = (bytes + (2u << 20) - 1) & ~size_t{(2u << 20) - 1};
  void* memory = aligned_alloc(2u << 20, rounded);
  madvise(memory, rounded, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(memory, 0x11, rounded);
  return static_cast<uint8_t*>(memory);
}

void read_plainly(const uint8_t* from, size_t bytes) {
  using Words = uint64_t __attribute__((vector_size(64), aligned(64)));
  Words sum[4] = {};
  for (size_t i = 0; i + 256 <= bytes; i += 256) {
    __builtin_prefetch(from + i + 4096);
    __builtin_prefetch(from + i + 4096 + 64);
    __builtin_prefetch(from + i + 4096 + 128);
    __builtin_prefetch(from + i + 4096 + 192);
    for (int j = 0; j < 4; ++j) sum[j] |= *reinterpret_cast<const Words*>(from + i + 64 * j);
  }
  sum[0] |= sum[1] | sum[2] | sum[3];
  asm volatile("" : : "m"(sum[0]));
}

/// A format as the bench needs it.
struct Format {
  std::string name;
  bool encoded;
  std::function<uint64_t(uint64_t)> group_bytes, row_bytes;
  std::function<void(const uint8_t* const* rows, uint64_t k, uint8_t* out)> pack;
};

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const quant_gguf::BlockFormat& block : quant_gguf::kBlockFormats) {
    formats.push_back(
        {block.name, true, [&block](uint64_t k) { return block.layout.group_bytes(k); },
         [&block](uint64_t k) { return k / block.layout.block() * block.block_bytes; },
         block.pack});
  }
  for (const quant_gguf::BlockFormat& block : quant_gguf::kBlockFormats) {
    formats.push_back(
        {std::string(block.name) + "_f32", false,
         [&block](uint64_t k) { return block.layout.group_bytes(k); },
         [&block](uint64_t k) { return k / block.layout.block() * block.block_bytes; },
         block.pack});
  }
  for (const auto& [name, layout] : {std::pair{"f32", kernels::FloatLayout::kF32},
                                     {"f16", kernels::FloatLayout::kF16},
                                     {"bf16", kernels::FloatLayout::kBF16}}) {
    const kernels::FloatLayout each = layout;
    formats.push_back({name, false, [each](uint64_t k) { return float_group_bytes(each, k); },
                       [each](uint64_t k) { return k * float_bytes(each); },
                       [each](const uint8_t* const* rows, uint64_t k, uint8_t* out) {
                         pack_floats(each, rows, k, out);
                       }});
  }
  formats.push_back({"nvfp4", true, [](uint64_t k) { return kernels::nvfp4_group_bytes(k); },
                     [](uint64_t k) { return k / 2 + k / 16; },  // codes, then scales
                     [](const uint8_t* const* rows, uint64_t k, uint8_t* out) {
                       const uint8_t* scales[kernels::kRowGroup];
                       for (uint32_t r = 0; r < kernels::kRowGroup; ++r)
                         scales[r] = rows[r] + k / 2;
                       kernels::pack_nvfp4(rows, scales, 1.0f, k, out);
                     }});
  for (const auto& [name, scales] : {std::pair{"fp8", kernels::Fp8Scales::kRow},
                                     {"fp8_b128", kernels::Fp8Scales::kBlock},
                                     {"mxfp8", kernels::Fp8Scales::kMx}}) {
    const kernels::Fp8Scales each = scales;
    formats.push_back({name, false, [each](uint64_t k) { return fp8_group_bytes(each, k); },
                       [](uint64_t k) { return k; },
                       [each](const uint8_t* const* rows, uint64_t k, uint8_t* out) {
                         pack_fp8_codes(each, rows, k, out);
                       }});
  }
  return formats;
}

struct Case {
  const Format& format;
  uint32_t n, k, m;
};

uint64_t x_bytes_of(const Case& test) {
  return test.format.encoded ? kernels::i16b32_row_bytes(test.k) : test.k * sizeof(float);
}

/// Rows of x as the format's products take them.
Aligned inputs(const Case& test) {
  Aligned x(x_bytes_of(test) * test.m);
  std::vector<float> row(test.k);
  for (uint32_t i = 0; i < test.k; ++i) row[i] = static_cast<float>(i % 17) - 8.0f;
  for (size_t i = 0; !test.format.encoded && i < x.size() / sizeof(float); ++i) {
    x.as<float>()[i] = row[i % test.k];
  }
  for (size_t b = 0; test.format.encoded && b < x.size() / sizeof(kernels::I16B32Block); ++b) {
    kernels::encode_i16b32_block(row.data() + b % (test.k / 32) * 32,
                                 x.as<kernels::I16B32Block>() + b);
  }
  return x;
}

double kernel_seconds(const Options& options, Team& team, kernels::cpu::Kernel kernel,
                      const void* params, uint32_t tasks) {
  std::atomic<uint32_t> next{0};
  return best_seconds(options, [&] {
    next.store(0);
    team.run([&](uint32_t) {
      const uint32_t chunk = std::max(1u, tasks / (options.threads * 8));
      for (uint32_t at; (at = next.fetch_add(chunk)) < tasks;) {
        kernel(params, at, std::min(tasks, at + chunk), nullptr);
      }
    });
  });
}

double product_seconds(const Options& options, const CpuPack& pack, Team& team, const Case& test,
                       const uint8_t* weights) {
  Aligned x = inputs(test);
  Aligned y(sizeof(float) * test.n * test.m);
  kernels::LinearParams params{};
  params.x = x.data();
  params.weight = weights;
  params.y = y.as<float>();
  params.row_count = &test.m;
  params.x_row_bytes = x_bytes_of(test);
  params.y_stride = test.n;
  params.n = test.n;
  params.k = test.k;
  return kernel_seconds(options, team, pack.kernel("linear_" + test.format.name), &params,
                        kernels::linear_tasks(test.n));
}

/// Every row of x has kEach of the experts, as many as fit the memory at most.
void measure_experts(const Options& options, const CpuPack& pack, Team& team, const Case& test,
                     const uint8_t* weights, size_t bytes) {
  constexpr uint32_t kEach = 10;
  const uint64_t expert_bytes = test.n / 16 * test.format.group_bytes(test.k);
  const auto fit = static_cast<uint32_t>(bytes / expert_bytes);
  const uint32_t experts = std::max(kEach, std::min(options.experts, fit));
  std::vector<std::vector<uint32_t>> rows_of(experts);
  for (uint32_t i = 0; i < test.m * kEach; ++i) rows_of[i * 37 % experts].push_back(i / kEach);
  std::vector<uint32_t> offsets(1);
  std::vector<uint32_t> source;
  uint32_t busy = 0;
  for (const std::vector<uint32_t>& rows : rows_of) {
    source.insert(source.end(), rows.begin(), rows.end());
    offsets.push_back(static_cast<uint32_t>(source.size()));
    busy += rows.empty() ? 0 : 1;
  }
  Aligned x = inputs(test);
  Aligned y(sizeof(float) * test.n * source.size());
  kernels::GroupedParams params{};
  params.x = x.data();
  params.weight = weights;
  params.y = y.as<float>();
  params.offsets = offsets.data();
  params.source = source.data();
  params.x_row_bytes = x_bytes_of(test);
  params.y_stride = test.n;
  params.expert_bytes = expert_bytes;
  params.n = test.n;
  params.k = test.k;
  params.experts = experts;
  params.tasks = kernels::grouped_tasks(test.n, std::min(experts, offsets.back()));
  const double seconds = kernel_seconds(options, team, pack.kernel("grouped_" + test.format.name),
                                        &params, params.tasks);
  std::printf("%-8s m %-4u of %u experts n %-5u k %-5u %9.1f us  %6.1f GB/s  %7.1f GMAC/s\n",
              test.format.name.c_str(), test.m, experts, test.n, test.k, seconds * 1e6,
              static_cast<double>(busy * expert_bytes) / seconds / 1e9,
              double{1} * test.n * test.k * source.size() / seconds / 1e9);
}

void measure(const Options& options) {
  const CpuPack pack;
  Team team(options.threads);
  constexpr size_t kBytes = 128u << 20;
  uint8_t* memory = map_bytes(kBytes, options.huge);
  const double read = best_seconds(options, [&] {
    team.run([&](uint32_t thread) {
      const size_t part = kBytes / options.threads;
      read_plainly(memory + thread * part, part);
    });
  });
  std::printf("plain read of %zu MB, %u threads: %.1f GB/s\n", kBytes >> 20, options.threads,
              kBytes / read / 1e9);
  for (const Format& format : all_formats()) {
    if (!options.format.empty() && options.format != format.name) continue;
    for (const uint32_t m : options.rows) {
      // m 0 stands for one row over all of the memory; the rest take weights that fit a cache.
      const uint32_t k = 1536;
      if (options.experts != 0) {
        const Case test{format, 512, k, std::max(m, 1u)};
        measure_experts(options, pack, team, test, memory, kBytes);
        continue;
      }
      const auto all = static_cast<uint32_t>(kBytes / format.group_bytes(k) * 16);
      const Case test{format, m == 0 ? all : 256u, k, std::max(m, 1u)};
      const double seconds = product_seconds(options, pack, team, test, memory);
      const double bytes = static_cast<double>(test.n) / 16 * format.group_bytes(k);
      std::printf("%-8s m %-4u n %-7u k %-5u %9.1f us  %6.1f GB/s  %7.1f GMAC/s\n",
                  test.format.name.c_str(), test.m, test.n, k, seconds * 1e6, bytes / seconds / 1e9,
                  double{1} * test.n * k * test.m / seconds / 1e9);
    }
  }
  std::free(memory);
}

/// One thread packs 32 MB of rows.
void measure_pack(const Options& options) {
  for (const Format& format : all_formats()) {
    if (!options.format.empty() && options.format != format.name) continue;
    const uint64_t k = 1536;
    const uint64_t groups = (32u << 20) / format.group_bytes(k);
    std::vector<uint8_t> from(groups * 16 * format.row_bytes(k), 0x22);
    Aligned to(groups * format.group_bytes(k));
    const double seconds = best_seconds(options, [&] {
      for (uint64_t g = 0; g < groups; ++g) {
        const uint8_t* rows[16];
        for (uint64_t r = 0; r < 16; ++r) {
          rows[r] = from.data() + (g * 16 + r) * format.row_bytes(k);
        }
        format.pack(rows, k, to.as<uint8_t>() + g * format.group_bytes(k));
      }
    });
    std::printf("%-8s packs %5.2f GB/s a thread\n", format.name.c_str(),
                from.size() / seconds / 1e9);
  }
}

void add_options(CLI::App& program, Options& options) {
  std::vector<std::string> formats, targets;
  for (const Format& format : all_formats()) formats.push_back(format.name);
  for (const CpuTarget& target : cpu_targets()) targets.push_back(target.name);
  program.add_option("--threads", options.threads, "Threads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  program.add_option("--format", options.format, "One format of weights (default: all)")
      ->check(CLI::IsMember(formats));
  program.add_option("--rows", options.rows, "Rows, one number or several; 0: one row from DRAM")
      ->capture_default_str();
  program.add_option("--ms", options.ms, "Milliseconds of a figure")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  program
      .add_option("--experts", options.experts,
                  "Products of so many experts, ten a row, instead of plain ones")
      ->check(CLI::PositiveNumber);
  program.add_flag("--huge", options.huge, "Weights in huge pages");
  program.add_option("--target", options.target, "Instructions (default: the best here)")
      ->check(CLI::IsMember(targets));
}

}  // namespace
}  // namespace atlas::test

int main(int count, char** arguments) {
  using namespace atlas::test;
  Options options;
  CLI::App program("Measures the products of the CPU pack");
  add_options(program, options);
  try {
    program.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : 2;
  }
  for (const CpuTarget& target : cpu_targets()) {
    if (options.target != target.name) continue;
    hwy::SetSupportedTargetsForTest(target.bit);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  measure(options);
  if (options.experts == 0) measure_pack(options);
  return 0;
}

// Measures the sums of EXL3 products: weights a second that are decoded for one row, and
// multiply-adds a second for more. Not a test; prints a table.
//   bench_exl3 [--threads N] [--codebook NAME] [--bits K]... [--rows M]... [--ms TIME]
//   [--target AVX2]
// Exit status: 0 good, 2 wrong usage.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/exl3.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"

namespace atlas::test {
namespace {

using Clock = std::chrono::steady_clock;

const std::vector<std::string> kCodebooks = {"3inst", "mcg", "mul1"};

struct Options {
  uint32_t threads = 1;
  std::string codebook, target;
  std::vector<double> bits{2, 3, 4};
  std::vector<uint32_t> rows{1, 8, 512};
  double ms = 300;
};

void measure(const Options& options, const CpuPack& pack, const std::string& codebook, double bits,
             uint32_t rows) {
  constexpr uint32_t kN = 2048, kK = 2560;
  const auto units = static_cast<uint32_t>(2 * bits);
  Aligned strips(kN / kernels::kExl3Strip * kernels::exl3_strip_bytes(units, kK));
  std::mt19937_64 random(1);
  for (size_t i = 0; i < strips.size() / 8; ++i) strips.as<uint64_t>()[i] = random();
  Aligned x(sizeof(float) * kK * rows), sums(sizeof(float) * kN * rows);
  for (size_t i = 0; i < size_t{kK} * rows; ++i) x.as<float>()[i] = static_cast<float>(i % 17) - 8;
  kernels::Exl3ProductParams params{};
  params.x = x.as<float>();
  params.strips = strips.data();
  params.sums = sums.as<float>();
  params.row_count = &rows;
  params.n = kN;
  params.k = kK;
  params.units = units;
  params.rows = rows;
  params.tasks = kN / kernels::kExl3Strip;
  double best = 1e9;
  const auto until = Clock::now() + std::chrono::duration<double, std::milli>(options.ms);
  do {
    // The process's time on its processors: others that run beside it do not count.
    const std::clock_t begin = std::clock();
    pack.run("exl3_product_" + codebook, params, params.tasks, Split{options.threads, 4});
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    best = std::min(best, seconds / options.threads);
  } while (Clock::now() < until);
  const double weights = double{1} * kN * kK;
  std::printf("%-5s %3.1f bits  m %-4u %9.1f us  %6.2f G weights/s  %6.2f GB/s  %7.1f GMAC/s\n",
              codebook.c_str(), bits, rows, best * 1e6, weights / best / 1e9,
              static_cast<double>(strips.size()) / best / 1e9, weights * rows / best / 1e9);
}

void add_options(CLI::App& program, Options& options) {
  std::vector<std::string> targets;
  for (const CpuTarget& target : cpu_targets()) targets.push_back(target.name);
  program.add_option("--threads", options.threads, "Threads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  program.add_option("--codebook", options.codebook, "One codebook (default: all)")
      ->check(CLI::IsMember(kCodebooks));
  program.add_option("--bits", options.bits, "Bits a weight, one number or several")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  program.add_option("--rows", options.rows, "Rows, one number or several")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  program.add_option("--ms", options.ms, "Milliseconds of a figure")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  program.add_option("--target", options.target, "Instructions (default: the best here)")
      ->check(CLI::IsMember(targets));
}

}  // namespace
}  // namespace atlas::test

int main(int count, char** arguments) {
  using namespace atlas::test;
  Options options;
  CLI::App program("Measures the sums of EXL3 products");
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
  const CpuPack pack;
  for (const std::string& codebook : kCodebooks) {
    if (!options.codebook.empty() && options.codebook != codebook) continue;
    for (const double bits : options.bits) {
      if (!atlas::kernels::exl3_has(codebook == "mul1" ? atlas::kernels::Exl3Codebook::kMul1
                                                       : atlas::kernels::Exl3Codebook::kMcg,
                                    static_cast<uint32_t>(2 * bits))) {
        continue;
      }
      for (const uint32_t rows : options.rows) measure(options, pack, codebook, bits, rows);
    }
  }
  return 0;
}

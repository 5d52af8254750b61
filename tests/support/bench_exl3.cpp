// Measures the sums of EXL3 products: weights a second that are decoded for one row, and
// multiply-adds a second for more. Not a test; prints a table.
//   bench_exl3 [--threads N] [--codebook NAME] [--bits K]... [--rows M]... [--ms TIME]
//   [--target AVX2]
// Exit status: 0 good, 2 wrong usage.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/exl3.h"
#include "tests/support/bench_options.h"
#include "tests/support/cpu_pack.h"
#include "tests/support/cpu_targets.h"

namespace atlas::test {
namespace {

using Clock = std::chrono::steady_clock;

const std::vector<std::string> kCodebooks = {"3inst", "mcg", "mul1"};

struct Options {
  uint32_t threads = 1;
  std::string codebook, target;
  std::vector<double> bits;
  std::vector<uint32_t> rows;
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

/// -1, or the exit status.
int parse(int count, char** arguments, Options& options) {
  BenchOptions command_line;
  const auto one_of = [](const std::vector<std::string>& names, std::string& chosen) {
    return [&chosen, names](const std::string& name) {
      chosen = name;
      return std::find(names.begin(), names.end(), name) != names.end();
    };
  };
  std::vector<std::string> targets;
  for (const CpuTarget& target : cpu_targets()) targets.push_back(target.name);
  command_line.count("--threads", "threads (1)", [&](uint32_t n) { options.threads = n; });
  command_line.option("--codebook", "3inst, mcg or mul1 (all)",
                      one_of(kCodebooks, options.codebook));
  command_line.measure("--bits", "bits a weight, again for more (2, 3, 4)",
                       [&](double bits) { options.bits.push_back(bits); });
  command_line.count("--rows", "rows, again for more (1, 8, 512)",
                     [&](uint32_t rows) { options.rows.push_back(rows); });
  command_line.measure("--ms", "milliseconds of a figure (300)",
                       [&](double ms) { options.ms = ms; });
  command_line.option("--target", "instructions, as AVX2 (the best here)",
                      one_of(targets, options.target));
  const int code = command_line.parse(count, arguments);
  if (options.bits.empty()) options.bits = {2, 3, 4};
  if (options.rows.empty()) options.rows = {1, 8, 512};
  return code;
}

}  // namespace
}  // namespace atlas::test

int main(int count, char** arguments) {
  using namespace atlas::test;
  Options options;
  const int code = parse(count, arguments, options);
  if (code >= 0) return code;
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

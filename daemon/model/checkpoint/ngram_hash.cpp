// Trial division is enough: sizes near 2e7 need 2,236 odd divisors for each of some 90 candidates.
#include "daemon/model/checkpoint/ngram_hash.h"

#include <algorithm>

namespace atlas::model {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kMaxRows = 1ull << 48;

bool is_prime(uint64_t n) {
  if (n < 4) return n >= 2;
  if (n % 2 == 0) return false;
  for (uint64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

}  // namespace

uint64_t splitmix64(uint64_t value) {
  value += kGamma;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

Status derive_ngram_constants(const NgramSeed& from, NgramConfig* config) {
  const uint64_t half = std::max<uint64_t>(1, static_cast<uint64_t>(INT64_MAX) / from.vocab / 2);
  config->multipliers.clear();
  for (uint64_t i = 0; i < config->ngram_size; ++i) {
    config->multipliers.push_back(2 * (splitmix64(from.seed + kGamma * (i + 1)) % half) + 1);
  }
  config->head_sizes.clear();
  config->head_offsets.clear();
  uint64_t rows = 0, candidate = from.size_base;
  for (uint32_t head = 0; head < config->heads(); ++head, ++candidate) {
    while (!is_prime(candidate)) ++candidate;
    config->head_sizes.push_back(candidate);
    config->head_offsets.push_back(rows);
    rows += candidate;
    if (rows > kMaxRows) return invalid_argument("the n-gram table has more than 2^48 rows");
  }
  const uint64_t rest = rows % from.divisible_by;
  config->rows = rest == 0 ? rows : rows + (from.divisible_by - rest);
  return {};
}

}  // namespace atlas::model
